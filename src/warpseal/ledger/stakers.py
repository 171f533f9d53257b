"""Who stakes, and in which order stakers start and leave.

Source of truth: avalanchego `vms/platformvm/state/staker.go`, `vms/platformvm/txs/priorities.go`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush

from warpseal.chains.ids import TxID
from warpseal.ledger.effects import StakingPeriod
from warpseal.ledger.outputs import LedgerOutput
from warpseal.warp.ids import NodeID, SubnetID


class Priority(IntEnum):
    """Who comes first among those whose time is the same: lower numbers. Waiting ones, then current ones."""

    APRICOT_DELEGATOR_WAITS = 1
    PRIMARY_VALIDATOR_WAITS = 2
    BANFF_DELEGATOR_WAITS = 3
    ELASTIC_VALIDATOR_WAITS = 4
    ELASTIC_DELEGATOR_WAITS = 5
    PERMISSIONED_VALIDATOR_WAITS = 6
    PERMISSIONED_VALIDATOR = 7
    ELASTIC_DELEGATOR = 8
    ELASTIC_VALIDATOR = 9
    PRIMARY_DELEGATOR = 10
    PRIMARY_VALIDATOR = 11


STARTED: dict[int, Priority] = {
    Priority.APRICOT_DELEGATOR_WAITS: Priority.PRIMARY_DELEGATOR,
    Priority.PRIMARY_VALIDATOR_WAITS: Priority.PRIMARY_VALIDATOR,
    Priority.BANFF_DELEGATOR_WAITS: Priority.PRIMARY_DELEGATOR,
    Priority.ELASTIC_VALIDATOR_WAITS: Priority.ELASTIC_VALIDATOR,
    Priority.ELASTIC_DELEGATOR_WAITS: Priority.ELASTIC_DELEGATOR,
    Priority.PERMISSIONED_VALIDATOR_WAITS: Priority.PERMISSIONED_VALIDATOR,
}


@dataclass(frozen=True, slots=True)
class Staker:
    """One staker. next_s: when it starts (waiting) or leaves (current). stake: the outputs that come back then.

    first_free_index: the output index behind base and staked outputs, where rewards begin.
    """

    period: StakingPeriod
    priority: int
    next_s: int
    stake: tuple[LedgerOutput, ...]
    first_free_index: int

    @property
    def tx_id(self) -> TxID:
        """Id of the transaction that staked."""
        return self.period.tx_id

    @property
    def is_permissioned(self) -> bool:
        """Whether a subnet's owner let it in, so that it stakes and earns nothing."""
        return self.priority in (Priority.PERMISSIONED_VALIDATOR, Priority.PERMISSIONED_VALIDATOR_WAITS)

    @property
    def potential_reward(self) -> int:
        """What it may earn; 0 while it waits."""
        return self.period.potential_reward or 0


_Turn = tuple[int, int, TxID]


@dataclass(slots=True)
class StakerSet:
    """Stakers, by transaction, by place, and in order of time, priority and transaction id."""

    by_tx: dict[TxID, Staker] = field(default_factory=dict)
    validators: dict[tuple[SubnetID, NodeID], Staker] = field(default_factory=dict)
    # Turns of those who left early stay until they come up.
    _turns: list[_Turn] = field(default_factory=list)

    @classmethod
    def of(cls, stakers: Iterator[Staker]) -> StakerSet:
        """Return the set of these."""
        made = cls()
        for staker in stakers:
            made._enter(staker)
            made._turns.append((staker.next_s, staker.priority, staker.tx_id))
        heapify(made._turns)
        return made

    def add(self, staker: Staker) -> None:
        """Take in a staker."""
        self._enter(staker)
        heappush(self._turns, (staker.next_s, staker.priority, staker.tx_id))

    def remove(self, staker: Staker) -> None:
        """Take out a staker, which must be there."""
        del self.by_tx[staker.tx_id]
        period = staker.period
        if not period.is_delegation:
            self.validators.pop((period.subnet_id, period.node_id), None)

    def first(self) -> Staker | None:
        """Return whose turn is next; None where nobody is left."""
        turns = self._turns
        while turns:
            next_s, priority, tx_id = turns[0]
            staker = self.by_tx.get(tx_id)
            if staker is not None and staker.next_s == next_s and staker.priority == priority:
                return staker
            heappop(turns)
        return None

    def __iter__(self) -> Iterator[Staker]:
        """Yield all, by transaction id."""
        for tx_id in sorted(self.by_tx):
            yield self.by_tx[tx_id]

    def __len__(self) -> int:
        return len(self.by_tx)

    def _enter(self, staker: Staker) -> None:
        self.by_tx[staker.tx_id] = staker
        period = staker.period
        if not period.is_delegation:
            self.validators[period.subnet_id, period.node_id] = staker
