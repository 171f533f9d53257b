"""What is kept of a P-Chain block: its transactions about L1s, and where validations began with them.

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
    """Return what is kept of the block with these bytes. Raises MalformedMessage; of it UnknownType."""
    block = parse_p_block(raw)
    rows = tuple(_rows(block))
    origins = tuple(origin for tx in block.txs for origin in _origins(tx))
    return FollowedBlock(block.height, block.id, block.parent_id, block.time, rows, origins)


def _rows(block: PBlock) -> Iterator[L1Transaction]:
    for position, tx in enumerate(block.txs):
        about = _about(tx)
        if about is not None:
            subnet_id, validation_id = about
            time = block.time or 0
            yield L1Transaction(
                tx.id, block.height, position, block.id, time, tx.kind, tx.raw, subnet_id, validation_id
            )


def _about(tx: PSignedTx) -> tuple[SubnetID | None, ValidationID | None] | None:
    """Return subnet and validation as far as the transaction names them, or None where it is not about an L1."""
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id):
            return subnet_id, None
        case RegisterL1ValidatorTx() as registering:
            asked = registering.registration()
            return asked.subnet_id, asked.validation_id
        case SetL1ValidatorWeightTx() as changing:
            return None, changing.change().validation_id
        case IncreaseL1ValidatorBalanceTx(validation_id=validation_id):
            return None, validation_id
        case DisableL1ValidatorTx(validation_id=validation_id):
            return None, validation_id
    return None


def _origins(tx: PSignedTx) -> Iterator[Origin]:
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id, validators=validators):
            yield from (BootstrapOrigin(subnet_id, index) for index in range(len(validators)))
        case RegisterL1ValidatorTx() as registering:
            yield RegistrationOrigin(registering.registration().encode())
