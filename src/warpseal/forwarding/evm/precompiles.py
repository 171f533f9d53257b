"""The stateful precompiles of subnet-evm: their configuration as JSON, and when it is active.

Pure.
Source of truth: avalanchego `graft/subnet-evm/precompile/contracts/*/config.go`,
`params/extras/precompile_upgrade.go`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from warpseal.runtime.go_json import field_names

Config = Mapping[str, Any]
"""A configuration, JSON-ready, with addresses in lower case."""

FEE_MANAGER: Final = "feeManagerConfig"
DEFAULT_FEES: Final[Mapping[str, int]] = {
    "gasLimit": 8_000_000,
    "targetBlockRate": 2,
    "minBaseFee": 25_000_000_000,
    "targetGas": 15_000_000,
    "baseFeeChangeDenominator": 36,
    "minBlockGasCost": 0,
    "maxBlockGasCost": 1_000_000,
    "blockGasCostStep": 200_000,
}
FEE_FIELDS: Final = tuple(DEFAULT_FEES)
"""The fields in the order in which the fee manager returns them, which is that of the JSON."""
_ADDRESS: Final = re.compile(r"(?:0x)?[0-9a-fA-F]{40}")
_NO_ADDRESS: Final = "0x" + "00" * 20
_ROLES: Final = ("adminAddresses", "managerAddresses", "enabledAddresses")
_GAS_PRICE_KINDS: Final[Mapping[str, type]] = {
    "validatorTargetGas": bool,
    "targetGas": int,
    "staticPricing": bool,
    "minGasPrice": int,
    "timeToDouble": int,
}
_FEES: Final = field_names(*FEE_FIELDS)
_REWARD: Final = field_names("allowFeeRecipients", "rewardAddress")
_GAS_PRICE: Final = field_names(*_GAS_PRICE_KINDS)
# The fields of all precompiles. Their keys are those of a map.
_PRECOMPILE: Final = field_names(
    *_ROLES,
    "blockTimestamp",
    "disable",
    "quorumNumerator",
    "requirePrimaryNetworkSigners",
    "initialMint",
    "initialFeeConfig",
    "initialRewardConfig",
    "initialGasPriceConfig",
)


def fees_as_json(value: Any) -> dict[str, int]:
    """Return a fee configuration as JSON; missing fields, and a target rate of 0, are left out."""
    fields = _FEES(_object(value))
    encoded = {name: _integer(fields[name]) for name in FEE_FIELDS if fields.get(name) is not None}
    if not encoded.get("targetBlockRate", 1):
        del encoded["targetBlockRate"]
    return encoded


def precompile_as_json(key: str, value: Any) -> Config:
    """Return the configuration of one precompile as JSON. Raises ValueError."""
    fields = _PRECOMPILE(_object(value))
    if key not in KEYS:
        raise ValueError(f"unknown precompile config: {key[:64]}")
    encoded: dict[str, Any] = {}
    if key not in _WITHOUT_ROLES:
        for role in _ROLES:
            if fields.get(role):
                encoded[role] = [address(account) for account in fields[role]]
    encoded["blockTimestamp"] = timestamp(fields.get("blockTimestamp"))
    if fields.get("disable"):
        encoded["disable"] = True
    return {**encoded, **KEYS[key](fields)}


def precompile_upgrade_as_json(value: Any) -> Config:
    """Return an entry of precompileUpgrades, {key: configuration}. Raises ValueError."""
    fields = _object(value)
    if len(fields) != 1:
        raise ValueError(f"PrecompileUpgrade must have exactly one key, got {len(fields)}")
    (key, value), *_ = fields.items()
    return {key: precompile_as_json(key, value)}


def active_precompiles(
    moment: int, genesis: Mapping[str, Config], upgrades: Sequence[Config]
) -> dict[str, Config]:
    """Return the configurations that are active at a time.

    The last entry of each precompile counts, in the order of the lists and the genesis before the
    upgrades. `disable` turns the precompile off from its time on, until a later entry without it.
    """
    latest: dict[str, Config] = {}
    for listed in (genesis, *upgrades):
        for key, config in listed.items():
            begins = config["blockTimestamp"]
            if begins is not None and begins <= moment:
                latest[key] = config
    return {key: latest[key] for key in KEYS if key in latest and not latest[key].get("disable")}


def address(value: Any) -> str:
    """Return an address in lower case with 0x. Raises ValueError."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise ValueError("not an address")
    return "0x" + value.lower().removeprefix("0x")


def timestamp(value: Any) -> int | None:
    """Return Unix seconds, None if there are none. Raises ValueError."""
    return None if value is None else _integer(value)


def quantity(value: Any) -> str:
    """Return a number, given as number or as decimal or hex text, in hex. Raises ValueError."""
    if isinstance(value, str) and value:
        return hex(int(value, 16 if value[:2].lower() == "0x" else 10))
    return hex(_integer(value))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("not an integer")
    return value


def _no_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _initial(
    name: str, encode: Callable[[Any], dict[str, Any]]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return the function for a configuration with one field, which may be missing."""
    return lambda fields: {} if fields.get(name) is None else {name: encode(fields[name])}


def _mint(fields: Mapping[str, Any]) -> dict[str, Any]:
    amounts = _object(fields.get("initialMint") or {})
    minted = {address(account): quantity(amount) for account, amount in amounts.items()}
    return {"initialMint": minted} if minted else {}


def _reward(value: Any) -> dict[str, Any]:
    fields = _REWARD(_object(value))
    return {
        "allowFeeRecipients": bool(fields.get("allowFeeRecipients")),
        "rewardAddress": address(fields.get("rewardAddress") or _NO_ADDRESS),
    }


def _warp(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "quorumNumerator": _integer(fields.get("quorumNumerator") or 0),
        "requirePrimaryNetworkSigners": bool(fields.get("requirePrimaryNetworkSigners")),
    }


def _gas_price(value: Any) -> dict[str, Any]:
    fields = _GAS_PRICE(_object(value))
    return {name: kind(fields.get(name) or 0) for name, kind in _GAS_PRICE_KINDS.items()}


KEYS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "contractDeployerAllowListConfig": _no_fields,
    "contractNativeMinterConfig": _mint,
    "txAllowListConfig": _no_fields,
    FEE_MANAGER: _initial("initialFeeConfig", fees_as_json),
    "rewardManagerConfig": _initial("initialRewardConfig", _reward),
    "warpConfig": _warp,
    "gasPriceManagerConfig": _initial("initialGasPriceConfig", _gas_price),
}
"""Encoders of the fields of a precompile besides roles and times, by its key."""
_WITHOUT_ROLES: Final = frozenset({"warpConfig"})
