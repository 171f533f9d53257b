"""The configuration and its keys, walked from the Settings classes of all packages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Final, get_type_hints

from msgspec import Struct

from warpseal.aggregation.settings import AggregationSettings
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.http.settings import ApiSettings
from warpseal.api.node.settings import NodeApiSettings
from warpseal.delivery.settings import DeliverySettings
from warpseal.errors import StartupError
from warpseal.forwarding.settings import EvmRpcSettings, GatewaySettings
from warpseal.index.settings import INDEX_PARTS, PRIMARY_INDEX, IndexPlace, IndexSettings
from warpseal.indexer.settings import IndexerSettings, MetadataSettings
from warpseal.l1.settings import FollowerSettings, L1Settings
from warpseal.node.settings import NodeSettings
from warpseal.ops.settings import HealthSettings, LogSettings, PluginSettings
from warpseal.peers.settings import ManualPeer, PeerSettings
from warpseal.prices.settings import PriceSettings
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.process import is_missing
from warpseal.runtime.settings import REQUIRED, Group, Setting, SettingError, Settings
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreUrl, is_server, redacted_url, tls_files
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, L1sNode, NodeEndpoint
from warpseal.usage.settings import UsageSettings
from warpseal.validators.settings import SetSource, UptimeSettings, ValidatorSettings
from warpseal.warp.ids import id_text, node_id_text


class Config(Struct, frozen=True):
    """The settings of all packages, in the order in which the docs have their keys."""

    node: NodeSettings
    gateway: GatewaySettings
    logs: LogSettings
    api: ApiSettings
    aggregation: AggregationSettings
    peers: PeerSettings
    validators: ValidatorSettings
    l1: L1Settings
    delivery: DeliverySettings
    follower: FollowerSettings
    evm_rpc: EvmRpcSettings
    store: StoreSettings
    usage: UsageSettings
    uptime: UptimeSettings
    index: IndexSettings
    indexer: IndexerSettings
    metadata: MetadataSettings
    data_api: DataApiSettings
    prices: PriceSettings
    node_api: NodeApiSettings
    health: HealthSettings
    plugins: PluginSettings

    @property
    def set_source(self) -> SetSource:
        """The source of validator sets, by the index if it is not set."""
        has_index = PrimaryChain.P in self.indexer.chains
        return self.validators.set_source or (SetSource.BOTH if has_index else SetSource.NODE)

    @property
    def records_usage(self) -> bool:
        """Whether the usage of forwarded routes is recorded."""
        return self.usage.enabled or bool(self.gateway.nodes)


class Key(Struct, frozen=True):
    """A key of the config file, and the field of Config that it sets."""

    section: str
    field: str
    setting: Setting

    @property
    def name(self) -> str:
        """The name in the config file."""
        return self.setting.key

    def json_value(self, config: Config) -> Any:
        """Return the effective value as JSON, without secrets.

        A node has its scheme, host and port, a secret is `***`.
        """
        return self._json_value(getattr(getattr(config, self.section), self.field))

    @property
    def default_text(self) -> str:
        """The default without secrets."""
        if self.setting.is_required:
            return "required"
        default = self.setting.default
        return _DATA_DIR_TEXT if default is REQUIRED else _as_text(self._json_value(default))

    @property
    def help(self) -> str:
        """The help text of the flag: meaning, unit and default."""
        default = self.default_text
        if not self.setting.is_required:
            default = f"default {default}"
        return f"{self.setting.help} ({default})"

    def _json_value(self, value: Any) -> Any:
        if self.setting.is_secret:
            return "***" if value else None
        display = self.setting.display
        return _json_value(value if display is None else display(value))


def _keys() -> Iterator[Key]:
    for section, settings in _SECTIONS.items():
        for field, setting in settings.declared_fields.items():
            yield Key(section, field, setting)


_DATABASES: Final = ("store-url", "index-url", "metrics-db-url")
_DATA_DIR_TEXT: Final = "$XDG_STATE_HOME/warpseal, else ~/.local/state/warpseal"
_SECTIONS: Final[Mapping[str, type[Settings]]] = get_type_hints(Config)
GROUP_CONTENTS: Final[Mapping[Group, str]] = {
    Group.NETWORK: "nodes, validators and the connections to them",
    Group.HTTP: "addresses of the API, access to it, its answers",
    Group.STORE: "data folder, signatures, observed uptime",
    Group.INDEX: "history of the primary chains, prices",
    Group.EVM: "EVM chains and VM plugins",
    Group.LIMITS: "timeouts, rates, sizes",
    Group.LOGS: "levels, files and format of log lines",
}
"""Content of each group of settings."""
KEYS: Final = tuple(
    sorted(
        _keys(),
        key=lambda key: (
            list(GROUP_CONTENTS).index(key.setting.group),
            not key.setting.is_reference,
        ),
    )
)
"""Keys by group; the reference aggregator's come first."""


