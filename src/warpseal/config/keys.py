"""All configuration keys in one list, and the configuration that they make: each room's own settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warpseal.aggregation.settings import AggregationSettings
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.node.settings import NodeApiSettings
from warpseal.api.settings import ApiSettings
from warpseal.config import values as v
from warpseal.config.chain_keys import CHAIN_KEYS
from warpseal.config.data_keys import DATA_KEYS
from warpseal.config.key import Key
from warpseal.config.node_keys import NODE_KEYS
from warpseal.config.signing_keys import SIGNING_KEYS
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.index.settings import IndexSettings
from warpseal.indexer.settings import IndexerSettings
from warpseal.l1.follower.settings import FollowerSettings
from warpseal.l1.settings import L1Settings
from warpseal.node.endpoint import EvmChain, NodeEndpoint
from warpseal.node.settings import NodeSettings
from warpseal.ops.health.settings import HealthSettings
from warpseal.ops.plugins.settings import PluginSettings
from warpseal.ops.profiles.settings import ProfileSettings
from warpseal.peers.settings import ManualPeer, PeerSettings
from warpseal.prices.settings import PriceSettings
from warpseal.prices.urls import display_host
from warpseal.store.settings import StoreSettings
from warpseal.store.url import redacted_url
from warpseal.validators.settings import ValidatorSettings
from warpseal.validators.uptime.settings import UptimeSettings
from warpseal.warp.ids import id_text, node_id_text


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
    follower: FollowerSettings
    store: StoreSettings
    uptime: UptimeSettings
    data_api: DataApiSettings
    prices: PriceSettings
    node_api: NodeApiSettings
    health: HealthSettings
    index: IndexSettings
    indexer: IndexerSettings
    plugins: PluginSettings
    profiles: ProfileSettings
    evm_rpc: EvmRpcSettings
    log_level: str = "info"
    log_display_level: str | None = None
    log_dir: Path | None = None


KEYS: Final = (*SIGNING_KEYS, *CHAIN_KEYS, *DATA_KEYS, *NODE_KEYS)

_ROOMS = {
    "api": ApiSettings,
    "aggregation": AggregationSettings,
    "validators": ValidatorSettings,
    "peers": PeerSettings,
    "node": NodeSettings,
    "l1": L1Settings,
    "follower": FollowerSettings,
    "store": StoreSettings,
    "uptime": UptimeSettings,
    "data_api": DataApiSettings,
    "prices": PriceSettings,
    "node_api": NodeApiSettings,
    "health": HealthSettings,
    "index": IndexSettings,
    "indexer": IndexerSettings,
    "plugins": PluginSettings,
    "profiles": ProfileSettings,
    "evm_rpc": EvmRpcSettings,
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
        return display_host(value) or "none"
    return _shown(redacted_url(value) if key.parse is v.store_url else value)


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
        return value.display
    if isinstance(value, EvmChain):
        return f"{id_text(value.blockchain_id)} at {_shown(value.rpc)}"
    if isinstance(value, ManualPeer):
        return f"{node_id_text(value.node_id)} at {value.host}:{value.port}"
    if isinstance(value, bytes):
        return id_text(value)
    return "none" if value in (None, "") else str(value)
