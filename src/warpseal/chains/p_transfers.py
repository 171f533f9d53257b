"""P-Chain transactions that move funds: within the chain, from another one, to another one.

Source of truth: avalanchego `vms/platformvm/txs/{base,import,export}_tx.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import ID
from warpseal.chains.components import BaseFields, TransferableInput, TransferableOutput
from warpseal.chains.layout import Layout
from warpseal.chains.p_components import BASE, INPUTS, OUTPUTS
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class BaseTx:
    """Moves funds within the chain."""

    base: BaseFields


@dataclass(frozen=True, slots=True)
class ImportTx:
    """Spends what another chain exported. Its credentials are for the base inputs, then for the imported ones."""

    base: BaseFields
    source_chain_id: ChainID
    imported_inputs: tuple[TransferableInput, ...]


@dataclass(frozen=True, slots=True)
class ExportTx:
    """Leaves outputs to another chain; their indices follow those of the base outputs."""

    base: BaseFields
    destination_chain_id: ChainID
    exported_outputs: tuple[TransferableOutput, ...]


BASE_TX: Final = Layout(BaseTx, base=BASE)
IMPORT_TX: Final = Layout(ImportTx, base=BASE, source_chain_id=ID, imported_inputs=INPUTS)
EXPORT_TX: Final = Layout(ExportTx, base=BASE, destination_chain_id=ID, exported_outputs=OUTPUTS)
