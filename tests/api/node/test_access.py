"""Access to the node API: guard of administration, allowed hosts, CORS, guards of aliases."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from starlette.types import Message, Receive, Scope, Send

from tests.api.node.fixtures import ADMIN, HEALTH, SETTINGS, NodeApiSetup, Reply, started_node_api
from warpseal.api.http.allowed_hosts import AllowedHosts
from warpseal.api.node.access import AdminGuard
from warpseal.api.node.settings import NodeApiSettings

NO_PAGE = (404, "404 page not found\n")
TOKEN = "correct-horse-battery-staple"
WITH_TOKEN = NodeApiSettings(admin_enabled=True, admin_token=TOKEN)


def status_and_text(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.text


async def levels(node: NodeApiSetup, path: str = ADMIN, **headers: str) -> Reply:
    return await node.rpc(path, "admin.getLoggerLevel", {}, **headers)


async def test_disabled_administration_answers_404() -> None:
    async with started_node_api(NodeApiSettings()) as node:
        assert status_and_text(await levels(node)) == NO_PAGE


@pytest.mark.parametrize(
    "header", ["Forwarded", "X-Forwarded-For", "x-forwarded-proto", "X_Forwarded_For", "forwarded"]
)
async def test_without_a_token_a_request_through_a_proxy_gets_404(header: str) -> None:
    async with started_node_api() as node:
        assert (await levels(node)).status == 200
        assert status_and_text(await levels(node, **{header: "127.0.0.1"})) == NO_PAGE


@pytest.mark.parametrize(
    ("peer", "passes"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("::ffff:127.0.0.1", True)]
    + [
        (peer, False)
        for peer in ("10.0.0.1", "203.0.113.7", "::ffff:10.0.0.1", "fe80::1", "", "localhost")
    ],
)
async def test_without_a_token_only_loopback_addresses_are_allowed(peer: str, passes: bool) -> None:
    assert await status_behind(AdminGuard(passed, None), peer, {}) == (200 if passes else 404)


async def test_a_valid_token_is_accepted_from_any_address() -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "x-forwarded-for": "1.2.3.4"}
    assert await status_behind(AdminGuard(passed, TOKEN), "203.0.113.7", headers) == 200


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer ",
        "Bearer \xff",
        "Bearer",
    ],
)
async def test_a_missing_or_wrong_token_is_refused_even_on_loopback(
    authorization: str | None,
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    assert await status_behind(AdminGuard(passed, TOKEN), "127.0.0.1", headers) == 401


async def test_a_refused_token_gets_www_authenticate_and_no_cors_header() -> None:
    async with started_node_api(WITH_TOKEN) as node:
        reply = await levels(node)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert TOKEN not in reply.text + repr(WITH_TOKEN)
        assert (await levels(node, authorization=f"bearer {TOKEN}")).status == 200


async def test_the_guard_follows_administration_through_every_alias() -> None:
    async with started_node_api(WITH_TOKEN) as node:
        held = {"authorization": f"Bearer {TOKEN}"}
        for endpoint, alias in (("admin", "a"), ("a", "b"), ("b", "bc/c")):
            reply = await node.rpc(
                ADMIN, "admin.alias", {"endpoint": endpoint, "alias": alias}, **held
            )
            assert reply.json["result"] == {}
            assert (await levels(node, f"/ext/{alias}")).status == 401
            assert (await levels(node, f"/ext/{alias}", **held)).status == 200
            assert (
                "access-control-allow-origin"
                not in (
                    await levels(node, f"/ext/{alias}", origin="http://a.example", **held)
                ).headers
            )


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        *(
            (host, True)
            for host in (
                "localhost",
                "LOCALHOST:9650",
                "127.0.0.1",
                "10.1.2.3:80",
                "[::1]:80",
                "::1",
                "",
            )
        ),
        *(
            (host, False)
            for host in (
                "evil.example",
                "localhost.evil.example",
                "127.0.0.1.evil.example:80",
                "a b",
            )
        ),
        *((host, False) for host in ("[evil.example]", "0x7f.1:80x", "2130706433")),
        *(
            (host, False)
            for host in (
                "[::1].evil.com",
                "[::1].evil.com:80",
                "[].evil.com",
                "[::1]:80.evil.com",
                "[::1]x",
            )
        ),
    ],
)
def test_only_allowed_host_names_and_ip_addresses_are_accepted(host: str, passes: bool) -> None:
    assert AllowedHosts(["localhost"]).allow(host) is passes


def test_a_star_allows_any_host_and_an_empty_list_allows_none() -> None:
    assert AllowedHosts(["*"]).allow("evil.example")
    assert not AllowedHosts([]).allow("localhost")


async def test_a_foreign_host_name_is_refused_under_ext_only() -> None:
    async with started_node_api() as node:
        for path in (HEALTH, ADMIN, "/ext/nope"):
            reply = await node.send("GET", path, headers={"Host": "evil.example"})
            assert status_and_text(reply) == (403, "invalid host specified\n")
        assert (await node.send("GET", "/other", headers={"Host": "evil.example"})).status == 200


async def test_web_pages_may_read_health_without_credentials_but_not_administration() -> None:
    async with started_node_api() as node:
        asking = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
        reply = await node.send("OPTIONS", HEALTH, headers=asking)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (204, "*")
        assert "access-control-allow-credentials" not in reply.headers
        reply = await node.send("GET", HEALTH, headers={"Origin": "http://a.example"})
        assert reply.headers["access-control-allow-origin"] == "*"
        reply = await node.send("OPTIONS", ADMIN, headers=asking)
        assert status_and_text(reply) == (405, "rpc: POST method required, received OPTIONS")
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]


async def test_web_pages_of_other_origins_may_not_read_health() -> None:
    async with started_node_api(
        settings=replace(SETTINGS, http_allowed_origins=("https://console.example",))
    ) as node:
        reply = await node.send("GET", HEALTH, headers={"Origin": "http://a.example"})
        assert "access-control-allow-origin" not in reply.headers
        reply = await node.send("GET", HEALTH, headers={"Origin": "https://console.example"})
        assert reply.headers["access-control-allow-origin"] == "https://console.example"


async def passed(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps({}).encode()})


async def status_behind(guard: AdminGuard, peer: str, headers: Mapping[str, str]) -> int:
    """Return what a request from an address is answered, as the server hands it over."""
    messages: list[Message] = []
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": ADMIN,
        "client": (peer, 1) if peer else None,
        "headers": raw,
    }

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    await guard(scope, receive, send)
    status: int = messages[0]["status"]
    return status


async def test_paths_of_primary_chains_that_are_not_configured_name_their_setting() -> None:
    gateway, evm = "set gateway-nodes", "add the C-Chain to evm-chains, or set gateway-nodes,"
    paths = {
        **dict.fromkeys(
            ("/ext/bc/P", "/ext/bc/platform", "/ext/info", "/ext/index/X/tx", "/ext/bc/C/avax"),
            gateway,
        ),
        **dict.fromkeys(("/ext/bc/C/rpc", "/ext/bc/evm/ws"), evm),
    }
    async with started_node_api() as node:
        for path, setting in paths.items():
            reply = await node.rpc(path, "platform.getHeight", {})
            assert status_and_text(reply) == (
                404,
                f"404 page not found: {setting} to serve this path\n",
            )
        assert status_and_text(await node.rpc("/ext/bc/P/rpc", "platform.getHeight", {})) == NO_PAGE
