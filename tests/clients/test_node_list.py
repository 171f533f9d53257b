"""What is left of the smallest list of tests for a node's interfaces, item by item, over HTTP
against a running daemon.

Its other parts, by item (tests/integration/test_node_interfaces.py): 1 administration off and on,
envelopes; 2 lengths, duplicates, clashes of aliases; 3 aliases of chains, unknown, duplicate; 4
loggers; 5 the profiler's order; 6 files that are no plugins; 7 health before and after, tags,
readiness, liveness.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from tests.clients.recorded_network import (
    L1_CHAIN,
    P_CHAIN,
    VALIDATORS,
    RecordedDaemon,
    recorded_l1,
    recorded_network,
    serving_l1,
)
from tests.eventually import TIMEOUT_S, until
from tests.forwarding.evm.evm import exchanges, open_proxy
from tests.forwarding.evm.test_subnet_evm import rows
from tests.integration.daemon import build_config, run_daemon, run_network
from tests.integration.test_node_interfaces import BAD_ARGUMENT, ON, Node, node
from tests.ops.plugins.machines import install, vm_id
from tests.ops.profiles.read_profile import read_profile
from warpseal.forwarding.evm.methods import SUBNET_EVM
from warpseal.warp.ids import id_text
from warpseal_simnet.plan import L1Plan, Plan

RPC = f"/ext/bc/{L1_CHAIN}/rpc"
VALIDATORS_PATH = f"/ext/bc/{L1_CHAIN}/validators"
NOT_RUN = "0001-01-01T00:00:00Z"
UNKNOWN_NODE = "NodeID-111111111111111111116DBWJs"


async def call_method(recorded: RecordedDaemon, path: str, method: str, params: Any = None) -> Any:
    """Return a result, or code and message of an error."""
    reply = await recorded.daemon.post(
        path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    )
    assert reply.status == 200
    if "error" in reply.body:
        return reply.body["error"]["code"], reply.body["error"]["message"]
    return reply.body["result"]


async def validators(recorded: RecordedDaemon, *node_ids: str, path: str = VALIDATORS_PATH) -> Any:
    await recorded.until_there(path)
    reply = await call_method(
        recorded, path, "validators.getCurrentValidators", {"nodeIDs": list(node_ids)}
    )
    return reply["validators"] if isinstance(reply, dict) else reply


async def test_item_2_an_alias_of_an_endpoint_that_is_not_available_yet(tmp_path: Path) -> None:
    async with serving_l1(recorded_l1()) as l1, open_proxy(l1.port) as front:
        front.is_cut = True
        chains = [
            {
                "blockchain-id": L1_CHAIN,
                "rpc": [front.url],
                "ws": [f"ws://127.0.0.1:{front.port}/ws"],
            }
        ]
        keys: dict[str, Any] = {"evm_chains": chains, "index_chains": [], "api_admin_enabled": True}
        async with recorded_network(tmp_path, **keys) as recorded:
            alias_call = {"endpoint": f"bc/{L1_CHAIN}", "alias": "later"}
            assert await call_method(recorded, "/ext/admin", "admin.alias", alias_call) == {}
            assert (await call_method(recorded, "/ext/later/rpc", "eth_chainId", []))[0] == -32000
            front.is_cut = False
            for path in ("/ext/later/rpc", RPC):
                assert await call_method(recorded, path, "eth_chainId", []) == "0x3039"
            assert await validators(recorded, path="/ext/later/validators") == VALIDATORS
            async with recorded.daemon.session.ws_connect(
                recorded.daemon.api_url + "/ext/later/ws"
            ) as client:
                await client.send_str(
                    json.dumps({"jsonrpc": "2.0", "id": 5, "method": "eth_chainId"})
                )
                assert await client.receive_json(timeout=TIMEOUT_S) == {
                    "jsonrpc": "2.0",
                    "id": 5,
                    "result": "0x3039",
                }


async def test_item_3_aliases_of_a_chain_give_the_same_response(tmp_path: Path) -> None:
    async with recorded_network(tmp_path, index_chains=[], api_admin_enabled=True) as recorded:
        for chain, alias in ((L1_CHAIN, "one"), ("one", "two")):
            assert (
                await call_method(
                    recorded, "/ext/admin", "admin.aliasChain", {"chain": chain, "alias": alias}
                )
                == {}
            )
        for method in ("eth_chainId", "eth_blockNumber", "eth_getChainConfig", "eth_nope"):
            by_id = await call_method(recorded, RPC, method, [])
            for alias in ("one", "two"):
                assert await call_method(recorded, f"/ext/bc/{alias}/rpc", method, []) == by_id
                assert await validators(recorded, path=f"/ext/bc/{alias}/validators") == VALIDATORS


async def test_item_5_profiles_can_be_read_and_the_next_ones_take_their_places(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as setup:
        folder = setup.folder / "data" / "profiles"
        seen: list[set[int]] = []
        for _ in range(2):
            assert await setup.admin("startCPUProfiler") == {}
            for _ in range(20):
                await setup.health()
            for name in ("stopCPUProfiler", "memoryProfile", "lockProfile"):
                assert await setup.admin(name) == {}
            assert sorted(file.name for file in folder.iterdir()) == [
                "cpu.profile",
                "lock.profile",
                "mem.profile",
            ]
            cpu, lock, memory = (read_profile(file) for file in sorted(folder.iterdir()))
            assert cpu.units == (("samples", "count"), ("cpu", "nanoseconds"))
            assert lock.units == (("contentions", "count"), ("delay", "nanoseconds"))
            assert sum(sample.amount for sample in memory.samples) > 1_000_000
            seen.append({file.stat().st_mtime_ns for file in folder.iterdir()})
        assert not seen[0] & seen[1]


async def test_item_6_a_plugin_without_a_handshake_fails_after_5_s_and_is_retried(
    tmp_path: Path,
) -> None:
    plugins = tmp_path / "plugins"
    install(plugins, vm_id(1))
    install(plugins, vm_id(2), "silent")
    async with node(tmp_path, {**ON, "plugin-dir": str(plugins)}) as setup:
        begun_s = monotonic()
        failed = {vm_id(2): "handshake failed: vm process not found"}
        assert await setup.admin("loadVMs") == {"newVMs": {vm_id(1): []}, "failedVMs": failed}
        assert monotonic() - begun_s >= 5
        install(plugins, vm_id(2))
        assert await setup.admin("loadVMs") == {"newVMs": {vm_id(2): []}}
        assert await setup.admin("loadVMs") == {"newVMs": {}}


async def test_item_7_health_before_the_first_round_and_by_tag(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=4, l1s=(L1Plan(validators=3),))
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, ON)) as daemon,
    ):
        setup = Node(daemon, network, tmp_path)
        status, report = await setup.health()
        assert (status, report["healthy"]) == (503, False)
        for check in report["checks"].values():
            assert (check["timestamp"] == NOT_RUN) == (check.get("error") == "not yet run")
        assert report["checks"]["bootstrapped"]["error"]
        await setup.until_healthy()
        l1 = network.subnets[-1].subnet_id
        for validator in network.validators:
            if l1 in validator.subnets:
                network.stop_validator(validator.index)

        async def is_unhealthy() -> bool:
            return (await setup.health())[0] == 503

        await until(is_unhealthy)
        assert (await setup.health(f"?tag={id_text(l1)}"))[0] == 503
        status, report = await setup.health(f"?tag={P_CHAIN}")
        assert (status, report["healthy"]) == (200, True)
        assert "P" in report["checks"]
        for tags, is_healthy in (
            ([P_CHAIN], True),
            ([id_text(l1)], False),
            ([P_CHAIN, id_text(l1)], False),
        ):
            health = await setup.call("/ext/health", "health.health", {"tags": tags})
            assert health["healthy"] is is_healthy


@pytest.mark.parametrize("source", ["node", "derived"])
async def test_item_8_methods_of_subnet_evm_in_every_recorded_form(
    tmp_path: Path, source: str
) -> None:
    l1 = recorded_l1(*(SUBNET_EVM if source == "derived" else ()))
    async with recorded_network(tmp_path, l1, index_chains=[]) as recorded:
        await recorded.until_nodes_reply()
        for row in rows("l1-0"):
            call = {"jsonrpc": "2.0", "id": 1, "method": row["method"], "params": row["params"]}
            reply = await recorded.daemon.post(RPC, call)
            outcome = {name: reply.body[name] for name in ("result", "error") if name in reply.body}
            assert outcome == {name: row[name] for name in ("result", "error") if name in row}, row
            assert reply.headers["x-warpseal-source"] == source
        batch = [(method, exchanges("l1-0", method)[0]["result"]) for method in sorted(SUBNET_EVM)]
        calls = [{"jsonrpc": "2.0", "id": name, "method": name, "params": []} for name, _ in batch]
        async with recorded.daemon.session.post(
            recorded.daemon.api_url + RPC, json=calls
        ) as response:
            assert [(item["id"], item["result"]) for item in await response.json()] == batch
        now = exchanges("l1-0", "eth_getActiveRulesAt")[0]["result"]
        assert await call_method(recorded, RPC, "eth_getActiveRulesAt", ["latest"]) == now
        assert "upgrades" in await call_method(recorded, RPC, "eth_getChainConfig", [])
        assert (await call_method(recorded, RPC, "eth_nope", []))[0] == -32601


async def test_item_9_validators_by_node_id_in_any_order(tmp_path: Path) -> None:
    heavy = [{**VALIDATORS[0], "weight": 2**64 - 1}, *VALIDATORS[1:]]
    random = Random(9)
    l1 = recorded_l1()
    l1.listed = lambda: random.sample(heavy, len(heavy))
    async with recorded_network(tmp_path, l1, index_chains=[]) as recorded:
        orders = set()
        for _ in range(8):
            entries = await validators(recorded)
            assert sorted(entries, key=str) == sorted(heavy, key=str)
            orders.add(tuple(match["nodeID"] for match in entries))
        assert len(orders) > 1
        first = heavy[0]["nodeID"]
        assert await validators(recorded, first) == heavy[:1]
        assert await validators(recorded, UNKNOWN_NODE) == []
        assert await validators(recorded, "NodeID-1") == (-32000, BAD_ARGUMENT)
        call = {"jsonrpc": "2.0", "id": 1, "method": "validators.getCurrentValidators"}
        async with recorded.daemon.session.post(
            recorded.daemon.api_url + VALIDATORS_PATH, json=call
        ) as response:
            assert f'"weight":{2**64 - 1},' in await response.text()
