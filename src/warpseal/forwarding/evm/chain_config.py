"""The configuration of a subnet-evm chain, built from genesis and upgrade file as by its nodes.

Source of truth: avalanchego `graft/subnet-evm/plugin/evm/vm.go` (parseGenesis),
`params/config_extra.go`, `params/extras/network_upgrades.go`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from warpseal.errors import StartupError
from warpseal.forwarding.evm.chain_facts import EvmChainFacts
from warpseal.forwarding.evm.precompiles import (
    DEFAULT_FEES,
    FEE_MANAGER,
    KEYS,
    Config,
    active_precompiles,
    address,
    fees_as_json,
    precompile_as_json,
    precompile_upgrade_as_json,
    quantity,
    timestamp,
)
from warpseal.ledger.params import UNSCHEDULED_S
from warpseal.runtime.go_json import field_names
from warpseal.runtime.process import os_error_text
from warpseal.runtime.settings import MEBIBYTE
from warpseal.runtime.single_flight import SingleFlight
from warpseal.warp.ids import ChainID

log = logging.getLogger(__name__)

_MAX_FILE_BYTES: Final = 16 * MEBIBYTE
_RETRY_S: Final = 2.0
_NETWORK_UPGRADES: Final = (
    "subnetEVM",
    "durango",
    "etna",
    "fortuna",
    "granite",
    "helicon",
    "igloo",
)
_BLOCKS: Final = (
    "homesteadBlock", "eip150Block", "eip155Block", "eip158Block", "byzantiumBlock",
    "constantinopleBlock", "petersburgBlock", "istanbulBlock", "muirGlacierBlock", "berlinBlock",
    "londonBlock",
)  # fmt: skip
_OPTIONAL_FIELDS: Final = (
    "daoForkBlock", "daoForkSupport", "arrowGlacierBlock", "grayGlacierBlock",
    "mergeNetsplitBlock", "shanghaiTime", "cancunTime", "pragueTime", "verkleTime",
    "terminalTotalDifficulty", "terminalTotalDifficultyPassed", "initialMinDelayMS",
    "allowFeeRecipients",
)  # fmt: skip
_TIME_NAMES: Final = tuple(f"{name}Timestamp" for name in _NETWORK_UPGRADES)
_GENESIS: Final = field_names("config")
_CONFIG: Final = field_names("chainId", "feeConfig", *_OPTIONAL_FIELDS, *_BLOCKS, *_TIME_NAMES)
_UPGRADES: Final = field_names("networkUpgradeOverrides", "stateUpgrades", "precompileUpgrades")
_TIMES: Final = field_names(*_TIME_NAMES)
_STATE_UPGRADE: Final = field_names("blockTimestamp", "accounts")
_ACCOUNT: Final = field_names("code", "storage", "balanceChange")
_TIMED_FORKS: Final = ("shanghai", "cancun", "prague", "verkle")


class NotSubnetEvm(ValueError):
    """A genesis, or an upgrade file, that is not of subnet-evm."""


class ChainConfig(Struct, frozen=True):
    """The configuration of a chain.

    settings: values except precompiles and upgrades, by name, JSON-ready.
    genesis_precompiles: configurations of precompiles in the genesis, by key.
    upgrades: content of the operators' upgrade.json, JSON-ready.
    """

    settings: Mapping[str, Any]
    genesis_precompiles: Mapping[str, Config]
    upgrades: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the result of eth_getChainConfig: names in their order, `upgrades` last."""
        rules = {**self.settings, **self.genesis_precompiles}
        return {**dict(sorted(rules.items())), "upgrades": dict(self.upgrades)}

    def precompiles_at(self, moment: int) -> dict[str, Config]:
        """Return the result of eth_getActivePrecompilesAt."""
        upgrades = self.upgrades.get("precompileUpgrades", ())
        return active_precompiles(moment, self.genesis_precompiles, upgrades)

    def has_fee_manager(self, moment: int) -> bool:
        """Return whether subnet-evm's rules and the fee manager precompile are active at a time."""
        has_rules = self._is_reached("subnetEVMTimestamp", moment)
        return has_rules and FEE_MANAGER in self.precompiles_at(moment)

    def fees(self, moment: int) -> Mapping[str, int]:
        """Return the fees at a time without an active fee manager."""
        fees: Mapping[str, int] = self.settings["feeConfig"]
        return fees if self._is_reached("subnetEVMTimestamp", moment) else DEFAULT_FEES

    def rules_at(self, moment: int) -> dict[str, Any]:
        """Return the result of eth_getActiveRulesAt; rules of block numbers are those of block 0.

        Nodes before 1.15.1 know no Igloo, neither here nor in info.upgrades.
        """
        ethereum: dict[str, Any] = {"ChainID": self.settings.get("chainId", 0)}
        forks = [name.removesuffix("Block") for name in _BLOCKS if name != "muirGlacierBlock"]
        ethereum |= {_rule_name(fork): self._is_reached(f"{fork}Block", 0) for fork in forks}
        ethereum["IsMerge"] = True
        for fork in _TIMED_FORKS:
            ethereum[_rule_name(fork)] = self._is_reached(f"{fork}Time", moment)
        avalanche: dict[str, bool] = {}
        for name in _NETWORK_UPGRADES:
            if name != "igloo" or "iglooTimestamp" in self.settings:
                avalanche[_rule_name(name)] = self._is_reached(f"{name}Timestamp", moment)
        active = self.precompiles_at(moment).items()
        times = {key: {"timestamp": config["blockTimestamp"]} for key, config in active}
        return {"ethRules": ethereum, "avalancheRules": avalanche, "precompiles": times}

    def _is_reached(self, name: str, at: int) -> bool:
        begins = self.settings.get(name)
        return begins is not None and begins <= at


