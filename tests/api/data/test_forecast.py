"""The forecast of a subnet over HTTP: weights and amounts as text, no unknown values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.data.fixtures import DataApiSetup, MemoryKeyStore, client_of, get
from tests.node.recorded_node import (
    L1,
    PERMISSIONED,
    RecordedNode,
    RefusedCall,
    node_id,
    recorded_result,
)
from tests.validators.forecast.fixtures import (
    AT,
    CURRENT,
    STATE,
    Observed,
    forecasting,
    ids_of,
    l1_node,
)
from warpseal.warp.ids import SubnetID, id_text, node_id_text

FORECAST = "/v1/networks/fuji/subnets/{}/forecast"
NODE = node_id("4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS")


async def forecast_of(
    node: RecordedNode,
    subnet: str = id_text(L1),
    observed: Observed | None = None,
    status: int = 200,
) -> Any:
    async with forecasting(node, observed) as service:
        return await get(DataApiSetup(forecasts=service), FORECAST.format(subnet), status)


async def test_an_l1_has_its_fee_its_margins_and_both_courses() -> None:
    rows = (
        {**ids_of(1), "balance": "100000000"},
        {**ids_of(2), "balance": str(10**18)},
        {**ids_of(3), "balance": "0"},
    )
    observed = Observed(
        {node_id(str(row["nodeID"])[7:]): number == 1 for number, row in enumerate(rows)}
    )
    body = await forecast_of(l1_node(*rows), observed=observed)
    course = {
        "losses": [
            {
                "at": AT + 195_312,
                "validationIds": [ids_of(1)["validationID"]],
                "weightLost": "49463000",
                "activeWeight": "49463000",
                "totalWeight": "148389000",
            }
        ],
        "quorumImpossibleAt": AT,
        "topUpTotal": str(2 * 512 * (30 * 86_400 + 1) - 10**8),
    }
    shared = {"weight": "49463000", "hasKey": True}
    assert sorted(body.pop("validators"), key=lambda row: int(row["balance"])) == [
        {
            "validationId": ids_of(3)["validationID"],
            "nodeId": ids_of(3)["nodeID"],
            **shared,
            "isActive": False,
            "hasAnswered": False,
            "balance": "0",
            "secondsLeft": 0,
            "secondsLeftAtCapacity": 0,
        },
        {
            "validationId": ids_of(1)["validationID"],
            "nodeId": ids_of(1)["nodeID"],
            **shared,
            "isActive": True,
            "hasAnswered": False,
            "balance": "100000000",
            "secondsLeft": 195_312,
            "runsOutAt": AT + 195_312,
            "secondsLeftAtCapacity": 195_312,
            "runsOutAtCapacity": AT + 195_312,
        },
        {
            "validationId": ids_of(2)["validationID"],
            "nodeId": ids_of(2)["nodeID"],
            **shared,
            "isActive": True,
            "hasAnswered": True,
            "balance": str(10**18),
        },
    ]
    top_ups = body["today"].pop("topUps")
    assert body["atCapacity"].pop("topUps") == top_ups
    assert sum(int(top_up["amount"]) for top_up in top_ups) == int(body["today"]["topUpTotal"])
    assert {top_up["validationId"] for top_up in top_ups} == {
        ids_of(1)["validationID"],
        ids_of(3)["validationID"],
    }
    assert body == {
        "subnetId": id_text(L1),
        "kind": "l1",
        "asOf": AT,
        "fee": {
            "price": "512",
            "excess": "0",
            "source": "minimum",
            "target": 10_000,
            "capacity": 10_000,
        },
        "quorum": {
            "percentage": 67,
            "totalWeight": "148389000",
            "requiredWeight": "99420630",
            "activeWeight": "98926000",
            "margin": pytest.approx(2 / 3 - 0.67),
            "answeringWeight": "49463000",
            "answeringMargin": pytest.approx(1 / 3 - 0.67),
        },
        "today": course,
        "atCapacity": course,
    }


async def test_a_subnet_with_stakes_has_ends_and_no_balances() -> None:
    body = await forecast_of(RecordedNode(), f"0x{PERMISSIONED.hex()}")
    (stake,) = recorded_result(CURRENT, subnetID=id_text(PERMISSIONED))["validators"]
    assert body == {
        "subnetId": id_text(PERMISSIONED),
        "kind": "permissioned",
        "asOf": AT,
        "quorum": {
            "percentage": 67,
            "totalWeight": "49463",
            "requiredWeight": "33141",
            "activeWeight": "49463",
            "margin": pytest.approx(0.33, abs=1e-4),
        },
        "validators": [
            {
                "txHash": stake["txID"],
                "nodeId": node_id_text(NODE),
                "weight": "49463",
                "isActive": True,
                "hasKey": True,
                "secondsLeft": int(stake["endTime"]) - AT,
                "endsAt": int(stake["endTime"]),
            }
        ],
        "today": {
            "losses": [
                {
                    "at": int(stake["endTime"]),
                    "validationIds": [stake["txID"]],
                    "weightLost": "49463",
                    "activeWeight": "0",
                    "totalWeight": "0",
                }
            ],
            "quorumImpossibleAt": int(stake["endTime"]),
        },
    }


async def test_errors_of_a_request_and_of_nodes_have_codes() -> None:
    def find_none(_: object) -> object:
        raise RefusedCall("not found")

    unknown = RecordedNode({"platform.getSubnet": find_none})
    body = await forecast_of(unknown, id_text(SubnetID(bytes([9]) * 32)), status=404)
    assert (body["code"], "no subnet with id" in body["message"]) == ("not_found", True)
    body = await forecast_of(RecordedNode(), "nope", status=400)
    assert (body["code"], body["detail"]["field"]) == ("invalid_request", "subnetId")

    def refuse(_: object) -> object:
        raise RefusedCall("internal: see http://10.0.0.7:9650/secret")

    node = RecordedNode({STATE: refuse})
    body = await forecast_of(node, status=502)
    assert (body["code"], "10.0.0.7" in str(body), node.uri.partition("//")[2] in str(body)) == (
        "node_unavailable",
        False,
        False,
    )


async def test_keys_networks_and_parameters_are_those_of_the_other_routes() -> None:
    async with forecasting(RecordedNode()) as service:
        setup = DataApiSetup(forecasts=service)
        path = FORECAST.format(id_text(L1))
        assert (await get(setup, path.replace("fuji", "mainnet"), 404))[
            "code"
        ] == "network_not_served"
        keyed = DataApiSetup(forecasts=service, key_store=MemoryKeyStore()).with_settings(
            require_api_key=True
        )
        assert (await get(keyed, path, 401))["code"] == "api_key_required"
        limited = setup.with_settings(rate_limit_per_minute=150, rate_limit_loopback=True)
        async with client_of(limited) as client:
            statuses = []
            for _ in range(2):
                async with client.get(path) as response:
                    statuses.append((response.status, response.headers["ratelimit-remaining"]))
        assert statuses == [(200, "50"), (429, "50")]


async def test_a_response_that_did_not_change_is_not_sent_again() -> None:
    async with (
        forecasting(RecordedNode()) as service,
        client_of(DataApiSetup(forecasts=service)) as client,
    ):
        path = FORECAST.format(id_text(L1))
        async with client.get(path) as response:
            tag = response.headers["etag"]
        async with client.get(path, headers={"if-none-match": tag}) as response:
            assert response.status == 304


async def test_a_service_without_forecasts_has_no_such_path() -> None:
    assert (await get(DataApiSetup(), FORECAST.format(id_text(L1)), 404))["code"] == "not_found"
