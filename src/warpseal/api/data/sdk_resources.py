"""Resources in the dialect of the published SDKs, which contradict the specification for the X- and
C-Chain.

The index answers in the specification's dialect; these functions translate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from warpseal.resources.base import UNSET, PrimaryNetworkTxType, Resource, UnsetType
from warpseal.resources.evm_genesis import sdk_genesis
from warpseal.resources.outputs import AssetAmount, AvmUtxo, UtxoCredential
from warpseal.resources.transactions import (
    AssetCreated,
    CChainTransaction,
    ChainFormat,
    EvmInput,
    EvmOutput,
    PChainTransaction,
    XChainTransaction,
    XChainVertex,
)

R = TypeVar("R", bound=Resource)


class SdkUtxo(Resource, frozen=True, gc=False, kw_only=True):
    """An output of the X- or C-Chain exactly as the published SDKs read it: its index is a text."""

    addresses: tuple[str, ...]
    asset: AssetAmount
    consumed_on_chain_id: str
    created_on_chain_id: str
    utxo_id: str
    creation_tx_hash: str
    locktime: int
    output_index: str
    threshold: int
    timestamp: int
    utxo_type: str
    consuming_tx_hash: str | UnsetType = UNSET
    consuming_tx_timestamp: int | UnsetType = UNSET
    utxo_bytes: str | UnsetType = UNSET
    credentials: tuple[UtxoCredential, ...] | UnsetType = UNSET
    group_id: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET


class _SdkTransaction(Resource, frozen=True, gc=False, kw_only=True):
    """The keys that the SDKs give a transaction of the X- or C-Chain."""

    tx_hash: str
    tx_type: PrimaryNetworkTxType
    timestamp: int
    memo: str
    amount_unlocked: tuple[AssetAmount, ...]
    amount_created: tuple[AssetAmount, ...]
    source_chain: str | UnsetType = UNSET
    destination_chain: str | UnsetType = UNSET


class SdkXChainTransaction(_SdkTransaction, frozen=True, gc=False, kw_only=True):
    """A transaction of the X-Chain exactly as the SDKs read it, of either format."""

    chain_format: ChainFormat
    consumed_utxos: tuple[SdkUtxo, ...]
    emitted_utxos: tuple[SdkUtxo, ...]
    block_height: int | UnsetType = UNSET
    block_hash: str | UnsetType = UNSET
    vertices: tuple[XChainVertex, ...] | UnsetType = UNSET
    asset_created: AssetCreated | UnsetType = UNSET


class SdkCChainTransaction(_SdkTransaction, frozen=True, gc=False, kw_only=True):
    """An atomic transaction of the C-Chain exactly as the SDKs read it."""

    block_height: int
    block_hash: str
    evm_inputs: tuple[EvmInput, ...] | UnsetType = UNSET
    evm_outputs: tuple[EvmOutput, ...] | UnsetType = UNSET
    consumed_utxos: tuple[SdkUtxo, ...] | UnsetType = UNSET
    emitted_utxos: tuple[SdkUtxo, ...] | UnsetType = UNSET


def sdk_p_transaction(tx: PChainTransaction) -> PChainTransaction:
    """Return a transaction of the P-Chain; one of the SDKs takes a genesis for an object or not at
    all.
    """
    created = tx.blockchain_info
    if created is UNSET or created.genesis_data is UNSET:
        return tx
    genesis = UNSET if isinstance(created.genesis_data, str) else sdk_genesis(created.genesis_data)
    return replace(tx, blockchain_info=replace(created, genesis_data=genesis))


def sdk_x_transaction(tx: XChainTransaction) -> SdkXChainTransaction:
    """Return a transaction of the X-Chain, of either format."""
    return copy_resource(
        tx,
        SdkXChainTransaction,
        memo=tx.memo or "0x",
        consumed_utxos=_sdk_utxos(tx.consumed_utxos),
        emitted_utxos=_sdk_utxos(tx.emitted_utxos),
    )


def sdk_c_transaction(tx: CChainTransaction) -> SdkCChainTransaction:
    """Return an atomic transaction of the C-Chain; an SDK recognizes its type by the keys that it
    has.
    """
    is_import = tx.tx_type is PrimaryNetworkTxType.IMPORT
    return copy_resource(
        tx,
        SdkCChainTransaction,
        memo=tx.memo or "0x",
        evm_inputs=UNSET if is_import else tx.evm_inputs or (),
        evm_outputs=(tx.evm_outputs or ()) if is_import else UNSET,
        consumed_utxos=_sdk_utxos(tx.consumed_utxos) if is_import else UNSET,
        emitted_utxos=UNSET if is_import else _sdk_utxos(tx.emitted_utxos),
    )


def _sdk_utxos(utxos: Iterable[AvmUtxo]) -> tuple[SdkUtxo, ...]:
    return tuple(
        [copy_resource(utxo, SdkUtxo, output_index=str(utxo.output_index)) for utxo in utxos]
    )


def copy_resource(source: Resource, kind: type[R], **changes: Any) -> R:
    """Return a resource of another kind with the fields of this kind, except for the changes."""
    same = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in changes}
    return kind(**same, **changes)
