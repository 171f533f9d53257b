"""Calls of contracts: the state in which they are made, nodes that lack it, and contracts that are
hostile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.forwarding.evm.evm import HANGS, Node, serve_node
from tests.indexer.evm.nodes import open_chain_nodes
from tests.indexer.evm_chains import transfer_blocks
from tests.indexer.evm_node import MISSING_STATE, EvmReplayNode, Refused, serving_evm
from warpseal.indexer.evm.nodes import CallResult, ContractCall, EvmCaller, NoResult

CONTRACT: Final = bytes([1]) * 20
BLOCKS: Final = 100

CallResultOf = Callable[[bytes, bytes, Any], bytes | None]


async def test_a_head_that_no_key_holds_is_no_head_of_a_node() -> None:
    blocks = transfer_blocks(BLOCKS)
    lying, honest = (
        EvmReplayNode(blocks, replies={"eth_blockNumber": hex(1 << 43)}),
        EvmReplayNode(blocks),
    )
    async with serving_evm(lying, honest), open_chain_nodes(lying.url, honest.url) as nodes:
        assert await nodes.heads() == (BLOCKS,)


def node(reply: CallResultOf, **more: Any) -> EvmReplayNode:
    """Return a node of the chain that all tests call."""
    return EvmReplayNode(transfer_blocks(BLOCKS), call=reply, **more)


async def call_all(
    calls: list[bytes], height: int | None, *nodes: EvmReplayNode, timeout_s: float = 60.0
) -> list[CallResult]:
    """Return the results of calls with this data."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving_evm(*nodes))
        chain_nodes = await stack.enter_async_context(
            open_chain_nodes(*(served.url for served in nodes))
        )
        await chain_nodes.heads()
        caller = EvmCaller(chain_nodes, timeout_s)
        return await caller.call_all([ContractCall(CONTRACT, data) for data in calls], height)


async def call_one(caller: EvmCaller, data: bytes, height: int) -> CallResult:
    """Return the result of one call."""
    (result,) = await caller.call_all([ContractCall(CONTRACT, data)], height)
    return result


def state_of(block: str) -> bytes:
    return block.encode()


async def test_a_contract_is_called_in_the_state_of_the_given_block() -> None:
    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        return to + data + state_of(block)

    assert await call_all([b"a", b"b"], 100, node(result_of)) == [
        CONTRACT + b"a" + b"0x64",
        CONTRACT + b"b" + b"0x64",
    ]
    assert await call_all([b"a"], None, node(result_of)) == [CONTRACT + b"a" + b"latest"]


async def test_a_node_without_the_state_is_called_at_its_last_block_from_then_on_at_once() -> None:
    methods: list[str] = []

    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        methods.append(block)
        if block != "latest" and int(block, 16) < BLOCKS - 32:
            raise Refused(*MISSING_STATE)
        return state_of(block)

    async with serving_evm(node(result_of)) as (pruned,), open_chain_nodes(pruned.url) as nodes:
        await nodes.heads()
        caller = EvmCaller(nodes)
        assert await call_one(caller, b"", 5) == b"latest"
        assert await call_one(caller, b"", 60) == b"latest"
        assert await call_one(caller, b"", BLOCKS) == state_of(hex(BLOCKS))
    assert methods == ["0x5", "latest", "latest", hex(BLOCKS)]


@pytest.mark.parametrize(
    "message",
    [
        "missing trie node 12ab (path ) state 0x12ab is not available",
        "missing trie node 12ab (path ) <nil>",
        "required historical state unavailable (reexec=128)",
        "historical state 12ab is not available",
        "missing block 0x12 41",
        "genesis state is missing",
        "revision for root 0x12 not found",
    ],
)
async def test_a_node_says_in_many_ways_that_it_has_no_state(message: str) -> None:
    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        if block != "latest":
            raise Refused(-32000, message)
        return b"latest"

    assert await call_all([b""], 5, node(result_of)) == [b"latest"]


async def test_a_node_with_the_state_is_called_before_one_that_is_known_to_lack_it() -> None:
    def pruned(to: bytes, data: bytes, block: str) -> bytes:
        if block != "latest":
            raise Refused(*MISSING_STATE)
        return b"pruned"

    async with (
        serving_evm(node(pruned), node(lambda to, data, block: b"archive")) as (first, second),
        open_chain_nodes(first.url, second.url) as nodes,
    ):
        caller = EvmCaller(nodes)
        assert await call_one(caller, b"", 5) == b"pruned"
        assert await call_one(caller, b"", 5) == b"archive"


