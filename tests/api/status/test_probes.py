"""/health and /ready: alive in the form of the reference, ready per subnet."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.fixtures import BACKGROUND, SUBNET, ApiSetup, ScriptedReadiness, client_of
from warpseal.api.status import probes
from warpseal.node.p_chain import CurrentValidation
from warpseal.resources.progress import FollowerState
from warpseal.validators.balances import describe_underfunded
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode
from warpseal.warp.validator_set import Validator

HEAVY = Validator(b"\x80" + bytes(47), 30, (NodeID(bytes(20)),))
LIGHT = Validator(b"\x81" + bytes(47), 4, (NodeID(bytes(range(20))), NodeID(bytes(range(1, 21)))))
READY = SubnetReadiness(PRIMARY_NETWORK, True, 67, 100, ())
SHORT = SubnetReadiness(SUBNET, True, 66, 100, (HEAVY, LIGHT))
UNKNOWN = SubnetReadiness(SUBNET, False, 0, 0, ())


async def ask(readiness: ScriptedReadiness, path: str) -> tuple[int, dict[str, Any]]:
    async with client_of(ApiSetup(readiness=readiness)) as client:
        response = await client.get(path)
        assert response.headers["content-type"] == "application/json"
        return response.status, await response.json()


async def test_health_speaks_the_words_of_the_reference() -> None:
    status, body = await ask(ScriptedReadiness((READY,)), "/health")
    check = body["details"]["signature-aggregator-health"]
    assert (status, body["status"], check["status"], set(check)) == (
        200,
        "up",
        "up",
        {"status", "timestamp"},
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", check["timestamp"])


async def test_health_is_503_while_the_daemon_cannot_sign_as_at_the_reference() -> None:
    status, body = await ask(ScriptedReadiness((READY, SHORT)), "/health")
    check = body["details"]["signature-aggregator-health"]
    assert (status, body["status"], check["status"]) == (503, "down", "down")
    assert "connected weight 66 of 67" in check["error"]


async def test_ready_is_200_when_every_subnet_has_two_thirds_connected() -> None:
    status, body = await ask(ScriptedReadiness((READY,)), "/ready")
    assert (status, body["ready"], body["subnets"][0]["ready"]) == (200, True, True)


async def test_ready_says_for_each_subnet_what_is_missing() -> None:
    status, body = await ask(ScriptedReadiness((READY, SHORT)), "/ready")
    assert (status, body["ready"]) == (503, False)
    assert [subnet["ready"] for subnet in body["subnets"]] == [True, False]
    assert body["subnets"][1] == {
        "subnetId": id_text(SUBNET),
        "ready": False,
        "connectedWeight": "66",
        "requiredWeight": "67",
        "totalWeight": "100",
        "missingValidators": 2,
        "missing": [
            {
                "nodeIds": [node_id_text(node) for node in validator.node_ids],
                "publicKey": "0x" + validator.public_key.hex(),
                "weight": str(validator.weight),
            }
            for validator in (HEAVY, LIGHT)
        ],
    }


async def test_ready_shows_missing_connections_and_hides_addresses_from_other_machines() -> None:
    lost = DisconnectedNode(
        node_id="NodeID-1",
        address="10.0.0.1:9651",
        last_error="unreachable: Connection refused",
        disconnected_since="1970-01-01T00:16:40Z",
    )
    readiness = ScriptedReadiness((SHORT,), connections={HEAVY.node_ids[0]: lost})
    async with client_of(ApiSetup(readiness=readiness)) as client:
        local = await (await client.get("/ready")).json()
        forwarded = await (
            await client.get("/ready", headers={"X-Forwarded-For": "8.8.8.8"})
        ).json()
    validator_entry = {
        "nodeId": "NodeID-1",
        "address": "10.0.0.1:9651",
        "lastError": "unreachable: Connection refused",
        "disconnectedSince": "1970-01-01T00:16:40Z",
    }
    assert local["subnets"][0]["missing"][0]["connections"] == [validator_entry]
    del validator_entry["address"]
    assert forwarded["subnets"][0]["missing"][0]["connections"] == [validator_entry]


async def test_ready_names_inactive_and_underfunded_validators_with_advice() -> None:
    light, heavy = (
        CurrentValidation(bytes(32), NodeID(bytes(20)), weight, 0, 5 - weight) for weight in (3, 5)
    )
    underfunded = {SUBNET: [describe_underfunded(light), describe_underfunded(heavy)]}
    _, body = await ask(
        ScriptedReadiness((READY, SHORT), underfunded_validators=underfunded), "/ready"
    )
    primary, subnet = body["subnets"]
    assert "underfunded" not in primary
    assert subnet["underfundedValidators"] == 2
    assert subnet["underfunded"][0] == {
        "nodeIds": [node_id_text(NodeID(bytes(20)))],
        "weight": "5",
        "reason": "inactive",
        "validationId": id_text(bytes(32)),
        "balance": "0",
        "state": "inactive: balance 0",
    }
    assert subnet["underfunded"][1]["state"] == "underfunded: balance 0.000000002 AVAX"
    assert "top up their balance, or disable" in subnet["advice"]


async def test_a_subnet_without_known_validators_is_not_ready() -> None:
    for subnet in (UNKNOWN, SubnetReadiness(SUBNET, True, 0, 0, ())):
        status, body = await ask(ScriptedReadiness((subnet,)), "/ready")
        assert (status, body["ready"], len(body["faults"])) == (503, False, 1)


async def test_a_stale_proposed_height_fails_ready_and_health() -> None:
    stale = ScriptedReadiness((READY,), is_fresh=False)
    status, body = await ask(stale, "/ready")
    assert (status, body["faults"]) == (503, ["the proposed P-Chain height is not known, or stale"])
    assert (await ask(stale, "/health"))[0] == 503


async def test_health_is_503_while_nothing_is_known_yet() -> None:
    async with client_of(ApiSetup(network_id=None)) as client:
        response = await client.get("/health")
        assert (response.status, (await response.json())["status"]) == (503, "down")


async def test_ready_answers_for_one_subnet() -> None:
    readiness = ScriptedReadiness((READY, SHORT))
    status, body = await ask(readiness, f"/ready?subnetId={id_text(PRIMARY_NETWORK)}")
    assert (status, [subnet["subnetId"] for subnet in body["subnets"]]) == (
        200,
        [id_text(PRIMARY_NETWORK)],
    )
    status, body = await ask(readiness, f"/ready?subnetId=0x{SUBNET.hex()}")
    assert (status, [subnet["subnetId"] for subnet in body["subnets"]]) == (503, [id_text(SUBNET)])


async def test_ready_refuses_an_unreadable_subnet_and_one_that_is_not_followed() -> None:
    for text in ("nonsense", id_text(bytes(31) + b"\x09")):
        status, body = await ask(ScriptedReadiness((READY,)), f"/ready?subnetId={text}")
        assert (status, body["code"]) == (400, "invalid_request")
        assert body["error"].startswith("subnet-id: ")


async def test_only_the_subnets_of_ready_subnets_count() -> None:
    async with client_of(
        ApiSetup(readiness=ScriptedReadiness((READY, SHORT)), counted=(PRIMARY_NETWORK,))
    ) as client:
        response = await client.get("/ready")
        assert (response.status, len((await response.json())["subnets"])) == (200, 2)
        assert (await client.get("/health")).status == 200
    async with client_of(
        ApiSetup(readiness=ScriptedReadiness((READY,)), counted=(SUBNET,))
    ) as client:
        response = await client.get("/ready")
        assert response.status == 503
        assert id_text(SUBNET) in (await response.json())["faults"][0]


async def test_probes_may_use_head() -> None:
    async with client_of(ApiSetup()) as client:
        for path in ("/health", "/ready"):
            response = await client.head(path)
            assert (response.status, await response.read()) == (200, b"")
            assert int(response.headers["content-length"]) > 10


async def test_ready_reads_old_status_again_but_does_not_wait_long_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "_REFRESH_TIMEOUT_S", 0.1)
    setup, height = ApiSetup(), 1

    async def refresh() -> None:
        nonlocal height
        height += 1
        setup.background = replace(BACKGROUND, follower=FollowerState(height=str(height)))
        if height == 3:
            await asyncio.sleep(3_600)

    setup.refresh_status = refresh
    async with client_of(setup) as client:
        heights = [
            (await (await client.get("/ready")).json())["follower"]["height"] for _ in range(3)
        ]
    assert heights == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("subnet=", "unknown_field"),
        (f"subnet={id_text(SUBNET)}", "unknown_field"),
        ("subnetId=", "invalid_request"),
    ],
)
async def test_ready_refuses_what_names_no_subnet(query: str, code: str) -> None:
    status, body = await ask(ScriptedReadiness((READY,)), f"/ready?{query}")
    assert (status, body["code"]) == (400, code)
    assert ("did you mean subnetId?" in body["error"]) == (code == "unknown_field")


async def test_probes_are_debug_lines_of_the_log_with_any_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "warpseal.api")
    paths = ("/health", "/ready", "/ready?subnetId=none", "/nowhere")
    async with client_of(ApiSetup(readiness=ScriptedReadiness((SHORT,)))) as client:
        statuses = [(await client.get(path)).status for path in paths]
    lines = [record for record in caplog.records if record.getMessage() == "request"]
    assert statuses == [503, 503, 400, 404]
    assert [(vars(line)["path"], line.levelname) for line in lines] == [
        ("/health", "DEBUG"),
        ("/ready", "DEBUG"),
        ("/ready", "DEBUG"),
        ("/nowhere", "INFO"),
    ]
