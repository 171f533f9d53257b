"""/status.json of a whole daemon: it agrees with /ready and /metrics, and names validators,
aggregations and nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.eventually import until
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.indexed_daemon import run_recorded_daemon
from warpseal import bls
from warpseal.api.status.document import RouteUsage
from warpseal.daemon.metering import route_usage
from warpseal.daemon.peer_status import share_limits
from warpseal.usage.recorder import MethodUsage
from warpseal.version import __version__
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.rpc import Outage, OutageKind

# One validator of the L1 is inactive, one nearly drained, one unreachable; none of the Primary
# Network is.
PLAN = Plan(
    validators=4,
    l1s=(L1Plan(validators=6, weights="1000/2000/3000/4000/5000/6000"),),
    rules=tuple(map(parse_rule, ("l1-0/0:inactive", "l1-0/1:balance=2000", "l1-0/2:closed"))),
)


async def status_of(daemon: Daemon) -> dict[str, Any]:
    reply = await daemon.get("/status.json")
    assert reply.status == 200
    return reply.body


async def status_when(
    daemon: Daemon, condition: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Return the first document for which the condition holds."""
    document: dict[str, Any] = {}

    async def holds() -> bool:
        document.update(await status_of(daemon))
        return bool(condition(document))

    await until(holds)
    return document


def rows_of(document: dict[str, Any], subnet_id: bytes) -> list[dict[str, Any]]:
    return [row for row in document["validators"] if row["subnetId"] == id_text(subnet_id)]


async def test_the_status_agrees_with_ready_and_metrics(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(8)
        await daemon.until_ready()
        l1 = network.subnets[1].subnet_id
        document = await status_when(
            daemon,
            lambda body: body["ready"] and any(row.get("balance") for row in rows_of(body, l1)),
        )
        ready, metrics = (await daemon.ready()).body, await daemon.metrics()
        assert (document["version"], document["blsBackend"]) == (__version__, bls.BACKEND)
        assert document["networkId"] == network.network_id
        assert document["proposedHeight"] == str(int(metrics["warpseal_proposed_height"]))
        assert (document["ready"], document.get("faults", [])) == (
            ready["ready"],
            ready.get("faults", []),
        )
        fields = (
            "subnetId",
            "ready",
            "connectedWeight",
            "requiredWeight",
            "totalWeight",
            "missingValidators",
        )
        assert [[subnet[name] for name in fields] for subnet in document["subnets"]] == [
            [subnet[name] for name in fields] for subnet in ready["subnets"]
        ]
        for subnet in document["subnets"]:
            label = f'{{subnet_id="{subnet["subnetId"]}"}}'
            assert metrics[f"warpseal_connected_weight{label}"] == int(subnet["connectedWeight"])
            assert metrics[f"warpseal_total_weight{label}"] == int(subnet["totalWeight"])
        assert [node["setting"] for node in document["nodes"]] == ["p-chain-api", "info-api"]
        assert all(
            node["isUp"] and node["address"] == network.node_uri for node in document["nodes"]
        )
        assert document["nodes"][0]["height"] == "20"


async def test_validators_are_listed_by_weight_with_their_state_and_balance(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(8)
        l1 = network.subnets[1].subnet_id

        def is_complete(document: dict[str, Any]) -> bool:
            rows = rows_of(document, l1)
            was_dialed = any(row.get("reason") == "unreachable" for row in rows)
            return len(rows) == 6 and all("balance" in row for row in rows) and was_dialed

        document = await status_when(daemon, is_complete)
        rows = rows_of(document, l1)
        weights = [6000, 5000, 4000, 3000, 2000, 1000]
        names = [network.validators[4 + place].name for place in (5, 4, 3, 2, 1, 0)]
        assert [(row["nodeIds"], row["weight"]) for row in rows] == [
            ([name], str(weight)) for name, weight in zip(names, weights, strict=True)
        ]
        assert [row["state"] for row in rows if row["state"] != "dialing"][-1] == "inactive"
        assert [row["state"] for row in rows[:3]] == ["connected"] * 3
        assert rows[3]["state"] in ("waiting", "dialing")
        assert (rows[3]["reason"], rows[4]["state"]) == ("unreachable", "connected")
        assert rows[3]["detail"] == "Connection refused"
        assert [row["balance"] for row in rows[4:]] == ["2000", "0"]
        assert all(row["address"].startswith("127.0.0.1:") for row in rows[:3])
        assert all(
            row["version"] == "avalanchego/1.15.3" or row["version"] == "1.15.3" for row in rows[:3]
        )
        assert document["startedAt"] <= rows[3]["disconnectedSince"] <= document["time"]
        assert "disconnectedSince" not in rows[0]
        assert all(row["connectedSince"] >= document["startedAt"] for row in rows[:3])
        subnet = document["subnets"][1]
        assert [(missing["nodeIds"], missing["weight"]) for missing in subnet["missing"]] == [
            ([names[3]], "3000")
        ]
        assert (subnet["missingValidators"], subnet["keylessWeight"]) == (1, "1000")
        assert (subnet["inactiveValidators"], subnet["inactive"]) == (
            1,
            [{"nodeIds": [names[5]], "weight": "1000", "state": "inactive"}],
        )


async def test_aggregations_are_listed_with_stages_and_the_reason_of_a_failure(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(8)
        good, other = network.messages_of(PRIMARY_NETWORK)[:2]
        assert (await daemon.aggregate(good)).status == 200
        assert (await daemon.aggregate(good)).status == 200  # From memory: not listed.
        failed = await daemon.aggregate(
            network.messages_of(network.subnets[1].subnet_id)[0], quorum_percentage=100
        )
        assert failed.status in (400, 503)
        document = await status_when(daemon, lambda body: len(body.get("aggregations", ())) >= 2)
        latest, first = document["aggregations"]
        assert (latest["outcome"], first["outcome"]) == (failed.body["code"], "ok")
        assert "weight" in latest["reason"]
        assert (first["signingSubnetId"], first["height"]) == (id_text(PRIMARY_NETWORK), "20")
        assert set(first["stagesMs"]) == {"validators", "connect", "collect", "verify", "total"}
        assert int(first["signedWeight"]) >= int(first["requiredWeight"]) > 0
        signing = [row for row in rows_of(document, PRIMARY_NETWORK) if "lastReply" in row]
        assert len(signing) >= 3
        assert all(row["latencyMs"] > 0 for row in signing)
        minutes = document["aggregationMinutes"]
        counts = [count for minute in minutes for count in minute["outcomes"].items()]
        assert sorted(counts) == sorted([("ok", 1), (failed.body["code"], 1)])
        assert all(
            minute["p50Ms"] == minute["p95Ms"] > 0
            for minute in minutes
            if "ok" in minute["outcomes"]
        )
        assert other.unsigned.id not in {item.get("messageId") for item in document["aggregations"]}


async def test_a_starting_daemon_has_a_status_and_its_configured_identity(tmp_path: Path) -> None:
    async with run_network(Plan(validators=4, l1s=())) as network:
        network.nodes[0].rpc.outages = {"*": Outage(OutageKind.DROP)}
        identity = [tmp_path / "staker.crt", tmp_path / "staker.key"]
        keys = dict(zip(("tls-cert-path", "tls-key-path"), map(str, identity), strict=True))
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            document = await status_of(daemon)
            # The files are there with the first answer, although no node has named the network yet.
            assert all(file.stat().st_size for file in identity)
            assert (document["ready"], len(document["faults"])) == (False, 1)
            assert {"subnets", "validators", "networkId", "nodeId"} & document.keys() == set()
            network.nodes[0].rpc.outages = {}
            document = await status_when(daemon, lambda body: body["ready"])
            assert document["networkId"] == network.network_id


async def test_only_the_subnets_that_count_decide_whether_the_status_is_ready(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=4, l1s=(L1Plan(validators=3),), rules=(parse_rule("l1-0/0-1:closed"),))
    keys = {"ready-subnets": [id_text(PRIMARY_NETWORK)]}
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, keys)) as daemon,
    ):
        await daemon.until_connected(5)
        document = await status_when(daemon, lambda body: body["ready"])
        assert [subnet["ready"] for subnet in document["subnets"]] == [True, False]
        assert ((await daemon.ready()).body["ready"], document.get("faults")) == (True, None)


