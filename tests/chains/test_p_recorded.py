"""Every P-Chain block, transaction and unspent output of the recorded network, against what its
node said of it.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest

from tests.chains.exchanges import results
from tests.chains.node_json import node_json
from tests.chains.p_vectors import checked_hex, genesis_bytes, genesis_chains, recorded, unchecked
from warpseal.chains.components import Output, Utxo
from warpseal.chains.ids import TxID
from warpseal.chains.p_blocks import parse_p_block, parse_p_genesis
from warpseal.chains.p_txs import (
    P_TYPES,
    ConvertSubnetToL1Tx,
    DisableL1ValidatorTx,
    PSignedTx,
    RegisterL1ValidatorTx,
    SetL1ValidatorWeightTx,
    parse_p_tx,
)
from warpseal.warp.ids import id_text

Call = tuple[dict[str, Any], dict[str, Any]]

BLOCKS = {
    params["blockID"]: unchecked(result["block"]) for params, result in recorded("getBlock", "hex")
}
TRANSACTIONS = {
    params["txID"]: unchecked(result["tx"]) for params, result in recorded("getTx", "hex")
}


def _one(kind: type) -> PSignedTx:
    return next(
        tx for tx in map(parse_p_tx, TRANSACTIONS.values()) if isinstance(tx.unsigned, kind)
    )


@pytest.mark.parametrize("block_id", BLOCKS)
def test_a_recorded_block_round_trips_and_has_the_nodes_id(block_id: str) -> None:
    block = parse_p_block(BLOCKS[block_id])
    assert id_text(block.id) == block_id
    assert block.encode() == block.raw == BLOCKS[block_id]
    assert all(tx.raw == TRANSACTIONS[id_text(tx.id)] for tx in block.txs)


@pytest.mark.parametrize("tx_id", TRANSACTIONS)
def test_a_recorded_transaction_round_trips_and_has_the_nodes_id(tx_id: str) -> None:
    tx = parse_p_tx(TRANSACTIONS[tx_id])
    assert id_text(tx.id) == tx_id
    assert tx.encode() == tx.raw == TRANSACTIONS[tx_id]


@pytest.mark.parametrize("call", recorded("getTx", "json"), ids=lambda call: call[0]["txID"])
def test_every_field_of_a_recorded_transaction_equals_the_nodes_json(call: Call) -> None:
    params, result = call
    assert node_json(parse_p_tx(TRANSACTIONS[params["txID"]])) == result["tx"]


@pytest.mark.parametrize(
    "call", recorded("getBlockByHeight", "json"), ids=lambda call: call[0]["height"]
)
def test_every_field_of_a_recorded_block_equals_the_nodes_json(call: Call) -> None:
    block_json = call[1]["block"]
    block = parse_p_block(BLOCKS[block_json["id"]])
    assert (block.height, id_text(block.parent_id), block.time) == (
        block_json["height"],
        block_json["parentID"],
        block_json.get("time"),
    )
    assert [node_json(tx) for tx in block.txs] == block_json.get("txs", [])


def test_recorded_blocks_form_a_chain_from_the_genesis() -> None:
    blocks = sorted(map(parse_p_block, BLOCKS.values()), key=lambda block: block.height)
    assert [block.height for block in blocks] == list(range(20))
    assert blocks[0] == parse_p_genesis(genesis_bytes("localnet")).block
    assert all(block.parent_id == before.id for before, block in pairwise(blocks))


def test_recorded_unspent_outputs_are_outputs_of_the_recorded_transactions() -> None:
    utxos = {
        utxo.id: utxo
        for params, result in recorded("getUTXOs", "hex")
        if "sourceChain" not in params
        for utxo in (
            P_TYPES.struct(Utxo[Output]).parse(unchecked(text)) for text in result["utxos"]
        )
    }
    transactions = {tx.id: tx for tx in map(parse_p_tx, TRANSACTIONS.values())}
    own_utxos = [utxo for utxo in utxos.values() if utxo.tx_id in transactions]
    assert len(own_utxos) >= 5
    for utxo in own_utxos:
        unsigned: Any = transactions[TxID(utxo.tx_id)].unsigned
        outputs = unsigned.base.outputs
        if utxo.output_index < len(outputs):
            assert outputs[utxo.output_index].output == utxo.output
        else:
            # What is left of a validator's balance comes back behind the base outputs.
            assert isinstance(unsigned, DisableL1ValidatorTx | SetL1ValidatorWeightTx)
            assert utxo.output_index == len(outputs)


def test_later_transactions_refer_to_the_recorded_conversion_and_registration() -> None:
    convert, register = _one(ConvertSubnetToL1Tx).unsigned, _one(RegisterL1ValidatorTx).unsigned
    change, disable = _one(SetL1ValidatorWeightTx).unsigned, _one(DisableL1ValidatorTx).unsigned
    assert isinstance(convert, ConvertSubnetToL1Tx)
    assert isinstance(register, RegisterL1ValidatorTx)
    assert isinstance(change, SetL1ValidatorWeightTx)
    assert isinstance(disable, DisableL1ValidatorTx)
    assert (change.change().validation_id, change.change().weight) == (convert.validation_ids[0], 0)
    assert disable.validation_id == convert.validation_ids[3]
    assert register.registration().subnet_id == convert.subnet_id
    assert register.registration().node_id == convert.validators[0].node_id
    assert register.signed_message().unsigned.source_chain_id == convert.manager_chain_id


def test_the_transactions_of_the_genesis_are_those_of_its_file() -> None:
    txs = {
        params["txID"]: result["tx"]
        for params, result in results("genesis-txs.jsonl", "platform.getTx")
    }
    assert txs == {tx_id: checked_hex(raw) for tx_id, raw in genesis_chains().items()}
    assert {id_text(sha256(unchecked(text)).digest()) for text in txs.values()} == set(txs)
