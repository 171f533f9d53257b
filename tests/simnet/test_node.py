"""The simulated node answers in the shapes and words that were recorded from real ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from tests.simnet.client import call
from tests.simnet.sessions import VECTORS, Clock, small_network
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan, parse_rule
from warpseal_simnet.recorded import recorded_network, rewritten_node_ids
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.versions import DEPRECATED_METHODS, VERSIONS

ASKED_NODE = "NodeID-7fdvUNLVpGgng9tyYzBifCzT7XJrqMKNS"
SMALL = Plan(validators=3, messages=1)

# Fields in which the simulation differs: its own certificates, addresses and versions, and rewards.
OTHERWISE = {
    "info.getNodeID": {"nodePOP"},
    "info.getNodeIP": {"ip"},
    "platform.getSubnet": {"controlKeys", "threshold"},
    "platform.getL1Validator": {"remainingBalanceOwner", "deactivationOwner"},
}
PEER_OTHERWISE = {"ip", "publicIP", "version", "lastSent", "lastReceived"}
STAKER_OTHERWISE = {
    "endTime",
    "validationRewardOwner",
    "delegationRewardOwner",
    "potentialReward",
    "delegationFee",
    "uptime",
    "signer",
    "remainingBalanceOwner",
    "deactivationOwner",
}


def recorded_calls() -> Iterator[dict[str, Any]]:
    for name in ("platform", "info"):
        for line in (VECTORS / f"{name}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            is_recorded = entry["method"] not in ("platform.getTx", "platform.getBlockByHeight")
            if is_recorded and entry.get("node", ASKED_NODE) == ASKED_NODE:
                yield entry


def comparable(method: str, result: Any) -> Any:
    """Return a result without the fields in which the simulation differs, in a fixed order."""
    if not isinstance(result, dict):
        return result
    compared = {key: value for key, value in result.items() if key not in OTHERWISE.get(method, ())}
    if method == "info.peers":
        compared["peers"] = sorted(
            (
                {k: v for k, v in peer.items() if k not in PEER_OTHERWISE}
                for peer in compared["peers"]
            ),
            key=str,
        )
    if method == "platform.getCurrentValidators":
        compared["validators"] = [
            {k: v for k, v in entry.items() if k not in STAKER_OTHERWISE}
            for entry in compared["validators"]
        ]
    if method == "platform.getBlockchains":
        compared["blockchains"] = sorted(compared["blockchains"], key=str)
    return compared


async def test_every_recorded_call_is_answered_as_recorded() -> None:
    checked = 0
    async with recorded_network(VECTORS) as network:
        names = rewritten_node_ids(network, VECTORS)
        for entry in recorded_calls():
            text = json.dumps(entry)
            for recorded, ours in names.items():
                text = text.replace(recorded, ours)
            expected = json.loads(text)
            method = expected["method"]
            reply = await call(network.node_uri, expected["path"], method, expected["params"])
            if "error" in expected:
                assert reply == expected["error"]["message"]
            else:
                assert comparable(method, reply) == comparable(method, expected["result"]), method
            checked += 1
    assert checked == 94


async def test_recorded_entries_have_the_same_keys_as_ours() -> None:
    async with recorded_network(VECTORS) as network:
        for entry in recorded_calls():
            if entry["method"] == "platform.getCurrentValidators":
                reply = await call(network.node_uri, "/ext/P", entry["method"], entry["params"])
                for ours, theirs in zip(
                    reply["validators"], entry["result"]["validators"], strict=True
                ):
                    assert ours.keys() == theirs.keys()
            if entry["method"] == "info.peers" and not entry["params"]:
                reply = await call(network.node_uri, "/ext/info", "info.peers")
                assert reply["peers"][0].keys() == entry["result"]["peers"][0].keys()


async def test_epochs_are_those_of_the_recording() -> None:
    recorded = [
        json.loads(line) for line in (VECTORS / "proposervm.jsonl").read_text().splitlines()
    ]
    async with recorded_network(VECTORS) as network:
        for entry in recorded:
            reply = await call(network.node_uri, entry["path"], entry["method"])
            assert reply == entry["result"]
        assert await call(
            network.node_uri, "/ext/bc/C/proposervm", "proposervm.getProposedHeight"
        ) == {"height": "19"}


async def test_heights_are_named_by_number_text_or_proposed_and_the_rest_is_refused() -> None:
    async with SimulatedNetwork(Plan(validators=2, messages=0, proposed_lag=2)) as network:
        network.advance(3)

        async def at(height: Any) -> Any:
            params = {"height": height, "subnetID": id_text(PRIMARY_NETWORK)}
            return await call(network.node_uri, "/ext/bc/P", "platform.getValidatorsAt", params)

        assert await at(23) == await at("23") == await at("proposed")
        assert "current P-chain height (23) < requested P-Chain height (24)" in await at(24)
        for bad in (2**64 - 1, -1, 1.5, "x", True, [1]):
            assert (await at(bad)).startswith("couldn't unmarshal an argument")
        assert await call(network.node_uri, "/ext/P", "platform.getProposedHeight") == {
            "height": "21"
        }
        error = await call(
            network.node_uri, "/ext/P", "platform.getAllValidatorsAt", {"height": 25}
        )
        assert "failed to get validator sets at 25" in error


async def test_unknown_chains_and_subnets_are_answered_in_a_nodes_words() -> None:
    unknown = id_text(bytes([9]) * 32)
    async with SimulatedNetwork(SMALL) as network:
        uri = network.node_uri
        assert await call(uri, "/ext/P", "platform.validatedBy", {"blockchainID": unknown}) == (
            f'problem retrieving blockchain "{unknown}": not found'
        )
        assert await call(uri, "/ext/P", "platform.getSubnet", {"subnetID": unknown}) == "not found"
        params = {"subnetID": unknown, "height": "proposed"}
        assert await call(uri, "/ext/P", "platform.getValidatorsAt", params) == {}
        assert await call(
            uri, "/ext/P", "platform.getCurrentValidators", {"subnetID": unknown}
        ) == {"validators": []}


async def test_changes_take_effect_with_the_next_block_and_old_heights_stay() -> None:
    # Its clock stands still: each second costs a fee.
    async with SimulatedNetwork(replace(SMALL, settings=NodeSettings(clock=Clock()))) as network:
        l1 = network.subnets[1].subnet_id
        start = network.state.heights.current
        params: dict[str, Any] = {"subnetID": id_text(l1), "height": start}
        before = await call(network.node_uri, "/ext/P", "platform.getValidatorsAt", params)
        assert network.change_weight(l1, 0, 77) == start + 1
        network.set_balance(l1, 1, 0)
        network.change_weight(l1, 2, 0)
        assert await call(network.node_uri, "/ext/P", "platform.getValidatorsAt", params) == before
        params["height"] = "proposed"
        after = await call(network.node_uri, "/ext/P", "platform.getValidatorsAt", params)
        assert after == {
            network.validators[0].name: {
                "publicKey": "0x" + network.validators[0].bls_key.hex(),
                "weight": "77",
            },
            "NodeID-111111111111111111116DBWJs": {"publicKey": None, "weight": "1000"},
        }
        current = await call(
            network.node_uri, "/ext/P", "platform.getCurrentValidators", {"subnetID": id_text(l1)}
        )
        assert {entry["nodeID"]: entry["balance"] for entry in current["validators"]} == {
            network.validators[0].name: "100000000000",
            network.validators[1].name: "0",
        }


async def test_nearly_drained_validators_are_set_members_with_their_balance() -> None:
    async with SimulatedNetwork(
        Plan(validators=2, messages=0, rules=(parse_rule("0:balance=2047"),))
    ) as network:
        l1 = id_text(network.subnets[1].subnet_id)
        current = await call(
            network.node_uri, "/ext/P", "platform.getCurrentValidators", {"subnetID": l1}
        )
        assert [entry["balance"] for entry in current["validators"]] == ["2047", "100000000000"]
        members = await call(
            network.node_uri,
            "/ext/P",
            "platform.getValidatorsAt",
            {"subnetID": l1, "height": "proposed"},
        )
        assert len(members) == 2


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"{", -32700, ""),
        (b"[]", -32700, ""),
        (b'{"jsonrpc":"1.0","id":1,"method":"info.peers"}', -32600, "jsonrpc must be 2.0"),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"info.nope"}',
            -32000,
            'rpc: can\'t find method "info.Nope"',
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"foo.bar"}',
            -32000,
            'rpc: can\'t find service "foo.Bar"',
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"peers"}',
            -32000,
            'rpc: service/method request ill-formed: "peers"',
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"info.Peers"}',
            -32000,
            "method must start with a non-uppercase letter",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"info.peers","params":[1,2]}',
            -32000,
            "couldn't unmarshal",
        ),
    ],
)
async def test_bad_calls_are_refused_in_a_nodes_words(body: bytes, code: int, text: str) -> None:
    async with SimulatedNetwork(SMALL) as network, aiohttp.ClientSession() as session:
        headers = {"content-type": "application/json;"}
        async with session.post(
            network.node_uri + "/ext/info", data=body, headers=headers
        ) as response:
            assert response.status == 200
            error = (await response.json())["error"]
    assert error["code"] == code
    assert error["message"].startswith(text)


async def test_other_methods_types_and_paths_are_refused_by_status() -> None:
    async with SimulatedNetwork(SMALL) as network, aiohttp.ClientSession() as session:
        async with session.get(network.node_uri + "/ext/info") as response:
            assert (response.status, await response.text()) == (
                405,
                "rpc: POST method required, received GET",
            )
            assert response.headers["node-id"].startswith("NodeID-")
        async with session.post(network.node_uri + "/ext/info", data=b"{}") as response:
            assert response.status == 415
        async with session.post(network.node_uri + "/ext/info/", json={}) as response:
            assert (response.status, await response.text()) == (404, "404 page not found\n")


async def test_a_node_can_fail_and_its_calls_are_counted() -> None:
    async with SimulatedNetwork(Plan(validators=2, messages=0, nodes=2)) as network:
        first, second = network.nodes
        first.rpc.outages["platform.getHeight"] = Outage(OutageKind.HTTP_500)
        with pytest.raises(aiohttp.ContentTypeError):
            await call(first.uri, "/ext/P", "platform.getHeight")
        assert await call(second.uri, "/ext/P", "platform.getHeight") == {"height": "20"}
        first.rpc.outages["*"] = Outage(OutageKind.DROP)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await call(first.uri, "/ext/info", "info.getNetworkID")
        first.rpc.outages["*"] = Outage(OutageKind.GARBAGE)
        with pytest.raises(json.JSONDecodeError):
            await call(first.uri, "/ext/info", "info.getNetworkID")
        first.rpc.outages["*"] = Outage(OutageKind.HANG)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(first.uri, "/ext/info", "info.getNetworkID"), 0.2)
        first.rpc.outages.clear()
        assert await call(first.uri, "/ext/info", "info.getNetworkID") == {"networkID": "88888"}
        assert network.calls == {"platform.getHeight": 2, "info.getNetworkID": 4}
        assert first.rpc.failures == {"http-500": 1, "drop": 1, "garbage": 1, "hang": 1}


async def test_a_node_can_answer_honestly_and_late() -> None:
    async with SimulatedNetwork(Plan(validators=2, messages=0)) as network:
        node = network.nodes[0]
        node.rpc.outages["*"] = Outage(None, delay_s=0.2, tail_s=0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(node.uri, "/ext/P", "platform.getHeight"), 0.1)
        assert await call(node.uri, "/ext/P", "platform.getHeight") == {"height": "20"}
        assert node.rpc.failures == {"late": 2}


async def test_a_validating_node_does_not_list_itself_as_peer() -> None:
    async with SimulatedNetwork(Plan(validators=3, messages=0, node_is_validator=True)) as network:
        peers = await call(network.node_uri, "/ext/info", "info.peers")
        itself = network.validators[0]
        assert itself.name not in {peer["nodeID"] for peer in peers["peers"]}
        assert (await call(network.node_uri, "/ext/info", "info.getNodeID"))[
            "nodeID"
        ] == itself.name
        assert itself.address is not None
        assert await call(network.node_uri, "/ext/info", "info.getNodeIP") == {
            "ip": itself.address.endpoint
        }


@pytest.mark.parametrize(
    ("name", "plugin", "missing"),
    [
        ("1.14.1", "44", set()),
        ("1.15.0", "46", set()),
        ("1.15.3", "47", {"avax.getAtomicTxStatus"}),
        ("next", "47", {"avax.getAtomicTxStatus", *DEPRECATED_METHODS}),
    ],
)
async def test_a_node_refuses_what_its_version_lacks_as_an_unknown_method(
    name: str, plugin: str, missing: set[str]
) -> None:
    paths = {
        "platform": "/ext/bc/P",
        "avm": "/ext/bc/X",
        "avax": "/ext/bc/C/avax",
        "info": "/ext/info",
    }
    version = VERSIONS[name]
    async with small_network(
        settings=NodeSettings(clock=Clock(), version=version), messages=0
    ) as network:
        reported = await call(network.node_uri, "/ext/info", "info.getNodeVersion")
        assert (reported["version"], reported["rpcProtocolVersion"]) == (
            "avalanchego/" + ".".join(map(str, version)),
            plugin,
        )
        refused = set[str]()
        for method in (*DEPRECATED_METHODS, "avax.getAtomicTxStatus"):
            service, _, function = method.partition(".")
            reply = await call(network.node_uri, paths[service], method)
            if reply == f'rpc: can\'t find method "{service}.{function[0].upper()}{function[1:]}"':
                refused.add(method)
        upgrades = await call(network.node_uri, "/ext/info", "info.upgrades")
    assert refused == missing
    # Helicon is active from the genesis on, and nodes since 1.15.1 name Igloo, without a date.
    assert upgrades["heliconTime"] == upgrades["graniteTime"] < "2026"
    assert ("iglooTime" in upgrades) is (version >= (1, 15, 1))