def chain_config(
    genesis: bytes, upgrade_file: bytes, network_times_s: Mapping[str, int]
) -> ChainConfig:
    """Return the configuration of a chain. Raises NotSubnetEvm.

    genesis: genesis in the CreateChainTx of the chain.
    network_times_s: Unix seconds by upgrade, as info.upgrades returns them.
    """
    upgrades = decode_upgrade_file(upgrade_file)
    try:
        config = _GENESIS(msgspec.json.decode(genesis, type=dict[str, Any]))["config"]
        fields = _CONFIG(config) if isinstance(config, dict) else {}
        if not isinstance(fields.get("feeConfig"), dict):
            raise NotSubnetEvm("the genesis has no config.feeConfig")
        precompiles = {
            key: precompile_as_json(key, fields[key]) for key in KEYS if fields.get(key) is not None
        }
        return ChainConfig(_settings(fields, upgrades, network_times_s), precompiles, upgrades)
    except NotSubnetEvm:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NotSubnetEvm(f"the genesis cannot be read: {error}") from error


def decode_upgrade_file(content: bytes) -> dict[str, Any]:
    """Return the content of an upgrade file as nodes return it. Raises NotSubnetEvm."""
    try:
        return _upgrades_as_json(msgspec.json.decode(content or b"{}", type=dict[str, Any]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NotSubnetEvm(f"the upgrade file cannot be read: {error}") from error


def read_upgrade_file(path: Path) -> bytes:
    """Return an upgrade file. Raises NotSubnetEvm, OSError."""
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise NotSubnetEvm(f"the upgrade file has more than {_MAX_FILE_BYTES} bytes")
    return content


def check_upgrade_file(path: Path) -> None:
    """Raise StartupError if the upgrade file of a configured chain cannot be read."""
    try:
        path.open("rb").close()
    except OSError as error:
        reason = f"upgrade-file {path} cannot be read: {os_error_text(error)}"
        raise StartupError(f"evm-chains: {reason}") from error


def _settings(
    fields: dict[str, Any], upgrades: Mapping[str, Any], network_times_s: Mapping[str, int]
) -> dict[str, Any]:
    settings = {name: fields[name] for name in ("chainId", *_OPTIONAL_FIELDS) if fields.get(name)}
    settings |= {name: 0 if fields.get(name) is None else fields[name] for name in _BLOCKS}
    settings["feeConfig"] = fees_as_json(fields["feeConfig"]) or dict(DEFAULT_FEES)
    times = _network_times(fields, upgrades.get("networkUpgradeOverrides", {}), network_times_s)
    settings |= times
    for name, follows in (("shanghaiTime", "durangoTimestamp"), ("cancunTime", "etnaTimestamp")):
        if times.get(follows, UNSCHEDULED_S) < UNSCHEDULED_S:
            settings[name] = times[follows]
    return settings


def _network_times(
    fields: Mapping[str, Any], overrides: Mapping[str, int], network_times_s: Mapping[str, int]
) -> dict[str, int]:
    """Return the time of each network upgrade.

    A 0 in the genesis stands for the default time; a 0 in an override is the time 0.
    """
    times: dict[str, int] = {}
    for name in _NETWORK_UPGRADES:
        key = f"{name}Timestamp"
        default = {"subnetEVM": 0, "fortuna": None}.get(name, network_times_s.get(name))
        chosen = overrides.get(key, timestamp(fields.get(key)) or default)
        if chosen is not None:
            times[key] = chosen
    return times


def _upgrades_as_json(fields: dict[str, Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    fields = _UPGRADES(fields)
    if fields.get("networkUpgradeOverrides") is not None:
        overrides = _TIMES(fields["networkUpgradeOverrides"])
        times = {key: timestamp(overrides.get(key)) for key in _TIME_NAMES}
        set_times = {key: time for key, time in times.items() if time is not None}
        encoded["networkUpgradeOverrides"] = set_times
    if fields.get("stateUpgrades"):
        encoded["stateUpgrades"] = [_state_upgrade(upgrade) for upgrade in fields["stateUpgrades"]]
    if fields.get("precompileUpgrades"):
        upgrades = map(precompile_upgrade_as_json, fields["precompileUpgrades"])
        encoded["precompileUpgrades"] = list(upgrades)
    return encoded


def _state_upgrade(fields: dict[str, Any]) -> dict[str, Any]:
    fields = _STATE_UPGRADE(fields)
    encoded: dict[str, Any] = {}
    changes = fields.get("accounts") or {}
    accounts = {address(account): _account(change) for account, change in changes.items()}
    begins = timestamp(fields.get("blockTimestamp"))
    if begins is not None:
        encoded["blockTimestamp"] = begins
    encoded["accounts"] = accounts
    return encoded


def _account(fields: dict[str, Any]) -> dict[str, Any]:
    fields = _ACCOUNT(fields)
    encoded: dict[str, Any] = {}
    if fields.get("code") not in (None, "", "0x"):
        encoded["code"] = fields["code"].lower()
    if fields.get("storage"):
        slots = fields["storage"].items()
        encoded["storage"] = {slot.lower(): value.lower() for slot, value in slots}
    if fields.get("balanceChange") is not None:
        encoded["balanceChange"] = quantity(fields["balanceChange"])
    return encoded


def _rule_name(fork: str) -> str:
    return f"Is{fork[:1].upper()}{fork[1:]}".replace("Eip", "EIP")


class ChainConfigLoader:
    """The configuration of one chain, loaded on first use, and again when its upgrade file changes.

    Without an upgrade file there is no configuration: a chain's changes after its genesis are
    written only there.
    """

    def __init__(self, chain_id: ChainID, upgrade_file: Path | None, facts: EvmChainFacts) -> None:
        self._chain_id = chain_id
        self._upgrade_file = upgrade_file
        self._facts = facts
        self._loaded: tuple[int, ChainConfig | None] | None = None
        self._retry_at = 0.0
        self._flight: SingleFlight[int, None] = SingleFlight()

    async def __call__(self) -> ChainConfig | None:
        """Return the configuration; None if it is unknown, or the chain does not run subnet-evm."""
        if self._upgrade_file is None:
            return None
        try:
            changed_ns = self._upgrade_file.stat().st_mtime_ns
        except OSError as error:
            self._warn(error.strerror or "cannot be read")
            return None
        if self._loaded is None or self._loaded[0] != changed_ns:
            await self._flight.run(changed_ns, partial(self._load, changed_ns))
        return self._loaded[1] if self._loaded is not None else None

    async def _load(self, changed_ns: int) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._retry_at:
            return
        self._retry_at = now + _RETRY_S
        genesis = await self._facts.genesis(self._chain_id)
        times = await self._facts.upgrade_times()
        if genesis is None or times is None or self._upgrade_file is None:
            return
        config: ChainConfig | None = None
        try:
            config = chain_config(genesis, read_upgrade_file(self._upgrade_file), times)
        except (NotSubnetEvm, OSError) as error:
            self._warn(str(error))
        self._loaded, self._retry_at = (changed_ns, config), 0.0

    def _warn(self, reason: str) -> None:
        fields = {"upgrade_file": self._upgrade_file, "reason": reason}
        log.warning("EVM chain configuration unavailable", extra=fields)
