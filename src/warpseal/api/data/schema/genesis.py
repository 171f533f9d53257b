"""The genesis of an EVM chain, key by key.

Source of truth: the specification's "Genesis data". Four keys may be null, and are where the genesis has them so.
"""

from __future__ import annotations

from msgspec import field

from warpseal.api.data.schema.base import UNSET, Resource, UnsetType


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
    """What an address begins with."""

    balance: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    storage: dict[str, str] | UnsetType = UNSET


class GenesisData(Resource, frozen=True, gc=False, kw_only=True):
    """The genesis of an EVM chain; numbers are hex with 0x. Two of them are numbers for SDKs, which insist on it."""

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
