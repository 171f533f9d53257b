"""Endpoints 9 and 10: EVM chains as their entries, nodes and the P-Chain describe them, and blocks
of their nodes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.api.data import samples as s
from tests.api.data import sdk_models as sdk
from tests.api.data.evm_fixtures import L1, L1_PATH, ask, evm_setup, l1_node
from tests.api.data.fixtures import get
from tests.api.data.memory_index import MemoryNode
from tests.indexer.evm_chains import recorded_chain
from tests.indexer.evm_node import UNFINALIZED
from warpseal.api.data.settings import Compat
from warpseal.chains.evm.checks import BlockRules
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.blocks import Blockchain
from warpseal.upstream.endpoint import EvmChainInfo, NativeToken, NodeEndpoint
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

MULTICALL = "0xcA11bde05977b3631167028862bE2a173976CA11"
OWN = Blockchain(
    chain_id=L1.blockchain_id, subnet_id=s.SUBNET, vm_id=b"\x07" * 32, name="my chain", genesis=None
)
C_CHAIN = recorded_chain("localnet", "c-chain")
LATE_C_CHAIN = recorded_chain("helicon", "c-chain")


def header(height: int) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(L1.headers[height])
    return decoded


def block_with_transactions() -> int:
    return next(height for height in range(L1.tip, 0, -1) if header(height)["transactions"])


async def test_a_chain_is_described_by_its_node_and_the_p_chain() -> None:
    async with evm_setup(l1_node()) as setup:
        setup = replace(setup, node=MemoryNode(blockchains=[OWN]))
        response = await ask(setup, L1_PATH, header_host="api.example:8080")
    path = f"/ext/bc/{id_text(L1.blockchain_id)}"
    assert response.body == {
        "chainId": str(L1.evm_chain_id),
        "status": "OK",
        "chainName": "my chain",
        "description": "",
        "platformChainId": id_text(L1.blockchain_id),
        "subnetId": id_text(s.SUBNET),
        "vmId": id_text(b"\x07" * 32),
        "vmName": "EVM",
        "rpcUrl": f"http://api.example:8080{path}/rpc",
        "isTestnet": True,
        "networkToken": {"name": "", "symbol": "", "decimals": 18},
        "enabledFeatures": [],
    }
    assert "x-warpseal-index" not in response.headers


async def test_configured_fields_win() -> None:
    token = NativeToken("Coin", "COIN", 6, "https://x/logo", "Pays fees.")
    info = EvmChainInfo(
        chain_name="Named",
        description="A chain.",
        platform_chain_id="p",
        subnet_id="s",
        vm_id="v",
        explorer_url="https://explorer",
        rpc_url="https://rpc",
        ws_url="wss://ws",
        chain_logo_uri="https://logo",
        is_testnet=False,
        private=True,
        multicall="0x" + "11" * 20,
        network_token=token,
    )
    async with evm_setup(l1_node(), info=info) as setup:
        body = await get(setup, L1_PATH)
    assert body == {
        "chainId": str(L1.evm_chain_id),
        "status": "OK",
        "chainName": "Named",
        "description": "A chain.",
        "platformChainId": "p",
        "subnetId": "s",
        "vmId": "v",
        "vmName": "EVM",
        "explorerUrl": "https://explorer",
        "rpcUrl": "https://rpc",
        "wsUrl": "wss://ws",
        "isTestnet": False,
        "utilityAddresses": {"multicall": "0x" + "11" * 20},
        "networkToken": {
            "name": "Coin",
            "symbol": "COIN",
            "decimals": 6,
            "logoUri": "https://x/logo",
            "description": "Pays fees.",
        },
        "chainLogoUri": "https://logo",
        "private": True,
        "enabledFeatures": [],
    }


async def test_a_chain_is_found_by_evm_chain_id_blockchain_id_and_alias_and_no_other_name() -> None:
    aliases = ChainAliases()
    aliases.add_alias(L1.blockchain_id, "mine")
    names = (str(L1.evm_chain_id), id_text(L1.blockchain_id), "0x" + L1.blockchain_id.hex(), "mine")
    async with evm_setup(l1_node(), aliases=aliases) as setup:
        chain_ids = [(await ask(setup, f"/v1/chains/{name}")).body["chainId"] for name in names]
        missing = [
            await ask(setup, f"/v1/chains/{name}") for name in ("1", "p-chain", "C", "x" * 100)
        ]
    assert chain_ids == [str(L1.evm_chain_id)] * 4
    assert [(response.status, response.body["code"]) for response in missing] == [
        (404, "unknown_chain")
    ] * 4


async def test_the_c_chain_pays_in_avax_and_has_its_name_and_subnet() -> None:
    node = MemoryNode(error=NodeUnavailable("x"))
    async with evm_setup(l1_node(C_CHAIN), chain_id=s.CHAINS.c) as setup:
        alone = await get(replace(setup, node=node), f"/v1/chains/{C_CHAIN.evm_chain_id}")
        c_chain = Blockchain(
            chain_id=s.CHAINS.c,
            subnet_id=PRIMARY_NETWORK,
            vm_id=b"evm".ljust(32, b"\0"),
            name="C-Chain",
            genesis=None,
        )
        whole = await get(
            replace(setup, node=MemoryNode(blockchains=[c_chain])),
            "/v1/chains/" + id_text(s.CHAINS.c),
        )
    assert whole["networkToken"] == {"name": "Avalanche", "symbol": "AVAX", "decimals": 18}
    assert (whole["chainName"], whole["subnetId"]) == ("C-Chain", id_text(PRIMARY_NETWORK))
    assert {name: value for name, value in whole.items() if name not in ("subnetId", "vmId")} == {
        **alone,
        "rpcUrl": whole["rpcUrl"],
    }


async def test_a_chain_is_unavailable_while_no_node_answers() -> None:
    dead = l1_node(is_down=True)
    async with evm_setup(dead) as setup:
        response = await ask(setup, "/v1/chains/" + id_text(L1.blockchain_id))
    assert (response.status, response.body["status"], response.body["chainId"]) == (
        200,
        "UNAVAILABLE",
        "",
    )


async def test_multicall_is_named_where_it_has_code() -> None:
    async with evm_setup(l1_node(replies={"eth_getCode": "0x60"})) as setup:
        with_code = await get(setup, L1_PATH)
    async with evm_setup(l1_node(replies={"eth_getCode": (-32000, "no")})) as setup:
        unknown = await get(setup, L1_PATH)
    assert with_code["utilityAddresses"] == {"multicall": MULTICALL}
    assert "utilityAddresses" not in unknown


async def test_own_addresses_stand_in_for_those_of_nodes() -> None:
    ws = (NodeEndpoint("ws://10.0.0.1/key"),)
    async with evm_setup(l1_node(), ws=ws) as setup:
        response = await ask(setup, L1_PATH, header_host="api.example")
        proxied = await ask(
            setup, L1_PATH, **{"header_host": "api.example", "header_x-forwarded-proto": "https"}
        )
        broken = await ask(setup, L1_PATH, header_host="[::")
    path = f"/ext/bc/{id_text(L1.blockchain_id)}"
    assert (response.body["rpcUrl"], response.body["wsUrl"]) == (
        f"http://api.example{path}/rpc",
        f"ws://api.example{path}/ws",
    )
    assert (proxied.body["rpcUrl"], proxied.body["wsUrl"]) == (
        f"https://api.example{path}/rpc",
        f"wss://api.example{path}/ws",
    )
    assert broken.status == 200
    assert broken.body["rpcUrl"].startswith("http://127.0.0.1:")


async def test_all_chains_are_listed_and_filtered_by_network_and_feature() -> None:
    async with evm_setup(l1_node(), info=EvmChainInfo(rpc_url="http://rpc")) as setup:
        every = await get(setup, "/v1/chains")
        here = await get(setup, "/v1/chains", network="fuji")
        elsewhere = await get(setup, "/v1/chains", network="mainnet")
        indexed = await get(setup, "/v1/chains", feature="nftIndexing")
        refused = await ask(setup, "/v1/chains", feature="x")
    assert [chain["chainId"] for chain in every["chains"]] == [str(L1.evm_chain_id)]
    assert (here, elsewhere, indexed) == (every, {"chains": []}, {"chains": []})
    assert (refused.status, refused.body["detail"]["field"]) == (400, "feature")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"replies": {"eth_getBlockReceipts": (-32601, "no")}},
        {
            "replies": {
                "eth_getBlockReceipts": (-32001, "the method is not in the list of this key")
            }
        },
        {"replies": {"eth_getBlockReceipts": (-32004, "no")}},
        {"forbids": frozenset({"eth_getBlockReceipts"})},
    ],
)
async def test_a_node_gives_the_blocks_of_a_chain_without_an_index(fields: dict[str, Any]) -> None:
    height = block_with_transactions()
    expected = header(height)
    receipts = json.loads(L1.receipts[height])
    async with evm_setup(l1_node(**fields)) as setup:
        response = await ask(setup, f"{L1_PATH}/blocks/{height}")
        by_hash = await get(
            setup, f"{L1_PATH}/blocks/{expected['hash'].upper().replace('0X', '0x')}"
        )
        for_sdk = await get(setup.with_data(compat=Compat.SDK), f"{L1_PATH}/blocks/{height}")
    spent = [int(item["gasUsed"], 16) * int(item["effectiveGasPrice"], 16) for item in receipts]
    assert response.body == {
        "chainId": str(L1.evm_chain_id),
        "blockNumber": str(height),
        "blockHash": expected["hash"],
        "parentHash": expected["parentHash"],
        "blockTimestamp": int(expected["timestamp"], 16),
        "txCount": len(receipts),
        "gasUsed": str(int(expected["gasUsed"], 16)),
        "gasLimit": str(int(expected["gasLimit"], 16)),
        "baseFee": str(int(expected["baseFeePerGas"], 16)),
        "gasCost": str(int(expected["blockGasCost"], 16)),
        "feesSpent": str(sum(spent)),
    }
    assert response.headers["x-warpseal-source"] == "node"
    assert by_hash == response.body
    assert for_sdk == {**response.body, "cumulativeTransactions": "0"}
    sdk.read(json.dumps(for_sdk).encode(), sdk.EvmBlock)


async def test_the_gas_of_a_block_of_the_c_chain_after_helicon_is_that_of_its_receipts() -> None:
    helicon = json.loads(LATE_C_CHAIN.headers[1])["timestamp"]
    rules = BlockRules(asynchronous_from=int(helicon, 16))
    worst_case = 0
    async with evm_setup(l1_node(LATE_C_CHAIN), rules=rules) as setup:
        for height, raw in enumerate(LATE_C_CHAIN.receipts):
            receipts = json.loads(raw)
            body = await get(setup, f"/v1/chains/{LATE_C_CHAIN.evm_chain_id}/blocks/{height}")
            assert int(body["gasUsed"]) == sum(int(receipt["gasUsed"], 16) for receipt in receipts)
            worst_case += int(body["gasUsed"]) != int(
                json.loads(LATE_C_CHAIN.headers[height])["gasUsed"], 16
            )
    assert worst_case


async def test_fees_that_a_header_does_not_have_are_zero() -> None:
    old = {
        name: value
        for name, value in header(0).items()
        if name not in ("baseFeePerGas", "blockGasCost")
    }
    async with evm_setup(l1_node(headers={0: json.dumps(old).encode()})) as setup:
        body = await get(setup, f"{L1_PATH}/blocks/0")
    assert (body["baseFee"], body["gasCost"], body["gasUsed"], body["feesSpent"]) == (
        "0",
        "0",
        "0",
        "0",
    )


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_block_beyond_the_head_is_not_found(is_async: bool) -> None:
    async with evm_setup(l1_node(is_async=is_async)) as setup:
        responses = [
            await ask(setup, f"{L1_PATH}/blocks/{block}")
            for block in (L1.tip + 1, "0x" + "ab" * 32)
        ]
    assert [(response.status, response.body["code"]) for response in responses] == [
        (404, "block_not_found")
    ] * 2


@pytest.mark.parametrize(
    "block", ["-1", "latest", "0x10", "1.5", "9" * 20, "0x" + "g" * 64, "%20", "²"]
)
async def test_a_block_that_is_neither_number_nor_hash_is_refused(block: str) -> None:
    async with evm_setup(l1_node()) as setup:
        response = await ask(setup, f"{L1_PATH}/blocks/{block}")
    assert (response.status, response.body["detail"]["field"]) == (400, "blockId")


async def test_foreign_receipts_are_not_shown_and_another_node_is_asked() -> None:
    height = block_with_transactions()
    liar = l1_node(receipts={height: L1.receipts[0]}, headers={1: L1.headers[2]})
    pruned = l1_node(replies={"eth_getBlockReceipts": UNFINALIZED})
    async with evm_setup(liar) as setup:
        alone = [await ask(setup, f"{L1_PATH}/blocks/{block}") for block in (height, 1)]
    async with evm_setup(liar, pruned, l1_node()) as setup:
        corrected = await ask(setup, f"{L1_PATH}/blocks/{height}")
    assert [(response.status, response.body["code"]) for response in alone] == [
        (502, "node_unavailable")
    ] * 2
    assert (corrected.status, corrected.body["blockHash"]) == (200, L1.hashes[height])


async def test_a_node_that_hangs_is_reported_as_such() -> None:
    node = l1_node()
    async with evm_setup(node) as setup:
        assert (await ask(setup, f"{L1_PATH}/blocks/1")).status == 200
        node.delay_s = 60.0
        response = await ask(setup, f"{L1_PATH}/blocks/2")
    assert (response.status, response.body["detail"]) == (
        502,
        {"nodes": [{"position": 0, "failure": "timeout"}]},
    )
