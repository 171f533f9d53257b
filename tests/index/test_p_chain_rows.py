"""What the index has in place of a node's replies equals the ledger's state, at every kind of
height.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

from tests.index.fixtures import made_up_history, made_up_params, open_index, write_all
from warpseal.index.records import PRecord, Record
from warpseal.ledger.checkpoint import decode_checkpoint
from warpseal.ledger.effects import TxOutcome
from warpseal.ledger.p_state import PChainState
from warpseal.node.p_chain import (
    CurrentValidation,
    L1ValidatorState,
    Subnet,
    TxStatus,
    ValidationAt,
)
from warpseal.validators.p_chain_rows import PChainRows, read_rows
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID, ValidationID

SEED = 2
HEIGHTS = (400, 850, 1000)


async def test_rows_equal_the_state_of_the_ledger(any_index_url: str) -> None:
    params, history = made_up_params(), made_up_history(SEED, HEIGHTS[-1])
    seen: Counter[str] = Counter()
    validation_ids: set[ValidationID] = set()
    start = 0
    for height in HEIGHTS:
        records = [record for record, _ in history[start : height + 1]]
        await asyncio.to_thread(write_all, any_index_url, params, records)
        start = height + 1
        state = decode_checkpoint(history[height][1], params)
        validation_ids |= state.l1.by_id.keys()
        seen["removed"] += len(validation_ids - state.l1.by_id.keys())
        compare = partial(
            compared, state=state, validation_ids=validation_ids, records=records[-40:], seen=seen
        )
        async with open_index(any_index_url, params) as index:
            results = await index.read(partial(read_rows, query=compare))
        assert results is not None
        for result, expected in results:
            assert result == expected
    # The history has all that the rows tell apart.
    assert all(
        seen[kind]
        for kind in ("active", "drained", "removed", "changed", "l1", "permissioned", "delegated")
    )


def compared(
    rows: PChainRows,
    *,
    state: PChainState,
    validation_ids: Set[ValidationID],
    records: Sequence[Record],
    seen: Counter[str],
) -> list[tuple[Any, Any]]:
    """Return what the rows have of chains, subnets, validators and transactions, each with what the
    state has.
    """
    results: list[tuple[Any, Any]] = [(rows.tip[:3], (state.height, state.time_s, True))]
    missing = bytes(31) + b"\1"
    results += [(rows.subnet_of(ChainID(missing)), None), (rows.subnet(SubnetID(missing)), None)]
    for chain_id, subnet_id in state.chains.items():
        results.append((rows.subnet_of(chain_id), subnet_id))
        results.append((chain_id in (rows.blockchains_of(subnet_id) or ()), True))
    for subnet in state.subnets.values():
        expected = Subnet(subnet.subnet_id)
        if subnet.conversion is not None:
            seen["l1"] += 1
            conversion = subnet.conversion
            manager = conversion.manager_chain_id, conversion.manager_address
            expected = Subnet(subnet.subnet_id, conversion.conversion_id, *manager)
        results.append((rows.subnet(subnet.subnet_id), expected))
    for subnet_id in (*state.subnets, PRIMARY_NETWORK):
        validations = set(rows.current_validations(subnet_id) or ())
        results.append((validations, set(expected_validations(state, subnet_id, seen))))
    for validation_id in validation_ids:
        validator = state.l1.by_id.get(validation_id)
        facts = None
        if validator is not None:
            balance = validator.balance(state.l1_accrued_fees)
            seen["active" if balance else "drained"] += 1
            seen["changed"] += validator.min_nonce > 0
            facts = L1ValidatorState(
                validator.subnet_id, validator.weight, validator.min_nonce, balance
            )
        results.append((rows.l1_validator(validation_id), ValidationAt(state.height, facts)))
    results.append((rows.l1_validator(ValidationID(bytes(32))), None))
    for record in records:
        assert isinstance(record, PRecord)
        for effects in record.effects.txs:
            transaction = rows.transaction(effects.tx.id)
            results.append((transaction and transaction.raw, effects.tx.raw))
            if transaction is not None and effects.outcome is TxOutcome.ACCEPTED:
                place = transaction.status, transaction.height
                results.append((place, (TxStatus.COMMITTED, record.effects.block.height)))
    return results


def expected_validations(
    state: PChainState, subnet_id: SubnetID, seen: Counter[str]
) -> list[CurrentValidation]:
    """Return the current validations of a subnet by the state."""
    delegated: Counter[Any] = Counter()
    for staker in state.current:
        if staker.period.is_delegation and staker.period.subnet_id == subnet_id:
            delegated[staker.period.node_id] += staker.period.weight
    validations = []
    for staker in state.current:
        period = staker.period
        if period.subnet_id == subnet_id and not period.is_delegation:
            seen["permissioned"] += staker.is_permissioned
            seen["delegated"] += bool(delegated[period.node_id])
            ends = {"end_unix_s": staker.next_s, "delegated": delegated[period.node_id]}
            start_s = period.start_s
            assert start_s is not None
            validations.append(
                CurrentValidation(period.tx_id, period.node_id, period.weight, start_s, **ends)
            )
    for validator in state.l1:
        if validator.subnet_id == subnet_id:
            own = (
                validator.node_id,
                validator.weight,
                validator.start_s,
                validator.balance(state.l1_accrued_fees),
            )
            validations.append(CurrentValidation(validator.validation_id, *own))
    return validations
