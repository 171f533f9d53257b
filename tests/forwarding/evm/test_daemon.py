"""The running daemon in front of a node: a chain is served, and is in health and metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import TIMEOUT_S, until
from tests.forwarding.evm.evm import CHAIN, Node, TcpProxy, open_proxy
from tests.forwarding.evm.evm import serve_node as serving
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from warpseal.warp.ids import id_text
from warpseal_simnet.plan import Plan

NAME = id_text(CHAIN)
ADMIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "admin.aliasChain",
    "params": {"chain": NAME, "alias": "mine"},
}


def chain_behind(proxy: TcpProxy) -> dict[str, Any]:
    """Return the entry of a chain whose only node is behind a proxy."""
    return {
        "blockchain-id": NAME,
        "rpc": [proxy.url],
        "ws": [f"ws://127.0.0.1:{proxy.port}/ws"],
    }


@asynccontextmanager
async def run_without_node(
    folder: Path, more: Mapping[str, Any] | None = None
) -> AsyncIterator[tuple[Daemon, TcpProxy]]:
    """Run a daemon that reaches the node of its chain as soon as the proxy is no longer cut.

    more: entries of the config file
    """
    async with (
        run_network(Plan(validators=4)) as network,
        serving(Node()) as node,
        open_proxy(node.port) as proxy,
    ):
        proxy.is_cut = True
        keys = {"evm-chains": [chain_behind(proxy)], "api-admin-enabled": True, **(more or {})}
        async with run_daemon(build_config(network, folder, keys)) as daemon:
            yield daemon, proxy


async def rpc(daemon: Daemon, path: str, method: str) -> Any:
    return (
        await daemon.post(path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": []})
    ).body


async def test_a_configured_chain_is_served_from_the_moment_that_its_node_is_up(
    tmp_path: Path,
) -> None:
    async with run_without_node(tmp_path, {"health-check-frequency": "1s"}) as (daemon, proxy):
        down = await rpc(daemon, f"/ext/bc/{NAME}/rpc", "eth_chainId")
        assert down["error"] == {
            "code": -32000,
            "message": "no node of this chain can be reached",
        }
        proxy.is_cut = False
        assert (await rpc(daemon, f"/ext/bc/{NAME}/rpc", "eth_chainId"))["result"] == "0x7a69"
        assert (await daemon.post("/ext/admin", ADMIN)).body["result"] == {}
        assert (await rpc(daemon, "/ext/bc/mine/rpc", "eth_blockNumber"))["result"] == "0x10"
        assert (await rpc(daemon, "/ext/bc/mine/rpc", "debug_x"))["error"]["code"] == -32601

        async def is_healthy() -> bool:
            check = (
                (await daemon.get("/ext/health")).body["checks"].get(f"evm-{NAME}", {"error": ""})
            )
            return "error" not in check and check["message"] == {"chainID": 0x7A69, "nodes": {}}

        await until(is_healthy)
        async with daemon.session.ws_connect(f"{daemon.api_url}/ext/bc/mine/ws") as client:
            await client.send_str(json.dumps({"jsonrpc": "2.0", "id": 5, "method": "eth_chainId"}))
            assert await client.receive_json(timeout=TIMEOUT_S) == {
                "jsonrpc": "2.0",
                "id": 5,
                "result": "0x7a69",
            }

        async def is_height_shown() -> bool:
            (chain,) = [
                row
                for row in (await daemon.get("/status.json")).body["chains"]
                if row["kind"] == "evm"
            ]
            return (chain.get("height"), chain.get("lagBlocks")) == ("16", 0)

        await until(is_height_shown)
        labels = f'chain="{NAME}",method_class="read",outcome="ok",upstream="0"'
        page = await daemon.metrics()
        assert page[f"warpseal_evm_calls_total{{{labels}}}"] >= 2


async def test_an_evm_chain_id_names_its_chain_in_paths_once_a_node_returns_it(
    tmp_path: Path,
) -> None:
    async with run_without_node(tmp_path) as (daemon, proxy):
        path = "/ext/bc/31337"
        assert (await status_of(daemon, f"{path}/rpc")) == 404
        assert await admin(daemon, "alias", endpoint="bc/31337", alias="short") == {}
        proxy.is_cut = False

        async def is_named() -> bool:
            return (await status_of(daemon, f"{path}/rpc")) == 200

        await until(is_named)
        for name in ("bc/31337", "short", f"bc/{NAME}"):
            assert (await rpc(daemon, f"/ext/{name}/rpc", "eth_blockNumber"))["result"] == "0x10", (
                name
            )
        async with daemon.session.ws_connect(f"{daemon.api_url}{path}/ws") as client:
            await client.send_str(json.dumps({"jsonrpc": "2.0", "id": 5, "method": "eth_chainId"}))
            assert (await client.receive_json(timeout=TIMEOUT_S))["result"] == "0x7a69"
        assert await admin(daemon, "aliasChain", chain="31337", alias="named") == {}
        assert (await rpc(daemon, "/ext/bc/named/rpc", "eth_chainId"))["result"] == "0x7a69"
        assert await admin(daemon, "getChainAliases", chain=NAME) == {"aliases": [NAME, "named"]}


async def test_an_alias_hidden_by_another_chain_name_is_refused_everywhere(tmp_path: Path) -> None:
    async with run_network(Plan(validators=4)) as network, serving(Node()) as node:
        chain = {"blockchain-id": NAME, "rpc": [f"http://127.0.0.1:{node.port}/rpc"]}
        keys = {"evm-chains": [chain], "api-admin-enabled": True}
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            for alias in (
                "31337",
                "1",
                "p-chain",
                "c-chain",
                id_text(bytes([9]) * 32),
                bytes([9]).hex() * 32,
            ):
                message = f"alias is a name that chains have without it: {alias}"
                assert await admin(daemon, "aliasChain", chain=NAME, alias=alias) == message
                message = f"alias is a name that chains have without it: bc/{alias}"
                assert (
                    await admin(daemon, "alias", endpoint="health", alias=f"bc/{alias}") == message
                )
            assert (
                await admin(daemon, "aliasChain", chain=NAME, alias="C")
                == "alias already mapped to an ID: C"
            )
            assert (
                await admin(daemon, "aliasChain", chain=NAME, alias=NAME)
                == f"alias already mapped to an ID: {NAME}"
            )


async def test_the_c_chain_is_named_by_its_evm_chain_id_without_configuration(
    tmp_path: Path,
) -> None:
    async with (
        run_network(Plan(validators=4)) as network,
        run_daemon(build_config(network, tmp_path, {"api-admin-enabled": True})) as daemon,
    ):
        c_chain = next(chain for chain in network.state.chains.values() if chain.alias == "C")
        routes = "/v1/networks/fuji/blockchains/{}"

        async def is_named() -> bool:
            return (await daemon.get(routes.format(c_chain.evm_chain_id))).status == 200

        await until(is_named)
        replies = [
            (await daemon.get(routes.format(name))).body
            for name in (c_chain.evm_chain_id, "c-chain", "C", id_text(c_chain.chain_id))
        ]
        assert replies == [replies[0]] * 4


async def status_of(daemon: Daemon, path: str) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    async with daemon.session.post(daemon.api_url + path, json=body) as response:
        return response.status


async def admin(daemon: Daemon, method: str, **params: str) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": f"admin.{method}", "params": params}
    reply = (await daemon.post("/ext/admin", body)).body
    return reply["result"] if "result" in reply else reply["error"]["message"]


async def test_rate_limits_and_deny_lists_follow_a_chain_through_every_alias(
    tmp_path: Path,
) -> None:
    async with run_network(Plan(validators=4)) as network, serving(Node()) as node:
        chain = {
            "blockchain-id": NAME,
            "rpc": [f"http://127.0.0.1:{node.port}/rpc"],
            "deny-methods": ["eth_mine"],
        }
        limits = {"rate-limit-per-minute": 6, "rate-limit-loopback": True}
        keys = {"evm-chains": [chain], "api-admin-enabled": True, **limits}
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            assert await admin(daemon, "aliasChain", chain=NAME, alias="mine") == {}
            assert await admin(daemon, "alias", endpoint="bc/mine", alias="short") == {}
            paths = [f"/ext/{name}/rpc" for name in (f"bc/{NAME}", "bc/mine", "short")]
            for path in paths:
                for denied in ("eth_mine", "debug_x"):
                    assert (await rpc(daemon, path, denied))["error"]["code"] == -32601
            assert [await status_of(daemon, path) for path in paths] == [429] * 3


@pytest.mark.parametrize("names_database", [False, True], ids=["in data-dir", "named by a setting"])
async def test_usage_from_before_the_network_is_known_outlives_stops(
    tmp_path: Path, names_database: bool
) -> None:
    url = f"sqlite:///{tmp_path}/usage.db" if names_database else ""
    async with (
        run_network(Plan(validators=4)) as network,
        serving(Node()) as node,
        AsyncExitStack() as stack,
    ):
        proxy = await stack.enter_async_context(
            open_proxy(int(network.node_uri.rpartition(":")[2]))
        )
        proxy.is_cut = True
        node_url = {"base-url": proxy.url.removesuffix("/rpc")}
        keys: dict[str, Any] = {
            "p-chain-api": node_url,
            "info-api": node_url,
            "usage-enabled": True,
        }
        keys |= {"evm-chains": [{"blockchain-id": NAME, "rpc": [node.url]}]}
        config = build_config(network, tmp_path, keys | ({"metrics-db-url": url} if url else {}))
        for calls in (1, 2):
            async with run_daemon(config) as daemon:
                for _ in range(calls):
                    assert (await rpc(daemon, f"/ext/bc/{NAME}/rpc", "eth_chainId"))[
                        "result"
                    ] == "0x7a69"
        proxy.is_cut = False
        async with run_daemon(config) as daemon:
            await daemon.until_open()
            path = "/v1/primaryNetworkRpcUsageMetrics?network=fuji&groupBy=rpcMethod"

            async def counts() -> list[tuple[str, int]]:
                metrics = (await daemon.get(path)).body.get("metrics", [])
                return [
                    (value["groupValue"], value["totalRequests"])
                    for metric in metrics
                    for value in metric["values"]
                ]

            async def are_counted() -> bool:
                return sum(number for _, number in await counts()) == 3

            await until(are_counted)
            assert {method for method, _ in await counts()} == {"eth_chainId"}
    assert not list((tmp_path / "data").glob("*.db*"))
