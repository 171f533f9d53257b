"""Endpoints 4 to 6: blocks, any blockchain, and the chains of addresses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.api.data import samples as s
from tests.api.data.fixtures import NETWORK, P_BLOCKS, DataApiSetup, client_of, get, indexed
from tests.api.data.memory_index import MemoryIndex, MemoryNode
from tests.node.recorded_node import L1_CHAIN, recorded_result
from warpseal.api.data.settings import Compat
from warpseal.chains.ids import Address, bech32_text
from warpseal.chains.p_txs import CreateChainTx, parse_p_tx
from warpseal.resources.blocks import Blockchain, p_chain
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.evm_genesis import FeeConfig, GenesisConfig, chain_id_of, evm_genesis
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, SubnetID, id_text, node_id_text

EVM = f"{NETWORK}/blockchains/{id_text(s.EVM_CHAIN.chain_id)}"
OTHER = f"{NETWORK}/blockchains/{id_text(s.OTHER_CHAIN.chain_id)}"
LIST = NETWORK + "/addresses:listChainIds"
ALICE, BOB = bech32_text("fuji", s.ALICE), bech32_text("fuji", s.BOB)


async def test_a_block_has_every_known_field() -> None:
    page = await get(indexed(all_blocks=[s.p_block(1), s.FULL_BLOCK]), P_BLOCKS)
    plain = {
        "blockNumber": "1",
        "blockHash": id_text(s.block_id(1)),
        "parentHash": id_text(s.block_id(0)),
        "blockTimestamp": 1001,
        "blockType": "BanffStandardBlock",
        "txCount": 1,
        "transactions": [id_text(s.tx_id(1))],
        "blockSizeBytes": 300,
    }
    assert page["blocks"][1] == plain
    assert page["blocks"][0] == {
        **plain,
        "blockNumber": "90",
        "blockHash": id_text(s.block_id(90)),
        "parentHash": id_text(s.block_id(89)),
        "blockTimestamp": 1090,
        "transactions": [id_text(s.tx_id(90))],
        "l1ValidatorsAccruedFees": 5,
        "activeL1Validators": 6,
        "currentSupply": "7",
        "proposerDetails": {
            "proposerId": id_text(b"\x01" * 32),
            "proposerParentId": id_text(b"\x02" * 32),
            "proposerNodeId": node_id_text(s.NODE),
            "proposerPChainHeight": 88,
            "proposerTimestamp": 1089,
        },
    }
    assert page["chainInfo"] == {"chainName": "p-chain", "network": "fuji"}
    assert "nextPageToken" not in page


async def test_blocks_of_the_c_chain_are_named_in_hex_and_count_their_atomic_transactions() -> None:
    block = s.p_block(71, PrimaryChain.C, tx_ids=(s.tx_id(1), s.tx_id(2)), kind="EvmBlock")
    setup = indexed(all_blocks=[s.p_block(1), block, s.p_block(72, PrimaryChain.C, tx_ids=())])
    page = await get(setup, NETWORK + "/blockchains/c-chain/blocks")
    assert [(item["blockNumber"], item["txCount"]) for item in page["blocks"]] == [
        ("72", 0),
        ("71", 2),
    ]
    assert page["blocks"][1]["blockHash"] == "0x" + s.block_id(71).hex()


@pytest.mark.parametrize(
    ("params", "heights"),
    [
        ({}, "4321"),
        ({"startTimestamp": 1002, "endTimestamp": 1003}, "32"),
        ({"endTimestamp": 1002}, "21"),
        ({"startTimestamp": 1004}, "4"),
        ({"startTimestamp": 1002, "endTimestamp": 1002}, "2"),
        ({"startTimestamp": 5000}, ""),
        ({"pageSize": 1}, "4"),
    ],
)
async def test_blocks_are_selected_by_time_newest_first(
    params: dict[str, Any], heights: str
) -> None:
    page = await get(indexed(all_blocks=[s.p_block(n) for n in range(1, 5)]), P_BLOCKS, **params)
    assert "".join(block["blockNumber"] for block in page["blocks"]) == heights


@pytest.mark.parametrize("name", ["addresses", "sortOrder", "txTypes", "l1ValidationId"])
async def test_blocks_take_no_other_parameter_and_say_so(name: str) -> None:
    async with (
        client_of(indexed()) as client,
        client.get(P_BLOCKS, params={name: "asc"}) as response,
    ):
        assert (response.status, response.headers["x-warpseal-ignored"]) == (200, name)


async def test_an_evm_chain_has_its_genesis() -> None:
    body = await get(indexed(blockchains=[s.EVM_CHAIN]), EVM)
    genesis = body.pop("genesisData")
    assert body == {
        "createBlockTimestamp": 1012,
        "createBlockNumber": "12",
        "blockchainId": id_text(s.EVM_CHAIN.chain_id),
        "vmId": id_text(b"\xe2" * 32),
        "subnetId": id_text(s.SUBNET),
        "blockchainName": "dexalot",
        "evmChainId": 99999,
    }
    assert genesis == {
        "airdropAmount": None,
        "baseFeePerGas": None,
        "alloc": {
            "0x" + "11" * 20: {"balance": "0x295be96e64066972000000", "storage": {"0x00": "0x01"}}
        },
        "extraData": "0x00",
        "gasLimit": "0x7a1200",
        "nonce": "0x0",
        "parentHash": "0x" + "00" * 32,
        "timestamp": "0x0",
        "config": {
            "chainId": 99999,
            "homesteadBlock": 0,
            "subnetEVMTimestamp": 0,
            "eip150Hash": "0x2086799aeebeae135c246c65021c82b4e15a2c451340993aacfd2751886514f0",
            "allowFeeRecipients": False,
            "feeConfig": {"gasLimit": 8000000, "minBaseFee": 25000000000, "targetBlockRate": 2},
            "warpConfig": {
                "blockTimestamp": 5,
                "quorumNumerator": 67,
                "requirePrimaryNetworkSigners": True,
            },
            "txAllowListConfig": {"blockTimestamp": 0, "adminAddresses": ["0x" + "11" * 20]},
        },
    }


async def test_two_numbers_of_a_genesis_are_numbers_for_sdks() -> None:
    genesis = json.dumps(
        json.loads(s.EVM_GENESIS)
        | {"baseFeePerGas": "0x34630b8a00", "airdropAmount": "0x" + "f" * 40}
    )
    chain = msgspec.structs.replace(s.EVM_CHAIN, genesis=genesis.encode())
    setup = indexed(blockchains=[chain])
    plain = (await get(setup, EVM))["genesisData"]
    sdk = (await get(setup.with_data(compat=Compat.SDK), EVM))["genesisData"]
    assert (plain["baseFeePerGas"], plain["airdropAmount"]) == ("0x34630b8a00", "0x" + "f" * 40)
    assert (sdk["baseFeePerGas"], sdk["airdropAmount"]) == (225_000_000_000, float(2**160))
    assert {**sdk, "baseFeePerGas": "", "airdropAmount": ""} == {
        **plain,
        "baseFeePerGas": "",
        "airdropAmount": "",
    }


async def test_the_genesis_of_another_vm_is_hex() -> None:
    body = await get(indexed(blockchains=[s.OTHER_CHAIN]), OTHER)
    assert (body["genesisDataHex"], body["evmChainId"]) == ("0x0001", 0)
    assert "genesisData" not in body


async def test_without_an_index_a_blockchain_comes_from_the_node() -> None:
    blockchain = Blockchain(
        chain_id=s.EVM_CHAIN.chain_id,
        subnet_id=s.SUBNET,
        vm_id=b"\xe2" * 32,
        name="a",
        genesis=None,
    )
    setup = DataApiSetup(index=None, node=MemoryNode(blockchains=[blockchain]))
    body = await get(setup, EVM)
    assert body.keys() == {"blockchainId", "vmId", "subnetId", "blockchainName"}
    body = await get(setup.with_data(compat=Compat.SDK), EVM)
    assert (body["createBlockTimestamp"], body["createBlockNumber"], body["evmChainId"]) == (
        0,
        "0",
        0,
    )
    setup.node.error = NodeUnavailable("the blockchain")
    assert (await get(setup, EVM, 502))["error"] == "Bad Gateway"


async def test_the_p_chain_has_no_creating_transaction() -> None:
    body = await get(indexed(blockchains=[p_chain(s.NOW)]), NETWORK + "/blockchains/p-chain")
    assert body == {
        "blockchainId": id_text(P_CHAIN),
        "blockchainName": "P-Chain",
        "subnetId": id_text(PRIMARY_NETWORK),
        "vmId": "rWhpuQPF1kb72esV2momhMuTYGkEb1oL29pt2EBXWmSy4kxnT",
        "createBlockTimestamp": s.NOW,
        "createBlockNumber": "0",
        "evmChainId": 0,
    }


@pytest.mark.parametrize(
    "change", [{"node_height": s.NOW}, {"is_node_behind": True}, {"first_height": 7}]
)
async def test_an_incomplete_index_asks_the_node_for_a_missing_blockchain(
    change: dict[str, Any],
) -> None:
    fresh = [replace(freshness, **change) for freshness in s.FRESH]
    setup = DataApiSetup(
        index=MemoryIndex(chains=fresh), node=MemoryNode(blockchains=[s.EVM_CHAIN])
    )
    assert (await get(setup, EVM))["evmChainId"] == 99999
    setup.node.blockchains.clear()
    assert (await get(setup, EVM, 404))["code"] == "unknown_chain"


async def test_a_complete_index_does_not_ask_the_node_for_a_missing_blockchain() -> None:
    setup = DataApiSetup(node=MemoryNode(error=NodeUnavailable("the blockchain")))
    assert (await get(setup, EVM, 404))["code"] == "unknown_chain"


async def test_an_unknown_blockchain_is_not_found_and_a_malformed_one_is_refused() -> None:
    assert (await get(indexed(), EVM, 404))["code"] == "unknown_chain"
    assert (await get(indexed(), NETWORK + "/blockchains/xyz", 400))["detail"][
        "field"
    ] == "blockchainId"


async def test_the_p_chain_is_found_by_its_alias() -> None:
    p_chain = Blockchain(
        chain_id=s.CHAINS.x,
        subnet_id=SubnetID(bytes(32)),
        vm_id=b"\x01" * 32,
        name="X-Chain",
        genesis=None,
    )
    body = await get(indexed(blockchains=[p_chain]), NETWORK + "/blockchains/x-chain")
    assert body["blockchainId"] == id_text(s.CHAINS.x)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b'{"config":{}}',
        b'{"config":{"chainId":1}}',
        b'{"config":{"chainId":-1},"alloc":{}}',
        b'{"config":{"chainId":true},"alloc":{}}',
        b'{"config":{"chainId":1},"alloc":[]}',
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"config":{"chainId":99999999999999999999999},"alloc":{}}',
    ],
)
def test_bytes_of_another_vm_are_no_evm_genesis(raw: bytes) -> None:
    assert evm_genesis(raw) is None


def test_invalid_values_of_a_genesis_are_left_out() -> None:
    strange = {
        "config": {
            "chainId": "0x2a",
            "homesteadBlock": "x",
            "feeConfig": 5,
            "warpConfig": {"quorumNumerator": 2**70},
        },
        "alloc": {"zz": {}, "0x01": 7, "02": {"balance": "12", "code": "zz", "storage": []}},
        "nonce": "-5",
        "gasUsed": [1],
        "coinbase": 5,
        "timestamp": "9" * 500,
        "baseFeePerGas": "12",
    }
    body = evm_genesis(json.dumps(strange).encode())
    assert json.loads(msgspec.json.encode(body)) == {
        "config": {"chainId": 42, "warpConfig": {}},
        "alloc": {"0x02": {"balance": "0xc"}},
        "baseFeePerGas": "0xc",
    }


async def test_chain_ids_are_listed_for_addresses_as_they_were_spelled() -> None:
    setup = indexed(txs=[s.p_tx(1), s.EXPORT, s.IMPORT, s.LINEAR_X])
    account = "0x" + s.ACCOUNT.hex()
    body = await get(
        setup,
        LIST,
        addresses=f"P-{ALICE},{BOB},{account},{bech32_text('fuji', Address(b'9' * 20))}",
    )
    p, x, c = id_text(bytes(32)), id_text(s.CHAINS.x), id_text(s.CHAINS.c)
    assert body == {
        "addresses": [
            {"address": f"P-{ALICE}", "blockchainIds": [p, x, c]},
            {"address": BOB, "blockchainIds": [c]},
            {"address": account, "blockchainIds": [c]},
            {"address": bech32_text("fuji", Address(b"9" * 20)), "blockchainIds": []},
        ]
    }


async def test_a_colon_in_a_path_may_be_escaped() -> None:
    body = await get(indexed(), NETWORK + "/addresses%3AlistChainIds", addresses=ALICE)
    assert body["addresses"][0]["address"] == ALICE


@pytest.mark.parametrize("params", [{}, {"addresses": ""}, {"addresses": "no address"}])
async def test_addresses_are_required(params: dict[str, str]) -> None:
    assert (await get(indexed(), LIST, 400, **params))["detail"]["field"] == "addresses"


@pytest.mark.parametrize("path", [P_BLOCKS, LIST])
async def test_without_an_index_there_is_no_history(path: str) -> None:
    parameters = {"addresses": ALICE} if path == LIST else {}
    body = await get(DataApiSetup(index=None), path, 404, **parameters)
    assert body["code"] == "index_not_enabled"
    assert "; name " in body["message"]
    assert body["message"].endswith(" in index-chains")


def test_the_genesis_of_a_recorded_l1_is_read() -> None:
    text = recorded_result("platform.getTx", txID=id_text(L1_CHAIN), encoding="hex")["tx"]
    creation = parse_p_tx(bytes.fromhex(text[2:])[:-4]).unsigned
    assert isinstance(creation, CreateChainTx)
    genesis = evm_genesis(creation.genesis)
    assert genesis is not None
    assert isinstance(genesis.config, GenesisConfig)
    assert chain_id_of(genesis) == json.loads(creation.genesis)["config"]["chainId"]
    assert isinstance(genesis.config.fee_config, FeeConfig)
    assert isinstance(genesis.config.fee_config.min_base_fee, int)
    assert genesis.alloc
