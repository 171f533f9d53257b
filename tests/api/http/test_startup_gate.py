"""The ports listen while the daemon starts: requests wait for the services within their timeout."""

from __future__ import annotations

import asyncio

from tests.api.fixtures import (
    KEBAB,
    MESSAGE,
    NETWORK_ID,
    V1,
    ApiSetup,
    ScriptedAggregator,
    client_of,
)
from tests.eventually import until
from warpseal.aggregation.resolve import AggregationRequest
from warpseal.aggregation.service import Aggregation
from warpseal.upstream.errors import NodeAttempt, NodeUnavailable, PublicFailure

BODY = {"message": MESSAGE.raw.hex()}


async def test_a_request_that_comes_before_the_network_is_known_waits_for_it() -> None:
    setup = ApiSetup(network_id=None)
    async with client_of(setup) as client:
        tasks = [asyncio.create_task(client.post(path, json=BODY)) for path in (V1, KEBAB)]
        await until(lambda: setup.gate.waits == 2)
        assert setup.aggregator.requests == []
        setup.open(NETWORK_ID)
        assert [(await task).status for task in tasks] == [201, 200]
    for request in setup.aggregator.requests:
        assert request.timeout_s is not None
        assert 0 < request.timeout_s < 60.0


async def test_the_network_name_is_checked_as_soon_as_the_network_is_known() -> None:
    setup = ApiSetup(network_id=None)
    async with client_of(setup) as client:
        request = asyncio.create_task(client.post(V1, json=BODY))
        await until(lambda: setup.gate.waits == 1)
        setup.open(1)
        response = await request
        assert (response.status, (await response.json())["code"]) == (404, "network_not_served")
    assert setup.aggregator.requests == []


async def test_a_request_that_times_out_gets_the_failures_of_the_nodes() -> None:
    setup = ApiSetup(network_id=None)
    setup.gate.unavailable(
        NodeUnavailable("the network id", [NodeAttempt(0, PublicFailure.REFUSED)])
    )
    async with client_of(setup) as client:
        for path in (V1, KEBAB):
            response = await client.post(path, json={**BODY, "timeoutSeconds": 0.05})
            content = await response.json()
            assert (response.status, content["code"]) == (502, "node_unavailable")
            assert content["detail"] == {"nodes": [{"position": 0, "failure": "refused"}]}


async def test_a_request_that_times_out_before_any_node_answered_gets_starting() -> None:
    async with client_of(ApiSetup(network_id=None)) as client:
        for path in (V1, KEBAB):
            response = await client.post(path, json={**BODY, "timeoutSeconds": 0.05})
            assert (response.status, (await response.json())["code"]) == (503, "starting")
            assert int(response.headers["Retry-After"]) >= 1


async def test_a_request_whose_time_went_into_the_start_blames_no_node() -> None:
    failures: list[list[NodeAttempt]] = [[NodeAttempt(0, PublicFailure.REFUSED)], []]

    async def fail(_: AggregationRequest) -> Aggregation:
        raise NodeUnavailable("the validator set", failures.pop())

    setup = ApiSetup(network_id=None, aggregator=ScriptedAggregator(fail))
    async with client_of(setup) as client:
        tasks = [asyncio.create_task(client.post(V1, json=BODY)) for _ in range(2)]
        await until(lambda: setup.gate.waits == 2)
        setup.open(NETWORK_ID)
        codes = [(await (await task).json())["code"] for task in tasks]
        assert codes == ["starting", "node_unavailable"]
        # A request that has not waited had all of its time.
        failures.append([])
        response = await client.post(V1, json=BODY)
        assert (await response.json())["code"] == "node_unavailable"


async def test_wrong_requests_are_refused_before_the_network_is_known() -> None:
    async with client_of(ApiSetup(network_id=None)) as client:
        assert (await client.post(KEBAB, json={"message": "zz"})).status == 400
        assert (await client.get(KEBAB)).status == 400
        assert (await client.get("/nope")).status == 404


async def test_a_daemon_that_starts_is_down_and_not_ready() -> None:
    async with client_of(ApiSetup(network_id=None)) as client:
        response = await client.get("/health")
        assert (response.status, (await response.json())["status"]) == (503, "down")
        response = await client.get("/ready")
        assert (response.status, (await response.json())["ready"]) == (503, False)
