"""Blocks, and details of a blockchain."""

from __future__ import annotations

from warpseal.api.data.schema.base import UNSET, Resource, UnsetType
from warpseal.api.data.schema.genesis import GenesisData


class ProposerDetails(Resource, frozen=True, gc=False, kw_only=True):
    """What the block's wrapping says of who proposed it."""

    proposer_id: str | UnsetType = UNSET
    proposer_parent_id: str | UnsetType = UNSET
    proposer_node_id: str | UnsetType = UNSET
    proposer_p_chain_height: int | UnsetType = UNSET
    proposer_timestamp: int | UnsetType = UNSET


class PrimaryNetworkBlock(Resource, frozen=True, gc=False, kw_only=True):
    """A block of one of the three chains."""

    block_number: str
    block_hash: str
    parent_hash: str
    block_timestamp: int
    block_type: str
    tx_count: int
    transactions: tuple[str, ...]
    block_size_bytes: int
    l1_validators_accrued_fees: int | UnsetType = UNSET
    active_l1_validators: int | UnsetType = UNSET
    current_supply: str | UnsetType = UNSET
    proposer_details: ProposerDetails | UnsetType = UNSET


class BlockchainDetails(Resource, frozen=True, gc=False, kw_only=True):
    """A blockchain. The block that created it is absent where only a node was asked.

    genesisData: of an EVM chain; genesisDataHex: of any other, hex with 0x.
    """

    blockchain_id: str
    blockchain_name: str
    subnet_id: str
    vm_id: str
    create_block_timestamp: int | UnsetType = UNSET
    create_block_number: str | UnsetType = UNSET
    evm_chain_id: int | UnsetType = UNSET
    genesis_data: GenesisData | UnsetType = UNSET
    genesis_data_hex: str | UnsetType = UNSET
