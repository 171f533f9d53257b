"""What is wrong when a block contradicts the state that it meets."""

from __future__ import annotations

from warpseal.chains.ids import TxID


class LedgerFault(ValueError):
    """A block does what the rules forbid in this state: its bytes, or what was indexed before, are not the chain's.

    height: of the block; tx_id: of the transaction, None where it is the block itself. After it the state is spoiled:
    go back to a checkpoint.
    """

    def __init__(self, height: int, tx_id: TxID | None, reason: str) -> None:
        where = f"block {height}" if tx_id is None else f"block {height}, transaction {tx_id.hex()}"
        super().__init__(f"{where}: {reason}")
        self.height = height
        self.tx_id = tx_id
        self.reason = reason
