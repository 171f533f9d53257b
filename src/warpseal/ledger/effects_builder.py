"""Builders of the effects of a P-Chain block and of its transactions.

Source of truth: docs/ledger.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warpseal.chains.components import BaseFields, TransferableInput, TransferableOutput
from warpseal.chains.ids import AssetID, TxID
from warpseal.chains.p_txs import PSignedTx, RewardKind, api_type
from warpseal.ledger.effects import (
    Amounts,
    AssetSums,
    ChainCreated,
    L1Deactivated,
    L1ValidatorChange,
    PeriodClosed,
    PeriodRenewed,
    PeriodStarted,
    StakingPeriod,
    SubnetChange,
    TxEffects,
    TxOutcome,
)
from warpseal.ledger.outputs import Consumed, LedgerFault, LedgerOutput, UtxoSource
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.utxo_flow import UtxoFlow, add_amounts, build_transfer_output, nonzero_sums
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID

_NO_AMOUNTS: Final = Amounts((), (), (), 0)


@dataclass(slots=True)
class TxEffectsBuilder:
    """The effects of one transaction so far. paid: sums of its inputs; kept: sums of the outputs paid by them.

    The chain itself pays rewards and refunds: they are part of the value and not of `kept`.
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
    removed: TxID | None = None
    subnet: SubnetChange | None = None
    chain: ChainCreated | None = None
    l1: list[L1ValidatorChange] = field(default_factory=list)

    @property
    def unsigned(self) -> Any:
        """The transaction without its credentials."""
        return self.tx.unsigned


class BlockEffectsBuilder:
    """The effects of one block so far, and the state that it changes."""

    __slots__ = ("deactivated", "ended", "flow", "started", "state", "supplies")

    def __init__(self, state: PChainState, height: int, source: UtxoSource | None) -> None:
        self.state = state
        self.flow = UtxoFlow(P_CHAIN, height, source, state.is_complete)
        self.started: list[PeriodStarted] = []
        self.ended: list[TxID] = []
        self.deactivated: list[L1Deactivated] = []
        self.supplies: set[SubnetID] = set()

    def fault(self, reason: str, tx: PSignedTx | None = None) -> LedgerFault:
        """Return the error about a transaction, or about the block."""
        return self.flow.fault(tx, reason)

    def spend(
        self, effects: TxEffectsBuilder, inputs: Sequence[TransferableInput], created_on: ChainID = P_CHAIN
    ) -> None:
        """Spend inputs, whose credentials follow those of the inputs before. Raises LedgerFault."""
        if inputs:
            consumed = self.flow.consume(effects.tx, inputs, created_on, len(effects.consumed))
            add_amounts(effects.paid, consumed)
            effects.consumed += consumed

    def emit(
        self, effects: TxEffectsBuilder, outputs: Iterable[TransferableOutput], held_on: ChainID = P_CHAIN
    ) -> None:
        """Emit outputs of the transaction; their indices follow those of earlier outputs."""
        tx_id = effects.tx.id
        made = [
            build_transfer_output(tx_id, index, output, P_CHAIN, held_on)
            for index, output in enumerate(outputs, len(effects.emitted))
        ]
        add_amounts(effects.kept, made)
        self.flow.emit(made)
        effects.emitted += made

    def emit_staked(self, effects: TxEffectsBuilder, outputs: Iterable[TransferableOutput]) -> tuple[LedgerOutput, ...]:
        """Emit outputs that are locked until the staking is over, and return them."""
        tx_id = effects.tx.id
        made = tuple(
            replace(build_transfer_output(tx_id, index, output, P_CHAIN, P_CHAIN), staked=True)
            for index, output in enumerate(outputs, len(effects.emitted))
        )
        sums: dict[AssetID, int] = {}
        add_amounts(sums, made)
        effects.staked = nonzero_sums(sums)
        add_amounts(effects.kept, made)
        effects.emitted += made
        return made

    def emit_payment(
        self,
        effects: TxEffectsBuilder,
        tx_id: TxID,
        index: int,
        made: TransferableOutput,
        reward: RewardKind | None = None,
    ) -> None:
        """Emit an output that the chain itself pays, a reward or a refund, as output `index` of `tx_id`."""
        output = replace(build_transfer_output(tx_id, index, made, P_CHAIN, P_CHAIN), reward=reward)
        effects.emitted.append(output)
        self.flow.emit((output,))

    def release(self, effects: TxEffectsBuilder, stake: Iterable[LedgerOutput]) -> None:
        """Make staked outputs spendable."""
        released = [replace(output, staked=False) for output in stake]
        effects.released += released
        self.flow.emit(released)

    def move_base(self, effects: TxEffectsBuilder, base: BaseFields) -> None:
        """Spend the base inputs and emit the base outputs of a user's transaction."""
        self.spend(effects, base.inputs)
        self.emit(effects, base.outputs)

    def finish(self, effects: TxEffectsBuilder, height: int, position: int, outcome: TxOutcome) -> TxEffects:
        """Return the effects. Raises LedgerFault if the outputs are more than the inputs."""
        return TxEffects(
            effects.tx,
            height,
            position,
            api_type(effects.tx),
            outcome,
            tuple(effects.consumed),
            tuple(effects.emitted),
            tuple(effects.released),
            effects.source_chain_id,
            effects.destination_chain_id,
            self._amounts(effects),
            effects.opened,
            effects.closed,
            effects.renewed,
            effects.removed,
            effects.subnet,
            effects.chain,
            tuple(effects.l1),
        )

    def _amounts(self, effects: TxEffectsBuilder) -> Amounts:
        value: dict[AssetID, int] = {}
        add_amounts(value, effects.emitted)
        add_amounts(value, effects.released)
        burned = effects.paid
        for asset_id, amount in effects.kept.items():
            burned[asset_id] = burned.get(asset_id, 0) - amount
        if effects.l1_balance:
            asset_id = self.state.params.staking_asset_id
            burned[asset_id] = burned.get(asset_id, 0) - effects.l1_balance
        if burned and min(burned.values()) < 0:
            raise self.fault("the outputs are more than the inputs", effects.tx)
        return Amounts(nonzero_sums(value), nonzero_sums(burned), effects.staked, effects.l1_balance)


def build_proposed_effects(tx: PSignedTx, height: int, position: int) -> TxEffects:
    """Return the effects of a transaction whose outcome the next block decides: none so far."""
    return TxEffects(
        tx,
        height,
        position,
        api_type(tx),
        TxOutcome.PROPOSED,
        (),
        (),
        (),
        None,
        None,
        _NO_AMOUNTS,
        None,
        None,
        None,
        None,
        None,
        None,
        (),
    )
