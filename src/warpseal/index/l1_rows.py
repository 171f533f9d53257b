"""Validators of L1s as they are after the last indexed block.

The transactions that touched a validator say what weight and balance it had then. Since then an
active one has paid the fees that the chain has accrued (ACP-77), so one subtraction gives its
balance.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from warpseal.index.columns import decode_tx
from warpseal.index.keys import P, block_key, from_column
from warpseal.index.read_session import ReadSession

_VALIDATIONS: Final = (
    "SELECT v.validation, v.node, v.subnet, v.bls,"
    " (SELECT min(t.tx) FROM validation_txs t WHERE t.validation = v.validation),"
    " (SELECT max(t.tx) FROM validation_txs t WHERE t.validation = v.validation),"
    " (SELECT max(2 * s.block + s.is_behind)"
    " FROM validation_stops s"
    " WHERE s.validation = v.validation)"
    " FROM validations v"
    " WHERE "
)
_TXS: Final = "SELECT key, time, height, detail FROM txs WHERE key IN {keys}"
_FEES: Final = "SELECT key, coalesce(fees, 0) FROM blocks WHERE key IN {keys}"


class L1ValidatorRow(NamedTuple):
    """A validator.

    validation, node, subnet: keys of ids.
    bls: public key and proof of possession.

    start_s: unix seconds.
    began_in: height of the block with the transaction that began the validation.
    weight: weight of the validator, 0 after its removal.
    balance: balance of the validator in nAVAX, 0 while it is inactive.
    """

    validation: int
    node: int
    subnet: int
    bls: bytes
    start_s: int
    began_in: int
    weight: int
    balance: int


def read_l1_rows(
    session: ReadSession, height: int, condition: str, *values: int
) -> list[L1ValidatorRow]:
    """Return validators after the last indexed block, which has this height.

    condition: SQL behind WHERE, on `validations v`, with `?` for the values.
    """
    rows = session.rows(_VALIDATIONS + condition, *values)
    touches = {key for _, _, _, _, first, last, _ in rows for key in (first, last)}
    txs = {
        key: (time, tx_height, detail)
        for key, time, tx_height, detail in session.by_keys(_TXS, touches)
    }
    tip = block_key(P, height)
    blocks = {block_key(P, tx_height) for _, tx_height, _ in txs.values()}
    fees = {
        key: from_column(sum_of_fees) for key, sum_of_fees in session.by_keys(_FEES, {tip, *blocks})
    }
    # A conversion may have touched a thousand validators, so it is decoded once.
    changes = {key: _changes_in(txs[key][2]) for key in {last for *_, last, _ in rows}}
    validators = []
    for validation, node, subnet, bls, first, last, stop in rows:
        start_s, began_in, _ = txs[first]
        _, touched_in, _ = txs[last]
        weight, balance = changes[last][validation]
        block = block_key(P, touched_in)
        # A stop before the transactions of the block came before the change. A rest that does not
        # pay for another second is forfeited.
        has_stopped = stop is not None and stop > 2 * block
        is_active = balance > 0 and not has_stopped
        rest = balance - (fees[tip] - fees[block]) if is_active else 0
        row = L1ValidatorRow(
            validation, node, subnet, bytes(bls), start_s, began_in, weight, max(0, rest)
        )
        validators.append(row)
    return validators


def _changes_in(detail: bytes) -> dict[int, tuple[int, int]]:
    """Return weight and balance of each validator after a transaction, by key of its validation."""
    return {key: (weight, balance) for key, weight, balance, _ in decode_tx(bytes(detail)).l1}
