"""Reading the configuration: flag > `WARPSEAL_X` > the reference's `X`, or a node's `AVAGO_X` >
file > default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.config.keys import (
    KEYS,
    Config,
    Key,
    build_config,
    default_data_dir,
    find_contradictions,
    find_missing_files,
)
from warpseal.errors import StartupError
from warpseal.runtime.settings import InvalidSetting, SettingError, nearest, unknown_key

ENVIRONMENT_PREFIX: Final = "WARPSEAL_"
NODE_PREFIX: Final = "AVAGO_"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
CONFIG_FILE_NAMES: Final = (f"{ENVIRONMENT_PREFIX}CONFIG_FILE", "CONFIG_FILE")
"""Variables that name the config file; the first one that is set wins."""
_OTHER_NAMES: Final = ("CONFIG_FILE", "BLS")
"""Names behind the prefix that are no keys."""
# The variables that Kubernetes sets in each pod for a service; of a service named "api", API_PORT
# is one of them.
_SERVICE_NAME: Final = re.compile(
    r".*_(?:SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_.*)?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://.*")


class ConfigError(StartupError):
    """The configuration has errors; the text names all of them."""

    def __init__(self, errors: tuple[SettingError, ...]) -> None:
        listed = "".join(f"\n  {error}" for error in errors)
        plural = "s" if len(errors) > 1 else ""
        super().__init__(f"the configuration has {len(errors)} fault{plural}:{listed}")
        self.errors = errors


class Loaded(Struct, frozen=True):
    """A valid configuration, and the source of each key that is not a default.

    unknown_names: WARPSEAL_ variables that belong to no setting; empty if names are checked
        strictly.
    """

    config: Config
    sources: Mapping[str, str]
    unknown_names: tuple[SettingError, ...]


def load(
    file: Path | None, flags: Mapping[str, str], environ: Mapping[str, str], *, strict: bool = False
) -> Loaded:
    """Return the configuration of these layers. Raises ConfigError naming every error.

    flags: text of each flag by the name of its key.
    strict: whether unknown WARPSEAL_ names of the environment and files that do not exist are
        errors.
    """
    errors: list[SettingError] = []
    raw = _read_file(file, environ, errors) if file else {}
    sources = dict.fromkeys(raw, f"file {file}")
    for key in KEYS:
        name = _environment_name(key, environ)
        if name:
            raw[key.name], sources[key.name] = environ[name], f"environment {name}"
        if key.name in flags:
            raw[key.name], sources[key.name] = flags[key.name], f"flag --{key.name}"
    values = _parse(raw, sources, errors)
    missing = [key.name for key in KEYS if key.setting.is_required and key.name not in raw]
    errors += [
        SettingError(
            name, f"missing, and there is no default; set it in the config file or with --{name}"
        )
        for name in missing
    ]
    contradictions = [*find_contradictions(values, raw.keys() - values.keys())]
    contradictions += find_missing_files(values) if strict else ()
    errors += [
        replace(error, source=sources.get(error.path.partition("[")[0], ""))
        for error in contradictions
    ]
    unknown_names = tuple(_unknown_names(environ))
    if strict:
        errors += unknown_names
    if errors:
        raise ConfigError(tuple(errors))
    return Loaded(build_config(values), sources, unknown_names)


def find_data_dir(file: Path | None, flag: str | None, environ: Mapping[str, str]) -> Path:
    """Return `data-dir` of these layers; other keys may be invalid. Raises ConfigError."""
    return find_value("data-dir", file, flag, environ) or default_data_dir()


def find_value(name: str, file: Path | None, flag: str | None, environ: Mapping[str, str]) -> Any:
    """Return the value of a key in these layers; None if no layer has it.

    Other keys may be invalid. Raises ConfigError.
    """
    key = next(key for key in KEYS if key.name == name)
    environment_name = _environment_name(key, environ)
    value = flag or (environ[environment_name] if environment_name else None)
    if value is None and file is not None:
        value = _read_file(file, environ, []).get(name)
    try:
        return None if value is None else key.setting.parse(value, name)
    except InvalidSetting as error:
        raise ConfigError(error.errors) from error


def find_service_addresses(environ: Mapping[str, str]) -> Iterator[SettingError]:
    """Yield the variables that are ignored because Kubernetes set them to the address of a
    service.
    """
    for name in (name for key in KEYS for name in _environment_names(key)):
        if name in environ and _is_service(name, environ):
            yield SettingError(
                name, f"Kubernetes sets it to the address of a service: {environ[name][:60]}"
            )


def names_nodes(file: Path | None, environ: Mapping[str, str]) -> bool:
    """Return whether file and environment have the required keys, which name nodes.

    Raises ConfigError.
    """
    content = {} if file is None else _read_file(file, environ, [])
    required = (key for key in KEYS if key.setting.is_required)
    return all(key.name in content or _environment_name(key, environ) for key in required)


def _environment_name(key: Key, environ: Mapping[str, str]) -> str | None:
    return next(
        (
            name
            for name in _environment_names(key)
            if environ.get(name) and not _is_service(name, environ)
        ),
        None,
    )


def _environment_names(key: Key) -> Iterator[str]:
    """Yield the names of the environment variables of a key; the first one that is set wins."""
    bare = key.name.upper().replace("-", "_")
    yield ENVIRONMENT_PREFIX + bare
    if key.setting.is_reference:
        yield bare
    if key.setting.is_node:
        yield NODE_PREFIX + bare


def _is_service(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set a variable for a service."""
    if _SERVICE_NAME.fullmatch(name):
        return True
    return name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(environ[name]) is not None


