"""Builds the effects of a P-Chain block, and of its transactions.

Source of truth: docs/ledger.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from warpseal.chains.components import BaseFields, OutputOwners, TransferableInput, TransferableOutput
from warpseal.chains.ids import AssetID, TxID, UtxoID, utxo_id
from warpseal.chains.p_txs import PSignedTx, RewardType
from warpseal.ledger.effects import L1Deactivated, PeriodStarted, TxEffects
from warpseal.ledger.outputs import LedgerFault, LedgerOutput, UtxoSource
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.utxo_flow import UtxoFlow, build_transfer_output
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID


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

    def fault(self, reason: str, tx: PSignedTx | None = None) -> LedgerFault:
        """Return the error about a transaction, or about the block."""
        return self.flow.fault(tx, reason)

    def spend(self, effects: TxEffects, inputs: Sequence[TransferableInput], created_on: ChainID = P_CHAIN) -> None:
        """Spend inputs, whose credentials follow those of the inputs before. Raises LedgerFault."""
        effects.consumed += self.flow.consume(effects.tx, inputs, created_on, len(effects.consumed))

    def emit(self, effects: TxEffects, outputs: Iterable[TransferableOutput], held_on: ChainID = P_CHAIN) -> None:
        """Emit outputs of the transaction; their indices follow those of earlier outputs."""
        new_outputs = _outputs(effects, outputs, held_on)
        self.flow.emit(new_outputs)
        effects.emitted += new_outputs

    def emit_staked(self, effects: TxEffects, outputs: Iterable[TransferableOutput]) -> tuple[LedgerOutput, ...]:
        """Emit outputs that are locked until the staking is over, and return them."""
        stake = tuple(replace(output, staked=True) for output in _outputs(effects, outputs, P_CHAIN))
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
        """Emit an output that the chain itself pays, a reward or a refund, as output `index` of `tx_id`."""
        key, owners = utxo_id(tx_id, index), (owner.addresses, owner.threshold, owner.locktime)
        output = LedgerOutput(key, tx_id, index, asset_id, amount, *owners, 0, P_CHAIN, P_CHAIN, reward=reward)
        self._payments.add(key)
        self.flow.emit((output,))
        effects.emitted += (output,)

    def release(self, effects: TxEffects, stake: Iterable[LedgerOutput]) -> None:
        """Make staked outputs spendable."""
        released = tuple(replace(output, staked=False) for output in stake)
        self.flow.emit(released)
        effects.released += released

    def move_base(self, effects: TxEffects, base: BaseFields) -> None:
        """Spend the base inputs and emit the base outputs of a user's transaction."""
        self.spend(effects, base.inputs)
        self.emit(effects, base.outputs)

    def finish(self, effects: TxEffects) -> TxEffects:
        """Set the burned amounts, and return the effects. Raises LedgerFault if the inputs do not pay the outputs."""
        payments = self._payments
        paid = [output for output in effects.emitted if output.id not in payments] if payments else effects.emitted
        deposit = ((self.state.params.staking_asset_id, effects.l1_balance),) if effects.l1_balance else ()
        effects.burned = self.flow.burned(effects.tx, effects.consumed, paid, deposit)
        return effects


def _outputs(effects: TxEffects, outputs: Iterable[TransferableOutput], held_on: ChainID) -> tuple[LedgerOutput, ...]:
    tx_id = effects.tx.id
    return tuple(
        [
            build_transfer_output(tx_id, index, output, P_CHAIN, held_on)
            for index, output in enumerate(outputs, len(effects.emitted))
        ]
    )
