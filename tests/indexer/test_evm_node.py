"""The replay node itself: its chains are consistent, and its variants answer as described."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.indexer.evm_chains import (
    Log,
    ServedChain,
    dense_blocks,
    logs_bloom,
    nft_blocks,
    recorded_chain,
    transfer_blocks,
)
from tests.indexer.evm_node import BatchLimit, EvmReplayNode, serving_evm

Calls = list[tuple[str, list[Any]]]
RECORDED = [
    (network, chain) for network in ("localnet", "helicon") for chain in ("c-chain", "l1-0", "l1-1")
]


@pytest.mark.parametrize(
    "make",
    [
        lambda: transfer_blocks(20),
        lambda: dense_blocks(3),
        lambda: nft_blocks(5),
        *(
            lambda name=name: recorded_chain(*name)
            for name in RECORDED
            if name != ("helicon", "c-chain")
        ),
    ],
)
def test_a_chain_is_consistent_with_its_receipts(make: Callable[[], ServedChain]) -> None:
    chain = make()
    parent = None
    for number in range(chain.tip + 1):
        header, receipts = json.loads(chain.headers[number]), json.loads(chain.receipts[number])
        assert (int(header["number"], 16), header["hash"]) == (number, chain.hashes[number])
        assert parent is None or header["parentHash"] == parent
        parent = header["hash"]
        assert [receipt["transactionHash"] for receipt in receipts] == header["transactions"]
        assert {receipt["blockHash"] for receipt in receipts} <= {header["hash"]}
        assert sum(int(receipt["gasUsed"], 16) for receipt in receipts) == int(
            header["gasUsed"], 16
        )
        logs = [log for receipt in receipts for log in receipt["logs"]]
        assert [int(log["logIndex"], 16) for log in logs] == list(range(len(logs)))
        parsed_logs = [
            Log(_raw(log["address"]), tuple(map(_raw, log["topics"])), _raw(log["data"]))
            for log in logs
        ]
        assert logs_bloom(parsed_logs) == int(header["logsBloom"], 16)


def test_equal_seeds_make_equal_chains() -> None:
    assert nft_blocks(3, seed=5) == nft_blocks(3, seed=5)
    assert nft_blocks(3, seed=5).hashes != nft_blocks(3, seed=6).hashes


async def test_blocks_and_receipts_are_served_in_batches() -> None:
    chain = recorded_chain("localnet", "l1-0")
    async with serving_evm(EvmReplayNode(chain)) as (node,), ClientSession() as session:
        calls: Calls = [
            ("eth_getBlockByNumber", ["0x3", False]),
            ("eth_getBlockReceipts", ["0x3"]),
            ("eth_chainId", []),
        ]
        header, receipts, chain_id = [reply["result"] for reply in await _ask(session, node, calls)]
        assert (header, receipts) == (json.loads(chain.headers[3]), json.loads(chain.receipts[3]))
        assert int(chain_id, 16) == 12345
        (reply,) = await _ask(
            session, node, [("eth_getTransactionReceipt", [receipts[0]["transactionHash"]])]
        )
        assert reply["result"] == receipts[0]
    assert node.call_counts["eth_getBlockReceipts"] == 1
    assert node.batch_sizes == [3, 1]


async def test_variants_lack_the_methods_that_real_nodes_lack() -> None:
    chain = recorded_chain("localnet", "l1-0")
    node = EvmReplayNode(
        chain, tip=30, first=10, first_receipts=20, tip_receipts=29, has_block_receipts=True
    )
    async with (
        serving_evm(node, EvmReplayNode(chain, has_block_receipts=False)) as nodes,
        ClientSession() as session,
    ):
        numbers = [0, 9, 10, 31]
        headers = await _ask(
            session, nodes[0], [("eth_getBlockByNumber", [hex(n), False]) for n in numbers]
        )
        assert [reply.get("result", {}) is None for reply in headers] == [False, True, False, False]
        assert headers[3]["error"]["message"] == "cannot query unfinalized data"
        receipts = await _ask(
            session, nodes[0], [("eth_getBlockReceipts", [hex(n)]) for n in (19, 20, 29, 30)]
        )
        assert [reply["result"] is None for reply in receipts] == [True, False, False, True]
        (refused,) = await _ask(session, nodes[1], [("eth_getBlockReceipts", ["0x1"])])
        assert refused["error"]["code"] == -32601


async def test_batches_are_refused_in_each_known_way() -> None:
    chain = recorded_chain("localnet", "l1-1")
    calls = [("eth_getBlockByNumber", [hex(n), False]) for n in range(4)]
    async with (
        serving_evm(EvmReplayNode(chain, most_in_batch=2)) as (node,),
        ClientSession() as session,
    ):
        assert (await _ask(session, node, calls))["error"]["code"] == -32600
        node.batch_limit = BatchLimit.RESPONSE
        replies = await _ask(session, node, calls)
        assert [reply.get("error", {}).get("code") for reply in replies] == [
            None,
            None,
            -32003,
            -32003,
        ]
        node.batch_limit = BatchLimit.HTTP
        async with session.post(node.url, json=_body(calls)) as response:
            assert response.status == 413
        node.batch_limit = BatchLimit.NONE
        assert (await _ask(session, node, calls[:1]))["error"]["code"] == -32600


async def test_new_heads_are_sent_to_subscribers() -> None:
    node = EvmReplayNode(recorded_chain("helicon", "c-chain"), tip=4)
    async with (
        serving_evm(node),
        ClientSession() as session,
        session.ws_connect(node.ws_url) as socket,
    ):
        await socket.send_json(
            {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
        )
        subscription = (await socket.receive_json())["result"]
        await node.add_to_tip(2)
        heads = [(await socket.receive_json())["params"] for _ in range(2)]
    assert {head["subscription"] for head in heads} == {subscription}
    assert [head["result"]["number"] for head in heads] == ["0x5", "0x6"]


def _raw(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _body(calls: Calls) -> list[dict[str, Any]]:
    return [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        for number, (method, params) in enumerate(calls)
    ]


async def _ask(session: ClientSession, node: EvmReplayNode, calls: Calls) -> Any:
    async with session.post(node.url, json=_body(calls)) as response:
        return await response.json()