def _unknown_names(environ: Mapping[str, str]) -> Iterator[SettingError]:
    names = {key.name.upper().replace("-", "_") for key in KEYS} | set(_OTHER_NAMES)
    for name in sorted(environ):
        bare = name.removeprefix(ENVIRONMENT_PREFIX)
        if bare != name and bare not in names and environ[name] and not _is_service(name, environ):
            removal, near = REMOVED_KEYS.get(bare.lower().replace("_", "-")), nearest(bare, names)
            advice = f"; did you mean {ENVIRONMENT_PREFIX}{near}?" if near else ""
            unknown = f"unknown name of an environment variable{advice}"
            yield SettingError(name, f"removed: {removal}" if removal else unknown)


def _parse(
    raw: Mapping[str, Any], sources: Mapping[str, str], errors: list[SettingError]
) -> dict[str, Any]:
    by_name = {key.name: key for key in KEYS}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        key = by_name.get(name)
        if key is None:
            reason = unknown_key(name, by_name)
            if name in REMOVED_KEYS:
                reason = f"removed: {REMOVED_KEYS[name]}"
            errors.append(SettingError(name, reason, sources[name]))
            continue
        try:
            values[name] = key.setting.parse(value, name)
        except InvalidSetting as error:
            errors += [replace(cause, source=sources[name]) for cause in error.errors]
    return values


