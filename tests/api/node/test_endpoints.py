"""Endpoints beyond the recordings: aliases, tags and statuses of health, metrics, bodies of the
SDK.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from tests.api.node.fixtures import (
    ADMIN,
    C_CHAIN,
    HEALTH,
    NodeApiSetup,
    recorded_checks,
    started_node_api,
)
from warpseal.errors import CallRefused
from warpseal.ops.health.registry import APPLICATION, CheckOutcome, HealthCheck
from warpseal.ops.plugins.registry import LoadedVMs
from warpseal.warp.ids import id_text

GLOBAL = frozenset({APPLICATION})
ONE = PlainTextResponse("one")


async def text_of(node: NodeApiSetup, path: str) -> str:
    reply = await node.send("GET", path)
    return reply.text if reply.status == 200 else str(reply.status)


async def test_an_alias_works_once_its_endpoint_is_mounted() -> None:
    async with started_node_api() as node:
        chain = f"bc/{id_text(C_CHAIN)}"
        assert await node.admin("alias", endpoint=chain, alias="soon") == {}
        assert await node.admin("alias", endpoint="soon", alias="sooner") == {}
        assert await node.admin("aliasChain", chain="C", alias="cee") == {}
        assert await text_of(node, "/ext/soon/rpc") == "404"
        node.interfaces.add(
            chain, {"/rpc": PlainTextResponse("rpc"), "/ws": PlainTextResponse("ws")}, "bc/{chain}"
        )
        for name in (chain, "soon", "sooner", "bc/cee"):
            assert await text_of(node, f"/ext/{name}/rpc") == "rpc"
            assert await text_of(node, f"/ext/{name}/ws") == "ws"
            assert await text_of(node, f"/ext/{name}") == "404"


async def test_an_endpoint_cannot_use_a_path_that_is_in_use() -> None:
    async with started_node_api() as node:
        await node.admin("alias", endpoint="health", alias="mine")
        for name in ("mine", "health"):
            with pytest.raises(CallRefused):
                node.interfaces.add(name, {"": ONE})
        node.interfaces.add("new", {"": ONE})
        assert await text_of(node, "/ext/new") == "one"


async def test_circular_aliases_are_answered_with_404() -> None:
    async with started_node_api() as node:
        for endpoint, alias in (("a", "b"), ("b", "a"), ("c", "c")):
            await node.admin("alias", endpoint=endpoint, alias=alias)
        assert await text_of(node, "/ext/a") == "404"


@pytest.mark.parametrize(
    "alias", ["p-chain", "c-chain", "43114", id_text(bytes(32)), "ab" * 32, "0x" + "ab" * 32, ""]
)
async def test_an_ambiguous_alias_is_refused(alias: str) -> None:
    async with started_node_api() as node:
        outcome = await node.admin("aliasChain", chain="C", alias=alias)
        assert "alias" in outcome
        assert alias not in node.aliases.aliases_of(C_CHAIN) or alias == id_text(C_CHAIN)


async def test_an_alias_may_have_512_characters_of_any_size() -> None:
    async with started_node_api() as node:
        for name, params in (("alias", {"endpoint": "health"}), ("aliasChain", {"chain": "C"})):
            assert await node.admin(name, alias="é" * 512, **params) == {}
            assert await node.admin(name, alias="é" * 513, **params) == "alias length is too long"
        assert (
            await text_of(node, "/ext/" + "%C3%A9" * 512 + "/liveness")
            == '{"checks":{},"healthy":true}\n'
        )


async def test_trailing_and_double_slashes_make_a_different_path() -> None:
    async with started_node_api() as node:
        for path in ("/ext/health/", "/ext//health", "/ext/admin/", "/ext/", "/ext/Health"):
            assert await text_of(node, path) == "404", path
        assert await text_of(node, "/ext") == "not under /ext"


async def test_failed_vms_are_listed_only_if_there_are_any() -> None:
    async with started_node_api() as node:
        node.plugins.loaded = LoadedVMs({"a": ("b", "c")}, {})
        assert await node.admin("loadVMs") == {"newVMs": {"a": ["b", "c"]}}
        node.plugins.loaded = LoadedVMs({}, {"a": "handshake failed: vm process not found"})
        assert await node.admin("loadVMs") == {
            "newVMs": {},
            "failedVMs": {"a": "handshake failed: vm process not found"},
        }


async def test_the_published_sdks_bodies_are_answered(tmp_path: Path) -> None:
    """As @avalanche-sdk/client 0.1.1 sends them: ids from 0, `application/json`."""
    async with started_node_api() as node:
        recorded_checks(node.registry, tmp_path)
        bodies = [
            (ADMIN, "admin.alias", {"endpoint": "bc/X", "alias": "myAlias"}),
            (ADMIN, "admin.aliasChain", {"chain": "X", "alias": "myChain"}),
            (ADMIN, "admin.getChainAliases", {"chain": id_text(C_CHAIN)}),
            (ADMIN, "admin.getLoggerLevel", {}),
            (ADMIN, "admin.getLoggerLevel", {"loggerName": "C"}),
            (
                ADMIN,
                "admin.setLoggerLevel",
                {"loggerName": "C", "logLevel": "DEBUG", "displayLevel": "INFO"},
            ),
            *(
                (ADMIN, f"admin.{name}", {})
                for name in (
                    "loadVMs",
                    "lockProfile",
                    "memoryProfile",
                    "startCPUProfiler",
                    "stopCPUProfiler",
                )
            ),
            (HEALTH, "health.health", {"tags": ["11111111111111111111111111111111LpoYY"]}),
            (HEALTH, "health.readiness", {"tags": ["11111111111111111111111111111111LpoYY"]}),
            (HEALTH, "health.liveness", {}),
        ]
        for number, (path, method, params) in enumerate(bodies):
            body = json.dumps(
                {"jsonrpc": "2.0", "method": method, "params": params, "id": number}
            ).encode()
            reply = await node.send("POST", path, body, {"content-type": "application/json"})
            assert (reply.status, reply.json["id"], "result" in reply.json) == (
                200,
                number,
                True,
            ), reply.text


async def test_a_tagged_health_report_can_pass_while_the_whole_report_fails() -> None:
    async with started_node_api() as node:
        node.registry.register(
            HealthCheck("good", CheckOutcome, frozenset({"a"})),
            HealthCheck("bad", lambda: CheckOutcome(error="broken"), frozenset({"b"})),
            HealthCheck("everywhere", CheckOutcome, GLOBAL),
        )
        assert (await node.send("GET", HEALTH)).status == 503
        first = (await node.send("GET", HEALTH)).json["checks"]["good"]
        assert first == {"error": "not yet run", "timestamp": "0001-01-01T00:00:00Z", "duration": 0}
        await node.registry.run_checks(("good", "bad", "everywhere"))
        for query, status, names in (
            ("", 503, {"good", "bad", "everywhere"}),
            ("?tag=a", 200, {"good", "everywhere"}),
            ("?tag=b", 503, {"bad", "everywhere"}),
            ("?tag=a&tag=b", 503, {"good", "bad", "everywhere"}),
            ("?tag=nope", 200, {"everywhere"}),
            ("?tag=", 200, {"everywhere"}),
            ("?tags=b", 503, {"good", "bad", "everywhere"}),
        ):
            reply = await node.send("GET", HEALTH + query)
            assert (reply.status, set(reply.json["checks"]), reply.json["healthy"]) == (
                status,
                names,
                status == 200,
            )
        outcome = await node.rpc(HEALTH, "health.health", {})
        assert (outcome.status, outcome.json["result"]["healthy"]) == (200, False)


async def test_sub_routes_of_health_answer_any_method_with_the_report() -> None:
    async with started_node_api() as node:
        for method in ("GET", "POST", "PUT", "DELETE"):
            for route in ("health", "readiness", "liveness"):
                reply = await node.send(
                    method, f"{HEALTH}/{route}", b"{" if method != "GET" else None
                )
                assert (reply.status, reply.json) == (200, {"checks": {}, "healthy": True})


async def test_an_internal_error_is_a_jsonrpc_error_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started_node_api() as node:

        async def fail() -> LoadedVMs:
            raise RuntimeError("internal detail")

        node.plugins.load = fail  # type: ignore[method-assign]
        assert await node.admin("loadVMs") == "internal error; see the log for details"
        assert "internal detail" in caplog.text
