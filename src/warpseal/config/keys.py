"""The one list of configuration keys: what each means, how it is read, and which room's setting it becomes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpseal.aggregation.settings import AggregationSettings
from warpseal.api.data_settings import Compat, DataApiSettings
from warpseal.api.node_settings import NodeApiSettings
from warpseal.api.settings import ApiSettings
from warpseal.config import index_values as iv
from warpseal.config import values as v
from warpseal.forwarding.settings import ForwardingSettings
from warpseal.health.settings import HealthSettings
from warpseal.index.settings import IndexSettings
from warpseal.indexer.indexing_settings import IndexingSettings
from warpseal.indexer.settings import IndexerSettings
from warpseal.l1.settings import L1Settings
from warpseal.node.endpoint import NodeEndpoint
from warpseal.node.evm_chain import EvmChain
from warpseal.node.settings import NodeSettings
from warpseal.peers.settings import ManualPeer, PeerSettings
from warpseal.plugins.settings import PluginSettings
from warpseal.prices.settings import PriceSettings
from warpseal.prices.urls import host_of
from warpseal.profiles.settings import ProfileSettings
from warpseal.store.settings import StoreSettings
from warpseal.store.url import shown_url
from warpseal.validators.settings import ValidatorSettings
from warpseal.warp.ids import id_text, node_id_text

MEBIBYTE = 1024 * 1024
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration: each room's settings, and what is logged (levels are names of the reference).

    log_display_level: None is the log_level. log_dir: None is no files.
    """

    api: ApiSettings
    aggregation: AggregationSettings
    validators: ValidatorSettings
    peers: PeerSettings
    node: NodeSettings
    l1: L1Settings
    indexer: IndexerSettings
    store: StoreSettings
    data: DataApiSettings
    prices: PriceSettings
    ext: NodeApiSettings
    health: HealthSettings
    index: IndexSettings
    indexing: IndexingSettings
    plugins: PluginSettings
    profiles: ProfileSettings
    forwarding: ForwardingSettings
    log_level: str = "info"
    log_display_level: str | None = None
    log_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the config file. target: "room.field" of Config.

    reference: the reference aggregator knows the key too, so its unprefixed environment name counts. secret: never
    shown, and no flag, which everybody on the machine could read.
    """

    name: str
    target: str
    parse: v.Parser[Any]
    help: str
    metavar: str = "N"
    reference: bool = False
    required: bool = False
    secret: bool = False


PORT = v.integer(0, 65535)
COUNT = v.integer(1, 10**9)
UNITS = v.integer(0, 10**12)

KEYS = (
    Key(
        "p-chain-api",
        "node.p_chain_api",
        v.one_or_more(v.node_endpoint),
        "node(s) for platform.* calls",
        "JSON",
        True,
        True,
    ),
    Key("info-api", "node.info_api", v.one_or_more(v.node_endpoint), "node(s) for info.* calls", "JSON", True, True),
    Key(
        "log-level",
        "log_level",
        v.one_of(*v.LOG_LEVELS),
        "how much is logged: " + ", ".join(v.LOG_LEVELS),
        "LEVEL",
        True,
    ),
    Key("api-port", "api.api_port", PORT, "port of the HTTP API; 0 takes a free one and prints it", "PORT", True),
    Key("metrics-port", "api.metrics_port", PORT, "port of /metrics; 0 takes a free one and prints it", "PORT", True),
    Key("signature-cache-size", "aggregation.signature_cache_size", COUNT, "messages whose shares are kept", "N", True),
    Key(
        "allow-private-ips", "peers.allow_private_ips", v.boolean, "dial validators at private addresses", "BOOL", True
    ),
    Key(
        "tracked-subnet-ids",
        "validators.tracked_subnet_ids",
        v.list_of(v.subnet_id),
        "subnets to stay connected to",
        "IDS",
        True,
    ),
    Key(
        "manually-tracked-peers",
        "peers.manual_peers",
        v.list_of(v.manual_peer),
        "nodes with a known address",
        "JSON",
        True,
    ),
    Key(
        "tls-cert-path",
        "peers.tls_cert_path",
        v.optional_path,
        "own certificate instead of the one in data-dir",
        "FILE",
        True,
    ),
    Key("tls-key-path", "peers.tls_key_path", v.optional_path, "key of tls-cert-path", "FILE", True),
    Key(
        "max-p-chain-lookback",
        "validators.max_p_chain_lookback",
        v.integer(-(10**18), 10**18),
        "how far back a requested height may lie; negative: any",
        reference=True,
    ),
    Key(
        "validator-refresh-period-seconds",
        "validators.validator_refresh_period_s",
        v.seconds(1, HOUR_S),
        "how often the followed validator sets are refreshed",
        "SECONDS",
        reference=True,
    ),
    Key("api-host", "api.api_host", v.text, "address that the HTTP API listens on", "HOST"),
    Key("metrics-host", "api.metrics_host", v.text, "address that /metrics listens on", "HOST"),
    Key("data-dir", "peers.data_dir", v.path_value, "folder of the identity and the known addresses", "DIR"),
    Key("network-names", "api.network_names", v.list_of(v.text), "names that {network} in a path may take", "NAMES"),
    Key(
        "request-timeout-seconds",
        "aggregation.default_timeout_s",
        v.seconds(0.1, HOUR_S),
        "a request's time",
        "SECONDS",
    ),
    Key(
        "max-request-timeout-seconds",
        "aggregation.max_timeout_s",
        v.seconds(0.1, HOUR_S),
        "the longest time that a request may ask for",
        "SECONDS",
    ),
    Key(
        "buffer-wait-seconds",
        "aggregation.buffer_wait_s",
        v.seconds(0, HOUR_S),
        "how long the buffer is awaited",
        "SECONDS",
    ),
    Key(
        "signature-cache-bytes", "aggregation.cache_bytes", v.integer(MEBIBYTE, 10**12), "memory for shares and answers"
    ),
    Key("max-requests-in-flight", "api.max_requests_in_flight", COUNT, "requests at once; half of them for one client"),
    Key("max-body-bytes", "api.max_body_bytes", v.integer(1024, 10**9), "largest request body"),
    Key("max-message-bytes", "api.max_message_bytes", v.integer(64, 10**9), "largest message or justification"),
    Key(
        "receive-timeout-seconds", "api.receive_timeout_s", v.seconds(0.1, HOUR_S), "time to send a request", "SECONDS"
    ),
    Key(
        "grace-period-seconds", "api.grace_period_s", v.seconds(0, HOUR_S), "time to finish requests on stop", "SECONDS"
    ),
    Key("ignore-unknown-fields", "api.ignore_unknown_fields", v.boolean, "ignore unknown request fields", "BOOL"),
    Key("advertised-version", "peers.advertised_version", v.version, "node version that peers are told", "X.Y.Z"),
    Key("max-connections", "peers.max_connections", COUNT, "peer connections at once"),
    Key("max-outstanding-per-peer", "peers.max_outstanding", v.integer(1, 1000), "unanswered requests to one peer"),
    Key(
        "max-requests-per-second-per-peer", "peers.max_sent_per_s", v.integer(1, 10**5), "requests a second to one peer"
    ),
    Key("node-timeout-seconds", "node.call_timeout_s", v.seconds(0.1, HOUR_S), "time of one call to a node", "SECONDS"),
    Key(
        "upstream-at-once", "node.upstream_at_once", v.integer(1, 10**4), "calls to one node at once that callers cause"
    ),
    Key(
        "upstream-per-second",
        "node.upstream_per_s",
        v.integer(1, 10**5),
        "calls a second to one node that callers cause",
    ),
    Key(
        "eager-l1-messages",
        "l1.eager_l1_messages",
        v.boolean,
        "sign what is accepted about tracked subnets at once, unasked",
        "BOOL",
    ),
    Key("evm-chains", "node.evm_chains", v.evm_chains, "EVM chains, and where their nodes are", "JSON"),
    Key(
        "evm-deny-methods",
        "forwarding.deny_methods",
        v.list_of(v.method),
        "RPC methods that nobody may call on any EVM chain; a trailing * stands for any ending",
        "NAMES",
    ),
    Key(
        "evm-call-timeout-seconds",
        "forwarding.call_timeout_s",
        v.seconds(0.1, HOUR_S),
        "how long a call of an EVM chain may take",
        "SECONDS",
    ),
    Key("evm-max-sockets", "forwarding.max_sockets", COUNT, "WebSocket clients of each EVM chain"),
    Key("evm-max-subscriptions", "forwarding.max_subscriptions", COUNT, "subscriptions of each WebSocket client"),
    Key(
        "follow-p-chain",
        "indexer.follow_p_chain",
        v.boolean,
        "read accepted P-Chain blocks for L1 transactions",
        "BOOL",
    ),
    Key(
        "follow-from-height",
        "indexer.follow_from_height",
        v.integer(0, 10**18),
        "lowest P-Chain block that is read; unset: the first one of Etna",
    ),
    Key(
        "follow-requests-per-second",
        "node.follow_per_s",
        v.integer(1, 10**5),
        "calls a second to one node for blocks, apart from those of callers",
    ),
    Key("follow-requests-in-flight", "node.follow_at_once", v.integer(1, 1000), "calls to one node at once for blocks"),
    Key(
        "follow-poll-seconds",
        "indexer.follow_poll_s",
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
        "http-allowed-origins",
        "data.http_allowed_origins",
        v.list_of(v.origin),
        "sites whose pages may read answers; * is any",
        "ORIGINS",
    ),
    Key(
        "max-index-lag-seconds",
        "data.max_index_lag_s",
        v.seconds(0, 365 * 24 * HOUR_S),
        "answers from an index that lags further are refused; 0: none",
        "SECONDS",
    ),
    Key(
        "compat",
        "data.compat",
        v.choice(Compat),
        "shapes where specification and SDKs disagree: spec, sdk, or auto (by user agent)",
        "WHOSE",
    ),
    Key("rate-limit-per-minute", "data.rate_limit_per_minute", UNITS, "compute units without a key; 0: any number"),
    Key("rate-limit-per-day", "data.rate_limit_per_day", UNITS, "the same for a day"),
    Key("rate-limit-loopback", "data.rate_limit_loopback", v.boolean, "limit clients on this machine, too", "BOOL"),
    Key("price-file", "prices.file", v.optional_path, "prices of AVAX: a CSV of date,currency,price", "FILE"),
    Key("price-url", "prices.url", v.price_url, "prices of AVAX: a JSON document, with {date} and {currency}", "URL"),
    Key("price-path", "prices.path", v.price_path, "where in that document the price stands: a.0.{currency}", "PATH"),
    Key("require-api-key", "data.require_api_key", v.boolean, "serve /v1 to callers with an API key only", "BOOL"),
    Key("api-admin-enabled", "ext.admin_enabled", v.boolean, "serve /ext/admin", "BOOL"),
    Key(
        "admin-token",
        "ext.admin_token",
        v.secret,
        "who has it may use /ext/admin; without one, this machine only (never a flag)",
        "TOKEN",
        secret=True,
    ),
    Key("api-health-enabled", "ext.health_enabled", v.boolean, "serve /ext/health", "BOOL"),
    Key(
        "http-allowed-hosts",
        "ext.allowed_hosts",
        v.list_of(v.text),
        "names by which clients may call /ext; addresses always pass, * is any",
        "NAMES",
    ),
    Key("chain-aliases-file", "ext.chain_aliases_file", v.optional_path, "JSON: blockchain id -> aliases", "FILE"),
    Key("vm-aliases-file", "plugins.aliases_file", v.optional_path, "JSON: VM id -> aliases", "FILE"),
    Key("plugin-dir", "plugins.plugin_dir", v.optional_path, "VM plugins; unset: plugins in data-dir", "DIR"),
    Key(
        "plugin-protocol-version",
        "plugins.protocol_version",
        v.integer(0, 10**6),
        "version of the protocol that VM plugins have to speak; 0: that of the info node",
    ),
    Key("profile-dir", "profiles.profile_dir", v.optional_path, "profiles; unset: profiles in data-dir", "DIR"),
    Key(
        "memory-profile-frames",
        "profiles.memory_frames",
        v.integer(0, 100),
        "calls of each allocation that are kept, which costs much; 0: none",
    ),
    Key(
        "health-check-frequency",
        "health.check_frequency_s",
        v.duration(0.1, HOUR_S),
        "how often health is checked: 30s, or seconds",
        "DURATION",
    ),
    Key(
        "health-max-lag",
        "health.max_lag_s",
        v.duration(1, 24 * HOUR_S),
        "a followed chain that is further behind is unhealthy: 2m, or seconds",
        "DURATION",
    ),
    Key(
        "log-display-level",
        "log_display_level",
        v.one_of(*v.LOG_LEVELS),
        "how much of the log is displayed; unset: as log-level",
        "LEVEL",
    ),
    Key(
        "index-chains",
        "indexing.chains",
        v.list_of(iv.primary_chain),
        "chains that are indexed: p, x, c; none: no index",
        "CHAINS",
    ),
    Key(
        "index-from",
        "indexing.first_heights",
        iv.first_heights,
        'first height of each chain, such as {"c": 30000000}; unset: all from the beginning',
        "JSON",
    ),
    Key(
        "genesis-file",
        "indexing.genesis_file",
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
        "indexing.per_s",
        v.integer(1, 10**6),
        "calls a second to one node for the index",
    ),
    Key("index-requests-in-flight", "indexing.at_once", v.integer(1, 1000), "calls to one node at once for the index"),
    Key("log-dir", "log_dir", v.optional_path, "folder of the log files, one for each logger; unset: none", "DIR"),
)

_ROOMS = {
    "api": ApiSettings,
    "aggregation": AggregationSettings,
    "validators": ValidatorSettings,
    "peers": PeerSettings,
    "node": NodeSettings,
    "l1": L1Settings,
    "indexer": IndexerSettings,
    "store": StoreSettings,
    "data": DataApiSettings,
    "prices": PriceSettings,
    "ext": NodeApiSettings,
    "health": HealthSettings,
    "index": IndexSettings,
    "indexing": IndexingSettings,
    "plugins": PluginSettings,
    "profiles": ProfileSettings,
    "forwarding": ForwardingSettings,
}


def build(parsed: Mapping[str, Any]) -> Config:
    """Return the configuration of parsed values by key name; everything else is a default. Raises Faults."""
    _check_together(parsed)
    rooms: dict[str, dict[str, Any]] = {room: {} for room in _ROOMS}
    rooms["peers"]["data_dir"] = default_data_dir()
    top: dict[str, Any] = {}
    for key in KEYS:
        if key.name in parsed:
            room, _, field = key.target.rpartition(".")
            (rooms[room] if room else top)[field] = parsed[key.name]
    return Config(**{room: settings(**rooms[room]) for room, settings in _ROOMS.items()}, **top)


def describe(key: Key, config: Config) -> str:
    """Return the effective value of a key, fit to print: of a node only scheme, host and port, of a secret nothing."""
    room, _, field = key.target.rpartition(".")
    value = getattr(getattr(config, room) if room else config, field)
    if key.secret:
        return "set" if value else "none"
    if key.parse is v.price_url:
        return host_of(value) or "none"
    return _shown(shown_url(value) if key.parse is v.store_url else value)


def default_data_dir() -> Path:
    """Return the folder under the user's state directory (XDG_STATE_HOME, else ~/.local/state)."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "warpseal"


