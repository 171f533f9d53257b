"""The rows of the X-Chain's transactions, and of the C-Chain's atomic ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from warpseal.chains.c_atomic import AtomicEvmInput, AtomicEvmOutput
from warpseal.chains.ids import AssetID
from warpseal.chains.signed_tx import SignedTx
from warpseal.history.blocks import Vertex
from warpseal.index import type_codes
from warpseal.index.batch import IndexBatch, TxInProgress
from warpseal.index.details import TxDetail, encode
from warpseal.index.ids import ACCOUNT, IdTable
from warpseal.index.keys import partition_of, prefix_of
from warpseal.index.p_rows import TxTime
from warpseal.index.schema import ASSETS, TX_IDS, TXS
from warpseal.ledger.c_chain import CTxEffects
from warpseal.ledger.outputs import Consumed
from warpseal.ledger.utxo_flow import hash_unsigned_tx, recover_public_key
from warpseal.ledger.x_chain import AssetCreation, Cap, XTxEffects


def ids_in(tx: XTxEffects | CTxEffects) -> Iterator[bytes]:
    """Yield the ids whose keys the rows of a transaction need."""
    for output in tx.emitted:
        yield output.asset_id
        yield from output.addresses
    for consumed in tx.consumed:
        yield consumed.asset_id
        if consumed.reconstructed is not None:
            yield from consumed.reconstructed.addresses
    if isinstance(tx, CTxEffects):
        for account in _evm_accounts(tx):
            yield ACCOUNT + account.address
            yield account.asset_id
    elif tx.asset is not None:
        yield tx.asset.asset_id


def write_x(batch: IndexBatch, tx: XTxEffects, when: TxTime, pre_linearization: Vertex | bool) -> None:
    """Write a transaction of the X-Chain. pre_linearization: its vertex if known, or whether it is from that time."""
    tx_row = TxInProgress(when.key, type_codes.tx_number(tx.tx.kind), tx.tx.id)
    detail = TxDetail(batch.consume(tx_row, tx.consumed))
    first_out = batch.emit(tx_row, tx.emitted)
    detail.memo = tx.tx.unsigned.base.memo
    detail.source = batch.chains.ref_of(tx.source_chain_id)
    detail.destination = batch.chains.ref_of(tx.destination_chain_id)
    _add_signatures(detail, tx.tx, tx.consumed)
    if tx.asset is not None:
        detail.asset = batch.ids.key(tx.asset.asset_id)
        batch.change(ASSETS, asset_row(batch.ids, tx.asset, when.time_s))
    detail.is_approximate = pre_linearization is not False
    if isinstance(pre_linearization, Vertex):
        vertex = pre_linearization
        detail.vertices = ((vertex.vertex_id, vertex.height, vertex.time),)
    _put(batch, tx_row, (tx.height, when.time_s), (first_out, len(tx.emitted), len(tx.consumed)), detail)


def write_c(batch: IndexBatch, tx: CTxEffects, when: TxTime) -> None:
    """Write an atomic transaction of the C-Chain."""
    tx_row = TxInProgress(when.key, type_codes.tx_number(tx.tx.kind), tx.tx.id)
    detail = TxDetail(batch.consume(tx_row, tx.consumed))
    first_out = batch.emit(tx_row, tx.emitted)
    detail.source = batch.chains.ref_of(tx.source_chain_id)
    detail.destination = batch.chains.ref_of(tx.destination_chain_id)
    _add_signatures(detail, tx.tx, tx.consumed or tx.evm_inputs)
    detail.accounts = _accounts(batch, tx, detail.signed)
    tx_row.touched.update(account for account, *_ in detail.accounts)
    _put(batch, tx_row, (tx.height, when.time_s), (first_out, len(tx.emitted), len(tx.consumed)), detail)


def asset_row(ids: IdTable, asset: AssetCreation, made_at: int) -> tuple[Any, ...]:
    """Return the row of an asset; its names without zero bytes, which a text column cannot store."""
    texts = (asset.name.replace("\x00", ""), asset.symbol.replace("\x00", ""))
    is_fixed = asset.cap is Cap.FIXED
    return (ids.key(asset.asset_id), *texts, asset.denomination, int(asset.is_nft), int(is_fixed), made_at)


def staking_asset_row(ids: IdTable, asset_id: AssetID) -> tuple[Any, ...]:
    """Return the row of AVAX, for an index without the X-Chain that creates it."""
    return asset_row(ids, AssetCreation(asset_id, "Avalanche", "AVAX", 9, Cap.FIXED, False), 0)


def _put(
    batch: IndexBatch,
    tx_row: TxInProgress,
    height_and_time: tuple[int | None, int],
    outs: tuple[int, int, int],
    detail: TxDetail,
) -> None:
    first_out, made, spent = outs
    row = (tx_row.key, tx_row.tx_id, *height_and_time, tx_row.kind, 0, first_out, made, made + spent, encode(detail))
    batch.add(TXS, row)
    batch.add(TX_IDS, (partition_of(tx_row.key), prefix_of(tx_row.tx_id), tx_row.key))
    batch.touch(tx_row)


def _add_signatures(detail: TxDetail, tx: SignedTx[Any, Any], spent: Sequence[Consumed | Any]) -> None:
    """Set all signatures, each once, their public keys, and the signatures of each input."""
    places: dict[bytes, int] = {}
    used: list[tuple[int, ...]] = []
    credentials = tx.credentials
    for number, consumed in enumerate(spent):
        credential = consumed.credential if isinstance(consumed, Consumed) else number
        signatures = credentials[credential].signatures if credential < len(credentials) else ()
        used.append(tuple([places.setdefault(signature, len(places)) for signature in signatures]))
    digest = hash_unsigned_tx(tx.encode_unsigned()) if places else b""
    detail.signatures, detail.signed = tuple(places), tuple(used)
    detail.signers = tuple([recover_public_key(digest, signature) or b"" for signature in places])


def _accounts(
    batch: IndexBatch, tx: CTxEffects, used: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, int, int, tuple[int, ...]], ...]:
    key = batch.ids.key
    accounts = _evm_accounts(tx)
    signed = used if tx.evm_inputs else ((),) * len(accounts)
    return tuple(
        [
            (key(ACCOUNT + account.address), key(account.asset_id), account.amount, signatures)
            for account, signatures in zip(accounts, signed, strict=True)
        ]
    )


def _evm_accounts(tx: CTxEffects) -> tuple[AtomicEvmInput | AtomicEvmOutput, ...]:
    return (*tx.evm_inputs, *tx.evm_outputs)
