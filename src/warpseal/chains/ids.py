"""Ids of transactions, blocks, outputs and assets, and how they follow from bytes.

Source of truth: avalanchego `ids/id.go`, `vms/components/avax/utxo_id.go`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NewType

TxID = NewType("TxID", bytes)
BlockID = NewType("BlockID", bytes)
UtxoID = NewType("UtxoID", bytes)
AssetID = NewType("AssetID", bytes)
Address = NewType("Address", bytes)


def utxo_id(tx_id: TxID, output_index: int) -> UtxoID:
    """Return the id of an output: SHA-256 of its index as a uint64, though it is a uint32, and the transaction's id."""
    return UtxoID(sha256(output_index.to_bytes(8, "big") + tx_id).digest())
