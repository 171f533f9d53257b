"""Keys of the chains that are read or stood in front of: EVM chains, the followed P-Chain, the store and the index."""

from __future__ import annotations

from typing import Final

from warpseal.config import index_values as iv
from warpseal.config import values as v
from warpseal.config.key import COUNT, HOUR_S, MEBIBYTE, Key

CHAIN_KEYS: Final = (
    Key("evm-chains", "node.evm_chains", v.evm_chains, "EVM chains, and where their nodes are", "JSON"),
    Key(
        "evm-deny-methods",
        "evm_rpc.deny_methods",
        v.list_of(v.method),
        "RPC methods that nobody may call on any EVM chain; a trailing * stands for any ending",
        "NAMES",
    ),
    Key(
        "evm-call-timeout-seconds",
        "evm_rpc.call_timeout_s",
        v.seconds(0.1, HOUR_S),
        "how long a call of an EVM chain may take",
        "SECONDS",
    ),
    Key("evm-max-sockets", "evm_rpc.max_sockets", COUNT, "WebSocket clients of each EVM chain"),
    Key("evm-max-subscriptions", "evm_rpc.max_subscriptions", COUNT, "subscriptions of each WebSocket client"),
    Key(
        "follow-p-chain",
        "follower.follow_p_chain",
        v.boolean,
        "read accepted P-Chain blocks for L1 transactions",
        "BOOL",
    ),
    Key(
        "follow-from-height",
        "follower.follow_from_height",
        v.integer(0, 10**18),
        "lowest P-Chain block that is read; unset: the first one of Etna",
    ),
    Key(
        "follow-requests-per-second",
        "node.follow_calls_per_s",
        v.integer(1, 10**5),
        "calls a second to one node for blocks, apart from those of callers",
    ),
    Key(
        "follow-requests-in-flight",
        "node.follow_max_concurrency",
        v.integer(1, 1000),
        "calls to one node at once for blocks",
    ),
    Key(
        "follow-poll-seconds",
        "follower.follow_poll_s",
        v.seconds(0.1, HOUR_S),
        "how often nodes are asked for new blocks",
        "SECONDS",
    ),
    Key(
        "store-url",
        "store.url",
        v.store_url,
        "sqlite:///PATH, postgresql://USER@HOST/NAME or off; unset: a file in data-dir",
        "URL",
    ),
    Key("store-max-bytes", "store.max_bytes", v.integer(MEBIBYTE, 10**15), "bytes of what the store may evict, about"),
    Key(
        "store-max-age-seconds",
        "store.max_age_s",
        v.seconds(60, 100 * 366 * 24 * HOUR_S),
        "how long unused is what the store evicts",
        "SECONDS",
    ),
    Key(
        "observed-max-age-seconds",
        "uptime.retention_s",
        v.seconds(24 * HOUR_S, 366 * 24 * HOUR_S),
        "for how long it is kept how nodes were reached in each hour",
        "SECONDS",
    ),
    Key(
        "index-chains",
        "indexer.chains",
        v.list_of(iv.primary_chain),
        "chains that are indexed: p, x, c; none: no index",
        "CHAINS",
    ),
    Key(
        "index-from",
        "indexer.first_heights",
        iv.first_heights,
        'first height of each chain, such as {"c": 30000000}; unset: all from the beginning',
        "JSON",
    ),
    Key(
        "genesis-file",
        "indexer.genesis_file",
        v.optional_path,
        "P-Chain genesis, plain or zstd; mainnet and Fuji need none",
        "FILE",
    ),
    Key(
        "index-url",
        "index.url",
        v.store_url,
        "sqlite:///PATH or postgresql://USER@HOST/NAME; unset: a file in data-dir",
        "URL",
    ),
    Key("index-cache-bytes", "index.cache_bytes", v.integer(MEBIBYTE, 10**12), "memory for pages of the index"),
    Key(
        "index-requests-per-second",
        "indexer.calls_per_s",
        v.integer(1, 10**6),
        "calls a second to one node for the index",
    ),
    Key(
        "index-requests-in-flight",
        "indexer.max_concurrency",
        v.integer(1, 1000),
        "calls to one node at once for the index",
    ),
    Key(
        "index-low-priority",
        "indexer.low_priority",
        v.boolean,
        "index only when the machine has nothing else to do: nice 19, SCHED_IDLE",
    ),
)
