"""Rewards and validations, from their rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from warpseal.chains.ids import Address, TxID
from warpseal.index import stakings
from warpseal.index.details import decode_stake
from warpseal.index.key_streams import MOST_SCANNED, KeyPage, KeyRange, merged_keys
from warpseal.index.keys import from_column
from warpseal.index.output_reader import OutputReader
from warpseal.index.read_session import ReadSession
from warpseal.index.tx_reader import bls_credentials, reward_addresses
from warpseal.index.type_codes import reward_of
from warpseal.resources.base import RewardType, SortOrder
from warpseal.resources.queries import Page, PageRequest, RewardQuery, ValidationQuery
from warpseal.resources.staking import (
    ActiveState,
    CompletedState,
    PendingState,
    RemovedState,
    Reward,
    Rewards,
    Validation,
)
from warpseal.warp.ids import NodeID, SubnetID

# By the number of the state.
_STATUSES: Final = ("pending", "active", "completed", "removed")
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
_END: Final = 2**62


def validations(session: ReadSession, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
    """Return the validations of a node, by when they began."""
    node = session.keys_of([query.node_id]).get(query.node_id)
    if node is None:
        return Page(())
    is_newest_first = query.order is SortOrder.DESC
    begin: Sequence[Any] = page.after or ((_END, _END) if is_newest_first else (-1, -1))
    text = _VALIDATIONS.format(
        beyond="<" if is_newest_first else ">",
        order="DESC" if is_newest_first else "ASC",
        state="" if query.status is None else f" AND s.state = {_STATUSES.index(query.status.value)}",
    )
    rows = session.rows(text, node, *begin, page.size + 1)
    shown = rows[: page.size]
    return Page(
        _validations(session, query.node_id, shown), (shown[-1][3], shown[-1][0]) if len(rows) > page.size else None
    )


def _validations(session: ReadSession, node_id: NodeID, rows: Sequence[Any]) -> tuple[Validation, ...]:
    closing = {row[9] for row in rows if row[9] is not None}
    text = "SELECT key, tx_id, time FROM txs WHERE key IN {keys}"
    closed = {key: (TxID(bytes(tx_id)), time) for key, tx_id, time in session.by_keys(text, closing)}
    details = [decode_stake(row[18]) for row in rows]
    named = chain.from_iterable((*detail.own, *detail.of_delegations) for detail in details)
    session.load_ids({row[2] for row in rows} | set(named))
    validations = []
    for row, detail in zip(rows, details, strict=True):
        validations.append(
            Validation(
                tx_id=TxID(bytes(row[1])),
                node_id=node_id,
                subnet_id=SubnetID(session.id_of(row[2])),
                staked=from_column(row[5]),
                start=row[3],
                end=from_column(row[4]),
                state=_state(row, reward_addresses(session, detail), closed),
                fee_shares=row[6],
                bls=bls_credentials(detail.bls),
            )
        )
    return tuple(validations)


def _state(
    row: Any, addresses: tuple[Address, ...], closed: dict[int, tuple[TxID, int]]
) -> PendingState | ActiveState | CompletedState | RemovedState:
    weight, shares, state, potential, closed_by, closed_at, earned, fees, fees_due = row[5:14]
    active_count, active_weight, total_count, total_weight, _, total_stake, max_stake, factor = row[14:]
    if state == stakings.PENDING:
        return PendingState()
    if state == stakings.REMOVED:
        return RemovedState(closed[closed_by][0], closed_at)
    if state == stakings.COMPLETED:
        is_paid = bool(earned or fees) and closed_by is not None
        return CompletedState(
            delegator_count=total_count,
            rewards=Rewards(earned, fees, addresses, closed[closed_by][0] if is_paid else None),
            delegated=None if shares is None else from_column(total_weight),
        )
    delegated, own = from_column(active_weight), from_column(weight)
    capacity = None
    if shares is not None and max_stake is not None:
        capacity = max(0, min(from_column(max_stake), factor * own) - own - delegated)
    return ActiveState(
        delegator_count=active_count,
        total_stake=from_column(total_stake or 0),
        potential=Rewards(potential or 0, fees_due, addresses),
        delegated=None if shares is None else delegated,
        capacity=capacity,
    )


def rewards(session: ReadSession, query: RewardQuery, page: PageRequest) -> Page[Reward]:
    """Return rewards in the order in which they were paid."""
    key_range = KeyRange(0, _END, query.order is SortOrder.DESC)
    if page.after_key is not None:
        key_range = key_range.behind(page.after_key)
    found = _reward_keys(session, query, key_range, page.size + 1)
    shown = found.keys[: page.size]
    more = shown[-1] if len(found.keys) > page.size else found.scanned_to
    return Page(_rewards(session, shown), None if more is None else (more,))


def _reward_keys(session: ReadSession, query: RewardQuery, key_range: KeyRange, limit: int) -> KeyPage:
    addresses = list(session.keys_of(query.addresses).values())
    nodes = list(session.keys_of(query.node_ids).values())
    if query.addresses and query.node_ids:
        # A reward has few addresses, so the rewards of the nodes are filtered.
        keys = _merged(session, "node", nodes, key_range, MOST_SCANNED)
        text = "SELECT reward FROM reward_addresses WHERE reward IN {keys} AND address = ?"
        paid = {row[0] for address in addresses for row in session.by_keys(text, keys, address)}
        both = [key for key in keys if key in paid][:limit]
        return KeyPage(both, keys[-1] if len(keys) == MOST_SCANNED and len(both) < limit else None)
    if query.node_ids:
        return KeyPage(_merged(session, "node", nodes, key_range, limit))
    return KeyPage(_merged(session, "address", addresses, key_range, limit))


def _merged(session: ReadSession, column: str, keys: Sequence[int], key_range: KeyRange, limit: int) -> list[int]:
    """Return the rewards of nodes or addresses."""
    tables = {"node": "reward_nodes", "address": "reward_addresses"}
    text = (
        f"SELECT reward FROM {tables[column]} WHERE {column} = {{0}} AND reward BETWEEN ? AND ?"
        f" ORDER BY reward {key_range.order} LIMIT ?"
    )
    return merged_keys(session, text, [keys], (key_range.low, key_range.high, limit), key_range)


def _rewards(session: ReadSession, keys: Sequence[int]) -> tuple[Reward, ...]:
    rows = {row[0]: row for row in session.by_keys(_REWARDS, keys)}
    outputs = OutputReader(session)
    outputs.load([row[1] for row in rows.values()], [tx for row in rows.values() for tx in row[2:4]])
    session.load_ids({row[5] for row in rows.values()})
    rewards = []
    for key in keys:
        _, output, staking, tx, time, node, start, end, weight = rows[key]
        paid = outputs.rows[output]
        rewards.append(
            Reward(
                addresses=outputs.addresses(paid),
                tx_id=outputs.tx(staking).tx_id,
                node_id=NodeID(session.id_of(node)),
                staked=from_column(weight),
                start=start,
                end=from_column(end),
                kind=reward_of(paid.flags) or RewardType.VALIDATOR,
                utxo_id=outputs.utxo_id(paid),
                output_index=paid.position,
                asset=session.asset_of(paid.asset),
                amount=paid.amount,
                reward_tx_id=outputs.tx(tx).tx_id,
                paid_at=time,
            )
        )
    return tuple(rewards)
