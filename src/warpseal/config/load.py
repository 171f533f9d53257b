"""Reading the configuration: flag > `WARPSEAL_X` > the reference's `X`, or a node's `AVAGO_X` > file > default."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpseal.config.keys import KEYS, Config, Key, build_config, default_data_dir
from warpseal.errors import StartupError
from warpseal.runtime.settings import InvalidSetting, SettingFault

ENVIRONMENT_PREFIX = "WARPSEAL_"
NODE_PREFIX = "AVAGO_"
MAX_FILE_BYTES = 16 * 1024 * 1024


class ConfigError(StartupError):
    """The configuration has faults; the text names all of them."""

    def __init__(self, faults: tuple[SettingFault, ...]) -> None:
        listed = "".join(f"\n  {fault}" for fault in faults)
        super().__init__(f"the configuration has {len(faults)} fault{'s' if len(faults) > 1 else ''}:{listed}")
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration and where each key that is not a default came from."""

    config: Config
    sources: Mapping[str, str]


def load(file: Path | None, flags: Mapping[str, str], environ: Mapping[str, str]) -> Loaded:
    """Return the configuration of these layers. flags: key name -> text. Raises ConfigError naming every fault."""
    faults: list[SettingFault] = []
    raw = _read_file(file, faults) if file else {}
    sources = dict.fromkeys(raw, f"file {file}")
    for key in KEYS:
        name = _environment_name(key, environ)
        if name:
            raw[key.name], sources[key.name] = environ[name], f"environment {name}"
        if key.name in flags:
            raw[key.name], sources[key.name] = flags[key.name], f"flag --{key.name}"
    values = _parse(raw, faults)
    missing = [key.name for key in KEYS if key.setting.is_required and key.name not in raw]
    faults += [SettingFault(name, "missing, and there is no default") for name in missing]
    if faults:
        raise ConfigError(tuple(faults))
    try:
        return Loaded(build_config(values), sources)
    except InvalidSetting as error:
        raise ConfigError(error.faults) from error


def find_data_dir(file: Path | None, flag: str | None, environ: Mapping[str, str]) -> Path:
    """Return `data-dir` of these layers, whatever the other keys are. Raises ConfigError."""
    key = next(key for key in KEYS if key.name == "data-dir")
    name = _environment_name(key, environ)
    value = flag or (environ[name] if name else None)
    if value is None and file is not None:
        value = _read_file(file, []).get(key.name)
    try:
        return default_data_dir() if value is None else Path(key.setting.parse(value, key.name))
    except InvalidSetting as error:
        raise ConfigError(error.faults) from error


def _environment_name(key: Key, environ: Mapping[str, str]) -> str | None:
    bare = key.name.upper().replace("-", "_")
    names = [ENVIRONMENT_PREFIX + bare]
    if key.setting.is_reference:
        names.append(bare)
    if key.setting.is_node:
        names.append(NODE_PREFIX + bare)
    return next((name for name in names if environ.get(name)), None)


def _parse(raw: Mapping[str, Any], faults: list[SettingFault]) -> dict[str, Any]:
    by_name = {key.name: key for key in KEYS}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        key = by_name.get(name)
        if key is None:
            faults.append(SettingFault(name, _unknown(name, by_name)))
            continue
        try:
            values[name] = key.setting.parse(value, name)
        except InvalidSetting as error:
            faults += error.faults
    return values


def _unknown(name: str, known: Mapping[str, Key]) -> str:
    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1)
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"


def _read_file(file: Path, faults: list[SettingFault]) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_FILE_BYTES + 1)
        content = json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, faults))
    except OSError as error:
        raise ConfigError((SettingFault(str(file), f"cannot be read: {error.strerror}"),)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError((SettingFault(str(file), f"is not JSON: {error}"),)) from error
    if not isinstance(content, dict):
        raise ConfigError((SettingFault(str(file), "expected a JSON object at the top"),))
    return content


def _object(pairs: list[tuple[str, Any]], faults: list[SettingFault]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            faults.append(SettingFault(name, "given twice"))
        seen[name] = value
    return seen
