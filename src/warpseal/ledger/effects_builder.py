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
    ChainMade,
    L1Change,
    L1Deactivated,
    Outcome,
    PeriodClosed,
    PeriodRemoved,
    PeriodRenewed,
    PeriodStarted,
    StakingPeriod,
    SubnetChange,
    Sums,
    TxEffects,
)
from warpseal.ledger.outputs import Consumed, LedgerFault, LedgerOutput, OutputSource, RewardKind
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.utxo_flow import Moving, add_amounts, as_sums, transferred
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID

NOTHING_MOVED = Amounts((), (), (), 0)


@dataclass(slots=True)
class Draft:
    """One transaction's effects so far. paid, kept: sums of its inputs, and of what it made out of them.

    The outputs that the chain itself makes, rewards and refunds, are of its value and not of what was kept.
    """

    tx: PSignedTx
    consumed: list[Consumed] = field(default_factory=list)
    emitted: list[LedgerOutput] = field(default_factory=list)
    released: list[LedgerOutput] = field(default_factory=list)
    paid: dict[AssetID, int] = field(default_factory=dict)
    kept: dict[AssetID, int] = field(default_factory=dict)
    staked: Sums = ()
    l1_balance: int = 0
    source_chain_id: ChainID | None = None
    destination_chain_id: ChainID | None = None
    opened: StakingPeriod | None = None
    closed: PeriodClosed | None = None
    renewed: PeriodRenewed | None = None
    removed: PeriodRemoved | None = None
    subnet: SubnetChange | None = None
    chain: ChainMade | None = None
    l1: list[L1Change] = field(default_factory=list)

    @property
    def unsigned(self) -> Any:
        """The transaction without its credentials."""
        return self.tx.unsigned


class BlockDraft:
    """One block's effects so far, on the state that it changes."""

    __slots__ = ("deactivated", "ended", "moving", "started", "state", "supplies")

    def __init__(self, state: PChainState, height: int, source: OutputSource | None) -> None:
        self.state = state
        self.moving = Moving(P_CHAIN, height, source, state.is_complete)
        self.started: list[PeriodStarted] = []
        self.ended: list[TxID] = []
        self.deactivated: list[L1Deactivated] = []
        self.supplies: set[SubnetID] = set()

    def fault(self, reason: str, tx: PSignedTx | None = None) -> LedgerFault:
        """Return the error about a transaction, or about the block."""
        return self.moving.fault(tx, reason)

    def spend(self, draft: Draft, inputs: Sequence[TransferableInput], created_on: ChainID = P_CHAIN) -> None:
        """Spend inputs, whose credentials follow those of the inputs before. Raises LedgerFault."""
        if inputs:
            consumed = self.moving.consume(draft.tx, inputs, created_on, len(draft.consumed))
            add_amounts(draft.paid, consumed)
            draft.consumed += consumed

    def make(self, draft: Draft, outputs: Iterable[TransferableOutput], held_on: ChainID = P_CHAIN) -> None:
        """Make outputs of the transaction; their indices follow those of the outputs before."""
        tx_id = draft.tx.id
        made = [
            transferred(tx_id, index, output, P_CHAIN, held_on)
            for index, output in enumerate(outputs, len(draft.emitted))
        ]
        add_amounts(draft.kept, made)
        self.moving.emit(made)
        draft.emitted += made

    def stake(self, draft: Draft, outputs: Iterable[TransferableOutput]) -> tuple[LedgerOutput, ...]:
        """Lock outputs of the transaction until its staking is over; return them."""
        tx_id = draft.tx.id
        made = tuple(
            replace(transferred(tx_id, index, output, P_CHAIN, P_CHAIN), staked=True)
            for index, output in enumerate(outputs, len(draft.emitted))
        )
        sums: dict[AssetID, int] = {}
        add_amounts(sums, made)
        draft.staked = as_sums(sums)
        add_amounts(draft.kept, made)
        draft.emitted += made
        return made

    def grant(
        self, draft: Draft, tx_id: TxID, index: int, made: TransferableOutput, reward: RewardKind | None = None
    ) -> None:
        """Make an output that the chain itself pays, a reward or a refund, as output `index` of `tx_id`."""
        output = replace(transferred(tx_id, index, made, P_CHAIN, P_CHAIN), reward=reward)
        draft.emitted.append(output)
        self.moving.emit((output,))

    def release(self, draft: Draft, stake: Iterable[LedgerOutput]) -> None:
        """Let outputs be spent that were staked until now."""
        freed = [_freed(output) for output in stake]
        draft.released += freed
        self.moving.emit(freed)

    def move_base(self, draft: Draft, base: BaseFields) -> None:
        """Spend and make what every transaction of a user begins with."""
        self.spend(draft, base.inputs)
        self.make(draft, base.outputs)

    def finish(self, draft: Draft, height: int, position: int, outcome: Outcome) -> TxEffects:
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

    def _amounts(self, draft: Draft) -> Amounts:
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
        return Amounts(as_sums(value), as_sums(burned), draft.staked, draft.l1_balance)


def proposed(tx: PSignedTx, height: int, position: int) -> TxEffects:
    """Return the effects of a transaction whose outcome the next block decides: none so far."""
    none: tuple[Any, ...] = ()
    return TxEffects(
        tx=tx,
        height=height,
        position=position,
        api_type=api_type(tx),
        outcome=Outcome.PROPOSED,
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
