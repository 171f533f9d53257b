"""Stakings: the open ones are in memory, and every change is written as a row.

Source of truth: the effects of the ledger, and its rule of splitting a delegation's reward.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from warpseal.chains.ids import TxID
from warpseal.index.batch import IndexBatch
from warpseal.index.bulk import IdTable
from warpseal.index.columns import StakeDetail, encode
from warpseal.index.keys import from_column, to_column
from warpseal.index.schema import STAKINGS, SUBNETS
from warpseal.ledger.effects import PeriodClosed, PeriodRenewed, PeriodStarted, StakingPeriod
from warpseal.ledger.rewards import split_reward
from warpseal.store.connection import Connection

PENDING, ACTIVE, COMPLETED, REMOVED = range(4)

_NAMES: Final = tuple(column.name for column in STAKINGS.columns)
_columns: Final = attrgetter(*_NAMES)
STAKING_COLUMNS: Final = ", ".join(f"s.{name}" for name in _NAMES)
"""The columns of `stakings s` as `Staking.from_row` takes them."""
_OPEN: Final = (
    f"SELECT {STAKING_COLUMNS}, t.tx_id"
    " FROM stakings s"
    " JOIN txs t ON t.key = s.tx"
    " WHERE s.state < 2"
    " ORDER BY s.tx"
)


class Staking(Struct, kw_only=True):
    """A row of `stakings`, its amounts unsigned.

    tx_id: id of the transaction whose key is `tx`.
    """

    tx_id: TxID
    tx: int
    node: int
    subnet: int
    start_s: int
    end_s: int
    weight: int
    shares: int | None
    state: int = PENDING
    is_delegation: int
    validator: int | None = None
    potential: int | None
    first_out: int
    closed_by: int | None = None
    closed_at: int | None = None
    earned: int = 0
    fees: int = 0
    fees_due: int = 0
    kept: int = 0
    kept_fees: int = 0
    active_count: int = 0
    active_weight: int = 0
    total_count: int = 0
    total_weight: int = 0
    detail: bytes

    @classmethod
    def from_row(cls, columns: Iterable[Any], tx_id: bytes = b"") -> Staking:
        """Return the staking of a row."""
        values: list[Any] = [
            from_column(value) if isinstance(value, int) else value for value in columns
        ]
        return cls(tx_id=TxID(bytes(tx_id)), **dict(zip(_NAMES, values, strict=True)))

    def row(self) -> tuple[object, ...]:
        """Return the row."""
        return tuple(
            [to_column(value) if isinstance(value, int) else value for value in _columns(self)]
        )


class Stakings:
    """All open stakings, and the changes since the last flush."""

    def __init__(self, connection: Connection) -> None:
        self._open: dict[TxID, Staking] = {}
        self._by_key: dict[int, Staking] = {}
        self._validators: dict[tuple[int, int], Staking] = {}
        self._new: dict[int, Staking] = {}
        self._changed: dict[int, Staking] = {}
        self._subnets: dict[int, list[int | None]] = {}
        self._changed_subnets: set[int] = set()
        for *columns, tx_id in connection.fetch(_OPEN):
            self._add_open(Staking.from_row(columns, tx_id))
        for subnet, *values in connection.fetch("SELECT * FROM subnets"):
            self._subnets[subnet] = [from_column(values[0]), *values[1:]]

    def find(self, tx_id: TxID) -> Staking | None:
        """Return an open staking."""
        return self._open.get(tx_id)

    def set_limits(self, subnet: int, max_stake: int, factor: int) -> None:
        """Set the bounds of a validator's weight: absolute, and as a multiple of its own stake."""
        subnet_row = self._subnets.setdefault(subnet, [0, None, None])
        if subnet_row[1:] != [max_stake, factor]:
            subnet_row[1:] = [max_stake, factor]
            self._changed_subnets.add(subnet)

    def begin(
        self, ids: IdTable, period: StakingPeriod, tx: int, first_out: int, time_s: int
    ) -> None:
        """Add a staking that a transaction opened in a block of this time."""
        owners = (period.validation_owner, period.delegation_owner)
        addresses = [
            () if owner is None else tuple([ids.keys[address] for address in owner.addresses])
            for owner in owners
        ]
        bls = b"" if period.signer is None else period.signer.public_key + period.signer.proof
        staking = Staking(
            tx_id=period.tx_id,
            tx=tx,
            node=ids.keys[period.node_id],
            subnet=ids.keys[period.subnet_id],
            start_s=period.start_s,
            end_s=period.end_s,
            weight=period.weight,
            shares=period.shares,
            is_delegation=int(period.is_delegation),
            potential=period.potential_reward,
            first_out=first_out,
            detail=encode(StakeDetail(addresses[0], addresses[1], bls)),
        )
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
        """Complete a staking with its rewards.

        by: key of the transaction that closes it.
        """
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
        """Renew a staking.

        earned, fees: rewards that the ended cycle paid, without those that became weight.
        """
        staking = self._open.get(renewed.tx_id)
        if staking is None:
            return
        self._add_stake(staking, -1)
        staking.end_s, staking.weight, staking.potential = (
            renewed.end_s,
            renewed.weight,
            renewed.potential_reward,
        )
        staking.earned += earned
        staking.fees += fees
        staking.kept += renewed.kept_validation
        staking.kept_fees += renewed.kept_delegation
        staking.fees_due -= fees + renewed.kept_delegation
        self._add_stake(staking, 1)
        self._changed[staking.tx] = staking

    def end(
        self, tx_id: TxID, state: int, by: int | None = None, time_s: int | None = None
    ) -> None:
        """End a staking without a reward.

        by: transaction with which the subnet's owner ended the staking, if any.
        """
        staking = self._open.get(tx_id)
        if staking is not None:
            self._deactivate(staking, is_rewarded=False)
            staking.state, staking.closed_by, staking.closed_at = state, by, time_s
            self._remove_open(staking)

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

    def _activate(self, staking: Staking) -> None:
        staking.state = ACTIVE
        self._add_stake(staking, 1)
        self._changed[staking.tx] = staking
        validator = self._by_key.get(staking.validator or -1)
        if validator is not None:
            validator.active_count += 1
            validator.active_weight += staking.weight
            validator.total_count += 1
            validator.total_weight += staking.weight
            validator.fees_due += _share(staking, validator)
            self._changed[validator.tx] = validator

    def _deactivate(self, staking: Staking, *, is_rewarded: bool) -> None:
        """Subtract a staking from the sums; a rewarded one stays in the fees due."""
        self._changed[staking.tx] = staking
        if staking.state != ACTIVE:
            return
        self._add_stake(staking, -1)
        validator = self._by_key.get(staking.validator or -1)
        if validator is not None:
            validator.active_count -= 1
            validator.active_weight -= staking.weight
            if not is_rewarded:
                validator.fees_due -= _share(staking, validator)
            self._changed[validator.tx] = validator

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


def ids_of(period: StakingPeriod) -> Iterable[bytes]:
    """Yield the ids whose keys `begin` needs."""
    yield period.node_id
    yield period.subnet_id
    for owner in (period.validation_owner, period.delegation_owner):
        if owner is not None:
            yield from owner.addresses


def _share(staking: Staking, validator: Staking) -> int:
    if validator.shares is None:
        return 0
    return split_reward(staking.potential or 0, validator.shares)[0]
