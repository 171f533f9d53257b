"""The genesis of an EVM chain as a resource, and its parser; any other genesis stays bytes.

Source of truth: the specification's "Genesis data" for the keys, go-ethereum's `core/genesis.go`
for the spellings of a file (numbers as hex, decimal text or plain). Any caller may create a chain,
so the parser trusts nothing. Four keys may be null, and are null if the genesis has them so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import field
from msgspec.structs import fields, replace

from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.runtime.go_json import field_names


class FeeConfig(Resource, frozen=True, gc=False, kw_only=True):
    """How the chain's fees come about."""

    base_fee_change_denominator: int | UnsetType = UNSET
    block_gas_cost_step: int | UnsetType = UNSET
    gas_limit: int | UnsetType = UNSET
    max_block_gas_cost: int | UnsetType = UNSET
    min_base_fee: int | UnsetType = UNSET
    min_block_gas_cost: int | UnsetType = UNSET
    target_block_rate: int | UnsetType = UNSET
    target_gas: int | UnsetType = UNSET


class WarpConfig(Resource, frozen=True, gc=False, kw_only=True):
    """The Warp precompile."""

    block_timestamp: int | UnsetType = UNSET
    quorum_numerator: int | UnsetType = UNSET
    require_primary_network_signers: bool | UnsetType = UNSET


class PrecompileConfig(Resource, frozen=True, gc=False, kw_only=True):
    """A precompile and who may use it."""

    block_timestamp: int | UnsetType = UNSET
    admin_addresses: tuple[str, ...] | UnsetType = UNSET
    manager_addresses: tuple[str, ...] | UnsetType = UNSET
    enabled_addresses: tuple[str, ...] | UnsetType = UNSET


class GenesisConfig(Resource, frozen=True, gc=False, kw_only=True):
    """The chain's rules. eip150Hash is the genesis file's own spelling."""

    berlin_block: int | UnsetType = UNSET
    byzantium_block: int | UnsetType = UNSET
    chain_id: int | UnsetType = UNSET
    constantinople_block: int | UnsetType = UNSET
    eip150_block: int | UnsetType = UNSET
    eip150_hash: str | UnsetType = UNSET
    eip155_block: int | UnsetType = UNSET
    eip158_block: int | UnsetType = UNSET
    homestead_block: int | UnsetType = UNSET
    istanbul_block: int | UnsetType = UNSET
    london_block: int | UnsetType = UNSET
    muir_glacier_block: int | UnsetType = UNSET
    petersburg_block: int | UnsetType = UNSET
    subnet_evm_timestamp: int | UnsetType = field(default=UNSET, name="subnetEVMTimestamp")
    allow_fee_recipients: bool | UnsetType = UNSET
    fee_config: FeeConfig | UnsetType = UNSET
    warp_config: WarpConfig | UnsetType = UNSET
    tx_allow_list_config: PrecompileConfig | UnsetType = UNSET
    contract_deployer_allow_list_config: PrecompileConfig | UnsetType = UNSET
    contract_native_minter_config: PrecompileConfig | UnsetType = UNSET
    fee_manager_config: PrecompileConfig | UnsetType = UNSET
    reward_manager_config: PrecompileConfig | UnsetType = UNSET


class GenesisAccount(Resource, frozen=True, gc=False, kw_only=True):
    """The first account state of an address."""

    balance: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    storage: dict[str, str] | UnsetType = UNSET


class GenesisData(Resource, frozen=True, gc=False, kw_only=True):
    """The genesis of an EVM chain; numbers are hex with 0x.

    Two of them are numbers for SDKs, which insist on it.
    """

    airdrop_amount: str | float | UnsetType | None = UNSET
    airdrop_hash: str | UnsetType = UNSET
    alloc: dict[str, GenesisAccount] | UnsetType = UNSET
    base_fee_per_gas: str | float | UnsetType | None = UNSET
    blob_gas_used: str | UnsetType | None = UNSET
    coinbase: str | UnsetType = UNSET
    config: GenesisConfig | UnsetType = UNSET
    difficulty: str | UnsetType = UNSET
    excess_blob_gas: str | UnsetType | None = UNSET
    extra_data: str | UnsetType = UNSET
    gas_limit: str | UnsetType = UNSET
    gas_used: str | UnsetType = UNSET
    mix_hash: str | UnsetType = UNSET
    nonce: str | UnsetType = UNSET
    number: str | UnsetType = UNSET
    parent_hash: str | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET


