"""The P-Chain's state without unspent outputs, and the builder of a block's effects.

Source of truth: avalanchego `vms/platformvm/state`, `vms/platformvm/txs/priorities.go`, ACP-77.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import heapify, heappop, heappush

from msgspec import Struct, field
from msgspec.structs import replace

from warpseal.chains.components import (
    BaseFields,
    OutputOwners,
    TransferableInput,
    TransferableOutput,
)
from warpseal.chains.ids import AssetID, BlockID, TxID, UtxoID, utxo_id
from warpseal.chains.p_txs import PSignedTx, RewardType
from warpseal.ledger.effects import (
    L1Deactivated,
    L1Validator,
    PeriodStarted,
    StakingPeriod,
    TxEffects,
)
from warpseal.ledger.outputs import LedgerError, LedgerOutput, UtxoSource
from warpseal.ledger.params import Parameters, RewardConfig
from warpseal.ledger.utxo_flow import UtxoFlow, build_transfer_output
from warpseal.ledger.validator_sets import CurrentSets
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID, ValidationID


class Priority(IntEnum):
    """The order of stakers with the same time: lower numbers first.

    Pending stakers, then current ones.
    """

    APRICOT_DELEGATOR_PENDING = 1
    PRIMARY_VALIDATOR_PENDING = 2
    BANFF_DELEGATOR_PENDING = 3
    ELASTIC_VALIDATOR_PENDING = 4
    ELASTIC_DELEGATOR_PENDING = 5
    PERMISSIONED_VALIDATOR_PENDING = 6
    PERMISSIONED_VALIDATOR = 7
    ELASTIC_DELEGATOR = 8
    ELASTIC_VALIDATOR = 9
    PRIMARY_DELEGATOR = 10
    PRIMARY_VALIDATOR = 11


STARTED: dict[int, Priority] = {
    Priority.APRICOT_DELEGATOR_PENDING: Priority.PRIMARY_DELEGATOR,
    Priority.PRIMARY_VALIDATOR_PENDING: Priority.PRIMARY_VALIDATOR,
    Priority.BANFF_DELEGATOR_PENDING: Priority.PRIMARY_DELEGATOR,
    Priority.ELASTIC_VALIDATOR_PENDING: Priority.ELASTIC_VALIDATOR,
    Priority.ELASTIC_DELEGATOR_PENDING: Priority.ELASTIC_DELEGATOR,
    Priority.PERMISSIONED_VALIDATOR_PENDING: Priority.PERMISSIONED_VALIDATOR,
}


class Staker(Struct, frozen=True):
    """A staker.

    next_s: unix second in which a pending staker starts, or a current one leaves.
    stake: outputs that are returned when it leaves.

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
        """Whether a subnet's owner added it, so that it stakes and earns nothing."""
        return self.priority in (
            Priority.PERMISSIONED_VALIDATOR,
            Priority.PERMISSIONED_VALIDATOR_PENDING,
        )

    @property
    def potential_reward(self) -> int:
        """Its potential reward; 0 while it is pending."""
        return self.period.potential_reward or 0


_Turn = tuple[int, int, TxID]


class StakerSet:
    """Stakers by transaction, by subnet and node, and in the order of their turns.

    sets: validator sets to which the stakers belong; None for pending stakers.
    """

    def __init__(self, stakers: Iterable[Staker] = ()) -> None:
        self.by_tx: dict[TxID, Staker] = {}
        self.validators: dict[tuple[SubnetID, NodeID], Staker] = {}
        self.sets: CurrentSets | None = None
        # Turns of stakers that left early stay until they come up: to find one in a heap would
        # take longer than to skip it.
        self._turns: list[_Turn] = []
        for staker in stakers:
            self._insert(staker)
            self._turns.append((staker.next_s, staker.priority, staker.tx_id))
        heapify(self._turns)

    def add(self, staker: Staker) -> None:
        """Add a staker."""
        self._insert(staker)
        heappush(self._turns, (staker.next_s, staker.priority, staker.tx_id))
        if self.sets is not None:
            self.sets.add_stake(staker.period)

    def remove(self, staker: Staker) -> None:
        """Remove a staker, which must be in the set."""
        del self.by_tx[staker.tx_id]
        period = staker.period
        if not period.is_delegation:
            self.validators.pop((period.subnet_id, period.node_id), None)
        if self.sets is not None:
            self.sets.add_stake(period, -1)

    def first(self) -> Staker | None:
        """Return the staker whose turn is next; None for an empty set."""
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

    def _insert(self, staker: Staker) -> None:
        self.by_tx[staker.tx_id] = staker
        period = staker.period
        if not period.is_delegation:
            self.validators[period.subnet_id, period.node_id] = staker


