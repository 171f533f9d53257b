"""Accepted blocks of the primary chains, and the blockchains of all subnets."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.resources.evm_genesis import GenesisData
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID

_PLATFORM_VM: Final = b"platformvm".ljust(32, b"\x00")


class Proposer(Struct, frozen=True, gc=False, array_like=True):
    """The proposervm header of a block.

    node_id: None if the block is not signed.
    """

    block_id: bytes
    parent_id: bytes
    node_id: NodeID | None = None
    p_chain_height: int | None = None
    time: int | None = None


class Blockchain(Struct, frozen=True, gc=False, kw_only=True):
    """A blockchain of any subnet.

    genesis: bytes of the genesis; None if they are not known, empty for the P-Chain, which no
        transaction created.
    height, time: height and time of the block that created the blockchain; None if only a node was
        asked.
    """

    chain_id: ChainID
    subnet_id: SubnetID
    vm_id: bytes
    name: str
    genesis: bytes | None
    height: int | None = None
    time: int | None = None


def p_chain(genesis_time: int | None = None) -> Blockchain:
    """Return the P-Chain itself.

    genesis_time: unix seconds, if known.
    """
    height = None if genesis_time is None else 0
    return Blockchain(
        chain_id=P_CHAIN,
        subnet_id=PRIMARY_NETWORK,
        vm_id=_PLATFORM_VM,
        name="P-Chain",
        genesis=b"",
        height=height,
        time=genesis_time,
    )


class ProposerDetails(Resource, frozen=True, gc=False, kw_only=True):
    """The proposervm header of a block."""

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
    """A blockchain. The block that created it is absent if the response comes from a node.

    genesisData: the genesis of an EVM chain.
    genesisDataHex: the genesis of any other chain, hex with 0x.
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
