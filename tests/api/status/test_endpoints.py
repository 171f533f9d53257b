"""GET /status.json: who sees it, with which parts, and how often it is collected."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from starlette.types import ASGIApp, Message, Scope

from tests.api.fixtures import ApiSetup, client_of
from warpseal.api.status.document import StatusDocument, ValidatorStatus

ADDRESS = "203.0.113.7:9651"
ROW = ValidatorStatus("subnet", ["NodeID-a"], "7", "connected", address=ADDRESS)
DOCUMENT = StatusDocument(
    "1.0", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", True, validators=[ROW]
)
LOCAL = ("127.0.0.1", 1)


def setup_with_document(*, public_page: bool = True) -> ApiSetup:
    setup = ApiSetup().with_settings(public_page=public_page)
    setup.status.document = DOCUMENT
    return setup


async def fetch(
    app: ASGIApp, path: str, client: tuple[str, int], headers: dict[str, str]
) -> tuple[int, bytes]:
    """Return status and body for a client of any address."""
    request_headers = {"host": "127.0.0.1:8080", **headers}
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in request_headers.items()],
        "client": client,
        "server": ("127.0.0.1", 8080),
        "state": {"is_complete": True},
    }
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages[0]["status"], b"".join(message.get("body", b"") for message in messages[1:])


@pytest.mark.parametrize(
    ("client", "headers", "shows_addresses"),
    [
        (LOCAL, {}, True),
        (("::1", 1), {"host": "localhost:8080"}, True),
        (("::1", 1), {"host": "[::1]:8080"}, True),
        (("203.0.113.9", 1), {}, False),
        (LOCAL, {"x-forwarded-for": "127.0.0.1"}, False),
        (LOCAL, {"forwarded": "for=127.0.0.1"}, False),
        (LOCAL, {"host": "rebound.example"}, False),
        (LOCAL, {"origin": "https://other.example"}, False),
    ],
)
async def test_addresses_are_only_for_clients_on_this_machine(
    client: tuple[str, int], headers: dict[str, str], shows_addresses: bool
) -> None:
    status, body = await fetch(setup_with_document().app(), "/status.json", client, headers)
    assert status == 200
    assert (json.loads(body)["validators"][0].get("address") == ADDRESS) is shows_addresses
    assert (ADDRESS.encode() in body) is shows_addresses
    is_served = (
        await fetch(setup_with_document(public_page=False).app(), "/status.json", client, headers)
    )[0] == 200
    assert is_served is shows_addresses


async def test_a_document_is_collected_once_for_all_requests_of_a_moment() -> None:
    served = setup_with_document()
    served.status.turns = 50
    async with client_of(served) as client:
        replies = await asyncio.gather(*(client.get("/status.json") for _ in range(20)))
        assert [reply.status for reply in replies] == [200] * 20
    assert served.status.calls == [True]


async def test_no_cache_keeps_the_document_and_long_ones_are_compressed() -> None:
    served = setup_with_document()
    served.status.document = StatusDocument(
        "1.0", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", True, validators=[ROW] * 100
    )
    async with client_of(served) as client:
        reply = await client.get("/status.json", headers={"accept-encoding": "gzip"})
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["content-encoding"] == "gzip"
        assert len((await reply.json())["validators"]) == 100
    status, body = await fetch(served.app(), "/status.json", LOCAL, {"accept-encoding": "gzip"})
    assert (status, len(json.loads(gzip.decompress(body))["validators"])) == (200, 100)


async def test_other_methods_are_refused() -> None:
    async with client_of(setup_with_document()) as client:
        assert (await client.head("/status.json")).status == 200
        assert (await client.post("/status.json")).status == 405