def build_config(parsed: Mapping[str, Any]) -> Config:
    """Return the configuration of parsed values by key name; everything else is a default."""
    values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for key in KEYS:
        if key.name in parsed:
            values[key.section][key.field] = parsed[key.name]
    if "data_dir" not in values["peers"]:
        values["peers"]["data_dir"] = default_data_dir()
    values["index"]["chains"] = {
        chain.blockchain_id: IndexPlace(chain.index_url, chain.index_read_urls)
        for chain in parsed.get("evm-chains", ())
        if chain.index_url
    }
    sections: dict[str, Any] = {
        section: settings(**values[section]) for section, settings in _SECTIONS.items()
    }
    return Config(**sections)


def default_data_dir() -> Path:
    """Return the folder under the user's state directory (XDG_STATE_HOME, else ~/.local/state).

    Raises StartupError for a user without a home folder.
    """
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "warpseal"
    except RuntimeError:
        reason = "this user has no home folder for the default"
        raise StartupError(
            f"data-dir: {reason}; set it in the config file or with --data-dir"
        ) from None


def find_contradictions(
    parsed: Mapping[str, Any], invalid_keys: Set[str]
) -> Iterator[SettingError]:
    """Yield the errors of keys that contradict each other.

    invalid_keys: keys whose own errors are reported.
    """
    for keys, find in _CONTRADICTIONS:
        # A key with an error of its own has no value to compare.
        if not invalid_keys & keys:
            yield from find(parsed)
    yield from _shared_ports(parsed, invalid_keys)