class L1Validators:
    """All validations that were not removed, and the order in which balances run out.

    active: number of active validators.
    sets: validator sets to which the validators belong.
    """

    def __init__(self, validators: Iterable[L1Validator] = ()) -> None:
        self.by_id = {validator.validation_id: validator for validator in validators}
        self.sets = CurrentSets()
        # Ends of validators that were funded again or left stay until they come up.
        self._ends: list[tuple[int, ValidationID]] = [
            (validator.end_accumulated_fee, validation_id)
            for validation_id, validator in self.by_id.items()
            if validator.end_accumulated_fee
        ]
        self.active = len(self._ends)
        heapify(self._ends)

    def put(self, validator: L1Validator) -> None:
        """Add a validator, or replace it."""
        before = self.by_id.get(validator.validation_id)
        former_end = before.end_accumulated_fee if before is not None else 0
        end = validator.end_accumulated_fee
        self.by_id[validator.validation_id] = validator
        if before is not None:
            self.sets.add_l1_validator(before, -1)
        self.sets.add_l1_validator(validator)
        if end and end != former_end:
            heappush(self._ends, (end, validator.validation_id))
        self.active += bool(end) - bool(former_end)

    def remove(self, validator: L1Validator) -> None:
        """Remove a validator, which must be in the set as it is given."""
        del self.by_id[validator.validation_id]
        self.active -= bool(validator.end_accumulated_fee)
        self.sets.add_l1_validator(validator, -1)

    def deactivate_below(self, accrued_fees: int) -> list[L1Validator]:
        """Deactivate validators whose end is below `accrued_fees`; return their former values."""
        deactivated: list[L1Validator] = []
        ends = self._ends
        while ends and ends[0][0] < accrued_fees:
            end, validation_id = heappop(ends)
            validator = self.by_id.get(validation_id)
            if validator is None or validator.end_accumulated_fee != end:
                continue
            deactivated.append(validator)
            self.put(replace(validator, end_accumulated_fee=0))
        return deactivated

    def __iter__(self) -> Iterator[L1Validator]:
        """Yield all, by validation id."""
        for validation_id in sorted(self.by_id):
            yield self.by_id[validation_id]


class Transformation(Struct, frozen=True):
    """The reward terms of an elastic subnet."""

    tx_id: TxID
    asset_id: AssetID
    rewards: RewardConfig


class Conversion(Struct, frozen=True):
    """The manager of an L1's validators."""

    conversion_id: bytes
    manager_chain_id: ChainID
    manager_address: bytes


class SubnetState(Struct, frozen=True):
    """A subnet with its latest owner; an L1 keeps the owner it had before the conversion."""

    subnet_id: SubnetID
    owner: OutputOwners
    transformation: Transformation | None = None
    conversion: Conversion | None = None


class Proposal(Struct, frozen=True):
    """A transaction whose outcome the next block decides, with its block and position."""

    tx: PSignedTx
    height: int
    position: int


class Renewal(Struct, frozen=True):
    """The next cycle of an auto-renewed validator (Helicon).

    next_period_s: length of the next cycle, 0 to leave at the end of this one.

    accrued_validation, accrued_delegation: compounded rewards, paid out when it leaves.
    """

    compound_shares: int
    next_period_s: int
    accrued_validation: int = 0
    accrued_delegation: int = 0


class PChainState(Struct):
    """The state after block `height`. Only `apply_p_block` changes it.

    time_s: chain time.
    supplies: supplies of elastic subnets and, with the genesis, of the Primary Network.
    delegation_rewards: rewards of ended delegations that current validators will get, by
        transaction.
    is_complete: False if the state began without the genesis: stakers and outputs may be missing.
    is_invalid: an error interrupted a block, so that the state is unusable.
    sets: validator sets, which follow from current stakers and L1 validators.
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
    sets: CurrentSets = field(default_factory=CurrentSets)

    def __post_init__(self) -> None:
        self.sets = self.current.sets = self.l1.sets = CurrentSets()
        for staker in self.current.by_tx.values():
            self.sets.add_stake(staker.period)
        for validator in self.l1.by_id.values():
            self.sets.add_l1_validator(validator)
        self.sets.take_changes()

    @property
    def supply(self) -> int | None:
        """The Primary Network's supply, nAVAX; None without the genesis."""
        return self.supplies.get(PRIMARY_NETWORK)


