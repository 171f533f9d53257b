"""GET /status/events: what changes on an open page, once, also after a broken stream; and how
streams end.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec

from tests.api.fixtures import ApiSetup, client_of, serving
from tests.api.status.test_page import DOCUMENT, ROWS
from tests.eventually import finish, until
from warpseal.api.status.endpoints import MAX_STREAMS_PER_CLIENT
from warpseal.api.status.feed import StatusFeed


def changed(**fields: Any) -> Any:
    """Return the document with the second validator changed."""
    return msgspec.structs.replace(
        DOCUMENT, validators=[ROWS[0], msgspec.structs.replace(ROWS[1], **fields)]
    )


async def next_event(reply: aiohttp.ClientResponse) -> tuple[str, dict[str, Any]]:
    """Return the id and the data of the next event."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(60):
        async for line in reply.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                return fields["id"], json.loads(fields["data"])
    raise AssertionError("the stream ended")


def open_setup() -> ApiSetup:
    setup = ApiSetup(interval_s=0.01)
    setup.status.document = DOCUMENT
    return setup


async def test_a_page_gets_the_rows_that_changed_and_nothing_else() -> None:
    setup = open_setup()
    async with client_of(setup) as client:
        page = await (await client.get("/")).text()
        version = page.partition('data-version="')[2].partition('"')[0]
        async with client.get("/status/events", params={"version": version}) as reply:
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            setup.status.document = changed(state="connected", reason=None)
            name, event = await next_event(reply)
            assert (event["version"], event["sections"], event["gone"], event["isComplete"]) == (
                name,
                {},
                [],
                False,
            )
            assert list(event["rows"]) == ["sub/NodeID-b"]
            assert 'data-state="connected"' in event["rows"]["sub/NodeID-b"]
            setup.status.document = msgspec.structs.replace(
                DOCUMENT, validators=ROWS[:1], ready=True
            )
            _, event = await next_event(reply)
            assert (list(event["rows"]), event["gone"], list(event["sections"])) == (
                [],
                ["v-sub/NodeID-b"],
                ["state"],
            )


async def test_a_broken_stream_goes_on_where_it_was() -> None:
    setup = open_setup()
    async with client_of(setup) as client:
        async with client.get("/status/events") as reply:
            first, event = await next_event(reply)
            assert (event["isComplete"], len(event["rows"])) == (True, 2)
        setup.status.document = changed(state="dialing")
        async with client.get("/status/events", headers={"last-event-id": first}) as reply:
            second, event = await next_event(reply)
            assert (event["isComplete"], list(event["rows"])) == (False, ["sub/NodeID-b"])
        assert second != first


async def test_versions_of_another_process_or_too_old_ones_get_everything() -> None:
    setup = open_setup()
    feed = StatusFeed(setup.status, "", with_addresses=True)
    version, (complete,) = await feed.changes_since("")
    assert json.loads(complete)["isComplete"] is True
    assert await feed.changes_since(version) == (version, [])
    start = version.partition("-")[0]
    for unknown in (
        "",
        "-",
        "x-1",
        f"{start}-",
        f"{start}-99",
        f"{start}-x",
        f"{start}-" + "9" * 5_000,
    ):
        assert await feed.changes_since(unknown) == (version, [complete]), unknown


async def test_the_streams_of_one_client_are_limited() -> None:
    async with client_of(open_setup()) as client:
        streams = [await client.get("/status/events") for _ in range(MAX_STREAMS_PER_CLIENT)]
        refused = await client.get("/status/events")
        assert (refused.status, (await refused.json())["code"]) == (429, "too_many_requests")
        streams.pop().close()

        async def is_free() -> bool:
            async with client.get("/status/events") as reply:
                return reply.status == 200

        await until(is_free)
        for stream in streams:
            stream.close()


async def test_streams_end_when_the_daemon_stops() -> None:
    setup = ApiSetup(interval_s=3_600.0)
    async with client_of(setup) as client, client.get("/status/events") as reply:
        await next_event(reply)
        setup.stopping.set()
        await finish(reply.read())


async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    setup = ApiSetup(interval_s=0.001, write_timeout_s=0.2)
    rows = [
        msgspec.structs.replace(ROWS[0], node_ids=[f"NodeID-{number}"]) for number in range(4_000)
    ]
    setup.status.document = msgspec.structs.replace(DOCUMENT, validators=rows)
    async with serving(setup.app()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /status/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await until(lambda: setup.status.calls)
        states = iter(range(10**6))

        def disturb() -> bool:
            latency = float(next(states))
            fresh = [msgspec.structs.replace(row, latency_ms=latency) for row in rows]
            setup.status.document = msgspec.structs.replace(DOCUMENT, validators=fresh)
            return not server._state.tasks

        await until(disturb)
        writer.close()
        del reader


async def test_a_head_request_opens_no_stream() -> None:
    async with client_of(open_setup()) as client, client.head("/status/events") as reply:
        assert (reply.status, reply.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