async def test_indexed_chains_are_listed_with_their_heights(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        document = await status_when(daemon, lambda body: len(body.get("chains", ())) >= 3)
        metrics = await daemon.metrics()
        indexed = {chain["name"]: chain for chain in document["chains"] if chain["kind"] == "index"}
        assert indexed.keys() == {"p-chain", "x-chain", "c-chain"}
        for name, chain in indexed.items():
            assert metrics[f'warpseal_index_height{{chain="{name}"}}'] == int(chain["height"])
            assert chain["lagBlocks"] == 0


def test_small_subnets_are_listed_whole_and_large_ones_share_the_rest() -> None:
    assert share_limits([3, 10, 2], 100) == [3, 10, 2]
    assert share_limits([9_000, 10, 8_000], 5_000) == [2_495, 10, 2_495]
    assert share_limits([9_000], 5_000) == [5_000]
    assert share_limits([], 5_000) == []


def test_usage_names_the_busiest_routes_and_methods_first() -> None:
    since_start = {
        ("/ext/info", f"info.method{number}"): MethodUsage(number, credits=number)
        for number in range(1, 9)
    }
    since_start["/ext/bc/P", "platform.getTx"] = MethodUsage(
        100, invalid=10, failed=20, credits=1_000
    )
    platform, info = route_usage(since_start)
    assert platform == RouteUsage("/ext/bc/P", 100, 10, 20, 1_000, {"platform.getTx": 100})
    assert (info.path, info.requests, info.credits) == ("/ext/info", 36, 36)
    assert list(info.methods.values()) == [8, 7, 6, 5, 4]
