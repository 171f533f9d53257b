"""Transactions of the X-Chain: what each type says, their ids, and the outputs that they make.

Source of truth: avalanchego `vms/avm/txs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import ID, TEXT, U8, U32, ListOf
from warpseal.chains.components import BaseFields, TransferableInput, TransferableOutput, Utxo
from warpseal.chains.cursor import Cursor
from warpseal.chains.ids import AssetID, TxID, UtxoID, utxo_id
from warpseal.chains.layout import Layout, OneOf
from warpseal.chains.signed_tx import SignedTx, TxForm
from warpseal.chains.x_components import (
    X_BASE_FIELDS,
    X_CREDENTIAL,
    X_OPERATION,
    X_OUTPUT,
    X_TRANSFERABLE_INPUT,
    X_TRANSFERABLE_OUTPUT,
    X_TYPE_NAMES,
    X_UTXO,
    XCredential,
    XOperation,
    XOutput,
)
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class BaseTx:
    """Moves fungible assets."""

    base: BaseFields


@dataclass(frozen=True, slots=True)
class InitialState:
    """What a new asset begins with. fx_index: 0 fungible, 1 NFT, 2 property."""

    fx_index: int
    outputs: tuple[XOutput, ...]


@dataclass(frozen=True, slots=True)
class CreateAssetTx:
    """Creates the asset whose id is the transaction's. denomination: decimal places, 0 to 32 where valid."""

    base: BaseFields
    name: str
    symbol: str
    denomination: int
    states: tuple[InitialState, ...]


@dataclass(frozen=True, slots=True)
class UtxoReference:
    """Output `output_index` of transaction `tx_id`."""

    tx_id: TxID
    output_index: int

    @property
    def utxo_id(self) -> UtxoID:
        """Id of the unspent output that is meant."""
        return utxo_id(self.tx_id, self.output_index)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on an asset, and the outputs that it consumes."""

    asset_id: AssetID
    consumed: tuple[UtxoReference, ...]
    operation: XOperation


@dataclass(frozen=True, slots=True)
class OperationTx:
    """Moves fungible assets, and does other things with assets."""

    base: BaseFields
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class ImportTx:
    """Moves assets here that were exported on `source_chain_id`."""

    base: BaseFields
    source_chain_id: ChainID
    imported_inputs: tuple[TransferableInput, ...]


@dataclass(frozen=True, slots=True)
class ExportTx:
    """Moves assets to `destination_chain_id`, where they wait to be imported."""

    base: BaseFields
    destination_chain_id: ChainID
    exported_outputs: tuple[TransferableOutput, ...]


XUnsignedTx = BaseTx | CreateAssetTx | OperationTx | ImportTx | ExportTx
XTx = SignedTx[XUnsignedTx, XCredential]
XUtxo = Utxo[XOutput]

_STATE: Final = Layout(InitialState, fx_index=U32, outputs=ListOf(X_OUTPUT, "initial outputs"))
_REFERENCE: Final = Layout(UtxoReference, tx_id=ID, output_index=U32)
_OPERATION: Final = Layout(
    Operation, asset_id=ID, consumed=ListOf(_REFERENCE, "consumed outputs"), operation=X_OPERATION
)
CREATE_ASSET_TX: Final = Layout(
    CreateAssetTx,
    base=X_BASE_FIELDS,
    name=TEXT,
    symbol=TEXT,
    denomination=U8,
    states=ListOf(_STATE, "initial states"),
)
_UNSIGNED: Final[OneOf[XUnsignedTx]] = OneOf(
    "transaction",
    {
        0: Layout(BaseTx, base=X_BASE_FIELDS),
        1: CREATE_ASSET_TX,
        2: Layout(OperationTx, base=X_BASE_FIELDS, operations=ListOf(_OPERATION, "operations")),
        3: Layout(
            ImportTx,
            base=X_BASE_FIELDS,
            source_chain_id=ID,
            imported_inputs=ListOf(X_TRANSFERABLE_INPUT, "imported inputs"),
        ),
        4: Layout(
            ExportTx,
            base=X_BASE_FIELDS,
            destination_chain_id=ID,
            exported_outputs=ListOf(X_TRANSFERABLE_OUTPUT, "exported outputs"),
        ),
    },
    X_TYPE_NAMES,
)
X_TX: Final[TxForm[XUnsignedTx, XCredential]] = TxForm(_UNSIGNED, X_CREDENTIAL)


def parse_x_tx(raw: bytes) -> XTx:
    """Return the signed transaction behind `raw`, codec version first. Raises MalformedChainBytes."""
    return X_TX.parse(raw)


def parse_x_utxo(raw: bytes) -> XUtxo:
    """Return the unspent output behind `raw`, codec version first. Raises MalformedChainBytes."""
    cursor = Cursor(raw)
    cursor.version()
    utxo = X_UTXO.read(cursor)
    cursor.finish()
    return utxo


def produced_outputs(tx: XTx) -> tuple[XUtxo, ...]:
    """Return what `tx` leaves on the X-Chain, by output index: base outputs, then those of states and operations."""
    outputs: list[tuple[AssetID, XOutput]] = [(out.asset_id, out.output) for out in tx.unsigned.base.outputs]
    outputs += _special_outputs(tx)
    return tuple(Utxo(tx.id, index, asset, output) for index, (asset, output) in enumerate(outputs))


def exported_outputs(tx: XTx) -> tuple[XUtxo, ...]:
    """Return what `tx` leaves for its destination chain; the indices follow those of the base outputs."""
    if not isinstance(tx.unsigned, ExportTx):
        return ()
    first = len(tx.unsigned.base.outputs)
    exported = enumerate(tx.unsigned.exported_outputs, first)
    return tuple(Utxo(tx.id, index, out.asset_id, out.output) for index, out in exported)


def _special_outputs(tx: XTx) -> Iterator[tuple[AssetID, XOutput]]:
    match tx.unsigned:
        case CreateAssetTx(states=states):
            # The new asset's id is that of its transaction.
            yield from ((AssetID(tx.id), output) for state in states for output in state.outputs)
        case OperationTx(operations=operations):
            yield from ((each.asset_id, output) for each in operations for output in each.operation.outputs)
