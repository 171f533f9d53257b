"""The C-Chain's atomic transactions: real ones read as the nodes read them; any bytes read back or
are refused.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chains import x_values as values
from tests.chains.exchanges import WALLET, checked, lines, results, vector
from tests.chains.hostile import damaged, refusal
from warpseal.chains import components
from warpseal.chains.c_atomic import (
    C_TX,
    AtomicEvmInput,
    AtomicEvmOutput,
    AtomicTx,
    ExportTx,
    ImportTx,
    encode_atomic_txs,
    parse_atomic_tx,
    parse_atomic_txs,
)
from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.components import Credential, TransferOutput
from warpseal.chains.ids import TxID, utxo_id
from warpseal.chains.x_txs import parse_x_tx
from warpseal.warp.ids import id_text, parse_id

VECTORS = {name: bytes.fromhex(raw) for name, raw in vector("c_atomic.json").items()}
FILE = "c-atomic.jsonl"
AVAX = "FvwEAhmxKfeiG8SnEvq42hc6whRyY3EFYAvebMqDNDGCgxN5Z"
C_CHAIN = "Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7"
KINDS = {
    "c_import_p": "ImportTx",
    "c_export_p": "ExportTx",
    "c_export_x": "ExportTx",
    "c_import_x": "ImportTx",
}


def recorded_blocks() -> dict[int, bytes]:
    """Return the extra data of every recorded block by height."""
    calls = (
        line["result"]
        for line in lines("c-atomic.jsonl")
        if line["method"] == "eth_getBlockByNumber"
    )
    return {int(block["number"], 16): bytes.fromhex(block["blockExtraData"][2:]) for block in calls}


EXTRA = [raw for raw in recorded_blocks().values() if raw]

imports = st.builds(
    ImportTx,
    values.u32,
    values.ids,
    values.ids,
    values.some(values.transferable_inputs),
    values.some(st.builds(AtomicEvmOutput, values.addresses, values.u64, values.ids)),
)
exports = st.builds(
    ExportTx,
    values.u32,
    values.ids,
    values.ids,
    values.some(st.builds(AtomicEvmInput, values.addresses, values.u64, values.ids, values.u64)),
    values.some(values.transferable_outputs),
)
txs = st.builds(C_TX.build, imports | exports, values.some(values.signed(Credential)))


def test_the_recorded_blocks_hold_the_wallets_transactions() -> None:
    heights: dict[str, int] = {}
    for height, extra in recorded_blocks().items():
        parsed = parse_atomic_txs(extra, batch=True)
        assert encode_atomic_txs(parsed) == extra
        heights |= {id_text(tx.id): height for tx in parsed}
    accepted = {
        params["txID"]: int(result["blockHeight"])
        for params, result in results(FILE, "avax.getAtomicTxStatus")
    }
    assert heights == accepted
    assert set(heights) == {WALLET[name] for name in KINDS}


def test_every_recorded_transaction_decodes_and_its_id_is_the_nodes() -> None:
    in_blocks = {tx.id: tx for extra in EXTRA for tx in parse_atomic_txs(extra, batch=True)}
    for name, kind in KINDS.items():
        ((_, result),) = results(FILE, "avax.getAtomicTx", txID=WALLET[name])
        tx = parse_atomic_tx(checked(result["tx"]))
        assert (id_text(tx.id), tx.kind) == (WALLET[name], kind)
        assert tx.encode() == tx.raw == in_blocks[tx.id].raw
        assert (tx.unsigned.network_id, tx.unsigned.blockchain_id) == (88888, parse_id(C_CHAIN))


def test_an_export_to_x_is_what_the_x_chain_imports() -> None:
    ((_, result),) = results(FILE, "avax.getAtomicTx", txID=WALLET["c_export_x"])
    exporting = parse_atomic_tx(checked(result["tx"]))
    assert isinstance(exporting.unsigned, ExportTx)
    (exported,) = exporting.unsigned.exported_outputs
    ((_, result),) = results("avm.jsonl", "avm.getTx", txID=WALLET["x_import_c"], encoding="hex")
    tx = parse_x_tx(checked(result["tx"]))
    assert isinstance(tx.unsigned, components.ImportTx)
    (imported,) = tx.unsigned.imported_inputs
    assert imported.utxo_id == utxo_id(exporting.id, 0)
    assert (imported.asset_id, imported.input.amount) == (exported.asset_id, exported.output.amount)


def test_an_import_of_mainnet_has_the_documented_fields() -> None:
    tx = parse_atomic_tx(VECTORS["import_from_p"])
    assert id_text(tx.id) == "2mxzgZ1qCuMLqTXZWaThq7eMwxB9ydy9AHn288zWi2RRMxuTQj"
    assert isinstance(tx.unsigned, ImportTx)
    assert (tx.unsigned.network_id, tx.unsigned.source_chain_id) == (1, bytes(32))
    (spent,) = tx.unsigned.imported_inputs
    assert spent.input.amount == 53349562826
    origin = TxID(parse_id("2mpypu6xq4XFJTMzMHigNiPXdeMbsS8bRqNJRfpEfpfvyH5zBx"))
    assert spent.utxo_id == utxo_id(origin, 1)
    (out,) = tx.unsigned.outputs
    assert (out.address.hex(), out.amount) == (
        "f3bea6ee245b402d60fdb419eaabd63fc17c02d2",
        53349484216,
    )
    assert id_text(out.asset_id) == AVAX
    assert tx.encode() == VECTORS["import_from_p"]


def test_an_export_has_the_documented_fields() -> None:
    tx = parse_atomic_tx(VECTORS["export_to_p"])
    assert id_text(tx.id) == "GXmH2GpeUoXGkugeryzrrh4V4a97PXtqga8ErA4R14MaQw2EW"
    assert isinstance(tx.unsigned, ExportTx)
    (spent,) = tx.unsigned.inputs
    assert (spent.address.hex(), spent.amount) == (
        "76dd3d7b2f635c2547b861e55ae8a374e587742d",
        123400001,
    )
    assert spent.nonce == 1
    (exported,) = tx.unsigned.exported_outputs
    assert isinstance(exported.output, TransferOutput)
    assert exported.output.amount == 123400000
    assert tx.encode() == VECTORS["export_to_p"]


def test_before_apricot_5_the_extra_data_is_one_transaction_with_its_version() -> None:
    raw = VECTORS["import_from_p"]
    (tx,) = parse_atomic_txs(raw, batch=False)
    assert tx == parse_atomic_tx(raw)
    assert tx.encode() == raw
    with pytest.raises(MalformedChainBytes):
        parse_atomic_txs(raw, batch=True)


def test_in_a_batch_transactions_have_no_version_but_the_same_ids() -> None:
    singles = tuple(parse_atomic_tx(raw) for raw in VECTORS.values())
    batch = bytes.fromhex("000000000002") + b"".join(raw[2:] for raw in VECTORS.values())
    assert encode_atomic_txs(singles) == batch
    assert [tx.id for tx in parse_atomic_txs(batch, batch=True)] == [tx.id for tx in singles]
    with pytest.raises(MalformedChainBytes):
        parse_atomic_txs(batch, batch=False)


def test_no_extra_data_is_no_transaction_and_an_empty_batch_is_refused() -> None:
    assert parse_atomic_txs(b"", batch=True) == parse_atomic_txs(b"", batch=False) == ()
    assert encode_atomic_txs(()) == b""
    with pytest.raises(MalformedChainBytes, match="without an atomic transaction") as error:
        parse_atomic_txs(bytes(6), batch=True)
    assert error.value.offset == 2


def test_a_count_beyond_the_bytes_is_refused_before_anything_is_read() -> None:
    with pytest.raises(
        MalformedChainBytes, match="4294967295 atomic transactions need at least"
    ) as error:
        parse_atomic_txs(bytes(2) + b"\xff\xff\xff\xff" + EXTRA[0][6:], batch=True)
    assert error.value.offset == 2


@given(values.some(txs))
def test_transactions_of_a_block_round_trip(atomic_txs: tuple[AtomicTx, ...]) -> None:
    parsed = parse_atomic_txs(encode_atomic_txs(atomic_txs), batch=True)
    assert [(tx.unsigned, tx.credentials, tx.id) for tx in parsed] == [
        (tx.unsigned, tx.credentials, tx.id) for tx in atomic_txs
    ]


@given(st.binary(max_size=200) | damaged(*EXTRA, *VECTORS.values()), st.booleans())
def test_any_bytes_are_refused_or_parse_to_transactions_that_encode_to_them(
    raw: bytes, batch: bool
) -> None:
    if (error := refusal(lambda item: parse_atomic_txs(item, batch=batch), raw)) is not None:
        assert 0 <= error.offset <= len(raw)
    else:
        parsed = parse_atomic_txs(raw, batch=batch)
        assert (
            encode_atomic_txs(parsed) if batch else b"".join(tx.encode() for tx in parsed)
        ) == raw
