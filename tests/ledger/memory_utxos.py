"""A UtxoSource for tests."""

from __future__ import annotations

from collections.abc import Iterable

from warpseal.chains.ids import Address, UtxoID
from warpseal.ledger.outputs import LedgerOutput, UtxoChanges
from warpseal.warp.ids import ChainID


class MemoryUtxos:
    """Unspent outputs in a dictionary: a UtxoSource that the three chains share."""

    def __init__(self) -> None:
        self.unspent: dict[UtxoID, LedgerOutput] = {}
        # Imported before the exporting chain was read that far.
        self._spent_before_made: set[UtxoID] = set()

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> LedgerOutput | None:
        """Return the output, of that chain, that can be spent now."""
        output = self.unspent.get(utxo_id)
        return output if output is not None and output.held_on == held_on else None

    def apply(self, changes: Iterable[UtxoChanges]) -> None:
        """Apply the changes of transactions, in their order."""
        for tx in changes:
            for consumed in tx.consumed:
                if self.unspent.pop(consumed.id, None) is None:
                    self._spent_before_made.add(consumed.id)
            self.add(tx.emitted)
            self.add(tx.released)

    def add(self, outputs: Iterable[LedgerOutput]) -> None:
        """Add outputs; a staked one is left out until it is released."""
        for output in outputs:
            if output.id in self._spent_before_made:
                self._spent_before_made.remove(output.id)
            elif not output.staked:
                self.unspent[output.id] = output

    def held_by(self, address: Address, held_on: ChainID) -> list[LedgerOutput]:
        """Return the outputs that an address owns, alone or with others, by id."""
        outputs_held = [
            out
            for out in self.unspent.values()
            if out.held_on == held_on and address in out.addresses
        ]
        return sorted(outputs_held, key=lambda out: out.id)