def _check_together(parsed: Mapping[str, Any]) -> None:
    faults = []
    if bool(parsed.get("tls-cert-path")) != bool(parsed.get("tls-key-path")):
        faults.append(v.Fault("tls-cert-path", "tls-cert-path and tls-key-path go together"))
    longest = parsed.get("max-request-timeout-seconds", AggregationSettings().max_timeout_s)
    if parsed.get("request-timeout-seconds", 0) > longest:
        faults.append(v.Fault("request-timeout-seconds", f"longer than max-request-timeout-seconds ({longest:g})"))
    ports = (
        parsed.get("api-port", ApiSettings().api_port),
        parsed.get("metrics-port", ApiSettings().metrics_port),
    )
    if ports[0] == ports[1] != 0:
        faults.append(v.Fault("metrics-port", f"is the api-port too ({ports[0]})"))
    if faults:
        raise v.Faults(*faults)


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and value and all(isinstance(part, int) for part in value):
        return ".".join(map(str, value))
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{_shown(key)}: {number}" for key, number in value.items()) or "none"
    if isinstance(value, NodeEndpoint):
        return value.shown
    if isinstance(value, EvmChain):
        return f"{id_text(value.blockchain_id)} at {_shown(value.rpc)}"
    if isinstance(value, ManualPeer):
        return f"{node_id_text(value.node_id)} at {value.host}:{value.port}"
    if isinstance(value, bytes):
        return id_text(value)
    return "none" if value in (None, "") else str(value)