_MAX_BRACKETS: Final = 64
_MAX_DIGITS: Final = 80
_MAX_UINT64: Final = 2**64 - 1
_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]*)")
_BRACKETS: Final = re.compile(rb"[\[\]{}]")

_PRECOMPILES: Final = (
    "txAllowListConfig",
    "contractDeployerAllowListConfig",
    "contractNativeMinterConfig",
    "feeManagerConfig",
    "rewardManagerConfig",
)
_EXACT_KEYS: Final = frozenset((*_PRECOMPILES, "warpConfig"))

Reader = Callable[[Any], Any]
"""Takes a JSON value; returns the value of the resource, UNSET if the JSON value is invalid."""


def evm_genesis(raw: bytes | None) -> GenesisData | None:
    """Return the genesis of an EVM chain; None for any other, and for None."""
    if not raw or raw.lstrip()[:1] != b"{" or _depth(raw) > _MAX_BRACKETS:
        return None
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    genesis: GenesisData = _object(GenesisData)(decoded)
    is_evm = chain_id_of(genesis) is not None and genesis.alloc is not UNSET
    return genesis if is_evm else None


def sdk_genesis(genesis: GenesisData) -> GenesisData:
    """Return a genesis in the SDKs' dialect.

    Two of its texts are numbers there, as exact as JavaScript can hold them.
    """
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
    """Return a genesis of another VM as text: itself if it is printable, else hex with 0x."""
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
    """Return a number of 64 bits from any of the three spellings."""
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
        if value[:2].lower() == "0x":
            return int(value, 16)
        return int(value) if value.isdecimal() else None
    except ValueError:
        return None


def _hex_number(value: Any) -> Any:
    number = _number(value)
    if number is None:
        return UNSET
    is_hex = isinstance(value, str) and value.startswith("0x")
    return value if is_hex else hex(number)


def _nullable(value: Any) -> Any:
    return None if value is None else _hex_number(value)


def _hex_bytes(value: Any) -> Any:
    match = _HEX.fullmatch(value) if isinstance(value, str) else None
    return "0x" + match[1] if match else UNSET


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else UNSET


def _addresses(value: Any) -> Any:
    if not isinstance(value, list):
        return UNSET
    return tuple(text for text in map(_hex_bytes, value) if text is not UNSET)


def _hex_map(read: Reader) -> Reader:
    """Return a reader of an object with hex keys; invalid entries are left out."""

    def reader(value: Any) -> Any:
        if not isinstance(value, dict):
            return UNSET
        pairs = ((_hex_bytes(key), read(entry)) for key, entry in value.items())
        return {key: entry for key, entry in pairs if key is not UNSET and entry is not UNSET}

    return reader


def _object(kind: type[Any]) -> Reader:
    """Return a reader of a JSON object as `kind`; unknown keys and invalid values are left out."""
    names = {field.encode_name: field.name for field in fields(kind)}
    read_names = field_names(*(name for name in names if name not in _EXACT_KEYS))

    def reader(value: Any) -> Any:
        if not isinstance(value, dict):
            return UNSET
        special, default = _READERS[kind]
        value = read_names(value)
        values: dict[str, Any] = {}
        for key, name in names.items():
            if key in value:
                read = special.get(key, default)
                values[name] = read(value[key])
        return kind(**values)

    return reader


_READERS: Final[Mapping[type[Any], tuple[Mapping[str, Reader], Reader]]] = {
    GenesisData: (
        {
            **dict.fromkeys(
                ("airdropAmount", "baseFeePerGas", "blobGasUsed", "excessBlobGas"), _nullable
            ),
            **dict.fromkeys(
                ("airdropHash", "coinbase", "extraData", "mixHash", "parentHash"), _hex_bytes
            ),
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
"""The readers of special keys, and the reader of all other keys, of each resource."""
