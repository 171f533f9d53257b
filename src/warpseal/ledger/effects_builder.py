"""What a P-Chain block and its transactions do, while they are being applied.

Source of truth: docs/ledger.md, and 7.6 of the facts it names for the amounts of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warpseal.chains.components import BaseFields, TransferableInput, TransferableOutput
from warpseal.chains.ids import AssetID, TxID
from warpseal.chains.p_txs import PSignedTx, api_type
from warpseal.ledger.effects import (
    Amounts,
    AssetSums,
    ChainCreated,
    L1Deactivated,
    L1ValidatorChange,
    PeriodClosed,
    PeriodRemoved,
    PeriodRenewed,
    PeriodStarted,
    StakingPeriod,
    SubnetChange,
    TxEffects,
    TxOutcome,
)
from warpseal.ledger.outputs import Consumed, LedgerFault, LedgerOutput, RewardKind, UtxoSource
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.utxo_flow import UtxoFlow, add_amounts, build_transfer_output, nonzero_sums
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID

NOTHING_MOVED = Amounts((), (), (), 0)


@dataclass(slots=True)
class TxEffectsBuilder:
    """One transaction's effects so far. paid, kept: sums of its inputs, and of what it made out of them.

    The outputs that the chain itself makes, rewards and refunds, are of its value and not of what was kept.
    """

    tx: PSignedTx
    consumed: list[Consumed] = field(default_factory=list)
    emitted: list[LedgerOutput] = field(default_factory=list)
    released: list[LedgerOutput] = field(default_factory=list)
    paid: dict[AssetID, int] = field(default_factory=dict)
    kept: dict[AssetID, int] = field(default_factory=dict)
    staked: AssetSums = ()
    l1_balance: int = 0
    source_chain_id: ChainID | None = None
    destination_chain_id: ChainID | None = None
    opened: StakingPeriod | None = None
    closed: PeriodClosed | None = None
    renewed: PeriodRenewed | None = None
    removed: PeriodRemoved | None = None
    subnet: SubnetChange | None = None
    chain: ChainCreated | None = None
    l1: list[L1ValidatorChange] = field(default_factory=list)

    @property
    def unsigned(self) -> Any:
        """The transaction without its credentials."""
        return self.tx.unsigned


class BlockEffectsBuilder:
    """One block's effects so far, on the state that it changes."""

    __slots__ = ("deactivated", "ended", "moving", "started", "state", "supplies")

    def __init__(self, state: PChainState, height: int, source: UtxoSource | None) -> None:
        self.state = state
        self.moving = UtxoFlow(P_CHAIN, height, source, state.is_complete)
        self.started: list[PeriodStarted] = []
        self.ended: list[TxID] = []
        self.deactivated: list[L1Deactivated] = []
        self.supplies: set[SubnetID] = set()

    def fault(self, reason: str, tx: PSignedTx | None = None) -> LedgerFault:
        """Return the error about a transaction, or about the block."""
        return self.moving.fault(tx, reason)

    def spend(
        self, draft: TxEffectsBuilder, inputs: Sequence[TransferableInput], created_on: ChainID = P_CHAIN
    ) -> None:
        """Spend inputs, whose credentials follow those of the inputs before. Raises LedgerFault."""
        if inputs:
            consumed = self.moving.consume(draft.tx, inputs, created_on, len(draft.consumed))
            add_amounts(draft.paid, consumed)
            draft.consumed += consumed

    def make(self, draft: TxEffectsBuilder, outputs: Iterable[TransferableOutput], held_on: ChainID = P_CHAIN) -> None:
        """Make outputs of the transaction; their indices follow those of the outputs before."""
        tx_id = draft.tx.id
        made = [
            build_transfer_output(tx_id, index, output, P_CHAIN, held_on)
            for index, output in enumerate(outputs, len(draft.emitted))
        ]
        add_amounts(draft.kept, made)
        self.moving.emit(made)
        draft.emitted += made

    def stake(self, draft: TxEffectsBuilder, outputs: Iterable[TransferableOutput]) -> tuple[LedgerOutput, ...]:
        """Lock outputs of the transaction until its staking is over; return them."""
        tx_id = draft.tx.id
        made = tuple(
            replace(build_transfer_output(tx_id, index, output, P_CHAIN, P_CHAIN), staked=True)
            for index, output in enumerate(outputs, len(draft.emitted))
        )
        sums: dict[AssetID, int] = {}
        add_amounts(sums, made)
        draft.staked = nonzero_sums(sums)
        add_amounts(draft.kept, made)
        draft.emitted += made
        return made

    def grant(
        self,
        draft: TxEffectsBuilder,
        tx_id: TxID,
        index: int,
        made: TransferableOutput,
        reward: RewardKind | None = None,
    ) -> None:
        """Make an output that the chain itself pays, a reward or a refund, as output `index` of `tx_id`."""
        output = replace(build_transfer_output(tx_id, index, made, P_CHAIN, P_CHAIN), reward=reward)
        draft.emitted.append(output)
        self.moving.emit((output,))

    def release(self, draft: TxEffectsBuilder, stake: Iterable[LedgerOutput]) -> None:
        """Let outputs be spent that were staked until now."""
        freed = [_freed(output) for output in stake]
        draft.released += freed
        self.moving.emit(freed)

    def move_base(self, draft: TxEffectsBuilder, base: BaseFields) -> None:
        """Spend and make what every transaction of a user begins with."""
        self.spend(draft, base.inputs)
        self.make(draft, base.outputs)

    def finish(self, draft: TxEffectsBuilder, height: int, position: int, outcome: TxOutcome) -> TxEffects:
        """Return the effects. Raises LedgerFault where more comes out than went in."""
        return TxEffects(
            draft.tx,
            height,
            position,
            api_type(draft.tx),
            outcome,
            tuple(draft.consumed),
            tuple(draft.emitted),
            tuple(draft.released),
            draft.source_chain_id,
            draft.destination_chain_id,
            self._amounts(draft),
            draft.opened,
            draft.closed,
            draft.renewed,
            draft.removed,
            draft.subnet,
            draft.chain,
            tuple(draft.l1),
        )

    def _amounts(self, draft: TxEffectsBuilder) -> Amounts:
        value: dict[AssetID, int] = {}
        add_amounts(value, draft.emitted)
        add_amounts(value, draft.released)
        burned = draft.paid
        for asset_id, amount in draft.kept.items():
            burned[asset_id] = burned.get(asset_id, 0) - amount
        if draft.l1_balance:
            asset_id = self.state.params.staking_asset_id
            burned[asset_id] = burned.get(asset_id, 0) - draft.l1_balance
        if burned and min(burned.values()) < 0:
            raise self.fault("more comes out than went in", draft.tx)
        return Amounts(nonzero_sums(value), nonzero_sums(burned), draft.staked, draft.l1_balance)


def build_proposed_effects(tx: PSignedTx, height: int, position: int) -> TxEffects:
    """Return the effects of a transaction whose outcome the next block decides: none so far."""
    none: tuple[Any, ...] = ()
    return TxEffects(
        tx=tx,
        height=height,
        position=position,
        api_type=api_type(tx),
        outcome=TxOutcome.PROPOSED,
        consumed=none,
        emitted=none,
        released=none,
        source_chain_id=None,
        destination_chain_id=None,
        amounts=NOTHING_MOVED,
        opened=None,
        closed=None,
        renewed=None,
        removed=None,
        subnet=None,
        chain=None,
        l1=none,
    )


def _freed(output: LedgerOutput) -> LedgerOutput:
    return LedgerOutput(
        output.id,
        output.tx_id,
        output.output_index,
        output.asset_id,
        output.amount,
        output.addresses,
        output.threshold,
        output.locktime,
        output.stakeable_locktime,
        output.created_on,
        output.held_on,
    )
