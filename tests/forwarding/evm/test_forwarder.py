"""Forwarding of calls: the choice of the node, retries, and the response when nodes fail."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from tests.eventually import stopped_clock, until
from tests.forwarding.evm.evm import (
    HALTS,
    SETTINGS,
    Node,
    Refusal,
    call,
    call_in_batch,
    call_outcome,
    open_chain,
    open_proxy,
    serve_node,
)
from warpseal.forwarding.evm.forwarder import EvmForwarder
from warpseal.upstream.errors import CallFailure, NodeFailure
from warpseal.upstream.node import NodeReply

UNREACHABLE = (-32000, "no node of this chain can be reached")
UNSURE = (-32000, "the node did not answer; it may have done what it was asked")
DEAD = "http://127.0.0.1:1/rpc"


async def single(forwarder: EvmForwarder, method: str, *params: Any) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 9, "method": method, "params": params}).encode()
    reply = await forwarder.forward_call(call(method, *params), body)
    return json.loads(reply.body) if isinstance(reply, NodeReply) else call_outcome(reply)


async def test_the_response_to_a_single_call_is_returned_as_sent_by_the_node() -> None:
    async with (
        serve_node(Node(replies={"eth_call": "0x12"})) as node,
        open_chain(node.url) as chain,
    ):
        assert await single(chain.forwarder, "eth_call", {"to": "0x1"}) == {
            "jsonrpc": "2.0",
            "id": 9,
            "result": "0x12",
        }
        node.status = 403
        reply = await chain.forwarder.forward_call(call("eth_call"), b"{}")
        assert isinstance(reply, NodeReply)
        assert (reply.status, reply.body, reply.content_type) == (
            403,
            b"not now",
            "text/plain; charset=utf-8",
        )


async def test_only_body_and_content_type_are_forwarded() -> None:
    async with serve_node(Node()) as node, open_chain(node.url) as chain:
        await single(chain.forwarder, "eth_chainId")
        assert node.headers[-1]["Content-Type"] == "application/json"
        allowed = {
            "Host",
            "Content-Type",
            "Accept",
            "Accept-Encoding",
            "User-Agent",
            "Content-Length",
        }
        assert set(node.headers[-1]) <= allowed


async def test_entries_of_a_batch_keep_their_order() -> None:
    node = Node(replies={"eth_gasPrice": "0x2", "eth_sendRawTransaction": "0xabc"})
    async with serve_node(node), open_chain(node.url) as chain:
        calls = [
            call(name) for name in ("eth_gasPrice", "debug_x", "eth_nope", "eth_sendRawTransaction")
        ]
        assert [call_outcome(reply) for reply in await chain.forwarder.forward_batch(calls)] == [
            "0x2",
            (-32601, "the method debug_x does not exist/is not available"),
            (-32601, "the method eth_nope does not exist/is not available"),
            "0xabc",
        ]
        assert node.count("debug_x") == 0


async def test_denied_methods_never_reach_a_node() -> None:
    async with (
        serve_node(Node()) as node,
        open_chain(node.url, deny=("eth_sign*", "eth_coinbase")) as chain,
    ):
        names = (
            "admin_peers",
            "debug_traceCall",
            "personal_sign",
            "miner_start",
            "avax_getAtomicTx",
            "Debug_x",
            "eth_signTransaction",
            "eth_coinbase",
        )
        for name in names:
            reply = await single(chain.forwarder, name)
            assert reply == (-32601, f"the method {name} does not exist/is not available")
        assert node.calls == []


async def test_an_unsent_call_is_retried_at_another_node_even_if_it_is_a_write() -> None:
    async with (
        serve_node(Node(replies={"eth_sendRawTransaction": "0xabc"})) as node,
        open_chain(DEAD, node.url) as chain,
    ):
        assert (await single(chain.forwarder, "eth_sendRawTransaction", "0x00"))[
            "result"
        ] == "0xabc"
        assert await call_in_batch(chain.forwarder, "eth_sendRawTransaction", "0x00") == "0xabc"


async def test_a_write_is_never_sent_twice() -> None:
    first, second = (
        Node(replies={"eth_sendRawTransaction": HALTS}),
        Node(replies={"eth_sendRawTransaction": "0xabc"}),
    )
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        assert await single(chain.forwarder, "eth_sendRawTransaction", "0x00") == UNSURE
        assert second.count("eth_sendRawTransaction") == 0
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        assert await call_in_batch(chain.forwarder, "eth_sendRawTransaction", "0x00") == UNSURE
        assert (first.count("eth_sendRawTransaction"), second.count("eth_sendRawTransaction")) == (
            2,
            0,
        )


async def test_an_unknown_method_counts_as_a_write() -> None:
    first, second = Node(replies={"x_do": HALTS}), Node(replies={"x_do": 1})
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        assert await single(chain.forwarder, "x_do") == UNSURE
        assert second.count("x_do") == 0


async def test_reads_of_a_batch_are_retried_and_its_writes_are_not() -> None:
    first = Node(replies={"eth_sendRawTransaction": HALTS, "eth_gasPrice": "0x1"})
    second = Node(replies={"eth_sendRawTransaction": "0xabc", "eth_gasPrice": "0x2"})
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        replies = await chain.forwarder.forward_batch(
            [call("eth_gasPrice"), call("eth_sendRawTransaction", "0x00")]
        )
        assert [call_outcome(reply) for reply in replies] == ["0x2", UNSURE]
        assert second.count("eth_sendRawTransaction") == 0


async def test_reads_succeed_while_a_node_of_two_is_lost() -> None:
    node = Node(replies={"eth_gasPrice": "0x2", "eth_sendRawTransaction": "0xabc"})
    async with (
        serve_node(node),
        open_proxy(node.port) as first_proxy,
        open_proxy(node.port) as second_proxy,
        open_chain(first_proxy.url, second_proxy.url) as chain,
    ):
        assert (await single(chain.forwarder, "eth_gasPrice"))["result"] == "0x2"
        first_proxy.cut()
        assert (await single(chain.forwarder, "eth_gasPrice"))["result"] == "0x2"
        second_proxy.cuts_replies = True
        assert await single(chain.forwarder, "eth_sendRawTransaction", "0x00") == UNSURE
        assert node.count("eth_sendRawTransaction") == 1
        second_proxy.cut()
        assert await single(chain.forwarder, "eth_gasPrice") == UNREACHABLE


async def test_a_node_of_another_chain_is_refused() -> None:
    good, other = (
        Node(replies={"eth_gasPrice": "0x2"}),
        Node(replies={"eth_chainId": "0x5", "eth_gasPrice": "0x666"}),
    )
    fork = Node(
        replies={"eth_getBlockByNumber": {"hash": "0x" + "22" * 32}, "eth_gasPrice": "0x666"}
    )
    async with (
        serve_node(good),
        serve_node(other),
        serve_node(fork),
        open_chain(good.url, other.url, fork.url) as chain,
    ):
        await chain.pool.check()
        assert sorted(chain.pool.mismatches()) == [1, 2]
        assert "another chain: chain id 5" in chain.pool.mismatches()[1]
        good.status = 503
        reply = await chain.forwarder.forward_call(
            call("eth_gasPrice"), b'{"jsonrpc":"2.0","id":1,"method":"eth_gasPrice"}'
        )
        assert isinstance(reply, NodeReply)
        assert reply.status == 503
        assert other.count("eth_gasPrice") == fork.count("eth_gasPrice") == 0


async def test_a_node_that_refuses_to_name_its_chain_is_not_of_another_chain() -> None:
    node = Node(replies={"eth_chainId": Refusal(-32000, "invalid API key")})
    async with serve_node(node), open_chain(node.url) as chain:
        assert await single(chain.forwarder, "eth_gasPrice") == UNREACHABLE
        assert chain.pool.mismatches() == {}
        assert chain.pool.failures() == {0: "eth_chainId: invalid API key (-32000)"}
        del node.replies["eth_chainId"]
        await chain.pool.check()
        assert chain.pool.failures() == {}


async def test_a_node_that_was_down_at_the_start_serves_when_it_is_up() -> None:
    async with (
        serve_node(Node(replies={"eth_gasPrice": "0x2"})) as node,
        open_proxy(node.port) as first_proxy,
    ):
        first_proxy.is_cut = True
        async with open_chain(first_proxy.url) as chain:
            assert await single(chain.forwarder, "eth_gasPrice") == UNREACHABLE
            first_proxy.is_cut = False
            assert (await single(chain.forwarder, "eth_gasPrice"))["result"] == "0x2"


async def test_a_lagging_node_is_not_called_while_another_is_up() -> None:
    first = Node(replies={"eth_blockNumber": "0x10", "eth_gasPrice": "first"})
    second = Node(replies={"eth_blockNumber": "0x10", "eth_gasPrice": "second"})
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        watching = asyncio.create_task(chain.pool.run())
        await until(lambda: all(node.head == 16 for node in chain.pool.nodes))
        assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "first"
        second.replies["eth_blockNumber"] = "0x11"
        await until(lambda: chain.pool.nodes[1].head == 17)
        assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "second"
        assert await call_in_batch(chain.forwarder, "eth_blockNumber") == "0x11"
        second.status = 503
        await until(lambda: chain.pool.nodes[1].failure is not None)
        assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "first"
        watching.cancel()


async def test_a_filter_stays_with_its_node() -> None:
    first = Node(replies={"eth_newBlockFilter": "0xF1", "eth_getFilterChanges": ["first"]})
    second = Node(
        replies={
            "eth_newBlockFilter": "0xf2",
            "eth_getFilterChanges": ["second"],
            "eth_gasPrice": "0x2",
        }
    )
    async with (
        serve_node(first),
        serve_node(second),
        open_proxy(first.port) as first_proxy,
        open_chain(first_proxy.url, second.url) as chain,
    ):
        assert (await single(chain.forwarder, "eth_newBlockFilter"))["result"] == "0xF1"
        await chain.pool.check()
        chain.pool.note_head(chain.pool.nodes[1], 99)
        assert (await single(chain.forwarder, "eth_getFilterChanges", "0xf1"))["result"] == [
            "first"
        ]
        assert await call_in_batch(chain.forwarder, "eth_newBlockFilter") == "0xf2"
        replies = await chain.forwarder.forward_batch(
            [call("eth_getFilterChanges", chain) for chain in ("0xf2", "0xf1", "0xF2")]
        )
        assert [call_outcome(reply) for reply in replies] == [["second"], ["first"], ["second"]]
        first_proxy.cut()
        assert await call_in_batch(chain.forwarder, "eth_getFilterChanges", "0xf1") == (
            -32000,
            "filter not found",
        )
        assert second.count("eth_getFilterChanges") == 2


async def test_errors_of_nodes_keep_their_data() -> None:
    refusal = Refusal(3, "execution reverted")
    refusal.error["data"] = "0x08c379a0"
    async with (
        serve_node(Node(replies={"eth_call": refusal})) as node,
        open_chain(node.url) as chain,
    ):
        reply = (await chain.forwarder.forward_batch([call("eth_call"), call("eth_call")]))[1]
        assert reply.error is not None
        assert (reply.error.code, bytes(reply.error.data or b"")) == (3, b'"0x08c379a0"')


async def test_a_reply_that_is_too_large_is_not_read_to_its_end() -> None:
    small = replace(SETTINGS, max_answer_bytes=1_000)
    node = Node(replies={"eth_call": "0x" + "00" * 600})
    async with serve_node(node), open_chain(node.url, settings=small) as chain:
        assert await single(chain.forwarder, "eth_call") == (-32003, "response too large")


@dataclass
class RecordingObserver:
    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def observe_forwarding(
        self, chain: str, method_class: str, upstream: str, outcome: str, calls: int = 1
    ) -> None:
        self.seen += [(method_class, upstream, outcome)] * calls


async def test_calls_are_counted_by_class_node_and_outcome() -> None:
    observer = RecordingObserver()
    async with serve_node(Node()) as node, open_chain(DEAD, node.url, observer=observer) as chain:
        await single(chain.forwarder, "eth_blockNumber")
        await call_in_batch(chain.forwarder, "debug_x")
        await call_in_batch(chain.forwarder, "eth_sendRawTransaction")
        assert observer.seen == [("read", "1", "ok"), ("write", "", "denied"), ("write", "1", "ok")]


async def test_a_filter_is_dropped_once_its_node_is_of_another_chain() -> None:
    node = Node(replies={"eth_newBlockFilter": "0xf1", "eth_getFilterChanges": ["mine"]})
    async with serve_node(node), open_chain(node.url) as chain:
        assert (await single(chain.forwarder, "eth_newBlockFilter"))["result"] == "0xf1"
        node.replies["eth_chainId"] = "0x5"
        chain.pool.note_failure(chain.pool.nodes[0], CallFailure(NodeFailure.LOST))
        await chain.pool.check()
        assert await single(chain.forwarder, "eth_getFilterChanges", "0xf1") == UNREACHABLE
        assert node.count("eth_getFilterChanges") == 0


async def test_a_call_without_time_left_is_not_a_node_failure() -> None:
    first, second = Node(), Node(replies={"eth_gasPrice": "0x2"})
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        await chain.pool.check()
        with stopped_clock() as clock:

            def reply_late(method: str, params: list[Any]) -> Any:
                clock.advance(SETTINGS.call_timeout_s + 1.0)
                return "0x1"

            first.rule = reply_late
            assert await single(chain.forwarder, "eth_gasPrice") == (-32002, "request timed out")
            assert second.count("eth_gasPrice") == 0
            assert chain.pool.failures() == {0: "timeout"}
            assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "0x2"


async def test_a_batch_of_reads_is_forwarded_unchanged() -> None:
    first, second = Node(replies={"eth_gasPrice": "0x1"}), Node(replies={"eth_gasPrice": "0x2"})
    observer = RecordingObserver()
    async with (
        serve_node(first),
        serve_node(second),
        open_chain(first.url, second.url, observer=observer) as chain,
    ):
        body = (
            b'[{"jsonrpc":"2.0","id":"a","method":"eth_gasPrice"},'
            b'{"jsonrpc":"2.0","id":1e2,"method":"eth_call"}]'
        )
        for status, expected in ((200, "0x1"), (503, "0x2")):
            first.status = status
            reply = await chain.forwarder.forward_read_batch({"eth_gasPrice", "eth_call"}, body, 2)
            assert isinstance(reply, NodeReply)
            assert [entry["id"] for entry in json.loads(reply.body)] == ["a", 100]
            assert json.loads(reply.body)[0]["result"] == expected
        assert (
            observer.seen.count(("read", "0", "ok"))
            == observer.seen.count(("read", "1", "ok"))
            == 2
        )
        for other in (
            "eth_sendRawTransaction",
            "debug_x",
            "eth_feeConfig",
            "eth_newFilter",
            "eth_blockNumber",
        ):
            assert (
                await chain.forwarder.forward_read_batch({"eth_gasPrice", other}, body, 2) is None
            )


async def test_a_write_that_a_busy_node_received_is_reported_as_uncertain() -> None:
    node = Node()
    async with serve_node(node), open_chain(node.url) as chain:
        await chain.pool.check()
        node.status = 502
        replies = await chain.forwarder.forward_batch(
            [call("eth_sendRawTransaction", "0x00"), call("eth_gasPrice")]
        )
        assert [call_outcome(reply) for reply in replies] == [UNSURE, UNREACHABLE]


async def test_a_status_about_the_request_does_not_count_as_a_node_failure() -> None:
    node = Node()
    async with serve_node(node), open_chain(node.url) as chain:
        await chain.pool.check()
        node.status = 413
        await chain.forwarder.forward_batch([call("eth_call"), call("eth_gasPrice")])
        assert chain.pool.failures() == {}
        node.status = 429
        await chain.forwarder.forward_batch([call("eth_call"), call("eth_gasPrice")])
        assert chain.pool.failures() == {0: "busy"}
