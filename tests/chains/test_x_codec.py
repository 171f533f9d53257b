"""X-Chain bytes of any content: they read back, or are refused with a place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chains import x_values as values
from tests.chains.exchanges import checked, results
from tests.chains.hostile import damaged, refusal
from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.chains.components import BaseFields, ExportTx
from warpseal.chains.x_blocks import GenesisAsset, XBlock, XGenesis, parse_x_block, parse_x_genesis
from warpseal.chains.x_txs import (
    X_TX,
    AssetOperation,
    CreateAssetTx,
    OperationTx,
    XTx,
    operation_outputs,
    outputs_of,
    parse_x_tx,
)

TXS = [checked(result["tx"]) for _, result in results("avm.jsonl", "avm.getTx", encoding="hex")]
BLOCKS = [
    checked(result["block"])
    for _, result in results("avm.jsonl", "avm.getBlockByHeight", encoding="hex")
]
CREATIONS = [tx.unsigned for tx in map(parse_x_tx, TXS) if isinstance(tx.unsigned, CreateAssetTx)]
GENESIS = XGenesis(
    tuple(GenesisAsset(creation.symbol, creation) for creation in CREATIONS)
).encode()
EMPTY = bytes.fromhex("00000000000000000001") + bytes(32)


@given(values.txs)
def test_transactions_round_trip(tx: XTx) -> None:
    again = parse_x_tx(tx.raw)
    assert (again.unsigned, again.credentials, again.id) == (tx.unsigned, tx.credentials, tx.id)
    assert again.encode() == tx.raw
    assert tx.raw.startswith(again.encode_unsigned())


@given(values.ids, values.u64, values.u64, values.some(values.txs))
def test_blocks_round_trip_with_the_ids_of_their_transactions(
    parent: bytes, height: int, time: int, txs: tuple[XTx, ...]
) -> None:
    block = parse_x_block(XBlock.build(parent, height, time, txs).raw)  # type: ignore[arg-type]
    assert (block.parent_id, block.height, block.time, block.merkle_root) == (
        parent,
        height,
        time,
        bytes(32),
    )
    assert [tx.id for tx in block.txs] == [tx.id for tx in txs]
    assert block.encode() == block.raw


@given(st.builds(XGenesis, values.some(st.builds(GenesisAsset, values.names, values.creations))))
def test_genesis_values_round_trip(genesis: XGenesis) -> None:
    assert parse_x_genesis(genesis.encode()) == genesis


@given(st.binary(max_size=200) | damaged(*TXS))
def test_any_bytes_are_refused_or_parse_to_a_transaction_that_encodes_to_them(raw: bytes) -> None:
    if (error := refusal(parse_x_tx, raw)) is not None:
        assert 0 <= error.offset <= len(raw)
    else:
        assert parse_x_tx(raw).encode() == raw


@given(st.binary(max_size=200) | damaged(*BLOCKS))
def test_any_bytes_are_refused_or_parse_to_a_block_that_encodes_to_them(raw: bytes) -> None:
    if (error := refusal(parse_x_block, raw)) is not None:
        assert 0 <= error.offset <= len(raw)
    else:
        assert parse_x_block(raw).encode() == raw


@given(st.binary(max_size=200) | damaged(GENESIS))
def test_any_bytes_are_refused_or_parse_to_a_genesis_that_encodes_to_them(raw: bytes) -> None:
    if (error := refusal(parse_x_genesis, raw)) is not None:
        assert 0 <= error.offset <= len(raw)
    else:
        assert parse_x_genesis(raw).encode() == raw


@given(values.txs)
def test_exported_outputs_have_the_indices_behind_base_outputs(tx: XTx) -> None:
    outputs = outputs_of(tx)
    assert [utxo.output_index for utxo in outputs] == list(range(len(outputs)))
    assert all(utxo.tx_id == tx.id for utxo in outputs)
    exported = tx.unsigned.exported_outputs if isinstance(tx.unsigned, ExportTx) else ()
    assert [utxo.output for utxo in outputs[len(outputs) - len(exported) :]] == [
        item.output for item in exported
    ]


@given(values.bases, st.builds(AssetOperation, values.ids, st.just(()), values.operations))
def test_outputs_of_an_operation_are_of_its_asset(
    base: BaseFields, operation: AssetOperation
) -> None:
    outputs = outputs_of(X_TX.build(OperationTx(base, (operation,))))[len(base.outputs) :]
    assert [utxo.output for utxo in outputs] == list(operation_outputs(operation.operation))
    assert {utxo.asset_id for utxo in outputs} <= {operation.asset_id}


@pytest.mark.parametrize(
    ("raw", "offset", "reason"),
    [
        (b"\x00\x01" + EMPTY[2:], 0, "codec version is 1"),
        (EMPTY + b"\xff\xff\xff\xff", 42, "4294967295 outputs need at least"),
        (EMPTY + bytes(4) + b"\x00\x00\x00\x01", 46, "1 inputs need at least"),
        (EMPTY + bytes(8) + b"\x7f\xff\xff\xff", 54, "bytes needs 2147483647 bytes, 0 are left"),
        (EMPTY + bytes(12) + b"\x01\x00\x00\x00", 54, "16777216 credentials need at least"),
        (EMPTY + bytes(16) + b"\x00", 58, "1 bytes left over"),
        (
            EMPTY + b"\x00\x00\x00\x01" + bytes(32) + b"\x00\x00\x00\x0a" + bytes(60),
            78,
            "NftMintOutput",
        ),
        (
            b"\x00\x00\x00\x00\x00\x09" + EMPTY[6:],
            2,
            "transaction cannot be of type 9 .Credential.",
        ),
    ],
)
def test_errors_name_the_offset_and_the_reason(raw: bytes, offset: int, reason: str) -> None:
    with pytest.raises(MalformedChainBytes, match=reason) as error:
        parse_x_tx(raw)
    assert error.value.offset == offset


def test_unassigned_type_ids_are_unknown() -> None:
    for parse, raw in (
        (parse_x_tx, EMPTY[:2] + b"\x00\x00\x00\x15" + EMPTY[6:]),
        (parse_x_block, b"\x00\x00\x00\x00\x00\x63"),
    ):
        with pytest.raises(UnknownType) as error:
            parse(raw)
        assert error.value.offset == 2


def test_a_transaction_is_no_block() -> None:
    with pytest.raises(MalformedChainBytes, match="block cannot be of type"):
        parse_x_block(TXS[0])
