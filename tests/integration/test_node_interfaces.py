"""The node interfaces of a running daemon, over HTTP: the smallest list of tests that the notes
derive from nodes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.eventually import until
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan
from warpseal_simnet.rpc import Outage, OutageKind

PLAN = Plan(validators=6)
ADMIN, HEALTH = "/ext/admin", "/ext/health"
P_CHAIN = id_text(PRIMARY_NETWORK)
ON: Mapping[str, Any] = {"api-admin-enabled": True, "health-check-frequency": "1s"}
BAD_ARGUMENT = (
    "couldn't unmarshal an argument. Ensure arguments are valid and properly formatted. "
    "See documentation for example calls"
)


@dataclass(frozen=True)
class Node:
    """A daemon as clients of a node see it."""

    daemon: Daemon
    network: SimulatedNetwork
    folder: Path

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Return the status and the body."""
        url = self.daemon.api_url + path
        skipped = ("content-type",)
        async with self.daemon.session.request(
            method, url, data=body, headers=headers, skip_auto_headers=skipped
        ) as reply:
            return reply.status, await reply.text()

    async def call(self, path: str, method: str, params: object = None) -> Any:
        """Return the result of a method, or the text of its error."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        status, text = await self.send("POST", path, body, {"content-type": "application/json"})
        assert status == 200, text
        json_reply = json.loads(text)
        return json_reply["result"] if "result" in json_reply else json_reply["error"]["message"]

    async def admin(self, method: str, **params: object) -> Any:
        """Return the result of an administration method, or the text of its error."""
        return await self.call(ADMIN, f"admin.{method}", params)

    async def health(self, query: str = "") -> tuple[int, dict[str, Any]]:
        """Return the status and the report."""
        status, text = await self.send("GET", HEALTH + query)
        return status, json.loads(text)

    async def until_healthy(self) -> None:
        """Wait until the report is good."""

        async def is_healthy() -> bool:
            return (await self.health())[0] == 200

        await until(is_healthy)


@asynccontextmanager
async def node(folder: Path, keys: Mapping[str, Any] = ON) -> AsyncIterator[Node]:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, folder, keys)) as daemon,
    ):
        yield Node(daemon, network, folder)


async def test_administration_is_off_by_default(tmp_path: Path) -> None:
    async with node(tmp_path, {}) as setup:
        assert await setup.send("POST", ADMIN, b"{}") == (404, "404 page not found\n")
        assert (await setup.send("GET", "/ext/health/liveness")) == (
            200,
            '{"checks":{},"healthy":true}\n',
        )


async def test_each_method_of_administration_answers_once_it_is_on(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        assert await setup.admin("alias", endpoint="health", alias="well") == {}
        assert await setup.admin("aliasChain", chain="P", alias="pee") == {}
        assert await setup.admin("getChainAliases", chain=P_CHAIN) == {
            "aliases": ["P", "platform", P_CHAIN, "pee"]
        }
        assert "main" in (await setup.admin("getLoggerLevel"))["loggerLevels"]
        assert await setup.admin("setLoggerLevel", logLevel="INFO", displayLevel="INFO") == {}
        assert await setup.admin("loadVMs") == {"newVMs": {}}
        for name in (
            "startCPUProfiler",
            "stopCPUProfiler",
            "memoryProfile",
            "lockProfile",
            "stacktrace",
        ):
            assert await setup.admin(name) == {}, name
        assert await setup.call(ADMIN, "admin.getLoggerLevel", [{"loggerName": "main"}]) == {
            "loggerLevels": {"main": {"logLevel": "INFO", "displayLevel": "INFO"}}
        }
        assert (await setup.send("POST", ADMIN, b"{}"))[0] == 415
        assert await setup.send("GET", ADMIN) == (405, "rpc: POST method required, received GET")


async def test_an_alias_is_another_name_of_an_endpoint_and_all_its_routes(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        refusal = "route is either already aliased or already maps to a handle: /ext/"
        assert await setup.admin("alias", endpoint="health", alias="x" * 512) == {}
        assert (
            await setup.admin("alias", endpoint="health", alias="x" * 513)
            == "alias length is too long"
        )
        assert await setup.admin("alias", endpoint="health", alias="well") == {}
        assert await setup.admin("alias", endpoint="health", alias="well") == refusal + "well"
        clash = "failed to create endpoint as /ext/health already exists"
        assert await setup.admin("alias", endpoint="admin", alias="health") == clash
        assert await setup.admin("alias", endpoint="admin", alias="health") == refusal + "health"
        for path in (
            "/ext/well/liveness",
            "/ext/health/liveness",
            "/ext/" + "x" * 512 + "/liveness",
        ):
            assert (await setup.send("GET", path))[0] == 200
        assert await setup.call("/ext/well", "health.liveness") == {"checks": {}, "healthy": True}
        assert await setup.admin("alias", endpoint="well", alias="again") == {}
        assert (await setup.send("GET", "/ext/again/liveness"))[0] == 200
        assert await setup.admin("alias", endpoint="bc/never", alias="later") == {}
        assert (await setup.send("GET", "/ext/later"))[0] == 404


async def test_chains_get_aliases_by_id_and_by_alias(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        assert await setup.admin("aliasChain", chain=P_CHAIN, alias="one") == {}
        assert await setup.admin("aliasChain", chain="one", alias="two") == {}
        assert (
            await setup.admin("aliasChain", chain="nope", alias="zz")
            == "there is no ID with alias: nope"
        )
        assert (
            await setup.admin("aliasChain", chain="P", alias="two")
            == "alias already mapped to an ID: two"
        )
        for text, result in (
            ("0wo", "base58 decoding error: invalid base58 digit ('0')"),
            ("two", "input string is smaller than the checksum size"),
            ("nope", "input string is smaller than the checksum size"),
            (P_CHAIN[:-1] + "Z", "invalid input checksum"),
            (id_text(bytes(31)), "invalid hash length: expected 32 bytes but got 31"),
        ):
            assert await setup.admin("getChainAliases", chain=text) == result
        assert (await setup.admin("getChainAliases", chain=P_CHAIN))["aliases"][-2:] == [
            "one",
            "two",
        ]
        assert await setup.admin("getChainAliases", chain=id_text(bytes([9]) * 32)) == {
            "aliases": []
        }


async def test_aliases_of_the_file_are_there_at_each_start_and_others_are_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "aliases.json"
    file.write_text(json.dumps({P_CHAIN: ["from-file"]}))
    keys = {**ON, "chain-aliases-file": str(file)}
    async with run_network(PLAN) as network:
        for _ in range(2):
            async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
                setup = Node(daemon, network, tmp_path)
                aliases = (await setup.admin("getChainAliases", chain=P_CHAIN))["aliases"]
                assert ("from-file" in aliases, "given" in aliases) == (True, False)
                assert await setup.admin("aliasChain", chain="from-file", alias="given") == {}


async def test_levels_are_read_and_set_for_one_logger_or_all(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        await setup.until_healthy()
        names = set((await setup.admin("getLoggerLevel", loggerName=""))["loggerLevels"])
        assert {"main", "vm-factory", "peers", "store", "P"} <= names
        assert (
            await setup.admin("getLoggerLevel", loggerName="nope")
            == 'logger with name "nope" not found'
        )
        assert await setup.admin("setLoggerLevel", loggerName="nope", logLevel="INFO") == (
            'logger with name "nope" not found'
        )
        result = "need to specify either displayLevel or logLevel"
        assert await setup.admin("setLoggerLevel", loggerName="P") == result
        assert await setup.admin("setLoggerLevel", logLevel="", displayLevel="") == result
        assert await setup.admin("setLoggerLevel", logLevel="LOUD") == BAD_ARGUMENT
        assert (
            await setup.admin("setLoggerLevel", loggerName="P", logLevel="vErBo", displayLevel="")
            == {}
        )
        levels = (await setup.admin("getLoggerLevel"))["loggerLevels"]
        assert levels["P"] == {"logLevel": "VERBO", "displayLevel": "INFO"}
        assert levels["main"] == {"logLevel": "INFO", "displayLevel": "INFO"}
        assert await setup.admin("setLoggerLevel", displayLevel="off") == {}
        levels = (await setup.admin("getLoggerLevel"))["loggerLevels"]
        assert {level["displayLevel"] for level in levels.values()} == {"OFF"}


async def test_health_before_and_after_and_while_a_part_fails(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        subnet = id_text(setup.network.subnets[1].subnet_id)
        status, report = await setup.health()
        assert (status, report["healthy"]) == (503, False)
        assert (await setup.send("GET", HEALTH + "/liveness"))[0] == 200
        await setup.until_healthy()

        async def is_complete() -> bool:
            chain = (await setup.health())[1]["checks"]["P"]["message"]
            is_connected = chain["networking"] == {
                "disconnectedValidators": [],
                "percentConnected": 1,
            }
            return bool(is_connected and chain["engine"]["consensus"]["lastAcceptedHeight"] > 0)

        # The daemon is healthy once it is connected to enough of them, and before it has read a
        # height.
        await until(is_complete)
        status, report = await setup.health()
        assert {
            "P",
            "bootstrapped",
            "database",
            "diskspace",
            "network",
            "router",
            f"quorum-{subnet}",
        } <= set(report["checks"])
        assert (await setup.send("GET", HEALTH + "/readiness"))[0] == 200
        chain = report["checks"]["P"]["message"]
        assert (
            chain["engine"]["consensus"]["lastAcceptedHeight"]
            == chain["engine"]["vm"]["nodeHeight"]
            > 0
        )
        for index in range(PLAN.validators):
            setup.network.stop_validator(index)

        async def fails() -> bool:
            return (await setup.health())[0] == 503

        await until(fails)
        assert (await setup.call(HEALTH, "health.health", {}))["healthy"] is False
        assert (await setup.send("GET", HEALTH + "/readiness"))[0] == 200, "it never falls back"
        assert (await setup.daemon.get("/ready")).status == 503, "it does"
        assert (await setup.daemon.get("/health")).status == 503
        assert (await setup.daemon.get("/ext/health/liveness")).status == 200


async def test_tags_keep_their_checks_and_the_global_ones(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        await setup.until_healthy()
        subnet = id_text(setup.network.subnets[1].subnet_id)
        everything = set((await setup.health())[1]["checks"])
        untagged = {"background", "upgrades"}
        common = {
            name for name in everything - untagged if name != "P" and not name.startswith("quorum-")
        }
        assert set((await setup.health("?tag=nope"))[1]["checks"]) == common
        assert set((await setup.health("?tag=application"))[1]["checks"]) == common
        assert set((await setup.health("?tag=all"))[1]["checks"]) == everything
        assert set((await setup.health(f"?tag={subnet}"))[1]["checks"]) == common | {
            f"quorum-{subnet}"
        }
        both = f"?tag={subnet}&tag={P_CHAIN}"
        assert set((await setup.health(both))[1]["checks"]) == everything - untagged
        health_reply = await setup.call(HEALTH, "health.health", {"tags": [subnet]})
        assert set(health_reply["checks"]) == common | {f"quorum-{subnet}"}


async def test_the_profiler_starts_and_stops_in_turn_and_writes_files_that_can_be_read(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as setup:
        assert await setup.admin("stopCPUProfiler") == "cpu profiler doesn't exist"
        assert await setup.admin("startCPUProfiler") == {}
        assert await setup.admin("startCPUProfiler") == "cpu profiler already running"
        await asyncio.sleep(0.1)
        assert await setup.admin("stopCPUProfiler") == {}
        assert await setup.admin("memoryProfile") == {}
        assert await setup.admin("memoryProfile") == {}
        assert await setup.admin("lockProfile") == {}
        folder = setup.folder / "data" / "profiles"
        for name in ("cpu.profile", "mem.profile", "lock.profile"):
            assert (folder / name).read_bytes()[:2] == b"\x1f\x8b", "gzip"


async def test_files_that_are_no_plugins_are_skipped_and_bad_names_are_refused(
    tmp_path: Path,
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / ".hidden").write_text("")
    (plugins / "folder").mkdir()
    async with node(tmp_path, {**ON, "plugin-dir": str(plugins)}) as setup:
        assert await setup.admin("loadVMs") == {"newVMs": {}}
        (plugins / "no-vm").write_text("")
        assert await setup.admin("loadVMs") == 'invalid vmID: "no-vm"'
        (plugins / "no-vm").rename(plugins / id_text(bytes([7]) * 32))
        for _ in range(2):
            load_reply = await setup.admin("loadVMs")
            assert (load_reply["newVMs"], len(load_reply["failedVMs"])) == ({}, 1)


async def test_every_response_carries_the_node_id_once_the_network_is_known(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        await setup.until_healthy()
        for path in (HEALTH, ADMIN, "/ext/nope"):
            async with setup.daemon.session.get(setup.daemon.api_url + path) as reply:
                assert reply.headers["node-id"].startswith("NodeID-")
        async with setup.daemon.session.get(setup.daemon.api_url + "/ready") as reply:
            assert "node-id" not in reply.headers


async def test_administration_is_counted_by_route_and_not_by_alias(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        await setup.admin("alias", endpoint="admin", alias="other")
        await setup.call("/ext/other", "admin.getLoggerLevel")
        series = [name for name in await setup.daemon.metrics() if "/ext" in name]
        assert series
        assert not [name for name in series if "other" in name]


async def test_the_data_api_accepts_an_alias_of_a_chain(tmp_path: Path) -> None:
    async with node(tmp_path) as setup:
        await setup.until_healthy()
        subject = "/v1/networks/fuji/blockchains/{}"
        before = await setup.daemon.get(subject.format("mine"))
        assert before.status == 400
        assert await setup.admin("aliasChain", chain=P_CHAIN, alias="mine") == {}
        by_alias, by_id = [
            await setup.daemon.get(subject.format(name)) for name in ("mine", P_CHAIN)
        ]
        assert (by_alias.status, by_alias.body) == (by_id.status, by_id.body)
        assert by_alias.status != 400


async def test_aliases_that_were_added_before_the_network_is_known_stay_and_hide_no_route(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network:
        network.nodes[0].rpc.outages = {"*": Outage(OutageKind.DROP)}
        async with run_daemon(build_config(network, tmp_path, ON)) as daemon:
            setup = Node(daemon, network, tmp_path)
            for alias in ("bc/X", "C", "evm"):
                assert await setup.admin("alias", endpoint="health", alias=alias) == {}
            network.nodes[0].rpc.outages = {}
            await setup.until_healthy()
            for alias in ("bc/X", "C", "evm"):
                assert (await setup.send("GET", f"/ext/{alias}/liveness"))[0] == 200


async def test_checks_behind_ready_run_when_their_input_changes_however_far_the_next_round_is(
    tmp_path: Path,
) -> None:
    quick = {"height_poll_s": 0.05, "height_stale_after_s": 0.5}
    async with run_network(PLAN) as network:
        config = build_config(network, tmp_path, {"health-check-frequency": "1h"}, validators=quick)
        async with run_daemon(config) as daemon:
            setup = Node(daemon, network, tmp_path)
            await setup.until_healthy()
            quorum = f"quorum-{P_CHAIN}"

            async def fail(*names: str) -> bool:
                checks = (await setup.health())[1]["checks"]
                return all("error" in checks[name] for name in names)

            network.nodes[0].rpc.outages = {"platform.getProposedHeight": Outage(OutageKind.DROP)}
            await until(lambda: fail("nodes"))
            assert (await daemon.get("/ready")).status == 503
            network.nodes[0].rpc.outages = {}
            await setup.until_healthy()
            for index in range(PLAN.validators):
                network.stop_validator(index)
            await until(lambda: fail(quorum))
            assert (await daemon.get("/ready")).status == 503


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/ext/nope", {}, 404),
        ("/ext/bc/C/ws", {}, 404),
        ("/ext/bc/C/ws", {"host": "evil.example"}, 403),
        ("/ext/bc/C/ws", {"avalanche-api-route": "x"}, 404),
    ],
)
async def test_a_refused_handshake_is_answered_as_any_other_request(
    tmp_path: Path, path: str, headers: Mapping[str, str], status: int
) -> None:
    async with node(tmp_path) as setup:
        await setup.until_healthy()
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            await setup.daemon.session.ws_connect(setup.daemon.api_url + path, headers=headers)
        assert error.value.status == status
        assert error.value.headers is not None
        assert error.value.headers["node-id"].startswith("NodeID-")
