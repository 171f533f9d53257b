"""Reads the genesis of EVM chains out of what a CreateChainTx carries; anything else stays bytes.

Source of truth: the specification's "Genesis data" for the keys, go-ethereum's `core/genesis.go` for how a file spells
them (numbers as hex, decimal text or plain). Anybody may create a chain, so nothing of it is taken on trust.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import fields, replace

from warpseal.api.data.schema.genesis import (
    FeeConfig,
    GenesisAccount,
    GenesisConfig,
    GenesisData,
    PrecompileConfig,
    WarpConfig,
)

_MAX_BRACKETS: Final = 64
_MAX_DIGITS: Final = 80
_MAX_UINT64: Final = 2**64 - 1
_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]*)")
_BRACKETS: Final = re.compile(rb"[\[\]{}]")

Reader = Callable[[Any], Any]
"""Takes a JSON value; returns what is told, UNSET where the value makes no sense."""


def evm_genesis(raw: bytes | None) -> GenesisData | None:
    """Return the genesis of an EVM chain; None of any other, and of what is not known."""
    if not raw or raw.lstrip()[:1] != b"{" or _depth(raw) > _MAX_BRACKETS:
        return None
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict) or not isinstance(decoded.get("config"), dict):
        return None
    if _whole(decoded["config"].get("chainId")) is UNSET or not isinstance(decoded.get("alloc"), dict):
        return None
    told: GenesisData = _object(GenesisData)(decoded)
    return told


def sdk_genesis(genesis: GenesisData) -> GenesisData:
    """Return a genesis as SDKs read it: two of its numbers as such, as exactly as JavaScript holds them."""
    return replace(
        genesis,
        airdrop_amount=_as_number(genesis.airdrop_amount),
        base_fee_per_gas=_as_number(genesis.base_fee_per_gas),
    )


def _as_number(value: Any) -> Any:
    return float(int(value, 16)) if isinstance(value, str) else value


def chain_id_of(genesis: GenesisData | None) -> int | None:
    """Return the EVM chain id of a genesis."""
    config = genesis.config if genesis is not None else UNSET
    chain_id = config.chain_id if isinstance(config, GenesisConfig) else UNSET
    return chain_id if isinstance(chain_id, int) else None


def genesis_text(raw: bytes) -> str:
    """Return a genesis that is none of an EVM chain as text: itself where it is one, else hex with 0x."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "0x" + raw.hex()
    return text if text.isprintable() else "0x" + raw.hex()


def _depth(raw: bytes) -> int:
    deepest = depth = 0
    for bracket in _BRACKETS.findall(raw):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _whole(value: Any) -> Any:
    """Read a number of 64 bits, in whichever of the three ways files spell it."""
    number = _number(value)
    return number if number is not None and number <= _MAX_UINT64 else UNSET


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    if len(value) > _MAX_DIGITS:
        return None
    try:
        return int(value, 16) if value[:2].lower() == "0x" else int(value) if value.isdecimal() else None
    except ValueError:
        return None


def _hex_number(value: Any) -> Any:
    number = _number(value)
    return UNSET if number is None else value if isinstance(value, str) and value.startswith("0x") else hex(number)


def _nullable(value: Any) -> Any:
    return None if value is None else _hex_number(value)


def _hex_bytes(value: Any) -> Any:
    found = _HEX.fullmatch(value) if isinstance(value, str) else None
    return "0x" + found[1] if found else UNSET


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else UNSET


def _addresses(value: Any) -> Any:
    if not isinstance(value, list):
        return UNSET
    return tuple(text for text in map(_hex_bytes, value) if text is not UNSET)


def _hex_map(read: Reader) -> Reader:
    """Return what reads an object whose keys are hex; entries that make no sense are left out."""

    def reader(value: Any) -> Any:
        if not isinstance(value, dict):
            return UNSET
        pairs = ((_hex_bytes(key), read(one)) for key, one in value.items())
        return {key: told for key, told in pairs if key is not UNSET and told is not UNSET}

    return reader


def _object(kind: type[Any]) -> Reader:
    """Return what reads a JSON object as `kind`; keys that it does not know, or that make no sense, are left out."""
    names = {field.encode_name: field.name for field in fields(kind)}

    def reader(value: Any) -> Any:
        if not isinstance(value, dict):
            return UNSET
        special, usual = _READERS[kind]
        return kind(**{name: special.get(key, usual)(value[key]) for key, name in names.items() if key in value})

    return reader


_PRECOMPILES: Final = (
    "txAllowListConfig",
    "contractDeployerAllowListConfig",
    "contractNativeMinterConfig",
    "feeManagerConfig",
    "rewardManagerConfig",
)
_READERS: Final[Mapping[type[Any], tuple[Mapping[str, Reader], Reader]]] = {
    GenesisData: (
        {
            **dict.fromkeys(("airdropAmount", "baseFeePerGas", "blobGasUsed", "excessBlobGas"), _nullable),
            **dict.fromkeys(("airdropHash", "coinbase", "extraData", "mixHash", "parentHash"), _hex_bytes),
            "alloc": _hex_map(_object(GenesisAccount)),
            "config": _object(GenesisConfig),
        },
        _hex_number,
    ),
    GenesisConfig: (
        {
            "eip150Hash": _hex_bytes,
            "allowFeeRecipients": _flag,
            "feeConfig": _object(FeeConfig),
            "warpConfig": _object(WarpConfig),
            **dict.fromkeys(_PRECOMPILES, _object(PrecompileConfig)),
        },
        _whole,
    ),
    GenesisAccount: ({"code": _hex_bytes, "storage": _hex_map(_hex_bytes)}, _hex_number),
    FeeConfig: ({}, _whole),
    WarpConfig: ({"requirePrimaryNetworkSigners": _flag}, _whole),
    PrecompileConfig: ({"blockTimestamp": _whole}, _addresses),
}
"""For each resource: how keys that need their own way are read, and how all others are."""
