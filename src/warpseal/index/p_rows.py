"""The rows of the P-Chain's transactions, from the ledger's effects and from the transactions themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import zstandard

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import TxID
from warpseal.chains.p_txs import (
    AddPermissionlessValidatorTx,
    AddSubnetValidatorTx,
    ConvertSubnetToL1Tx,
    CreateChainTx,
    ProofOfPossession,
    PSignedTx,
    RegisterL1ValidatorTx,
    RemoveSubnetValidatorTx,
    RewardKind,
    TransformSubnetTx,
)
from warpseal.index import type_codes
from warpseal.index.batch import IndexBatch, TxInProgress
from warpseal.index.details import TxDetail, encode
from warpseal.index.keys import partition_of, prefix_of, to_column
from warpseal.index.schema import (
    BLOCKCHAINS,
    REWARD_ADDRESSES,
    REWARD_NODES,
    REWARDS,
    TX_IDS,
    TXS,
    VALIDATION_TXS,
    VALIDATIONS,
)
from warpseal.index.stakings import Staking, Stakings, ids_of
from warpseal.ledger.effects import (
    L1ValidatorChange,
    SubnetConverted,
    SubnetCreated,
    SubnetOwnerChanged,
    SubnetTransformed,
    TxEffects,
    TxOutcome,
)

OUTCOMES: Final = {TxOutcome.ACCEPTED: 0, TxOutcome.PROPOSED: 1, TxOutcome.COMMITTED: 2, TxOutcome.ABORTED: 3}
PROPOSED: Final = OUTCOMES[TxOutcome.PROPOSED]


@dataclass(frozen=True, slots=True)
class TxTime:
    """key: of the transaction; time_s: of its block; settled_s: of the block that decided it, mostly its own."""

    key: int
    time_s: int
    settled_s: int


def ids_in(tx: TxEffects) -> Iterator[bytes]:
    """Yield the ids whose keys the rows of a transaction need."""
    # Released stakes were made long ago, so no other output of the batch may name their owners.
    for output in (*tx.emitted, *tx.released):
        yield output.asset_id
        yield from output.addresses
    for consumed in tx.consumed:
        if consumed.reconstructed is not None:
            yield consumed.asset_id
            yield from consumed.reconstructed.addresses
    for asset_id, _ in tx.burned:
        yield asset_id
    if tx.opened is not None:
        yield from ids_of(tx.opened)
    for change in tx.l1:
        validator = change.validator
        yield from (validator.validation_id, validator.node_id, validator.subnet_id)
    if tx.subnet is not None:
        yield tx.subnet.subnet_id
        if isinstance(tx.subnet, SubnetCreated | SubnetOwnerChanged):
            yield from tx.subnet.owner.addresses
    if tx.chain is not None:
        yield from (tx.chain.chain_id, tx.chain.subnet_id)
    unsigned = tx.tx.unsigned
    if isinstance(unsigned, RemoveSubnetValidatorTx):
        yield from (unsigned.node_id, unsigned.subnet_id)
    elif isinstance(unsigned, AddSubnetValidatorTx):
        yield from (unsigned.validator.subnet_id, unsigned.validator.validator.node_id)


def write_tx(batch: IndexBatch, stakings: Stakings, tx: TxEffects, when: TxTime, *, is_written: bool = False) -> None:
    """Write a transaction that took effect. is_written: its row exists, since it was proposed."""
    tx_row = TxInProgress(when.key, type_codes.tx_number(tx.api_type), tx.tx.id)
    inputs = batch.consume(tx_row, tx.consumed)
    staking = _closing(stakings, tx)
    origin = staking.tx if staking is not None else None
    first_out = batch.emit(tx_row, tx.emitted, origin)
    released = batch.release(tx_row, tx.released, staking.first_out) if staking is not None else ()
    detail = _detail(batch, tx, staking, inputs, released)
    moved = len(inputs) + len(tx.emitted) + len(released)
    _put_row(batch, tx, when, (first_out, len(tx.emitted), moved, encode(detail)), is_written=is_written)
    batch.touch(tx_row)
    _write_rewards(batch, tx, staking, when, first_out)
    _move_stakings(batch, stakings, tx, when, first_out)
    for change in tx.l1:
        _write_l1(batch, tx, change, tx_row)
    if tx.chain is not None:
        _write_chain(batch, tx, when.key)


def write_proposed(batch: IndexBatch, tx_id: TxID, api_type: str, height: int, when: TxTime) -> None:
    """Write the row of a proposed transaction."""
    row = (when.key, tx_id, height, when.time_s, type_codes.tx_number(api_type), PROPOSED, 0, 0, 0, encode(TxDetail()))
    batch.add(TXS, row)
    batch.add(TX_IDS, (partition_of(when.key), prefix_of(tx_id), when.key))


def _put_row(batch: IndexBatch, tx: TxEffects, when: TxTime, rest: tuple[Any, ...], *, is_written: bool) -> None:
    kind, outcome = type_codes.tx_number(tx.api_type), OUTCOMES[tx.outcome]
    row = (when.key, tx.tx.id, tx.height, when.time_s, kind, outcome, *rest)
    if is_written:
        batch.change(TXS, row)
    else:
        batch.add(TXS, row)
        batch.add(TX_IDS, (partition_of(when.key), prefix_of(tx.tx.id), when.key))


def _closing(stakings: Stakings, tx: TxEffects) -> Staking | None:
    """Return the staking that a transaction ends or renews."""
    closed = tx.closed or tx.renewed
    return stakings.find(closed.tx_id) if closed is not None else None


def _detail(
    batch: IndexBatch, tx: TxEffects, staking: Staking | None, inputs: tuple[int, ...], released: tuple[int, ...]
) -> TxDetail:
    unsigned: Any = tx.tx.unsigned
    key = batch.ids.key
    detail = TxDetail(inputs, released)
    base = getattr(unsigned, "base", None)
    if base is not None:
        detail.memo = base.memo
    if tx.burned:
        detail.burned = tuple([(key(asset_id), amount) for asset_id, amount in tx.burned])
    if tx.l1_balance:
        detail.l1_funded = (batch.avax, tx.l1_balance)
    detail.source = batch.chains.ref_of(tx.source_chain_id)
    detail.destination = batch.chains.ref_of(tx.destination_chain_id)
    closed = tx.closed or tx.renewed
    if closed is not None:
        detail.closes = staking.tx if staking is not None else closed.tx_id
    if tx.opened is not None:
        detail.node, detail.subnet = key(tx.opened.node_id), key(tx.opened.subnet_id)
    _add_subnet_detail(batch, detail, tx, unsigned)
    if tx.l1:
        detail.l1 = tuple([_l1(batch, change) for change in tx.l1])
    if tx.chain is not None:
        detail.blockchain, detail.subnet = key(tx.chain.chain_id), key(tx.chain.subnet_id)
    if isinstance(unsigned, AddPermissionlessValidatorTx) and isinstance(unsigned.signer, ProofOfPossession):
        detail.bls = unsigned.signer.public_key + unsigned.signer.proof
    return detail


def _add_subnet_detail(batch: IndexBatch, detail: TxDetail, tx: TxEffects, unsigned: Any) -> None:
    key = batch.ids.key
    if isinstance(unsigned, RemoveSubnetValidatorTx):
        detail.node, detail.subnet = key(unsigned.node_id), key(unsigned.subnet_id)
    elif isinstance(unsigned, AddSubnetValidatorTx):
        detail.node, detail.subnet = key(unsigned.validator.validator.node_id), key(unsigned.validator.subnet_id)
    if tx.subnet is None:
        return
    detail.subnet = key(tx.subnet.subnet_id)
    if isinstance(tx.subnet, SubnetCreated | SubnetOwnerChanged):
        detail.owner = _owner(batch, tx.subnet.owner)
    elif isinstance(tx.subnet, SubnetConverted):
        detail.manager = (tx.subnet.manager_chain_id, tx.subnet.manager_address)


def _owner(batch: IndexBatch, owner: OutputOwners) -> tuple[int, int, tuple[int, ...]]:
    return owner.locktime, owner.threshold, tuple(map(batch.ids.key, owner.addresses))


def _l1(batch: IndexBatch, change: L1ValidatorChange) -> tuple[int, int, int, int]:
    validator = change.validator
    return batch.ids.key(validator.validation_id), validator.weight, change.balance, change.balance_change


def _write_l1(batch: IndexBatch, tx: TxEffects, change: L1ValidatorChange, tx_row: TxInProgress) -> None:
    key, validator = batch.ids.key, change.validator
    validation = key(validator.validation_id)
    batch.add(VALIDATION_TXS, (validation, tx_row.key, tx_row.kind))
    if change.is_new:
        bls = validator.public_key + _proof(tx.tx, validator.public_key)
        batch.add(VALIDATIONS, (validation, key(validator.node_id), key(validator.subnet_id), bls))


def _proof(tx: PSignedTx, public_key: bytes) -> bytes:
    unsigned = tx.unsigned
    if isinstance(unsigned, RegisterL1ValidatorTx):
        return unsigned.proof_of_possession
    if isinstance(unsigned, ConvertSubnetToL1Tx):
        return next(
            (validator.signer.proof for validator in unsigned.validators if validator.signer.public_key == public_key),
            b"",
        )
    return b""


def _write_chain(batch: IndexBatch, tx: TxEffects, key: int) -> None:
    made, unsigned = tx.chain, tx.tx.unsigned
    assert made is not None
    assert isinstance(unsigned, CreateChainTx)
    genesis = zstandard.compress(unsigned.genesis)
    ids = batch.ids.key(made.chain_id), batch.ids.key(made.subnet_id)
    batch.add(BLOCKCHAINS, (*ids, made.vm_id, made.name, key, genesis))


def _write_rewards(batch: IndexBatch, tx: TxEffects, staking: Staking | None, when: TxTime, first_out: int) -> None:
    if staking is None:
        return
    for output_key, output in enumerate(tx.emitted, first_out):
        if output.reward is None:
            continue
        reward = batch.next_keys.reward
        batch.next_keys.reward += 1
        batch.add(REWARDS, (reward, output_key, staking.tx, when.key, when.settled_s))
        batch.add(REWARD_NODES, (staking.node, reward))
        for address in dict.fromkeys(output.addresses):
            batch.add(REWARD_ADDRESSES, (batch.ids.key(address), reward))


def _move_stakings(batch: IndexBatch, stakings: Stakings, tx: TxEffects, when: TxTime, first_out: int) -> None:
    if tx.opened is not None:
        stakings.begin(batch.ids, tx.opened, when.key, first_out, when.settled_s)
    if tx.closed is not None:
        stakings.close(tx.closed, when.key)
    if tx.renewed is not None:
        paid = dict.fromkeys(RewardKind, 0)
        for output in tx.emitted:
            if output.reward is not None:
                paid[output.reward] += output.amount
        stakings.renew(tx.renewed, paid[RewardKind.VALIDATOR], paid[RewardKind.VALIDATOR_FEE])
    if tx.removed is not None:
        stakings.remove(tx.removed, when.key, when.settled_s)
    if isinstance(tx.subnet, SubnetTransformed):
        unsigned = tx.tx.unsigned
        assert isinstance(unsigned, TransformSubnetTx)
        limits = (unsigned.max_validator_stake, unsigned.max_validator_weight_factor)
        stakings.set_limits(batch.ids.key(tx.subnet.subnet_id), to_column(limits[0]), limits[1])
