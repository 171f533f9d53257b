"""Settings of the indexer of the primary chains and of NFT metadata, and their parsers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict, replace
from yarl import URL

from warpseal.chains.evm.nft_document import MAX_DOCUMENT_BYTES
from warpseal.chains.evm.token_uri import Gateways
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.retry import Backoff, Pace
from warpseal.runtime.settings import (
    DAY_S,
    HOUR_S,
    Group,
    InvalidSetting,
    SettingError,
    Settings,
    boolean,
    integer,
    invalid_setting,
    json_object,
    list_of,
    optional_path,
    setting,
    text,
    url,
)
from warpseal.upstream.address_policy import ExemptServer, allowed_host, display_hosts

DEFAULT_GATEWAYS: Final = Gateways(
    ("https://ipfs.io", "https://dweb.link"), ("https://arweave.net",)
)


def primary_chain(value: Any, path: str) -> PrimaryChain:
    """Accept p, x or c, or the whole name of the chain."""
    chains = {name: chain for chain in PrimaryChain for name in (chain.value, chain.value[0])}
    chain = chains.get(text(value, path).lower())
    if chain is None:
        raise invalid_setting(path, "expected p, x or c")
    return chain


def first_heights(value: Any, path: str) -> Mapping[PrimaryChain, int]:
    """Accept an object of heights by chain, or its JSON text."""
    try:
        heights = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        heights = None
    if not isinstance(heights, dict):
        raise invalid_setting(path, 'expected heights by chain, such as {"c": 30000000}')
    parse_height = integer(0, 2**40 - 1)
    parsed: dict[PrimaryChain, int] = {}
    errors: list[SettingError] = []
    for name, number in heights.items():
        try:
            parsed[primary_chain(name, f"{path}.{name}")] = parse_height(number, f"{path}.{name}")
        except InvalidSetting as error:
            errors += error.errors
    if errors:
        raise InvalidSetting(*errors)
    return parsed


def gateway_url(value: Any, path: str) -> str:
    """Accept the base URL of a gateway, with or without the path /ipfs, which is appended."""
    return url("http", "https")(value, path).removesuffix("/ipfs")


def parse_gateways(value: Any, path: str) -> Gateways:
    """Accept an object with the base URLs of one kind or both; a missing kind has its defaults."""
    parsers = {"ipfs": list_of(gateway_url), "arweave": list_of(url("http", "https"))}
    return replace(DEFAULT_GATEWAYS, **json_object(value, path, parsers, required=set()))


def display_origins(gateways: Gateways) -> Mapping[str, tuple[str, ...]]:
    """Return scheme, host and port of gateways: a path may hold a key."""
    return {
        kind: tuple(str(URL(base).origin()) for base in urls)
        for kind, urls in asdict(gateways).items()
    }


class IndexerSettings(Settings, frozen=True):
    """Durations in seconds.

    poll_s: interval at which nodes are polled for new blocks.
    checkpoint_blocks, checkpoint_s: number of blocks, or time, after which the P-Chain's state is
        written, so that little is repeated after a restart.
    """

    chains: tuple[PrimaryChain, ...] = setting(
        (),
        "index-chains",
        list_of(primary_chain),
        "chains to index, of p, x, c; none: no index",
        "CHAINS",
        group=Group.INDEX,
    )
    first_heights: Mapping[PrimaryChain, int] = setting(
        {},
        "index-from",
        first_heights,
        'first indexed height by chain, such as {"c": 30000000}; unset: the first block of each',
        "JSON",
        group=Group.INDEX,
    )
    genesis_file: Path | None = setting(
        None,
        "genesis-file",
        optional_path,
        "P-Chain genesis, plain or zstd; mainnet and Fuji need none",
        "FILE",
        group=Group.INDEX,
    )
    poll_s: float = 1.0
    call_timeout_s: float = 30.0
    low_priority: bool = setting(
        True,
        "index-low-priority",
        boolean,
        "lowest CPU priority of the indexer: nice 19 and, on Linux, SCHED_IDLE",
        "BOOL",
        group=Group.INDEX,
    )

    checkpoint_blocks: int = 20_000
    checkpoint_s: float = 60.0
    retry_first_s: float = 0.5
    retry_cap_s: float = 10.0
    retry_stopped_s: float = 60.0
    log_every_s: float = 10.0
    restart_first_s: float = 1.0
    restart_cap_s: float = 60.0

    @property
    def pace(self) -> Pace:
        """The pace of each chain."""
        return Pace(
            self.poll_s, Backoff(self.retry_first_s, self.retry_cap_s), self.retry_stopped_s
        )


class MetadataSettings(Settings, frozen=True):
    """Gateways of NFT metadata, servers that may be at private addresses, and limits.

    Durations in seconds.

    allowed_hosts: host and port, port None for any.
    timeout_s: timeout of a document with its redirects.
    max_requests: number of requests at a time in a process, of which reindex_requests are for
        reindex requests alone.
    requests_per_host: requests to a host at a time, and as many for reindex requests.
    retry_delays_s: delays after failed attempts; after the last one only a page or a request leads
        to an attempt.
    reindex_s: time in which a reindex request has an outcome. max_queued,
    max_queued_per_contract: documents that wait, per chain and reason.
    idle_s, crowded_s: intervals at which the index is read for work, the second one while a
        contract has its share of the queue.
    full_queue_s: interval at which documents of other hosts get a chance while the queue is full;
        postponed_s: time for which those that they displace are left out.
    """

    gateways: Gateways = setting(
        DEFAULT_GATEWAYS,
        "metadata-gateways",
        parse_gateways,
        "gateways for NFT metadata, in order: /ipfs/CID is appended to those of ipfs, /ID to those"
        " of arweave",
        "JSON",
        group=Group.EVM,
        display=display_origins,
    )
    allowed_hosts: tuple[tuple[str, int | None], ...] = setting(
        (),
        "metadata-allowed-hosts",
        list_of(allowed_host),
        "servers of NFT metadata that may be at private addresses and other ports: host, or"
        " host:port",
        "HOSTS",
        group=Group.EVM,
        display=display_hosts,
    )
    timeout_s: float = 15.0
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    max_redirects: int = 3
    max_requests: int = 16
    reindex_requests: int = 4
    requests_per_host: int = 2
    retry_delays_s: tuple[float, ...] = (60.0, 600.0, HOUR_S, 6 * HOUR_S, DAY_S)
    reindex_s: float = 17.0
    max_queued: int = 1_024
    max_queued_per_contract: int = 256
    idle_s: float = 15.0
    crowded_s: float = 0.2
    full_queue_s: float = 1.0
    postponed_s: float = 600.0

    @property
    def exempt_servers(self) -> frozenset[ExemptServer]:
        """The configured servers: any address is allowed, of gateways only their own paths."""
        bases = [base + path for base in self.gateways.ipfs for path in ("/ipfs/", "/ipns/")]
        gateways = (URL(base) for base in (*bases, *(f"{base}/" for base in self.gateways.arweave)))
        return frozenset(
            (
                *(ExemptServer(host, port, "/") for host, port in self.allowed_hosts),
                *(ExemptServer(base.raw_host or "", base.port, base.raw_path) for base in gateways),
            )
        )
