"""A running daemon as a gateway: the names of its routes, health, and the start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.api.node.fixtures import C_CHAIN
from tests.cli.test_index import config_file
from tests.clients.recorded_network import PrimaryNode
from tests.eventually import until
from tests.forwarding.evm.evm import HALTS, open_proxy
from tests.forwarding.primary.serving import NETWORK_ID, TX_ID, GatewayNode, serve_nodes
from tests.indexer.replay import serving
from tests.integration.daemon import Daemon, run_daemon
from warpseal.config.load import load
from warpseal.doctor.nodes import check_gateway
from warpseal.ops.health.registry import Grade
from warpseal.warp.ids import P_CHAIN, id_text

PORTS = {"api-port": 0, "metrics-port": 0}
NAMED = ("/ext/bc/P", "/ext/bc/X", "/ext/bc/C", "/ext/info", "/ext/index/")
ABSENT = ("bc/X/wallet", "bc/P/rpc", "index/C/tx", "keystore", "admin", "bc/no")


@asynccontextmanager
async def gateway_daemon(folder: Path, *gateway_nodes: str, **keys: Any) -> AsyncIterator[Daemon]:
    """Run a daemon in front of the recorded network, with these nodes as its gateway's."""
    async with serving(PrimaryNode()) as node:
        own = {**PORTS, "index-chains": [], "gateway-nodes": list(gateway_nodes)}
        more = {name.replace("_", "-"): value for name, value in keys.items()}
        async with run_daemon(
            load(config_file(folder, node, **own, **more), {}, {}).config
        ) as daemon:
            yield daemon


async def call(daemon: Daemon, path: str, method: str, params: Any = None) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {} if params is None else params}
    reply = (await daemon.post(path, body)).body
    return (
        reply["result"]
        if "result" in reply
        else (reply["error"]["code"], reply["error"]["message"])
    )


async def status(daemon: Daemon, path: str) -> int:
    async with daemon.session.post(daemon.api_url + path, json={}) as response:
        return response.status


