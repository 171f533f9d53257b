"""Who stakes, and in which order stakers start and leave.

Source of truth: avalanchego `vms/platformvm/state/staker.go`, `vms/platformvm/txs/priorities.go`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heapify, heappop, heappush

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import AssetID, BlockID, TxID
from warpseal.chains.p_txs import PSignedTx
from warpseal.ledger.effects import StakingPeriod
from warpseal.ledger.outputs import LedgerOutput
from warpseal.ledger.params import Parameters, RewardConfig
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import PChainOwner


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


@dataclass(frozen=True, slots=True)
class L1Validator:
    """One validation. end_accumulated_fee: at which sum of fees its balance is used up, nAVAX; 0: inactive."""

    validation_id: ValidationID
    subnet_id: SubnetID
    node_id: NodeID
    public_key: bytes
    remaining_balance_owner: PChainOwner
    deactivation_owner: PChainOwner
    start_s: int
    weight: int
    min_nonce: int
    end_accumulated_fee: int

    def balance(self, accrued_fees: int) -> int:
        """Return what is left, nAVAX, when `accrued_fees` have been paid by everybody."""
        return max(0, self.end_accumulated_fee - accrued_fees)


@dataclass(slots=True)
class L1Validators:
    """All validations that were not removed; the active ones also in the order in which they run out."""

    by_id: dict[ValidationID, L1Validator] = field(default_factory=dict)
    active: int = 0
    # Ends of those who were funded again or left stay until they come up.
    _ends: list[tuple[int, ValidationID]] = field(default_factory=list)

    @classmethod
    def of(cls, validators: Iterator[L1Validator]) -> L1Validators:
        """Return the set of these."""
        by_id = {validator.validation_id: validator for validator in validators}
        ends = [(each.end_accumulated_fee, key) for key, each in by_id.items() if each.end_accumulated_fee]
        active = len(ends)
        heapify(ends)
        return cls(by_id, active, ends)

    def put(self, validator: L1Validator) -> None:
        """Add a validator, or replace it."""
        before = self.by_id.get(validator.validation_id)
        was = before.end_accumulated_fee if before is not None else 0
        end = validator.end_accumulated_fee
        self.by_id[validator.validation_id] = validator
        if end and end != was:
            heappush(self._ends, (end, validator.validation_id))
        self.active += bool(end) - bool(was)

    def remove(self, validator: L1Validator) -> None:
        """Take out a validator, which must be there as it is given."""
        del self.by_id[validator.validation_id]
        self.active -= bool(validator.end_accumulated_fee)

    def deactivate_below(self, accrued_fees: int) -> list[L1Validator]:
        """Deactivate those whose end lies below `accrued_fees`; return them as they were, by their ends."""
        gone: list[L1Validator] = []
        ends = self._ends
        while ends and ends[0][0] < accrued_fees:
            end, validation_id = heappop(ends)
            validator = self.by_id.get(validation_id)
            if validator is None or validator.end_accumulated_fee != end:
                continue
            gone.append(validator)
            self.put(replace(validator, end_accumulated_fee=0))
        return gone

    def __iter__(self) -> Iterator[L1Validator]:
        """Yield all, by validation id."""
        for validation_id in sorted(self.by_id):
            yield self.by_id[validation_id]


@dataclass(frozen=True, slots=True)
class Transformation:
    """How an elastic subnet rewards its stakers."""

    tx_id: TxID
    asset_id: AssetID
    rewards: RewardConfig


@dataclass(frozen=True, slots=True)
class Conversion:
    """Who decides over an L1's validators."""

    conversion_id: bytes
    manager_chain_id: ChainID
    manager_address: bytes


@dataclass(frozen=True, slots=True)
class SubnetState:
    """A subnet; its owner is the last one, also of an L1."""

    subnet_id: SubnetID
    owner: OutputOwners
    transformation: Transformation | None = None
    conversion: Conversion | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A transaction whose outcome the next block decides, and where it stands."""

    tx: PSignedTx
    height: int
    position: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """How an auto-renewed validator (Helicon) goes on. next_period_s: 0 to leave at the end of the cycle.

    accrued_validation, accrued_delegation: what it has kept of its rewards as weight, paid out when it leaves.
    """

    compound_shares: int
    next_period_s: int
    accrued_validation: int = 0
    accrued_delegation: int = 0


@dataclass(slots=True)
class PChainState:
    """The state after block `height`. Only `apply` changes it.

    time_s: chain time. supplies: by subnet, of the Primary Network (where known) and elastic ones. delegation_rewards:
    what current validators (by transaction) will be paid for delegations that ended. is_complete: False where it began
    without the genesis, so that stakers and outputs may be unknown. is_invalid: a fault left it in between; nothing may
    use it.
    """

    params: Parameters
    time_s: int
    height: int
    block_id: BlockID
    supplies: dict[SubnetID, int]
    current: StakerSet = field(default_factory=StakerSet)
    waiting: StakerSet = field(default_factory=StakerSet)
    delegation_rewards: dict[TxID, int] = field(default_factory=dict)
    renewals: dict[TxID, Renewal] = field(default_factory=dict)
    subnets: dict[SubnetID, SubnetState] = field(default_factory=dict)
    chains: dict[ChainID, SubnetID] = field(default_factory=dict)
    l1: L1Validators = field(default_factory=L1Validators)
    l1_excess: int = 0
    l1_accrued_fees: int = 0
    proposal: Proposal | None = None
    is_complete: bool = True
    is_invalid: bool = False

    @property
    def supply(self) -> int | None:
        """The Primary Network's supply, nAVAX; None where the genesis is not known."""
        return self.supplies.get(PRIMARY_NETWORK)
