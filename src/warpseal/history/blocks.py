"""Accepted blocks of the three primary chains, and the blockchains of all subnets, as they are told to callers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from warpseal.chains.ids import BlockID, TxID
from warpseal.history.chains import PrimaryChain
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID

_PLATFORM_VM: Final = b"platformvm".ljust(32, b"\x00")


class Proposer(Struct, frozen=True, gc=False):
    """What the proposervm's wrapping says of a block. node_id: None where nobody signed it."""

    block_id: bytes
    parent_id: bytes
    node_id: NodeID | None = None
    p_chain_height: int | None = None
    time: int | None = None


class Block(Struct, frozen=True, gc=False, kw_only=True):
    """One block. kind: the node's name of its type. time: unix seconds. tx_ids: on the C-Chain the atomic ones only.

    accrued_fees, active_l1_validators, supply: of the P-Chain after this block; None where they are not known.
    """

    chain: PrimaryChain
    height: int
    block_id: BlockID
    parent_id: BlockID
    kind: str
    time: int
    tx_ids: tuple[TxID, ...]
    size_bytes: int
    accrued_fees: int | None = None
    active_l1_validators: int | None = None
    supply: int | None = None
    proposer: Proposer | None = None


class Blockchain(Struct, frozen=True, gc=False, kw_only=True):
    """A blockchain of any subnet. height, time: of the block that created it; None where only a node was asked.

    genesis: None where it is not known; empty of the P-Chain, whose own is no transaction's.
    """

    chain_id: ChainID
    subnet_id: SubnetID
    vm_id: bytes
    name: str
    genesis: bytes | None
    height: int | None = None
    time: int | None = None


def p_chain(begun_at: int | None = None) -> Blockchain:
    """Return the P-Chain itself, which no transaction created. begun_at: unix seconds of its genesis, if known."""
    return Blockchain(
        chain_id=P_CHAIN,
        subnet_id=PRIMARY_NETWORK,
        vm_id=_PLATFORM_VM,
        name="P-Chain",
        genesis=b"",
        height=None if begun_at is None else 0,
        time=begun_at,
    )
