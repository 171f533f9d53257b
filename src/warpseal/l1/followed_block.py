"""Decodes a P-Chain block to its L1 transactions and to the origins of validations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from warpseal.chains.p_blocks import PBlock, parse_p_block
from warpseal.chains.p_txs import (
    ConvertSubnetToL1Tx,
    DisableL1ValidatorTx,
    IncreaseL1ValidatorBalanceTx,
    PSignedTx,
    RegisterL1ValidatorTx,
    SetL1ValidatorWeightTx,
)
from warpseal.store.values import BootstrapOrigin, L1Transaction, Origin, RegistrationOrigin
from warpseal.warp.ids import SubnetID, ValidationID


class FollowedBlock(Struct, frozen=True):
    """A decoded block with its L1 transactions.

    time: Unix seconds, None if the block carries none.
    """

    height: int
    id: bytes
    parent_id: bytes
    time: int | None
    transactions: tuple[L1Transaction, ...] = ()
    origins: tuple[Origin, ...] = ()


DecodeBlock = Callable[[bytes], FollowedBlock]
"""Decodes the bytes of a block. Raises MalformedMessage, or UnknownType for an unknown type."""


def parse_followed_block(raw: bytes) -> FollowedBlock:
    """Decode a block. Raises MalformedMessage, or UnknownType for an unknown type."""
    block = parse_p_block(raw)
    rows = tuple(_rows(block))
    origins = tuple(origin for tx in block.txs for origin in _origins(tx))
    return FollowedBlock(block.height, block.id, block.parent_id, block.time, rows, origins)


def _rows(block: PBlock) -> Iterator[L1Transaction]:
    for position, tx in enumerate(block.txs):
        subjects = _find_subjects(tx)
        if subjects is not None:
            yield L1Transaction(
                tx.id, block.height, position, block.id, block.time or 0, tx.kind, tx.raw, *subjects
            )


def _find_subjects(tx: PSignedTx) -> tuple[SubnetID | None, ValidationID | None] | None:
    """Return the subnet and the validation that an L1 transaction names; None for any other one."""
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id):
            return subnet_id, None
        case RegisterL1ValidatorTx() as unsigned:
            registration = unsigned.registration()
            return registration.subnet_id, registration.validation_id
        case SetL1ValidatorWeightTx() as unsigned:
            return None, unsigned.change().validation_id
        case IncreaseL1ValidatorBalanceTx() | DisableL1ValidatorTx() as unsigned:
            return None, unsigned.validation_id
    return None


def _origins(tx: PSignedTx) -> Iterator[Origin]:
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id, validators=validators):
            yield from (BootstrapOrigin(subnet_id, index) for index in range(len(validators)))
        case RegisterL1ValidatorTx() as unsigned:
            yield RegistrationOrigin(unsigned.registration().encode())
