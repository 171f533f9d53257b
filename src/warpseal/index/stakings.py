"""Stakings: the open ones are in memory, and every change is written as a row.

Source of truth: the effects of the ledger, and its rule of splitting a delegation's reward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from warpseal.chains.ids import TxID
from warpseal.index import bulk
from warpseal.index.batch import IndexBatch
from warpseal.index.details import StakeDetail, encode
from warpseal.index.ids import IdTable
from warpseal.index.keys import from_column, to_column
from warpseal.index.schema import STAKINGS, SUBNETS
from warpseal.ledger.effects import PeriodClosed, PeriodRenewed, PeriodStarted, StakingPeriod
from warpseal.ledger.rewards import split_reward

PENDING, ACTIVE, COMPLETED, REMOVED = range(4)

_OPEN: Final = "SELECT s.*, t.tx_id FROM stakings s JOIN txs t ON t.key = s.tx WHERE s.state < 2 ORDER BY s.tx"


@dataclass(slots=True)
class Staking:
    """A row of `stakings`, its amounts unsigned. tx_id: of the transaction."""

    tx_id: TxID
    tx: int
    node: int
    subnet: int
    start_s: int
    end_s: int
    weight: int
    shares: int | None
    state: int
    is_delegation: int
    validator: int | None
    potential: int | None
    first_out: int
    closed_by: int | None
    closed_at: int | None
    earned: int
    fees: int
    fees_due: int
    active_count: int
    active_weight: int
    total_count: int
    total_weight: int
    detail: bytes

    def row(self) -> tuple[object, ...]:
        """Return the row."""
        place = (
            self.tx,
            self.node,
            self.subnet,
            self.start_s,
            to_column(self.end_s),
            to_column(self.weight),
            self.shares,
        )
        kind = (self.state, self.is_delegation, self.validator, self.potential, self.first_out)
        paid = (self.closed_by, self.closed_at, self.earned, self.fees, self.fees_due)
        return (*place, *kind, *paid, *self._counts(), self.detail)

    def _counts(self) -> tuple[int, ...]:
        return self.active_count, to_column(self.active_weight), self.total_count, to_column(self.total_weight)


class Stakings:
    """All open stakings, and the changes since the last flush."""

    def __init__(self) -> None:
        self._open: dict[TxID, Staking] = {}
        self._by_key: dict[int, Staking] = {}
        self._validators: dict[tuple[int, int], Staking] = {}
        self._new: dict[int, Staking] = {}
        self._changed: dict[int, Staking] = {}
        self._subnets: dict[int, list[int | None]] = {}
        self._changed_subnets: set[int] = set()

    def load(self, connection: Connection) -> None:
        """Load the open stakings and the subnets."""
        self.__init__()  # type: ignore[misc]
        for row in bulk.fetch(connection, _OPEN):
            *columns, tx_id = row
            staking = Staking(TxID(bytes(tx_id)), *columns)
            staking.end_s, staking.weight = from_column(staking.end_s), from_column(staking.weight)
            staking.active_weight = from_column(staking.active_weight)
            staking.total_weight = from_column(staking.total_weight)
            staking.detail = bytes(staking.detail)
            self._add_open(staking)
        for subnet, *values in bulk.fetch(connection, "SELECT * FROM subnets"):
            self._subnets[subnet] = [from_column(values[0]), *values[1:]]

    def find(self, tx_id: TxID) -> Staking | None:
        """Return an open staking."""
        return self._open.get(tx_id)

    def set_limits(self, subnet: int, max_stake: int, factor: int) -> None:
        """Set the bounds of a validator's weight in a subnet: absolute, and as a multiple of its own stake."""
        subnet_row = self._subnets.setdefault(subnet, [0, None, None])
        if subnet_row[1:] != [max_stake, factor]:
            subnet_row[1:] = [max_stake, factor]
            self._changed_subnets.add(subnet)

    def begin(self, ids: IdTable, period: StakingPeriod, tx: int, first_out: int, time_s: int) -> None:
        """Add a staking that a transaction opened in a block of this time."""
        key = ids.key
        staking = Staking(
            period.tx_id, tx, key(period.node_id), key(period.subnet_id), period.start_s, period.end_s, period.weight,
            period.shares, PENDING, int(period.is_delegation), None, period.potential_reward, first_out,
            None, None, 0, 0, 0, 0, 0, 0, 0, _detail(ids, period),
        )  # fmt: skip
        if period.is_delegation:
            validator = self._validators.get((staking.subnet, staking.node))
            staking.validator = validator.tx if validator is not None else None
        self._add_open(staking)
        self._new[tx] = staking
        if period.potential_reward is not None or period.start_s <= time_s:
            self._activate(staking)

    def start(self, started: PeriodStarted) -> None:
        """Start a pending staking."""
        staking = self._open.get(started.tx_id)
        if staking is not None and staking.state == PENDING:
            staking.potential = started.potential_reward
            self._activate(staking)

    def close(self, closed: PeriodClosed, by: int) -> None:
        """Complete a staking with its rewards. by: key of the transaction."""
        staking = self._open.get(closed.tx_id)
        if staking is None:
            return
        self._deactivate(staking, is_rewarded=closed.is_rewarded)
        staking.state, staking.closed_by, staking.closed_at = COMPLETED, by, closed.end_s
        staking.earned += closed.validation_reward + closed.delegator_reward
        staking.fees += closed.delegation_reward
        validator = self._by_key.get(staking.validator or -1)
        if validator is not None and closed.validator_share and not closed.is_deferred:
            validator.fees += closed.validator_share
        self._remove_open(staking)

    def renew(self, renewed: PeriodRenewed, earned: int, fees: int) -> None:
        """Renew a staking with the rewards that the ended cycle paid."""
        staking = self._open.get(renewed.tx_id)
        if staking is None:
            return
        self._add_stake(staking, -1)
        staking.end_s, staking.weight, staking.potential = renewed.end_s, renewed.weight, renewed.potential_reward
        staking.earned += earned
        staking.fees += fees
        self._add_stake(staking, 1)
        self._mark_changed(staking)

    def remove(self, tx_id: TxID, by: int, time_s: int) -> None:
        """End a staking that the subnet's owner removed."""
        self._end(tx_id, REMOVED, by, time_s)

    def expire(self, tx_id: TxID) -> None:
        """Complete a permissioned staking at its end time."""
        self._end(tx_id, COMPLETED, None, None)

    def flush(self, batch: IndexBatch) -> None:
        """Add the changed rows to a batch."""
        for staking in self._new.values():
            batch.add(STAKINGS, staking.row())
        for key, staking in self._changed.items():
            if key not in self._new:
                batch.change(STAKINGS, staking.row())
        for subnet in sorted(self._changed_subnets):
            total, *limits = self._subnets[subnet]
            batch.change(SUBNETS, (subnet, to_column(total or 0), *limits))
        self._new, self._changed, self._changed_subnets = {}, {}, set()

    def _end(self, tx_id: TxID, state: int, by: int | None, time_s: int | None) -> None:
        staking = self._open.get(tx_id)
        if staking is not None:
            self._deactivate(staking, is_rewarded=False)
            staking.state, staking.closed_by, staking.closed_at = state, by, time_s
            self._remove_open(staking)

    def _activate(self, staking: Staking) -> None:
        staking.state = ACTIVE
        self._add_stake(staking, 1)
        self._mark_changed(staking)
        validator = self._by_key.get(staking.validator or -1)
        if validator is not None:
            validator.active_count += 1
            validator.active_weight += staking.weight
            validator.total_count += 1
            validator.total_weight += staking.weight
            validator.fees_due += _share(staking, validator)
            self._mark_changed(validator)

    def _deactivate(self, staking: Staking, *, is_rewarded: bool) -> None:
        """Subtract a staking from the sums; a rewarded one stays in the fees due."""
        self._mark_changed(staking)
        if staking.state != ACTIVE:
            return
        self._add_stake(staking, -1)
        validator = self._by_key.get(staking.validator or -1)
        if validator is not None:
            validator.active_count -= 1
            validator.active_weight -= staking.weight
            if not is_rewarded:
                validator.fees_due -= _share(staking, validator)
            self._mark_changed(validator)

    def _add_stake(self, staking: Staking, sign: int) -> None:
        subnet_row = self._subnets.setdefault(staking.subnet, [0, None, None])
        subnet_row[0] = (subnet_row[0] or 0) + sign * staking.weight
        self._changed_subnets.add(staking.subnet)

    def _add_open(self, staking: Staking) -> None:
        self._open[staking.tx_id] = self._by_key[staking.tx] = staking
        if not staking.is_delegation:
            self._validators[staking.subnet, staking.node] = staking

    def _remove_open(self, staking: Staking) -> None:
        del self._open[staking.tx_id], self._by_key[staking.tx]
        place = (staking.subnet, staking.node)
        if self._validators.get(place) is staking:
            del self._validators[place]

    def _mark_changed(self, staking: Staking) -> None:
        self._changed[staking.tx] = staking


def ids_of(period: StakingPeriod) -> Iterable[bytes]:
    """Yield the ids whose keys `begin` needs."""
    yield period.node_id
    yield period.subnet_id
    for owner in (period.validation_owner, period.delegation_owner):
        if owner is not None:
            yield from owner.addresses


def _share(staking: Staking, validator: Staking) -> int:
    return split_reward(staking.potential or 0, validator.shares)[0] if validator.shares is not None else 0


def _detail(ids: IdTable, period: StakingPeriod) -> bytes:
    owners = (period.validation_owner, period.delegation_owner)
    keys = [() if owner is None else tuple(map(ids.key, owner.addresses)) for owner in owners]
    signer = period.signer
    bls = b"" if signer is None else signer.public_key + signer.proof
    return encode(StakeDetail(keys[0], keys[1], bls))
