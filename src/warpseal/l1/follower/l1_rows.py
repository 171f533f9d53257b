"""Extracts the L1 transactions of a P-Chain block, and the origins of validations in them.

Source of truth: ACP-77; reference of the five types in `chains/p_l1.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpseal.chains.p_blocks import PBlock, parse_p_block
from warpseal.chains.p_txs import (
    ConvertSubnetToL1Tx,
    DisableL1ValidatorTx,
    IncreaseL1ValidatorBalanceTx,
    PSignedTx,
    RegisterL1ValidatorTx,
    SetL1ValidatorWeightTx,
)
from warpseal.l1.follower.ports import FollowedBlock
from warpseal.store.values import BootstrapOrigin, L1Transaction, Origin, RegistrationOrigin
from warpseal.warp.ids import SubnetID, ValidationID


def parse_followed_block(raw: bytes) -> FollowedBlock:
    """Decode a block. Raises MalformedMessage; for an unknown type its subclass UnknownType."""
    block = parse_p_block(raw)
    rows = tuple(_rows(block))
    origins = tuple(origin for tx in block.txs for origin in _origins(tx))
    return FollowedBlock(block.height, block.id, block.parent_id, block.time, rows, origins)


def _rows(block: PBlock) -> Iterator[L1Transaction]:
    for position, tx in enumerate(block.txs):
        subjects = _find_subjects(tx)
        if subjects is not None:
            subnet_id, validation_id = subjects
            time = block.time or 0
            yield L1Transaction(
                tx.id, block.height, position, block.id, time, tx.kind, tx.raw, subnet_id, validation_id
            )


def _find_subjects(tx: PSignedTx) -> tuple[SubnetID | None, ValidationID | None] | None:
    """Return the subnet and the validation as far as the transaction names them; None: it is no L1 transaction."""
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id):
            return subnet_id, None
        case RegisterL1ValidatorTx() as unsigned:
            registration = unsigned.registration()
            return registration.subnet_id, registration.validation_id
        case SetL1ValidatorWeightTx() as unsigned:
            return None, unsigned.change().validation_id
        case IncreaseL1ValidatorBalanceTx(validation_id=validation_id):
            return None, validation_id
        case DisableL1ValidatorTx(validation_id=validation_id):
            return None, validation_id
    return None


def _origins(tx: PSignedTx) -> Iterator[Origin]:
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id, validators=validators):
            yield from (BootstrapOrigin(subnet_id, index) for index in range(len(validators)))
        case RegisterL1ValidatorTx() as unsigned:
            yield RegistrationOrigin(unsigned.registration().encode())
