"""Rewards and validations as they are told to callers, from their rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from warpseal.chains.ids import Address, TxID
from warpseal.history.outputs import Amount, RewardKind
from warpseal.history.queries import Order, Page, PageRequest, RewardQuery, ValidationQuery
from warpseal.history.staking import (
    Active,
    Completed,
    Pending,
    Removed,
    Reward,
    Rewards,
    Validation,
    ValidationStatus,
)
from warpseal.index import stakings
from warpseal.index.details import decode_stake
from warpseal.index.key_streams import MOST_SCANNED, KeyPage, KeyRange, merge_keys
from warpseal.index.keys import from_column
from warpseal.index.output_reader import OutputReader
from warpseal.index.read_session import ReadSession
from warpseal.index.tx_reader import addresses_of, bls_of
from warpseal.warp.ids import NodeID, SubnetID

_STATES: Final = {
    ValidationStatus.PENDING: stakings.PENDING,
    ValidationStatus.ACTIVE: stakings.ACTIVE,
    ValidationStatus.COMPLETED: stakings.COMPLETED,
    ValidationStatus.REMOVED: stakings.REMOVED,
}
_VALIDATIONS: Final = (
    "SELECT s.tx, t.tx_id, s.subnet, s.start_s, s.end_s, s.weight, s.shares, s.state, s.potential, s.closed_by,"
    " s.closed_at, s.earned, s.fees, s.fees_due, s.active_count, s.active_weight, s.total_count, s.total_weight,"
    " s.detail, n.total_stake, n.max_stake, n.factor"
    " FROM stakings s JOIN txs t ON t.key = s.tx LEFT JOIN subnets n ON n.subnet = s.subnet"
    " WHERE s.node = ? AND s.is_delegation = 0 AND (s.start_s, s.tx) {beyond} (?, ?){state}"
    " ORDER BY s.start_s {order}, s.tx {order} LIMIT ?"
)
_REWARDS: Final = (
    "SELECT r.key, r.output, r.staking, r.tx, r.time, s.node, s.start_s, s.end_s, s.weight"
    " FROM rewards r JOIN stakings s ON s.tx = r.staking WHERE r.key IN {keys}"
)
_PART: Final = "reward BETWEEN ? AND ? ORDER BY reward {order} LIMIT ?"
_END: Final = 2**62


def validations(reading: ReadSession, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
    """Return the validations of a node, by when they began."""
    node = reading.keys_of([query.node_id]).get(query.node_id)
    if node is None:
        return Page(())
    is_newest_first = query.order is Order.DESC
    begin: Sequence[Any] = page.after or ((_END, _END) if is_newest_first else (-1, -1))
    text = _VALIDATIONS.format(
        beyond="<" if is_newest_first else ">",
        order="DESC" if is_newest_first else "ASC",
        state="" if query.status is None else f" AND s.state = {_STATES[query.status]}",
    )
    rows = reading.rows(text, node, *begin, page.size + 1)
    shown = rows[: page.size]
    values = _validations(reading, query.node_id, shown)
    return Page(values, (shown[-1][3], shown[-1][0]) if len(rows) > page.size else None)


def _validations(reading: ReadSession, node_id: NodeID, rows: Sequence[Any]) -> tuple[Validation, ...]:
    closing = {row[9] for row in rows if row[9] is not None}
    text = "SELECT key, tx_id, time FROM txs WHERE key IN {keys}"
    closed = {key: (TxID(bytes(tx_id)), time) for key, tx_id, time in reading.by_keys(text, closing)}
    details = [decode_stake(row[18]) for row in rows]
    named = chain.from_iterable((*detail.own, *detail.of_delegations) for detail in details)
    reading.load_ids({row[2] for row in rows} | set(named))
    values = []
    for row, detail in zip(rows, details, strict=True):
        values.append(
            Validation(
                tx_id=TxID(bytes(row[1])),
                node_id=node_id,
                subnet_id=SubnetID(reading.id_of(row[2])),
                staked=from_column(row[5]),
                start=row[3],
                end=from_column(row[4]),
                state=_state(row, addresses_of(reading, detail), closed),
                fee_shares=row[6],
                bls=bls_of(detail.bls),
            )
        )
    return tuple(values)


def _state(
    row: Any, addresses: tuple[Address, ...], closed: dict[int, tuple[TxID, int]]
) -> Pending | Active | Completed | Removed:
    state, potential, closed_by, closed_at, earned, fees, fees_due = row[7:14]
    active_count, active_weight, total_count, total_weight = row[14:18]
    delegated = row[6] is not None
    if state == stakings.PENDING:
        return Pending()
    if state == stakings.REMOVED:
        return Removed(closed[closed_by][0], closed_at)
    if state == stakings.COMPLETED:
        is_paid = bool(earned or fees) and closed_by is not None
        return Completed(
            delegator_count=total_count,
            rewards=Rewards(earned, fees, addresses, closed[closed_by][0] if is_paid else None),
            delegated=from_column(total_weight) if delegated else None,
        )
    return Active(
        delegator_count=active_count,
        total_stake=from_column(row[19] or 0),
        potential=Rewards(potential or 0, fees_due, addresses),
        delegated=from_column(active_weight) if delegated else None,
        capacity=_capacity(row, from_column(active_weight)) if delegated else None,
    )


def _capacity(row: Any, delegated: int) -> int | None:
    max_stake: int | None = row[20]
    factor: int = row[21]
    weight = from_column(row[5])
    if max_stake is None:
        return None
    return max(0, min(from_column(max_stake), factor * weight) - weight - delegated)


def rewards(reading: ReadSession, query: RewardQuery, page: PageRequest) -> Page[Reward]:
    """Return rewards in the order in which they were paid."""
    place = KeyRange(0, _END, query.order is Order.DESC)
    if page.after is not None:
        (after,) = page.after
        assert isinstance(after, int)
        place = place.behind(after)
    found = _reward_keys(reading, query, place, page.size + 1)
    shown = found.keys[: page.size]
    more = shown[-1] if len(found.keys) > page.size else found.scanned_to
    return Page(_rewards(reading, shown), None if more is None else (more,))


def _reward_keys(reading: ReadSession, query: RewardQuery, place: KeyRange, limit: int) -> KeyPage:
    addresses = list(reading.keys_of(query.addresses).values())
    nodes = list(reading.keys_of(query.node_ids).values())
    if query.addresses and query.node_ids:
        # A reward has few addresses: those of the nodes are looked through.
        keys = _merged(reading, "reward_nodes", "node", (nodes, place), MOST_SCANNED)
        text = "SELECT reward FROM reward_addresses WHERE reward IN {keys} AND address = ?"
        paid = {row[0] for one in addresses for row in reading.by_keys(text, keys, one)}
        both = [key for key in keys if key in paid][:limit]
        return KeyPage(both, keys[-1] if len(keys) == MOST_SCANNED and len(both) < limit else None)
    if query.node_ids:
        return KeyPage(_merged(reading, "reward_nodes", "node", (nodes, place), limit))
    return KeyPage(_merged(reading, "reward_addresses", "address", (addresses, place), limit))


def _merged(
    reading: ReadSession, table: str, column: str, wanted: tuple[Sequence[int], KeyRange], limit: int
) -> list[int]:
    keys, place = wanted
    of_one = f"SELECT reward FROM {table} WHERE {column} = {{one}} AND {_PART.format(order=place.order)}"
    ends = (place.low, place.high, limit)
    if reading.is_postgresql:
        part = of_one.format(one="a.key")
        text = f"SELECT t.reward FROM unnest(?::bigint[]) AS a(key) CROSS JOIN LATERAL ({part}) AS t"
        found = {row[0] for row in reading.rows(text, list(keys), *ends)}
        return merge_keys([sorted(found, reverse=place.is_newest_first)], place, limit)
    lists = (reading.rows(of_one.format(one="?"), key, *ends) for key in keys)
    return merge_keys([[row[0] for row in rows] for rows in lists], place, limit)


def _rewards(reading: ReadSession, keys: Sequence[int]) -> tuple[Reward, ...]:
    rows = {row[0]: row for row in reading.by_keys(_REWARDS, keys)}
    outputs = OutputReader(reading)
    outputs.load([row[1] for row in rows.values()], [tx for row in rows.values() for tx in row[2:4]])
    reading.load_ids({row[5] for row in rows.values()})
    values = []
    for key in keys:
        _, output, staking, tx, time, node, start, end, weight = rows[key]
        (paid,) = outputs.of([output])
        values.append(
            Reward(
                addresses=paid.addresses,
                tx_id=outputs.tx(staking).tx_id,
                node_id=NodeID(reading.id_of(node)),
                staked=from_column(weight),
                start=start,
                end=from_column(end),
                kind=paid.reward or RewardKind.VALIDATOR,
                utxo_id=paid.utxo_id,
                output_index=paid.output_index,
                reward=Amount(paid.asset, paid.amount),
                reward_tx_id=outputs.tx(tx).tx_id,
                paid_at=time,
            )
        )
    return tuple(values)