async def socket_status(daemon: Daemon, path: str) -> int:
    """Return the status with which a WebSocket is refused."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await daemon.session.ws_connect(daemon.api_url + path)
    return refusal.value.status


async def test_routes_have_all_names_of_their_chains_from_the_start(tmp_path: Path) -> None:
    node = GatewayNode()
    async with serve_nodes(node), gateway_daemon(tmp_path, node.url) as daemon:
        # The first request waits until the ids of the chains are known.
        assert await call(daemon, "/ext/bc/X", "avm.getHeight") == {"height": "13"}
        chains = await call(daemon, "/ext/bc/P", "platform.getBlockchains")
        x_chain = next(chain["id"] for chain in chains["blockchains"] if chain["name"] == "X-Chain")
        for names, method, result in (
            (
                ("P", "platform", "p-chain", id_text(P_CHAIN)),
                "platform.getHeight",
                {"height": "19"},
            ),
            (("X", "avm", "x-chain", x_chain), "avm.getHeight", {"height": "13"}),
        ):
            for name in names:
                assert await call(daemon, f"/ext/bc/{name}", method) == result, name
            for name in names[:2]:
                assert await call(daemon, f"/ext/{name}", method) == result, name
        for name in ("bc/C", "bc/evm", "bc/c-chain", f"bc/{id_text(C_CHAIN)}", "C", "evm"):
            assert await call(daemon, f"/ext/{name}/avax", "avax.issueTx", {"tx": "0x00"}) == {
                "txID": TX_ID
            }
            assert (await call(daemon, f"/ext/{name}/proposervm", "proposervm.getProposedHeight"))[
                "height"
            ] == "19"
        for name in ("index/P", "index/platform", "index/p-chain", f"index/{id_text(P_CHAIN)}"):
            params = {"encoding": "hex"}
            assert (await call(daemon, f"/ext/{name}/block", "index.getLastAccepted", params))[
                "index"
            ] == "18"
        assert await call(daemon, "/ext/info", "info.getNetworkID") == {"networkID": "88888"}
        assert all(path.startswith(NAMED) for path, _ in node.seen)
        for name in ABSENT:
            assert await status(daemon, f"/ext/{name}") == 404, name
        assert (await daemon.get("/ext/health/liveness")).status == 200

        async def is_healthy() -> bool:
            check = (await daemon.get("/ext/health")).body["checks"].get("gateway", {"error": ""})
            return "error" not in check and check["message"] == {"P": {}, "X": {}, "C": {}}

        await until(is_healthy)


async def test_health_misses_no_chain_that_no_node_has_served(tmp_path: Path) -> None:
    node = GatewayNode(absent=("/ext/bc/X", "/ext/bc/C/rpc"))
    async with (
        serve_nodes(node),
        gateway_daemon(tmp_path, node.url, health_check_frequency="1s") as daemon,
    ):

        async def states() -> dict[str, tuple[str | None, int]]:
            rows = (await daemon.get("/status.json")).body["chains"]
            return {
                row["name"]: (row.get("height"), row["nodesUp"])
                for row in rows
                if row["kind"] == "gateway"
            }

        async def is_known() -> bool:
            return await states() == {"P": ("19", 1), "X": (None, 0), "C": (None, 0)}

        async def error() -> str:
            check: dict[str, str] = (
                (await daemon.get("/ext/health")).body["checks"].get("gateway", {"error": "none"})
            )
            return check.get("error", "")

        async def is_healthy() -> bool:
            return await error() == ""

        async def misses_p() -> bool:
            return await error() == "no node of the P-Chain can be reached"

        await daemon.until_open()
        await until(is_known)
        await until(is_healthy)
        node.replies["platform.getHeight"] = HALTS
        await call(daemon, "/ext/bc/P", "platform.getHeight")
        await until(misses_p)


async def test_without_gateway_nodes_the_routes_do_not_exist(tmp_path: Path) -> None:
    async with gateway_daemon(tmp_path) as daemon:
        await daemon.until_open()
        for path in (
            "/ext/bc/P",
            "/ext/bc/X",
            "/ext/bc/C/avax",
            "/ext/bc/C/rpc",
            "/ext/info",
            "/ext/index/P/block",
        ):
            assert await status(daemon, path) == 404, path


async def test_early_requests_wait_and_end_with_the_reason_if_no_node_answers(
    tmp_path: Path,
) -> None:
    node = GatewayNode()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serve_nodes(node))
        upstream = await stack.enter_async_context(serving(PrimaryNode()))
        proxy = await stack.enter_async_context(open_proxy(int(upstream.url.rpartition(":")[2])))
        proxy.is_cut = True
        keys = {
            **PORTS,
            "index-chains": [],
            "gateway-nodes": node.url,
            "request-timeout-seconds": 1,
        }
        upstream.url = f"http://127.0.0.1:{proxy.port}"
        async with run_daemon(
            load(config_file(tmp_path, upstream, **keys), {}, {}).config
        ) as daemon:
            early = status(daemon, "/ext/bc/P"), socket_status(daemon, "/ext/bc/C/ws")
            assert list(await asyncio.gather(*early)) == [502, 502]
            assert await status(daemon, "/ext/admin") == 404
            proxy.is_cut = False
            await daemon.until_open()
            assert await call(daemon, "/ext/P", "platform.getHeight") == {"height": "19"}


def test_the_settings_are_parsed(tmp_path: Path) -> None:
    nodes = [
        {
            "base-url": "https://a.example/key",
            "query-parameters": {"token": "t"},
            "http-headers": {"x": "y"},
        }
    ]
    file = tmp_path / "config.json"
    api = {"p-chain-api": "http://a", "info-api": "http://a"}
    file.write_text(json.dumps({**api, "gateway-nodes": nodes, "gateway-methods": ["!info.*"]}))
    config = load(file, {}, {}).config
    assert [node.display for node in config.gateway.nodes] == ["https://a.example:443"]
    assert config.gateway.methods == ("!info.*",)
    assert config.records_usage


async def test_limits_count_the_clients_behind_a_trusted_proxy(tmp_path: Path) -> None:
    node = GatewayNode()
    proxied = {"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"], "rate_limit_per_minute": 2}
    async with serve_nodes(node), gateway_daemon(tmp_path, node.url, **proxied) as daemon:
        body = {"jsonrpc": "2.0", "id": 1, "method": "platform.getHeight"}

        async def statuses(chain: str, country: str) -> list[int]:
            headers = {"X-Forwarded-For": chain, "CF-IPCountry": country}
            return [(await daemon.post("/ext/bc/P", body, headers)).status for _ in range(3)]

        assert await statuses("198.51.100.1", "FR") == [200, 200, 429]
        assert await statuses("198.51.100.1, 203.0.113.2, 10.0.0.3", "DE") == [200, 200, 429]
        forged = {"X-Forwarded-For": "127.0.0.1, 203.0.113.2"}
        assert (await daemon.post("/ext/bc/P", body, forged)).status == 429
        assert (await daemon.post("/ext/bc/P", body)).status == 200, (
            "the proxy itself is on this machine"
        )


async def test_doctor_names_what_the_nodes_of_the_gateway_lack(tmp_path: Path) -> None:
    whole, behind, other = GatewayNode(), GatewayNode(tips={"P": 3}), GatewayNode(network_id=1)
    behind.replies["avm.getHeight"] = None
    async with serve_nodes(whole, behind, other), serving(PrimaryNode()) as node:
        own = {**PORTS, "index-chains": [], "gateway-nodes": [whole.url, behind.url, other.url]}
        config = load(config_file(tmp_path, node, **own), {}, {}).config
        findings = await check_gateway(config, NETWORK_ID)
    assert {finding.text: finding.grade for finding in findings} == {
        f"gateway-nodes[0] {whole.url} answers: heights P 19, X 13, C 10": Grade.GOOD,
        f"gateway-nodes[1] {behind.url} answers: heights P 3, C 10": Grade.GOOD,
        f"gateway-nodes[1] {behind.url} is 16 blocks behind the others on the P-Chain": (
            Grade.WARNING
        ),
        f"gateway-nodes[1] {behind.url} reports no height of the X-Chain": Grade.WARNING,
        f"gateway-nodes[2] {other.url}: is of another network: 1": Grade.WARNING,
    }
