"""Transactions exactly as the published SDKs read them."""

from __future__ import annotations

from msgspec.structs import replace

from warpseal.api.data.encoding.genesis import sdk_genesis
from warpseal.api.data.encoding.outputs import encode_amounts, or_unset, sdk_utxo, sums
from warpseal.api.data.encoding.text import NetworkText, hex_text
from warpseal.api.data.encoding.transactions import (
    asset_created,
    atomic_amounts,
    chain_texts,
    evm_inputs,
    evm_outputs,
    p_transaction,
    vertex,
)
from warpseal.api.data.schema.base import UNSET
from warpseal.api.data.schema.enums import C_CHAIN_TX_TYPES, X_CHAIN_TX_TYPES, tx_type
from warpseal.api.data.schema.transactions import PChainTransaction, SdkCChainTransaction, SdkXChainTransaction
from warpseal.history.transactions import CTransaction, PTransaction, XTransaction
from warpseal.warp.ids import id_text


def sdk_p_transaction(tx: PTransaction, words: NetworkText) -> PChainTransaction:
    """Return a transaction of the P-Chain; one of the SDKs takes a genesis for an object or not at all."""
    told = p_transaction(tx, words)
    made = told.blockchain_info
    if made is UNSET or made.genesis_data is UNSET:
        return told
    genesis = UNSET if isinstance(made.genesis_data, str) else sdk_genesis(made.genesis_data)
    return replace(told, blockchain_info=replace(made, genesis_data=genesis))


def sdk_x_transaction(tx: XTransaction, words: NetworkText) -> SdkXChainTransaction:
    """Return a transaction of the X-Chain, of either format."""
    source, destination = chain_texts(tx, words)
    return SdkXChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind, X_CHAIN_TX_TYPES),
        timestamp=tx.time,
        memo=hex_text(tx.memo),
        chain_format="non-linear" if tx.block_id is None else "linear",
        consumed_utxos=tuple([sdk_utxo(utxo, words) for utxo in tx.consumed]),
        emitted_utxos=tuple([sdk_utxo(utxo, words) for utxo in tx.emitted]),
        amount_unlocked=encode_amounts(sums(tx.consumed)),
        amount_created=encode_amounts(sums(tx.emitted)),
        source_chain=source,
        destination_chain=destination,
        block_height=or_unset(tx.height),
        block_hash=UNSET if tx.block_id is None else id_text(tx.block_id),
        vertices=UNSET if tx.block_id is not None else tuple([vertex(one) for one in tx.vertices]),
        asset_created=asset_created(tx.asset_created),
    )


def sdk_c_transaction(tx: CTransaction, words: NetworkText) -> SdkCChainTransaction:
    """Return an atomic transaction of the C-Chain; which keys it has tells its kind."""
    unlocked, created = atomic_amounts(tx)
    is_import = tx.kind == "ImportTx"
    source, destination = chain_texts(tx, words)
    return SdkCChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind, C_CHAIN_TX_TYPES),
        timestamp=tx.time,
        memo="0x",
        amount_unlocked=encode_amounts(unlocked),
        amount_created=encode_amounts(created),
        source_chain=source,
        destination_chain=destination,
        block_height=tx.height,
        block_hash=hex_text(tx.block_id),
        evm_inputs=UNSET if is_import else evm_inputs(tx) or (),
        evm_outputs=(evm_outputs(tx) or ()) if is_import else UNSET,
        consumed_utxos=tuple([sdk_utxo(utxo, words) for utxo in tx.consumed]) if is_import else UNSET,
        emitted_utxos=UNSET if is_import else tuple([sdk_utxo(utxo, words) for utxo in tx.emitted]),
    )
