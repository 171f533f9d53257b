"""Indexing from providers as they are: refused methods and callers, batches that fail, strange
encodings.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import until
from tests.indexer.evm.indexing import entry, indexing, written_hashes
from tests.indexer.evm.nodes import open_chain_nodes
from tests.indexer.evm_chains import ServedChain, transfer_blocks
from tests.indexer.evm_node import EvmReplayNode, Refused, serving_evm
from tests.indexer.waits import assert_wait_is_shown, log_two_waits
from warpseal.upstream.errors import CallFailure, NodeFailure
from warpseal.upstream.jsonrpc import RpcResponse, rpc_call

BLOCK_RECEIPTS = "eth_getBlockReceipts"
REFUSAL = "HTTP 403 (HTML): the provider refuses this key or address"

Respond = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


def blocks(count: int = 60) -> ServedChain:
    return transfer_blocks(count)


def reply_of(node: EvmReplayNode, change: Callable[[bytes], web.Response]) -> Respond:
    """Answer all calls rightly, in another response."""

    async def respond(request: web.Request, body: bytes) -> web.StreamResponse:
        return change(node.reply_to(body))

    return respond


def refuse(
    node: EvmReplayNode, reply: Callable[[], web.Response], is_refused: Callable[[bytes], bool]
) -> Respond:
    """Answer some bodies with another reply."""

    async def respond(request: web.Request, body: bytes) -> web.StreamResponse:
        return reply() if is_refused(body) else web.Response(body=node.reply_to(body))

    return respond


def forbidden(status: int = 403) -> web.Response:
    return web.Response(status=status, text="<html>no</html>", content_type="text/html")


async def assert_indexed(folder: Path, chain: ServedChain, node: EvmReplayNode) -> None:
    async with serving_evm(node), indexing(folder, [entry(chain, node)]) as index:
        await index.until_at(chain, chain.tip)
    assert written_hashes(folder, chain) == dict(enumerate(chain.hashes))


@pytest.mark.parametrize(
    "error",
    [
        (-32601, "no"),
        (-32001, "the method eth_getBlockReceipts is not in the list of this key"),
        (-32001, "method eth_getBlockReceipts is not whitelisted"),
        (-32000, "eth_getBlockReceipts is not available on your plan"),
        (-32004, "no"),
        (-32600, "unsupported method: eth_getBlockReceipts"),
    ],
)
async def test_a_node_that_refuses_the_receipts_of_blocks_in_any_form_is_asked_for_single_ones(
    tmp_path: Path, error: tuple[int, str]
) -> None:
    chain = blocks()
    node = EvmReplayNode(chain, replies={BLOCK_RECEIPTS: error})
    await assert_indexed(tmp_path, chain, node)
    # Asked once in a batch, and not again for ten minutes.
    assert node.call_counts[BLOCK_RECEIPTS] <= 32


@dataclass
class RecordingNode(EvmReplayNode):
    """A node that keeps the methods of its calls."""

    methods: list[str] = field(default_factory=list)

    def _result(self, method: str, params: list[Any]) -> bytes:
        self.methods.append(method)
        return super()._result(method, params)


@pytest.mark.parametrize(
    "error",
    [
        (-32000, "access denied"),
        (-32001, "Unauthorized"),
        (-32603, "Internal error"),
        (-32000, ""),
    ],
)
async def test_a_refusal_in_unknown_words_lets_no_index_begin_later(
    tmp_path: Path, error: tuple[int, str]
) -> None:
    chain = blocks()
    node = RecordingNode(chain, replies={BLOCK_RECEIPTS: error})
    await assert_indexed(tmp_path, chain, node)
    # After a few blocks, of three tries each, the node counts as one without the method.
    assert BLOCK_RECEIPTS not in node.methods[-40:]


async def test_a_method_that_a_gateway_forbids_alone_is_done_without(tmp_path: Path) -> None:
    chain = blocks()
    await assert_indexed(tmp_path, chain, EvmReplayNode(chain, forbids=frozenset({BLOCK_RECEIPTS})))


async def test_an_error_in_the_body_of_a_forbidden_call_is_read(tmp_path: Path) -> None:
    chain = blocks()
    node = EvmReplayNode(chain)
    error = {
        "jsonrpc": "2.0",
        "id": 0,
        "error": {"code": -32001, "message": "this method is not in the list"},
    }
    reply = json.dumps(error)
    node.respond = refuse(
        node,
        lambda: web.Response(status=403, text=reply),
        lambda body: BLOCK_RECEIPTS.encode() in body,
    )
    await assert_indexed(tmp_path, chain, node)


class SingleBlocksFail(EvmReplayNode):
    """A node whose receipts call fails for blocks 5 and 6: with null, an error, or a status."""

    fail: Callable[[], Exception] | None = None

    def _result(self, method: str, params: list[Any]) -> bytes:
        if method != BLOCK_RECEIPTS or params[0] not in ("0x5", "0x6"):
            return super()._result(method, params)
        if self.fail is not None:
            raise self.fail()
        return b"null"


@pytest.mark.parametrize(
    "fail", [partial(Refused, -32000, "cannot read"), None, web.HTTPInternalServerError]
)
async def test_a_block_whose_receipts_call_fails_alone_is_read_by_single_receipts(
    tmp_path: Path, fail: Callable[[], Exception] | None
) -> None:
    chain = blocks()
    node = SingleBlocksFail(chain)
    node.fail = fail
    await assert_indexed(tmp_path, chain, node)
    # All other blocks are read by one call each.
    assert node.call_counts["eth_getTransactionReceipt"] <= 8


async def test_a_chain_that_waits_for_minutes_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain = blocks(20)
    node = EvmReplayNode(chain, tip_receipts=12)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        await index.until_status(
            chain, lambda status: "no node has the next block" in status.waiting
        )
        records = await log_two_waits(caplog)
        # A call that is under way when the clock is set forward ends as too slow.
        lack = re.compile("its receipts: node 0: eth_get(Block|Transaction)Receipts?: null")
        status = await index.until_status(
            chain, lambda status: lack.search(status.waiting) is not None
        )
        assert_wait_is_shown(status)
        node.tip_receipts = None
        await index.until_at(chain, chain.tip)
        status = await index.until_status(chain, lambda status: not status.waiting)
        assert not status.waiting_since
    fields = [(record["levelname"], record["height"], record["node_height"]) for record in records]
    assert fields == [("WARNING", 12, 20)] * 2
    assert all("node 0: " in record["reason"] for record in records)


async def test_a_chain_whose_provider_refuses_the_key_says_so(tmp_path: Path) -> None:
    chain = blocks(20)
    node = EvmReplayNode(chain)
    node.respond = refuse(node, forbidden, lambda body: True)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        status = await index.until_status(chain, lambda status: bool(status.waiting))
        await until(lambda: index.indexer.chains[chain.blockchain_id].indexer is not None)
        status = await index.until_status(chain, lambda status: REFUSAL in status.waiting)
        assert status.waiting == f"no node answers: node 0: {REFUSAL}"
        node.respond = None
        await index.until_at(chain, chain.tip)


@pytest.mark.parametrize("method", ["eth_chainId", "eth_getBlockByNumber"])
async def test_a_node_that_refuses_to_name_its_chain_is_waited_out_and_stops_no_chain(
    tmp_path: Path, method: str
) -> None:
    chain = blocks(20)
    node = EvmReplayNode(chain)
    node.replies[method] = (-32000, "invalid API key")
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        refusal = f"no node answers: node 0: {method}: invalid API key (-32000)"
        status = await index.until_status(chain, lambda status: status.waiting == refusal)
        assert status.stopped == ""
        del node.replies[method]
        await index.until_at(chain, chain.tip)


def encoded(
    name: str | None, pack: Callable[[bytes], bytes] = bytes, **fields: Any
) -> Callable[[bytes], web.Response]:
    headers = {} if name is None else {"Content-Encoding": name}
    return lambda body: web.Response(body=pack(body), headers=headers, **fields)


def several_lines(body: bytes) -> web.Response:
    response = web.Response(body=body)
    for name in ("utf-8", "", "none"):
        response.headers.add("Content-Encoding", name)
    return response


@pytest.mark.parametrize(
    "change",
    [
        encoded("gzip", gzip.compress),
        encoded("deflate", zlib.compress),
        encoded("utf-8"),
        encoded("none"),
        encoded(""),
        several_lines,
        encoded(None, lambda body: b"\xef\xbb\xbf" + body),
        encoded(None, status=201),
    ],
    ids=["gzip", "deflate", "utf-8", "none", "empty", "several", "bom", "201"],
)
async def test_a_right_reply_in_another_encoding_is_read(
    tmp_path: Path, change: Callable[[bytes], web.Response]
) -> None:
    chain = blocks(30)
    node = EvmReplayNode(chain)
    node.respond = reply_of(node, change)
    await assert_indexed(tmp_path, chain, node)


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (encoded("br"), "the response is compressed (br), which was not requested"),
        (encoded("gzip"), "the compressed response is damaged"),
        (
            encoded("gzip", lambda body: gzip.compress(body)[:-9]),
            "the compressed response is cut off",
        ),
        (
            lambda body: web.Response(text="<html>"),
            "the reply is no JSON-RPC response (HTTP 200, HTML)",
        ),
    ],
)
async def test_a_reply_that_cannot_be_read_is_waited_out_and_stops_no_chain(
    tmp_path: Path, change: Callable[[bytes], web.Response], detail: str
) -> None:
    chain = blocks(20)
    node = EvmReplayNode(chain)
    async with serving_evm(node):
        node.respond = reply_of(node, change)
        async with indexing(tmp_path, [entry(chain, node)]) as index:
            status = await index.until_status(chain, lambda status: detail in status.waiting)
            assert status.stopped == ""
            node.respond, node.tip = None, 10
            await until(lambda: index.height(chain) == 10)
            node.respond, node.tip = reply_of(node, change), None
            await asyncio.sleep(0.1)
            node.respond = None
            await index.until_at(chain, chain.tip)


async def test_a_node_whose_block_cannot_be_read_is_left_for_another_one(tmp_path: Path) -> None:
    chain = transfer_blocks(20, has_roots=False)
    node, other = EvmReplayNode(chain, receipts={7: b'{"a":'}), EvmReplayNode(chain, tip=3)
    async with serving_evm(node, other), indexing(tmp_path, [entry(chain, node, other)]) as index:
        status = await index.until_status(chain, lambda status: "node 0: " in status.waiting)
        assert (status.stopped, index.height(chain)) == ("", 6)
        other.tip = None
        await index.until_at(chain, chain.tip)


async def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    node = EvmReplayNode(blocks(1))
    packed = gzip.compress(bytes(100 * 1024 * 1024), 9)
    node.respond = reply_of(
        node, lambda body: web.Response(body=packed, headers={"Content-Encoding": "gzip"})
    )
    async with serving_evm(node), open_chain_nodes(node.url) as nodes:
        with pytest.raises(CallFailure) as error:
            await nodes.nodes[0].call_batch([rpc_call("eth_chainId")])
    assert error.value.failure is NodeFailure.TOO_LARGE


def hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    "ending",
    [
        hang_up,
        *(
            lambda request, status=status: web.Response(status=status)
            for status in (400, 403, 404, 413, 418, 500, 502)
        ),
        lambda request: web.Response(status=403, text="[]"),
        lambda request: web.Response(text="too many calls"),
        lambda request: web.Response(body=b"[]", headers={"Content-Encoding": "br"}),
    ],
)
async def test_a_batch_that_ends_in_any_way_but_with_responses_is_halved(
    ending: Callable[[web.Request], web.Response],
) -> None:
    node = EvmReplayNode(blocks(20))
    sizes: list[int] = []

    async def respond(request: web.Request, body: bytes) -> web.StreamResponse:
        sizes.append(body.count(b'"method"'))
        return ending(request) if sizes[-1] > 1 else web.Response(body=node.reply_to(body))

    node.respond = respond
    calls = [rpc_call("eth_getBlockByNumber", hex(height), False) for height in range(20)]
    async with serving_evm(node), open_chain_nodes(node.url) as nodes:
        responses: list[RpcResponse] = await nodes.nodes[0].call_batch(calls)
    numbers = [json.loads(bytes(response.result or b"null"))["number"] for response in responses]
    assert numbers == [hex(height) for height in range(20)]
    assert sizes[:5] == [20, 10, 5, 2, 1]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_provider_that_refuses_the_key_is_no_busy_node(status: int) -> None:
    node = EvmReplayNode(blocks(1))
    node.respond = reply_of(node, lambda body: forbidden(status))
    async with serving_evm(node), open_chain_nodes(node.url) as nodes:
        with pytest.raises(CallFailure) as error:
            await nodes.nodes[0].call_batch([rpc_call(BLOCK_RECEIPTS, "0x1")])
        assert nodes.failures() == {
            0: f"HTTP {status} (HTML): the provider refuses this key or address"
        }
    assert (error.value.failure, error.value.status) == (NodeFailure.HTTP_STATUS, status)