async def test_a_node_that_lacks_the_block_does_not_answer_for_its_last_one() -> None:
    def lagging(to: bytes, data: bytes, block: str) -> bytes:
        if block != "latest":
            raise Refused(-32000, "header not found")
        return b"of an older block"

    assert await call_all([b""], 100, node(lagging)) == [None]
    assert await call_all([b""], 100, node(lagging), node(lambda to, data, block: b"new")) == [
        b"new"
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (3, "execution reverted"),
        (3, "execution reverted: missing trie node 00 (path ) state 00 is not available"),
        (-32000, "execution reverted: header not found"),
        (-32000, "out of gas"),
        (-32000, "invalid opcode: INVALID"),
        (-32000, "stack underflow (0 <=> 1)"),
        (-32000, "contract creation code storage out of gas"),
    ],
)
async def test_a_failure_of_the_contract_is_no_failure_of_the_node(code: int, message: str) -> None:
    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        raise Refused(code, message)

    other = node(lambda to, data, block: b"never called")
    assert await call_all([b""], 100, node(result_of), other) == [NoResult.REVERTED]
    assert other.call_counts["eth_call"] == 0


async def test_a_contract_that_reverts_with_the_words_of_a_node_leaves_the_node_its_state() -> None:
    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        if data == b"mimic":
            raise Refused(3, "execution reverted: " + MISSING_STATE[1])
        return state_of(block)

    async with serving_evm(node(result_of)) as (served,), open_chain_nodes(served.url) as nodes:
        await nodes.heads()
        caller = EvmCaller(nodes)
        assert await call_one(caller, b"mimic", 5) == NoResult.REVERTED
        assert await call_one(caller, b"", 5) == b"0x5"


@pytest.mark.parametrize(
    "error", [(-32601, "the method eth_call does not exist"), (-32603, "database closed")]
)
async def test_a_failure_of_the_node_leaves_the_call_to_the_others(error: tuple[int, str]) -> None:
    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        raise Refused(*error)

    assert await call_all([b""], 100, node(result_of)) == [None]
    assert await call_all([b""], 100, node(result_of), node(lambda to, data, block: b"result")) == [
        b"result"
    ]


async def test_a_result_above_one_mebibyte_spoils_only_its_own_call() -> None:
    sizes = {b"allowed": 2**20, b"bomb": 2**20 + 1}

    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        return bytes(sizes.get(data, 1))

    results = await call_all([b"a", b"bomb", b"b", b"allowed"], 100, node(result_of))
    assert results == [b"\0", NoResult.TOO_LARGE, b"\0", bytes(2**20)]


async def test_a_response_beyond_the_limit_of_the_node_spoils_only_its_own_call() -> None:
    def result_of(to: bytes, data: bytes, block: str) -> bytes:
        if data == b"bomb":
            raise Refused(-32003, "response too large")
        return data

    results = await call_all([b"a", b"bomb", b"b"], 100, node(result_of))
    assert results == [b"a", NoResult.TOO_LARGE, b"b"]


@pytest.mark.parametrize("result", ["1", "0x1", "0xzz", 5, None, ["0x01"]])
async def test_a_reply_that_is_no_hex_is_no_result(result: object) -> None:
    assert await call_all(
        [b""], 100, EvmReplayNode(transfer_blocks(BLOCKS), replies={"eth_call": result})
    ) == [None]


async def test_a_contract_that_never_ends_has_no_result_if_its_node_answers_other_calls() -> None:
    slow = Node(replies={"eth_call": HANGS})
    async with serve_node(slow), open_chain_nodes(slow.url) as nodes:
        assert await call_one(EvmCaller(nodes, timeout_s=2.0), b"", 5) == NoResult.TOO_SLOW
        slow.replies["eth_chainId"] = HANGS
        assert await call_one(EvmCaller(nodes, timeout_s=0.1), b"", 5) is None


async def test_a_node_that_hangs_is_left_after_one_question() -> None:
    hanging = Node(replies={"eth_call": HANGS})
    async with serve_node(hanging), open_chain_nodes(hanging.url) as nodes:
        await nodes.require_candidates()
        hanging.replies["eth_chainId"] = HANGS
        identity_calls = hanging.count("eth_chainId")
        calls = [ContractCall(CONTRACT, bytes([number])) for number in range(4)]
        assert await EvmCaller(nodes, timeout_s=0.1).call_all(calls, 5) == [None] * 4
        assert hanging.count("eth_chainId") == identity_calls + 1


async def test_no_node_means_no_reply() -> None:
    async with open_chain_nodes("http://127.0.0.1:9") as nodes:
        assert await call_one(EvmCaller(nodes), b"", 5) is None
