"""Rewards and validations, from their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from warpseal.chains.ids import Address, TxID
from warpseal.index.columns import decode_stake
from warpseal.index.key_streams import MOST_SCANNED, KeyPage, KeyRange, merged_keys
from warpseal.index.keys import from_column
from warpseal.index.output_reader import OutputReader
from warpseal.index.read_session import ReadSession
from warpseal.index.stakings import COMPLETED, PENDING, REMOVED, STAKING_COLUMNS, Staking
from warpseal.index.tx_reader import bls_credentials, reward_addresses
from warpseal.resources import transactions as resources
from warpseal.resources.base import RewardType, SortOrder
from warpseal.resources.queries import Page, PageRequest, RewardQuery, ValidationQuery
from warpseal.warp.ids import NodeID, SubnetID

# By the number of the state.
_STATUSES: Final = ("pending", "active", "completed", "removed")
_VALIDATIONS: Final = (
    f"SELECT {STAKING_COLUMNS}, t.tx_id, n.total_stake, n.max_stake, n.factor"
    " FROM stakings s"
    " JOIN txs t ON t.key = s.tx"
    " LEFT JOIN subnets n ON n.subnet = s.subnet"
    " WHERE s.node = ? AND s.is_delegation = 0 AND (s.start_s, s.tx) {beyond} (?, ?){state}"
    " ORDER BY s.start_s {order}, s.tx {order}"
    " LIMIT ?"
)
_REWARDS: Final = (
    "SELECT r.key, r.output, r.staking, r.tx, r.time, s.node, s.start_s, s.end_s, s.weight"
    " FROM rewards r"
    " JOIN stakings s ON s.tx = r.staking"
    " WHERE r.key IN {keys}"
)
_END: Final = 2**62


class _SubnetLimits(NamedTuple):
    """Total stake of a subnet, and bounds of a validator's weight, as columns hold them."""

    total_stake: int | None
    max_stake: int | None
    factor: int


def validations(
    session: ReadSession, query: ValidationQuery, page: PageRequest
) -> Page[resources.Validation]:
    """Return the validations of a node, by when they began."""
    node = session.keys_of([query.node_id]).get(query.node_id)
    if node is None:
        return Page(())
    is_newest_first = query.order is SortOrder.DESC
    begin: Sequence[Any] = (-1, -1)
    beyond, order, state = ">", "ASC", ""
    if is_newest_first:
        begin, beyond, order = (_END, _END), "<", "DESC"
    if page.after:
        begin = page.after
    if query.status is not None:
        state = f" AND s.state = {_STATUSES.index(query.status.value)}"
    text = _VALIDATIONS.format(beyond=beyond, order=order, state=state)
    rows = session.rows(text, node, *begin, page.size + 1)
    first = [
        (Staking.from_row(columns, tx_id), _SubnetLimits(total_stake, max_stake, factor))
        for *columns, tx_id, total_stake, max_stake, factor in rows[: page.size]
    ]
    more = (first[-1][0].start_s, first[-1][0].tx) if len(rows) > page.size else None
    return Page(_validations(session, query.node_id, first), more)


def _validations(
    session: ReadSession, node_id: NodeID, stakings: Sequence[tuple[Staking, _SubnetLimits]]
) -> tuple[resources.Validation, ...]:
    rows = [row for row, _ in stakings]
    closing = {row.closed_by for row in rows if row.closed_by is not None}
    text = "SELECT key, tx_id FROM txs WHERE key IN {keys}"
    closed_by = {key: TxID(bytes(tx_id)) for key, tx_id in session.by_keys(text, closing)}
    details = [decode_stake(row.detail) for row in rows]
    owners = {key for detail in details for key in (*detail.own, *detail.of_delegations)}
    session.load_ids({row.subnet for row in rows} | owners)
    return tuple(
        [
            resources.Validation(
                tx_id=row.tx_id,
                node_id=node_id,
                subnet_id=SubnetID(session.id_of(row.subnet)),
                staked=row.weight,
                start=row.start_s,
                end=row.end_s,
                state=_state(
                    row,
                    limits,
                    reward_addresses(session, detail),
                    None if row.closed_by is None else closed_by[row.closed_by],
                ),
                fee_shares=row.shares,
                bls=bls_credentials(detail.bls),
            )
            for (row, limits), detail in zip(stakings, details, strict=True)
        ]
    )