def _half_identity(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    if bool(parsed.get("tls-cert-path")) != bool(parsed.get("tls-key-path")):
        yield SettingError("tls-cert-path", "tls-cert-path and tls-key-path go together")


def _default_timeout(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    longest = parsed.get("max-request-timeout-seconds", AggregationSettings().max_timeout_s)
    if parsed.get("request-timeout-seconds", 0) > longest:
        reason = f"longer than max-request-timeout-seconds, {longest:g}"
        yield SettingError("request-timeout-seconds", reason)


def _too_few_nodes(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    nodes = len({node.base_url for node in parsed.get("p-chain-api", ())})
    quorum = parsed.get("p-chain-quorum", 1)
    if 0 < nodes < quorum:
        counted = "1 node" if nodes == 1 else f"{nodes} different nodes"
        reason = f"{quorum} nodes must agree, and p-chain-api names {counted}: add nodes"
        yield SettingError("p-chain-quorum", reason)


def _l1s_of_no_subnet(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    if parsed.get("index-l1s-at") and not parsed.get("tracked-subnet-ids"):
        advice = (
            "name the subnets of the L1s in tracked-subnet-ids, or the chains in evm-chains with"
            " index"
        )
        yield SettingError("index-l1s-at", f"finds no chain without tracked-subnet-ids: {advice}")


def _sets_without_index(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    source = parsed.get("validator-sets", SetSource.NODE)
    has_p_chain = PrimaryChain.P in parsed.get("index-chains", ())
    if source is not SetSource.NODE and not has_p_chain:
        reason = (
            f"{source} needs the index of the P-Chain: name p in index-chains, or set"
            " validator-sets to node"
        )
        yield SettingError("validator-sets", reason)


def _messages_without_index(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    has_indexed_chain = any(chain.index is not None for chain in parsed.get("evm-chains", ()))
    is_indexed = has_indexed_chain or bool(parsed.get("index-l1s-at"))
    if parsed.get("eager-icm") and not is_indexed:
        reason = "has no effect without an index: set index in evm-chains, or index-l1s-at"
        yield SettingError("eager-icm", reason)


def _methods_without_gateway(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    if parsed.get("gateway-methods") and not parsed.get("gateway-nodes"):
        advice = "name the nodes, or remove the setting"
        yield SettingError("gateway-methods", f"has no effect without gateway-nodes: {advice}")


def _shared_ports(parsed: Mapping[str, Any], invalid_keys: Set[str]) -> Iterator[SettingError]:
    defaults = ApiSettings()
    ports = {
        "api-port": defaults.api_port,
        "metrics-port": defaults.metrics_port,
        "metrics-api-port": defaults.metrics_api_port,
    }
    names_by_port: dict[int, str] = {}
    for name, default in ports.items():
        port = parsed.get(name, default)
        if name not in invalid_keys and port:
            if port in names_by_port:
                yield SettingError(name, f"is the {names_by_port[port]} too, {port}")
            names_by_port.setdefault(port, name)


def find_missing_files(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    """Yield the files that do not exist and that the daemon does not create itself.

    The daemon creates a certificate with its key if both are missing.
    """
    files: dict[str, Path | None] = {
        key.name: parsed.get(key.name) for key in KEYS if key.setting.metavar == "FILE"
    }
    pair = [files["tls-cert-path"], files["tls-key-path"]]
    if all(path is not None and is_missing(path) for path in pair):
        del files["tls-cert-path"], files["tls-key-path"]
    for number, chain in enumerate(parsed.get("evm-chains", ())):
        files[f"evm-chains[{number}].upgrade-file"] = chain.upgrade_file
    for name in _DATABASES:
        files |= {
            f"{name}[{parameter}]": path for parameter, path in tls_files(parsed.get(name, ""))
        }
    for name, path in files.items():
        if path is not None and is_missing(path):
            yield SettingError(name, f"there is no file {path}")


def _misplaced_indexes(parsed: Mapping[str, Any]) -> Iterator[SettingError]:
    """Yield the errors of replicas without a server, and of databases that share a file."""
    settings = IndexSettings(
        parsed.get("index-url", ""), read_urls=parsed.get("index-read-urls", ())
    )
    places = {part: settings.place(part) for part in INDEX_PARTS}
    parts = [part for part, place in places.items() if place.read_urls and not is_server(place.url)]
    if parts:
        reason = (
            "are replicas of a PostgreSQL server, and index-url names none for"
            f" {' and '.join(parts)}"
        )
        yield SettingError("index-read-urls", reason)
    urls = {"store-url": parsed.get("store-url", ""), "index-url": places[PRIMARY_INDEX].url}
    for number, chain in enumerate(parsed.get("evm-chains", ())):
        urls[f"evm-chains[{number}].index-url"] = chain.index_url
    names: dict[Path, str] = {}
    for name, url in urls.items():
        path = StoreUrl.parse(url).path if url else None
        if path is not None and names.setdefault(path, name) != name:
            yield SettingError(name, f"is the file of {names[path]} too: name another one")


_CONTRADICTIONS: Final[
    tuple[tuple[Set[str], Callable[[Mapping[str, Any]], Iterator[SettingError]]], ...]
] = (
    ({"tls-cert-path", "tls-key-path"}, _half_identity),
    ({"max-request-timeout-seconds"}, _default_timeout),
    ({"p-chain-api"}, _too_few_nodes),
    ({"tracked-subnet-ids"}, _l1s_of_no_subnet),
    ({"validator-sets", "index-chains"}, _sets_without_index),
    ({"evm-chains", "index-l1s-at"}, _messages_without_index),
    ({"index-url"}, _misplaced_indexes),
    ({"gateway-nodes"}, _methods_without_gateway),
)
"""Checks of keys that belong together, each with the keys whose own errors make it pointless."""


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple) and value and all(isinstance(part, int) for part in value):
        return ".".join(map(str, value))
    if isinstance(value, tuple):
        return list(map(_json_value, value))
    if isinstance(value, Mapping):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, NodeEndpoint):
        return value.display
    if isinstance(value, L1sNode):
        base_url = value.endpoint.display
        return {"base-url": base_url, "holders": True} if value.has_holders else base_url
    if isinstance(value, EvmChain):
        optional = {
            "ws": _json_value(value.ws),
            "upgrade-file": _json_value(value.upgrade_file),
            "deny-methods": _json_value(value.deny_methods),
            "index": _json_value(value.index),
            "index-url": redacted_url(value.index_url),
            "index-read-urls": list(map(redacted_url, value.index_read_urls)),
        }
        entries = {name: item for name, item in optional.items() if item}
        return {
            "blockchain-id": id_text(value.blockchain_id),
            "rpc": _json_value(value.rpc),
            **entries,
        }
    if isinstance(value, EvmIndexing):
        rate = {} if value.calls_per_s is None else {"calls-per-second": value.calls_per_s}
        rows = {"holders": True} if value.has_holders else {}
        rows |= {} if value.has_icm else {"icm": False}
        contracts = {"icm-messengers": value.icm_messengers, "icm-registries": value.icm_registries}
        icm = {name: list(addresses) for name, addresses in contracts.items() if addresses}
        modes = {"traces": str(value.traces), "metadata": str(value.metadata)}
        return {"from": value.first_height, **modes, **rate, **rows, **icm}
    if isinstance(value, ManualPeer):
        return {"id": node_id_text(value.node_id), "ip": f"{value.host}:{value.port}"}
    if isinstance(value, bytes):
        return id_text(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value in (None, ""):
        return None
    return value if isinstance(value, bool | int | float) else str(value)


def _as_text(value: Any) -> str:
    """Return a value as JSON has it in the words of the help."""
    if isinstance(value, list):
        return ", ".join(map(_as_text, value)) or "none"
    if value in (None, {}):
        return "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_as_text(item)}" for name, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