class BlockEffectsBuilder:
    """The effects of one block so far, and the state that it changes."""

    __slots__ = ("_payments", "deactivated", "ended", "flow", "started", "state", "supplies")

    def __init__(self, state: PChainState, height: int, source: UtxoSource | None) -> None:
        self.state = state
        self.flow = UtxoFlow(P_CHAIN, height, source, state.is_complete)
        self.started: list[PeriodStarted] = []
        self.ended: list[TxID] = []
        self.deactivated: list[L1Deactivated] = []
        self.supplies: set[SubnetID] = set()
        self._payments: set[UtxoID] = set()

    def error(self, reason: str, tx: PSignedTx | None = None) -> LedgerError:
        """Return the error about a transaction, or about the block."""
        return self.flow.error(tx, reason)

    def spend(
        self, effects: TxEffects, inputs: Sequence[TransferableInput], created_on: ChainID = P_CHAIN
    ) -> None:
        """Spend inputs, whose credentials follow the credentials of the inputs before.

        Raises LedgerError.
        """
        effects.consumed += self.flow.consume(effects.tx, inputs, created_on, len(effects.consumed))

    def emit(
        self, effects: TxEffects, outputs: Iterable[TransferableOutput], held_on: ChainID = P_CHAIN
    ) -> None:
        """Emit outputs of the transaction; their indices follow earlier outputs."""
        new_outputs = _outputs(effects, outputs, held_on)
        self.flow.emit(new_outputs)
        effects.emitted += new_outputs

    def emit_staked(
        self, effects: TxEffects, outputs: Iterable[TransferableOutput]
    ) -> tuple[LedgerOutput, ...]:
        """Emit outputs that are locked until the staking is over, and return them."""
        stake = tuple(
            replace(output, staked=True) for output in _outputs(effects, outputs, P_CHAIN)
        )
        effects.emitted += stake
        return stake

    def emit_payment(
        self,
        effects: TxEffects,
        tx_id: TxID,
        index: int,
        asset_id: AssetID,
        amount: int,
        owner: OutputOwners,
        reward: RewardType | None = None,
    ) -> None:
        """Emit a reward or refund, which the chain itself pays, as output `index` of `tx_id`."""
        key, owners = utxo_id(tx_id, index), (owner.addresses, owner.threshold, owner.locktime)
        output = LedgerOutput(
            key, tx_id, index, asset_id, amount, *owners, 0, P_CHAIN, P_CHAIN, reward=reward
        )
        self._payments.add(key)
        self.flow.emit((output,))
        effects.emitted += (output,)

    def release(self, effects: TxEffects, stake: Iterable[LedgerOutput]) -> None:
        """Make staked outputs spendable."""
        effects.released += tuple(replace(output, staked=False) for output in stake)

    def move_base(self, effects: TxEffects, base: BaseFields) -> None:
        """Spend the base inputs and emit the base outputs of a user's transaction."""
        self.spend(effects, base.inputs)
        self.emit(effects, base.outputs)

    def finish(self, effects: TxEffects) -> TxEffects:
        """Set the burned amounts, and return the effects.

        Raises LedgerError if the inputs do not pay the outputs.
        """
        paid: Sequence[LedgerOutput] = effects.emitted
        if payments := self._payments:
            # The chain itself pays these, so the inputs need not.
            paid = [output for output in paid if output.id not in payments]
        deposit: tuple[tuple[AssetID, int], ...] = ()
        if effects.l1_balance:
            deposit = ((self.state.params.staking_asset_id, effects.l1_balance),)
        effects.burned = self.flow.burned(effects.tx, effects.consumed, paid, deposit)
        return effects


def _outputs(
    effects: TxEffects, outputs: Iterable[TransferableOutput], held_on: ChainID
) -> tuple[LedgerOutput, ...]:
    tx_id = effects.tx.id
    return tuple(
        [
            build_transfer_output(tx_id, index, output, P_CHAIN, held_on)
            for index, output in enumerate(outputs, len(effects.emitted))
        ]
    )