def _state(
    row: Staking, limits: _SubnetLimits, addresses: tuple[Address, ...], closed_by: TxID | None
) -> (
    resources.PendingState
    | resources.ActiveState
    | resources.CompletedState
    | resources.RemovedState
):
    if row.state == PENDING:
        return resources.PendingState()
    if row.state == REMOVED:
        assert closed_by is not None
        assert row.closed_at is not None
        return resources.RemovedState(closed_by, row.closed_at)
    if row.state == COMPLETED:
        return resources.CompletedState(
            delegator_count=row.total_count,
            rewards=resources.Rewards(
                row.earned, row.fees, addresses, closed_by if row.earned or row.fees else None
            ),
            delegated=None if row.shares is None else row.total_weight,
        )
    delegated, capacity = row.active_weight, None
    if row.shares is not None and limits.max_stake is not None:
        most = min(from_column(limits.max_stake), limits.factor * row.weight)
        capacity = max(0, most - row.weight - delegated)
    return resources.ActiveState(
        delegator_count=row.active_count,
        total_stake=from_column(limits.total_stake or 0),
        potential=resources.Rewards(
            (row.potential or 0) + row.kept, row.fees_due + row.kept_fees, addresses
        ),
        delegated=None if row.shares is None else delegated,
        capacity=capacity,
    )


def rewards(session: ReadSession, query: RewardQuery, page: PageRequest) -> Page[resources.Reward]:
    """Return rewards in the order in which they were paid."""
    key_range = KeyRange(0, _END, query.order is SortOrder.DESC)
    if page.after_key is not None:
        key_range = key_range.behind(page.after_key)
    batch = _reward_keys(session, query, key_range, page.size + 1)
    keys = batch.keys[: page.size]
    more = keys[-1] if len(batch.keys) > page.size else batch.scanned_to
    return Page(_rewards(session, keys), None if more is None else (more,))


def _reward_keys(
    session: ReadSession, query: RewardQuery, key_range: KeyRange, limit: int
) -> KeyPage:
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


def _merged(
    session: ReadSession, column: str, keys: Sequence[int], key_range: KeyRange, limit: int
) -> list[int]:
    """Return the rewards of nodes or addresses."""
    tables = {"node": "reward_nodes", "address": "reward_addresses"}
    text = (
        "SELECT reward"
        f" FROM {tables[column]}"
        f" WHERE {column} = {{0}} AND reward BETWEEN ? AND ?"
        f" ORDER BY reward {key_range.order}"
        " LIMIT ?"
    )
    return merged_keys(session, text, [keys], (key_range.low, key_range.high, limit), key_range)


def _rewards(session: ReadSession, keys: Sequence[int]) -> tuple[resources.Reward, ...]:
    rows = {row[0]: row[1:] for row in session.by_keys(_REWARDS, keys)}
    outputs = OutputReader(session)
    txs = [key for _, staking, tx, *_ in rows.values() for key in (staking, tx)]
    outputs.load([output for output, *_ in rows.values()], txs)
    session.load_ids({node for *_, node, _, _, _ in rows.values()})
    rewards = []
    for key in keys:
        output, staking, tx, time, node, start, end, weight = rows[key]
        row = outputs.rows[output]
        rewards.append(
            resources.Reward(
                addresses=outputs.addresses(row),
                tx_id=outputs.tx(staking).tx_id,
                node_id=NodeID(session.id_of(node)),
                staked=from_column(weight),
                start=start,
                end=from_column(end),
                kind=row.flags.reward or RewardType.VALIDATOR,
                utxo_id=outputs.utxo_id(row),
                output_index=row.position,
                asset=session.asset_of(row.asset),
                amount=row.amount,
                reward_tx_id=outputs.tx(tx).tx_id,
                paid_at=time,
            )
        )
    return tuple(rewards)
