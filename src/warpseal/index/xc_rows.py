"""The rows of the X-Chain's transactions, and of the C-Chain's atomic ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from warpseal.chains.c_atomic import AtomicEvmInput, AtomicEvmOutput
from warpseal.chains.signed_tx import SignedTx
from warpseal.index.batch import IndexBatch, TxInProgress
from warpseal.index.details import TxDetail
from warpseal.index.ids import ACCOUNT, IdTable, ids_of_output
from warpseal.index.schema import ASSETS
from warpseal.index.type_codes import ACCEPTED
from warpseal.ledger.c_chain import CTxEffects
from warpseal.ledger.outputs import Consumed
from warpseal.ledger.utxo_flow import hash_unsigned_tx, recover_public_key
from warpseal.ledger.x_chain import AssetCreation, Cap, XTxEffects


def ids_in(tx: XTxEffects | CTxEffects) -> Iterator[bytes]:
    """Yield the ids whose keys the rows of a transaction need."""
    for output in tx.emitted:
        yield from ids_of_output(output)
    for consumed in tx.consumed:
        yield consumed.asset_id
        if consumed.reconstructed is not None:
            yield from consumed.reconstructed.addresses
    if isinstance(tx, CTxEffects):
        for account in _accounts(tx):
            yield from (ACCOUNT + account.address, account.asset_id)
    elif tx.asset is not None:
        yield tx.asset.asset_id


def write_x(batch: IndexBatch, tx: XTxEffects, row: TxInProgress, *, is_approximate: bool) -> None:
    """Write a transaction of the X-Chain. is_approximate: whether its time is, since it is from before blocks."""
    detail, made = _move(batch, tx, row, tx.consumed)
    detail.memo = tx.tx.unsigned.base.memo
    detail.is_approximate = is_approximate
    if tx.asset is not None:
        detail.asset = batch.ids.key(tx.asset.asset_id)
        batch.change(ASSETS, asset_row(batch.ids, tx.asset, row.time_s))
    batch.put_tx(row, tx.height, ACCEPTED, made, detail)


def write_c(batch: IndexBatch, tx: CTxEffects, row: TxInProgress) -> None:
    """Write an atomic transaction of the C-Chain."""
    detail, made = _move(batch, tx, row, tx.consumed or tx.evm_inputs)
    key, accounts = batch.ids.key, _accounts(tx)
    signed = detail.signed if tx.evm_inputs else ((),) * len(accounts)
    detail.accounts = tuple(
        (key(ACCOUNT + account.address), key(account.asset_id), account.amount, signatures)
        for account, signatures in zip(accounts, signed, strict=True)
    )
    row.touched.update(account for account, *_ in detail.accounts)
    batch.put_tx(row, tx.height, ACCEPTED, made, detail)


def asset_row(ids: IdTable, asset: AssetCreation, made_at: int) -> tuple[Any, ...]:
    """Return the row of an asset; its names without zero bytes, which a text column cannot store."""
    texts = (asset.name.replace("\x00", ""), asset.symbol.replace("\x00", ""))
    is_fixed = asset.cap is Cap.FIXED
    return (ids.key(asset.asset_id), *texts, asset.denomination, int(asset.is_nft), int(is_fixed), made_at)


def _accounts(tx: CTxEffects) -> tuple[AtomicEvmInput | AtomicEvmOutput, ...]:
    return (*tx.evm_inputs, *tx.evm_outputs)


def _move(
    batch: IndexBatch, tx: XTxEffects | CTxEffects, row: TxInProgress, spent: Sequence[Consumed | Any]
) -> tuple[TxDetail, range]:
    """Write the outputs that a transaction spends and makes; return its detail with its signatures, and the keys."""
    detail = TxDetail(batch.consume(row, tx.consumed))
    made = batch.emit(row, tx.emitted)
    detail.source, detail.destination = map(batch.chain_ref, (tx.source_chain_id, tx.destination_chain_id))
    _add_signatures(detail, tx.tx, spent)
    return detail, made


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