def _read_file(
    file: Path, environ: Mapping[str, str], errors: list[SettingError]
) -> dict[str, Any]:
    source = next(
        (f"environment {name}" for name in CONFIG_FILE_NAMES if environ.get(name) == str(file)), ""
    )
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_FILE_BYTES + 1)
        content = json.loads(
            text, object_pairs_hook=lambda pairs: _object(pairs, f"file {file}", errors)
        )
    except OSError as error:
        raise ConfigError(
            (SettingError(str(file), f"cannot be read: {error.strerror}", source),)
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError((SettingError(str(file), f"is not JSON: {error}", source),)) from error
    if not isinstance(content, dict):
        raise ConfigError((SettingError(str(file), "expected a JSON object at the top", source),))
    return content


def _object(
    pairs: list[tuple[str, Any]], source: str, errors: list[SettingError]
) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            errors.append(SettingError(name, "given twice", source))
        content[name] = value
    return content


_NODE_LIMITS: Final = (
    "node-requests-in-flight and node-requests-per-second limit all calls to one node"
)
_RETENTION: Final = (
    "the retention of usage is fixed: hours 90 days, days 800 days, weeks and months for ever"
)
_METRICS_API_LIMITS: Final = (
    "the limits of the Metrics API are fixed: 8,000 compute units a minute, 1,200,000 a day"
)
_METADATA_GATEWAYS: Final = (
    'metadata-gateways has both kinds: {"ipfs": [URL, ...], "arweave": [URL, ...]}'
)
_GATEWAY_METHODS: Final = (
    "gateway-methods has both, denied ones with a ! before them: info.get*, !info.peers"
)
_PEER_LIMITS: Final = "the limits of one peer are fixed"

# Keys that earlier versions had, each with the sentence that says what replaced it.
REMOVED_KEYS: Final[Mapping[str, str]] = {
    "buffer-wait-seconds": "a request waits 2 seconds for the quorum buffer",
    "client-address-header": (
        "trusted-proxies append the address of their client to X-Forwarded-For"
    ),
    "client-country-header": "trusted-proxies name the country of their client in CF-IPCountry",
    "contract-info-dir": "descriptions of contracts are read from the folder contracts in data-dir",
    "delivery-window-seconds": "a message may take 30 seconds to its block",
    "evm-call-timeout-seconds": "forwarded calls time out after 30 seconds",
    "evm-max-sockets": "a chain has at most 4,096 WebSocket clients",
    "evm-max-subscriptions": "a WebSocket client has at most 100 subscriptions",
    "follow-from-height": "the daemon reads the P-Chain from the first block of Etna",
    "follow-poll-seconds": "the daemon polls nodes for new blocks every second",
    "follow-requests-in-flight": _NODE_LIMITS,
    "follow-requests-per-second": _NODE_LIMITS,
    "gateway-allow-methods": _GATEWAY_METHODS,
    "gateway-deny-methods": _GATEWAY_METHODS,
    "index-requests-in-flight": _NODE_LIMITS,
    "index-requests-per-second": _NODE_LIMITS,
    "log-display-level": "log-level is the level of the files and of the standard output",
    "max-connections": (
        "the limit of open files (ulimit -n, LimitNOFILE) bounds the connections to peers"
    ),
    "max-message-bytes": "a message or justification has at most 64 KiB",
    "max-outstanding-per-peer": _PEER_LIMITS,
    "max-requests-per-second-per-peer": _PEER_LIMITS,
    "memory-profile-frames": "memory profiles show live objects by type; memray shows allocations",
    "metadata-arweave-gateways": _METADATA_GATEWAYS,
    "metadata-ipfs-gateways": _METADATA_GATEWAYS,
    "metrics-api-rate-limit-per-day": _METRICS_API_LIMITS,
    "metrics-api-rate-limit-per-minute": _METRICS_API_LIMITS,
    "metrics-db-max-bytes": "usage takes at most 4 GiB of the metrics database",
    "metrics-host": "api-host is the address of all ports",
    "network-names": "the names that paths may take follow from the network id",
    "observed-max-age-seconds": "uptime records are kept for 30 days",
    "plugin-protocol-version": "the daemon asks the nodes for the version of the plugin protocol",
    "price-file": "prices are read from prices.csv in data-dir",
    "price-path": (
        "append the place of the price to price-url, behind a #:"
        " https://HOST/{date}#market.0.{currency}"
    ),
    "profile-dir": "profiles are written to the folder profiles in data-dir",
    "receive-timeout-seconds": "a request has 10 seconds to arrive",
    "upstream-requests-in-flight": _NODE_LIMITS,
    "upstream-requests-per-second": _NODE_LIMITS,
    "usage-day-retention-seconds": _RETENTION,
    "usage-flush-seconds": "usage is written to the metrics database every 5 seconds",
    "usage-hour-retention-seconds": _RETENTION,
    "usage-minute-retention-seconds": "usage is kept by hour, day, week and month",
    "usage-month-retention-seconds": _RETENTION,
    "usage-week-retention-seconds": _RETENTION,
    "vm-aliases-file": "aliases of virtual machines are read from vm-aliases.json in data-dir",
}
