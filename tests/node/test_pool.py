"""A pool of nodes works while one of them responds, and uses only nodes of its network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import StoppedClock, stopped_clock
from tests.node.recorded_node import (
    L1,
    NO_CHAIN,
    RecordedNode,
    RefusedCall,
    build_settings,
    connect,
    open_upstream,
    refusing_uri,
    serve_nodes,
)
from warpseal.node.platform import PlatformClient
from warpseal.upstream.errors import HeightAhead, NodeAttempt, NodeUnavailable, PublicFailure
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import open_session


def status(code: int) -> Any:
    return lambda _: web.Response(status=code, text="no")


async def hang(_: object) -> None:
    await asyncio.sleep(60)


async def test_a_dead_node_is_skipped_and_then_not_called() -> None:
    dead, alive = RecordedNode({"platform.getHeight": status(500)}), RecordedNode()
    async with open_upstream(dead, alive) as upstream:
        for _ in range(5):
            assert await upstream.platform.height() == 19
    assert dead.calls["platform.getHeight"] == 1
    assert alive.calls["platform.getHeight"] == 5


async def test_a_refused_connection_is_a_failure_and_other_nodes_serve() -> None:
    node = RecordedNode()
    async with serve_nodes(node) as uris, open_session() as session:
        upstream = connect(session, build_settings(refusing_uri(), *uris))
        assert await upstream.info.network_id() == 88_888
        assert await upstream.platform.height() == 19


async def test_an_error_about_all_nodes_has_only_positions_and_error_classes() -> None:
    nodes = (
        RecordedNode({"platform.getHeight": status(503)}),
        RecordedNode({"platform.getHeight": hang}),
    )
    async with serve_nodes(*nodes) as uris, open_session() as session:
        upstream = connect(session, build_settings(*uris, refusing_uri(), call_timeout_s=0.1))
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts == (
        NodeAttempt(0, PublicFailure.HTTP_STATUS),
        NodeAttempt(1, PublicFailure.TIMEOUT),
        NodeAttempt(2, PublicFailure.REFUSED),
    )
    assert "127.0.0.1" not in str(error.value) + str(error.value.detail)
    assert error.value.__context__ is None


async def test_each_call_tries_all_nodes_while_all_have_failed() -> None:
    node = RecordedNode({"platform.getHeight": status(500)})
    async with open_upstream(node) as upstream:
        for _ in range(3):
            with pytest.raises(NodeUnavailable):
                await upstream.platform.height()
        del node.replies["platform.getHeight"]
        assert await upstream.platform.height() == 19
    assert node.calls["platform.getHeight"] == 4


@asynccontextmanager
async def run_recovered_node(
    first: RecordedNode, second: RecordedNode
) -> AsyncIterator[tuple[PlatformClient, StoppedClock]]:
    """Call two nodes while the first one fails once, and let it work again; yield the client."""
    first.replies["platform.getHeight"] = status(500)
    async with open_upstream(first, second, retry_failed_after_s=10.0) as upstream:
        with stopped_clock() as clock:
            await upstream.platform.height()
            del first.replies["platform.getHeight"]
            yield upstream.platform, clock


async def test_a_failed_node_is_tried_again_after_a_while_by_the_daemon_first() -> None:
    first, second = RecordedNode(), RecordedNode()
    async with run_recovered_node(first, second) as (platform, clock):
        clock.advance(10.0)
        await platform.height(origin=CallOrigin.CALLER)
        assert first.calls["platform.getHeight"] == 1
        await platform.height(origin=CallOrigin.DAEMON)
        assert first.calls["platform.getHeight"] == 2
        await platform.height(origin=CallOrigin.CALLER)
        assert first.calls["platform.getHeight"] == 3
    assert second.calls["platform.getHeight"] == 2


async def test_without_calls_of_the_daemon_a_caller_tries_it_again_later() -> None:
    first = RecordedNode()
    async with run_recovered_node(first, RecordedNode()) as (platform, clock):
        clock.advance(29.0)
        await platform.height(origin=CallOrigin.CALLER)
        assert first.calls["platform.getHeight"] == 1
        clock.advance(1.0)
        await platform.height(origin=CallOrigin.CALLER)
    assert first.calls["platform.getHeight"] == 2


async def test_a_single_caller_waits_for_a_node_that_hangs_again() -> None:
    first, second = RecordedNode({"platform.getHeight": status(500)}), RecordedNode()
    async with open_upstream(
        first, second, retry_failed_after_s=10.0, call_timeout_s=1.0
    ) as upstream:
        with stopped_clock() as clock:
            await upstream.platform.height()
            first.replies["platform.getHeight"] = hang
            clock.advance(30.0)
            waiting, *others = [asyncio.create_task(upstream.platform.height()) for _ in range(8)]
            assert await asyncio.gather(*others) == [19] * 7
            assert not waiting.done()
            clock.advance(1.0)
            assert await waiting == 19
    assert first.calls["platform.getHeight"] == 2


@asynccontextmanager
async def run_beside_foreign_node() -> AsyncIterator[tuple[PlatformClient, RecordedNode]]:
    """Call a node of our network, and before it one of another network; yield the client and the
    foreign node.
    """
    foreign = RecordedNode(
        {"info.getNetworkID": {"networkID": "5"}, "platform.getHeight": {"height": "7"}}
    )
    async with serve_nodes(RecordedNode(), foreign) as uris, open_session() as session:
        settings = build_settings(uris[0], p_chain_api=build_settings(uris[1], uris[0]).p_chain_api)
        upstream = connect(session, settings)
        assert await upstream.info.network_id() == 88_888
        yield upstream.platform, foreign


async def test_a_node_of_another_network_is_never_used() -> None:
    async with run_beside_foreign_node() as (platform, foreign):
        assert await platform.height() == 19
    assert foreign.calls["platform.getHeight"] == 0


async def test_a_node_that_named_another_network_is_used_ten_seconds_after_it_is_right() -> None:
    foreign, ours = RecordedNode({"info.getNetworkID": {"networkID": "5"}}), RecordedNode()
    async with serve_nodes(foreign, ours) as uris, open_session() as session:
        settings = build_settings(uris[1], p_chain_api=build_settings(*uris).p_chain_api)
        upstream = connect(session, settings)
        with stopped_clock() as clock:
            assert await upstream.platform.height(origin=CallOrigin.CALLER) == 19
            del foreign.replies["info.getNetworkID"]
            clock.advance(4.0)
            assert await upstream.platform.height(origin=CallOrigin.CALLER) == 19
            assert foreign.calls["platform.getHeight"] == 0
            clock.advance(2.0)
            assert await upstream.platform.height(origin=CallOrigin.CALLER) == 19
            assert foreign.calls["platform.getHeight"] == 1


async def test_concurrent_calls_never_use_a_node_of_another_network() -> None:
    async with run_beside_foreign_node() as (platform, foreign):
        for _ in range(3):
            assert await asyncio.gather(*(platform.height() for _ in range(8))) == [19] * 8
    assert foreign.calls["platform.getHeight"] == 0


async def test_an_error_about_another_network_does_not_identify_the_node() -> None:
    ours, foreign = RecordedNode(), RecordedNode({"info.getNetworkID": {"networkID": "5"}})
    async with serve_nodes(ours, foreign) as uris, open_session() as session:
        settings = build_settings(uris[0], p_chain_api=build_settings(uris[1]).p_chain_api)
        upstream = connect(session, settings)
        await upstream.info.network_id()
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts == (NodeAttempt(0, PublicFailure.WRONG_NETWORK),)


async def test_no_response_is_used_before_the_network_is_known() -> None:
    node = RecordedNode()
    async with serve_nodes(node) as uris, open_session() as session:
        settings = build_settings(refusing_uri(), p_chain_api=build_settings(*uris).p_chain_api)
        upstream = connect(session, settings)
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert "info.getNetworkID" in str(error.value)
    assert not node.seen


async def test_the_network_is_checked_again_after_a_failure() -> None:
    ours, other = RecordedNode(), RecordedNode()
    async with serve_nodes(ours, other) as uris, open_session() as session:
        settings = build_settings(uris[0], p_chain_api=build_settings(uris[1]).p_chain_api)
        upstream = connect(session, settings)
        await upstream.info.network_id()
        assert await upstream.platform.height() == 19
        other.replies["platform.getHeight"] = status(502)
        with pytest.raises(NodeUnavailable):
            await upstream.platform.height()
        other.replies = {
            "info.getNetworkID": {"networkID": 1},
            "platform.getHeight": {"height": "7"},
        }
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts == (NodeAttempt(0, PublicFailure.WRONG_NETWORK),)


async def test_a_gateway_without_an_info_api_is_used_and_seldom_queried_for_it() -> None:
    ours, gateway = RecordedNode(), RecordedNode(paths=("/ext/bc/P",))
    async with serve_nodes(ours, gateway) as uris, open_session() as session:
        settings = build_settings(uris[0], p_chain_api=build_settings(uris[1]).p_chain_api)
        upstream = connect(session, settings)
        await upstream.info.network_id()
        for _ in range(3):
            assert await upstream.platform.height() == 19
    assert [path for path, _, _ in gateway.seen] == ["/ext/bc/P"] * 3


async def test_the_path_of_the_reference_is_tried_first() -> None:
    node = RecordedNode()
    async with open_upstream(node) as upstream:
        await upstream.platform.height()
    assert [path for path, method, _ in node.seen if method == "platform.getHeight"] == ["/ext/P"]


async def test_a_base_url_with_a_path_and_a_query_keeps_both() -> None:
    node = RecordedNode(prefix="/rpc/key-1234")
    async with serve_nodes(node) as uris, open_session() as session:
        upstream = connect(session, build_settings(uris[0] + "/?token=abcd1234"))
        assert await upstream.platform.height() == 19
    assert node.requests[-1]["path"] == "/rpc/key-1234/ext/P"
    assert node.requests[-1]["token"] == "abcd1234"


async def test_redirects_are_not_followed() -> None:
    target = RecordedNode()
    async with serve_nodes(target) as uris:

        def elsewhere(_: object) -> web.Response:
            return web.Response(status=307, headers={"Location": uris[0] + "/ext/P"})

        async with open_upstream(RecordedNode({"platform.getHeight": elsewhere})) as upstream:
            with pytest.raises(NodeUnavailable) as error:
                await upstream.platform.height()
    assert error.value.attempts[0].failure is PublicFailure.HTTP_STATUS
    assert not target.seen


async def test_a_rate_limiting_node_is_busy() -> None:
    async with open_upstream(RecordedNode({"platform.getHeight": status(429)})) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts == (NodeAttempt(0, PublicFailure.BUSY),)


async def test_a_lagging_node_does_not_overrule_a_node_at_the_height() -> None:
    def lagging(params: Any) -> None:
        raise RefusedCall(
            f"failed to get validator set at {params['height']}: failed to fetch validator set at"
            " unfinalized height: current P-chain height (3) < requested P-Chain height"
            f" ({params['height']})"
        )

    behind, ahead = RecordedNode({"platform.getValidatorsAt": lagging}), RecordedNode()
    async with open_upstream(behind, ahead) as upstream:
        assert len(await upstream.platform.validators_at(L1, 19)) == 4
        with pytest.raises(HeightAhead) as error:
            await upstream.platform.validators_at(L1, 1_019)
    assert error.value.tip == 19


async def test_not_found_counts_only_when_no_node_finds_it() -> None:
    def unknown(_: object) -> None:
        raise RefusedCall("problem retrieving blockchain: not found")

    behind = RecordedNode({"platform.validatedBy": unknown})
    ahead = RecordedNode(
        {"platform.validatedBy": {"subnetID": "11111111111111111111111111111111LpoYY"}}
    )
    async with open_upstream(behind, ahead) as upstream:
        assert await upstream.platform.validated_by(NO_CHAIN) == bytes(32)
        ahead.replies["platform.validatedBy"] = unknown
        assert await upstream.platform.validated_by(NO_CHAIN) is None


async def test_an_error_response_does_not_put_a_node_out_of_service() -> None:
    def odd(_: object) -> None:
        raise RefusedCall("something is odd")

    first, second = RecordedNode({"platform.validatedBy": odd}), RecordedNode()
    async with open_upstream(first, second) as upstream:
        await upstream.platform.validated_by(NO_CHAIN)
        await upstream.platform.height()
    assert first.calls["platform.getHeight"] == 1


async def test_the_log_names_a_failing_node_once_and_reports_its_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "warpseal.upstream")
    node = RecordedNode({"platform.getHeight": status(500)})
    async with open_upstream(node) as upstream:
        for _ in range(3):
            with pytest.raises(NodeUnavailable):
                await upstream.platform.height()
        node.replies.clear()
        await upstream.platform.height()
    logged = [
        (record.getMessage(), vars(record)["node"], vars(record)["position"])
        for record in caplog.records
    ]
    assert logged == [
        ("upstream node failed", node.uri, 0),
        ("upstream node works again", node.uri, 0),
    ]
    assert vars(caplog.records[0])["answer"] == "http_status: HTTP status 500"


async def test_calls_are_counted_with_their_outcome() -> None:
    class RecordingObserver:
        seen: list[tuple[str, str]] = []  # noqa: RUF012

        def observe_call(self, method: str, outcome: str, seconds: float) -> None:
            assert 0 <= seconds < 30
            self.seen.append((method, outcome))

        def count_disagreement(self, position: int, method: str) -> None:
            raise AssertionError("nodes are compared only with p-chain-quorum")

    observer = RecordingObserver()
    first = RecordedNode({"platform.getHeight": status(500)})
    async with open_upstream(first, RecordedNode(), observer=observer) as upstream:
        await upstream.platform.height()
        await upstream.platform.validated_by(NO_CHAIN)
    assert [node for node in observer.seen if node[0] != "info.getNetworkID"] == [
        ("platform.getHeight", "http_status"),
        ("platform.getHeight", "ok"),
        ("platform.validatedBy", "refused"),
        ("platform.validatedBy", "refused"),
    ]


async def test_a_lost_idle_connection_costs_no_failure() -> None:
    """A node that closes the connection instead of answering once: the call is repeated, for it
    only reads.
    """
    connections = 0

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        await reader.readuntil(b"\r\n\r\n")
        connections += 1
        if connections > 1:
            body = b'{"jsonrpc":"2.0","result":{"height":"5","networkID":"7"},"id":1}'
            head = (
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:"
                f" {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server, open_session() as session:
        uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await connect(session, build_settings(uri)).platform.height() == 5
    assert connections >= 2


async def test_one_node_in_both_lists_has_one_limit() -> None:
    node = RecordedNode()
    async with open_upstream(node, calls_per_s=8) as upstream:
        await upstream.info.network_id()
        with stopped_clock() as clock:
            await asyncio.gather(*(upstream.platform.height() for _ in range(4)))
            fifth = asyncio.create_task(upstream.proposervm.current_epoch(NO_CHAIN))
            await upstream.platform.proposed_height(origin=CallOrigin.DAEMON)
            assert node.calls["proposervm.getCurrentEpoch"] == 0
            clock.advance(1.0)
            assert await fifth is None


async def test_at_most_twelve_calls_of_callers_run_at_once_and_the_daemons_are_unlimited() -> None:
    running, most, full, release = 0, 0, asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> dict[str, str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 12:
            full.set()
        await release.wait()
        running -= 1
        return {"height": "1"}

    node = RecordedNode({"platform.getHeight": slow})
    async with open_upstream(node) as upstream, asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(upstream.platform.height())
        await full.wait()
        assert await upstream.platform.proposed_height(origin=CallOrigin.DAEMON) == 19
        assert most == 12
        release.set()
    assert node.calls["platform.getHeight"] == 20
    assert most == 12
