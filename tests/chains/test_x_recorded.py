"""Real X-Chain bytes: what the recorded network and public examples hold is read as the nodes read
it.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import zstandard

from tests.chains.exchanges import VECTORS, WALLET, checked, results, vector
from warpseal.chains.components import Credential, ExportTx, ImportTx, TransferOutput, Utxo
from warpseal.chains.ids import AssetID, UtxoID
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.chains.p_txs import CreateChainTx
from warpseal.chains.x_blocks import XBlock, XGenesis, parse_x_block, parse_x_genesis
from warpseal.chains.x_txs import (
    X_TYPES,
    CreateAssetTx,
    MintOperation,
    MintOutput,
    NftCredential,
    NftMintOperation,
    NftMintOutput,
    NftTransferOutput,
    OperationTx,
    PropertyCredential,
    PropertyMintOperation,
    PropertyMintOutput,
    PropertyOwnedOutput,
    XOutput,
    XTx,
    XUtxo,
    outputs_of,
    parse_x_tx,
)
from warpseal.warp.ids import id_text, parse_id

AVAX = {
    "mainnet": "FvwEAhmxKfeiG8SnEvq42hc6whRyY3EFYAvebMqDNDGCgxN5Z",
    "fuji": "U8iRqJoiJm8xZHAacmvYyZVwqQx6uDNtQeP3CQ6fcgQk3JqnK",
    "localnet": "2tTUKaXychsYLvFsctAW9ACx8U7oGL5R8qpGAhtgi9P9Ycgri8",
}
KINDS = {
    "x_base": "BaseTx",
    "x_create_fixed": "CreateAssetTx",
    "x_create_nft": "CreateAssetTx",
    "x_create_property": "CreateAssetTx",
    "x_create_variable": "CreateAssetTx",
    "x_export_c": "ExportTx",
    "x_export_p": "ExportTx",
    "x_import_c": "ImportTx",
    "x_import_p": "ImportTx",
    "x_mint_ft": "OperationTx",
    "x_mint_nft": "OperationTx",
    "x_mint_property": "OperationTx",
    "x_transfer_asset": "BaseTx",
}


def recorded_blocks() -> list[XBlock]:
    replies = results("avm.jsonl", "avm.getBlockByHeight", encoding="hex")
    return [parse_x_block(checked(reply["block"])) for _, reply in replies]


def recorded_tx(name: str) -> XTx:
    ((_, reply),) = results("avm.jsonl", "avm.getTx", txID=WALLET[name], encoding="hex")
    return parse_x_tx(checked(reply["tx"]))


def x_genesis(network: str) -> XGenesis:
    compressed = (VECTORS / "genesis" / f"{network}.bin.zst").read_bytes()
    for tx in parse_p_genesis(zstandard.decompress(compressed)).chains:
        if isinstance(tx.unsigned, CreateChainTx) and tx.unsigned.chain_name == "X-Chain":
            raw = tx.unsigned.genesis
            genesis = parse_x_genesis(raw)
            assert genesis.encode() == raw
            return genesis
    raise LookupError(network)


def test_every_recorded_block_decodes_and_its_id_is_the_nodes() -> None:
    blocks = recorded_blocks()
    descriptions = [
        reply["block"] for _, reply in results("avm.jsonl", "avm.getBlockByHeight", encoding="json")
    ]
    assert len(blocks) == 14
    for block, description in zip(blocks, descriptions, strict=True):
        assert block.encode() == block.raw
        assert id_text(block.id) == description["id"]
        assert id_text(block.parent_id) == description["parentID"]
        assert (block.height, block.time) == (description["height"], description["time"])
        assert id_text(block.merkle_root) == description["merkleRoot"]
        assert [id_text(tx.id) for tx in block.txs] == [tx["id"] for tx in description["txs"]]
    assert all(after.parent_id == before.id for before, after in pairwise(blocks))


def test_every_recorded_transaction_decodes_and_its_id_is_the_nodes() -> None:
    in_blocks = {tx.id: tx for block in recorded_blocks() for tx in block.txs}
    for name, kind in KINDS.items():
        tx = recorded_tx(name)
        assert (id_text(tx.id), tx.kind) == (WALLET[name], kind)
        assert tx.encode() == tx.raw
        assert in_blocks.pop(tx.id) == tx
    assert not in_blocks


def test_every_recorded_transaction_equals_the_nodes_json() -> None:
    for name in KINDS:
        tx = recorded_tx(name)
        ((_, reply),) = results("avm.jsonl", "avm.getTx", txID=WALLET[name], encoding="json")
        description = reply["tx"]
        unsigned, base = description["unsignedTx"], tx.unsigned.base
        assert (base.network_id, id_text(base.blockchain_id)) == (
            unsigned["networkID"],
            unsigned["blockchainID"],
        )
        assert [out.output.amount for out in base.outputs] == [
            out["output"]["amount"] for out in unsigned["outputs"]
        ]
        assert [id_text(spent.tx_id) for spent in base.inputs] == [
            spent["txID"] for spent in unsigned["inputs"]
        ]
        signatures = [
            ["0x" + signature.hex() for signature in credential.signatures]
            for credential in tx.credentials
        ]
        assert signatures == [
            credential["credential"]["signatures"] for credential in description["credentials"]
        ]


def test_created_assets_equal_the_nodes_asset_descriptions() -> None:
    described = {
        reply["assetID"]: reply
        for _, reply in results("avm.jsonl", "avm.getAssetDescription")
        if reply is not None
    }
    created = [recorded_tx(name) for name, kind in KINDS.items() if kind == "CreateAssetTx"]
    for tx in created:
        assert isinstance(tx.unsigned, CreateAssetTx)
        description = described[id_text(tx.id)]
        assert (tx.unsigned.name, tx.unsigned.symbol) == (
            description["name"],
            description["symbol"],
        )
        assert tx.unsigned.denomination == int(description["denomination"])


@pytest.mark.parametrize(
    ("name", "fx_index", "types"),
    [
        ("x_create_fixed", 0, [TransferOutput]),
        ("x_create_variable", 0, [MintOutput]),
        ("x_create_nft", 1, [NftMintOutput, NftMintOutput]),
        ("x_create_property", 2, [PropertyMintOutput]),
    ],
)
def test_initial_outputs_of_an_asset_are_of_its_kind(
    name: str, fx_index: int, types: list[type]
) -> None:
    tx = recorded_tx(name)
    assert isinstance(tx.unsigned, CreateAssetTx)
    (state,) = tx.unsigned.states
    assert (state.fx_index, [type(output) for output in state.outputs]) == (fx_index, types)
    outputs = outputs_of(tx)[len(tx.unsigned.base.outputs) :]
    assert [(utxo.asset_id, utxo.output) for utxo in outputs] == [
        (AssetID(tx.id), output) for output in state.outputs
    ]


def test_minting_a_fungible_asset_produces_the_amount_and_the_right_to_mint() -> None:
    tx = recorded_tx("x_mint_ft")
    assert isinstance(tx.unsigned, OperationTx)
    (operation,) = tx.unsigned.operations
    assert id_text(operation.asset_id) == WALLET["x_create_variable"]
    assert [(id_text(used.tx_id), used.output_index) for used in operation.consumed] == [
        (WALLET["x_create_variable"], 1)
    ]
    assert isinstance(operation.operation, MintOperation)
    assert operation.operation.transfer_output.amount == 777
    assert [type(credential) for credential in tx.credentials] == [Credential, Credential]
    assert [type(utxo.output) for utxo in outputs_of(tx)[-2:]] == [MintOutput, TransferOutput]


def test_minting_an_nft_produces_one_with_its_payload_for_each_owner() -> None:
    tx = recorded_tx("x_mint_nft")
    assert isinstance(tx.unsigned, OperationTx)
    (operation,) = tx.unsigned.operations
    assert isinstance(operation.operation, NftMintOperation)
    assert (operation.operation.group_id, operation.operation.payload) == (
        2,
        b"https://example.org/deed/1.json",
    )
    assert [type(credential) for credential in tx.credentials] == [Credential, NftCredential]
    (owner,) = operation.operation.owners
    assert outputs_of(tx)[-1].output == NftTransferOutput(2, operation.operation.payload, owner)


def test_minting_a_property_produces_it_and_the_right_to_mint() -> None:
    tx = recorded_tx("x_mint_property")
    assert isinstance(tx.unsigned, OperationTx)
    (operation,) = tx.unsigned.operations
    assert isinstance(operation.operation, PropertyMintOperation)
    assert [type(credential) for credential in tx.credentials] == [Credential, PropertyCredential]
    assert [type(utxo.output) for utxo in outputs_of(tx)[-2:]] == [
        PropertyMintOutput,
        PropertyOwnedOutput,
    ]


def test_outputs_left_after_all_transactions_are_the_nodes_utxos() -> None:
    unspent_outputs = {
        utxo.id: utxo for asset in x_genesis("localnet").assets for utxo in outputs_of(asset.tx)
    }
    for tx in (tx for block in recorded_blocks() for tx in block.txs):
        for utxo_id in consumed(tx):
            del unspent_outputs[utxo_id]
        exported = len(tx.unsigned.exported_outputs) if isinstance(tx.unsigned, ExportTx) else 0
        outputs = outputs_of(tx)
        unspent_outputs |= {utxo.id: utxo for utxo in outputs[: len(outputs) - exported]}
    unspent = [
        X_TYPES.struct(Utxo[XOutput]).parse(checked(raw))
        for _, reply in results("avm.jsonl", "avm.getUTXOs")
        for raw in reply["utxos"]
    ]
    addresses = {address for utxo in unspent for address in owners_of(utxo)}
    assert len(unspent) == 12
    assert {utxo.id: utxo for utxo in unspent} == {
        utxo_id: utxo
        for utxo_id, utxo in unspent_outputs.items()
        if addresses & set(owners_of(utxo))
    }


def test_an_export_of_mainnet_has_the_documented_fields() -> None:
    raw = bytes.fromhex(vector("x_chain.json")["export_to_p"])
    tx = parse_x_tx(raw)
    assert id_text(tx.id) == "2oJCbb8pfdxEHAf9A8CdN4Afj9VSR3xzyzNkf8tDv7aM1sfNFL"
    assert isinstance(tx.unsigned, ExportTx)
    assert tx.encode() == raw
    assert tx.unsigned.destination_chain_id == bytes(32)
    assert isinstance(tx.unsigned, ExportTx)
    (exported,) = outputs_of(tx)[len(tx.unsigned.base.outputs) :]
    assert isinstance(exported.output, TransferOutput)
    assert (exported.output_index, exported.output.amount) == (0, 2569382395)
    assert [address.hex() for address in exported.output.addresses] == [
        "5cf998275803a7277926912defdf177b2e97b0b4"
    ]
    assert id_text(exported.asset_id) == AVAX["mainnet"]


def test_containers_of_the_first_transactions_decode() -> None:
    txs = [parse_x_tx(checked(raw)) for raw in vector("x_chain.json")["index_containers"]]
    assert {(id_text(tx.id), len(tx.raw)) for tx in txs} == {
        ("6fXf5hncR8LXvwtM8iezFQBpK5cubV6y1dWgpJCcNyzGB1EzY", 415),
        ("ZGYTSU8w3zUP6VFseGC798vA2Vnxnfj6fz1QPfA9N93bhjJvo", 379),
    }
    assert all(tx.encode() == tx.raw for tx in txs)


@pytest.mark.parametrize(("network", "holders"), [("mainnet", 4365), ("fuji", 10), ("localnet", 2)])
def test_the_first_asset_of_a_genesis_is_avax(network: str, holders: int) -> None:
    (asset,) = x_genesis(network).assets
    assert (asset.alias, asset.creation.name, asset.creation.symbol) == (
        "AVAX",
        "Avalanche",
        "AVAX",
    )
    assert asset.creation.denomination == 9
    assert id_text(asset.asset_id) == AVAX[network]
    assert len(outputs_of(asset.tx)) == holders


def consumed(tx: XTx) -> list[UtxoID]:
    """Return the ids of the X-Chain's outputs that `tx` spends, not those that it imports."""
    spent = [tx_input.utxo_id for tx_input in tx.unsigned.base.inputs]
    if isinstance(tx.unsigned, OperationTx):
        spent += [
            used.utxo_id for operation in tx.unsigned.operations for used in operation.consumed
        ]
    return spent


def owners_of(utxo: XUtxo) -> tuple[bytes, ...]:
    return utxo.output.owners.addresses


def test_imports_spend_what_other_chains_exported() -> None:
    sources = {
        "x_import_p": ("11111111111111111111111111111111LpoYY", None),
        "x_import_c": ("Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7", WALLET["c_export_x"]),
    }
    for name, (source, exporter) in sources.items():
        tx = recorded_tx(name)
        assert isinstance(tx.unsigned, ImportTx)
        assert tx.unsigned.source_chain_id == parse_id(source)
        (imported,) = tx.unsigned.imported_inputs
        assert exporter in (None, id_text(imported.tx_id))
