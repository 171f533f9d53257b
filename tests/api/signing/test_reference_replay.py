"""The recorded exchanges of the reference aggregator against the HTTP API; the aggregation itself
is scripted.

The whole table against the whole daemon is replayed in tests/recorded.
"""

from __future__ import annotations

import json

import aiohttp
import pytest

from tests.api.fixtures import ApiSetup, ScriptedAggregator, aggregation, client_of, serving
from tests.api.signing.reference_table import (
    EXPECTED,
    REFUSED_BEFORE_AGGREGATION,
    SIGNED,
    Exchange,
    load_exchanges,
)
from tests.test_errors import kinds
from warpseal.aggregation.errors import QuorumNotReached
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.routes import metrics_app
from warpseal.api.status.probes import MetricsPage

EXCHANGES = load_exchanges()


def test_every_exchange_has_its_line_in_the_table() -> None:
    assert sorted(EXPECTED) == [exchange.position for exchange in EXCHANGES]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: str(exchange.position))
def test_every_difference_from_the_reference_has_a_reason(exchange: Exchange) -> None:
    expected = EXPECTED[exchange.position]
    differs = expected.status != exchange.status or expected.text is not None
    assert bool(expected.deviation) == differs or exchange.path == "/metrics"


def test_the_statuses_of_the_table_are_those_of_the_errors() -> None:
    statuses = {kind.code: {kind.http_status} for kind in kinds()}
    statuses[QuorumNotReached.code].add(QuorumNotReached.deadline_status)
    for expected in EXPECTED.values():
        if expected.code:
            assert expected.status in statuses[expected.code]


@pytest.mark.parametrize("position", REFUSED_BEFORE_AGGREGATION)
async def test_responses_made_by_the_endpoint_match_the_table(position: int) -> None:
    exchange, expected = EXCHANGES[position], EXPECTED[position]
    setup = ApiSetup()
    async with client_of(setup) as client:
        response = await client.request(exchange.method, exchange.path, data=exchange.raw_request)
        reply = await response.json()
    assert (response.status, reply["code"]) == (expected.status, expected.code)
    assert response.headers["content-type"] == "application/json"
    text = reply["message"] if exchange.path.startswith("/v1") else reply["error"]
    if expected.text is None:
        assert text.startswith(json.loads(exchange.body)["error"] + ": ")
    else:
        assert expected.text in text
    assert setup.aggregator.requests == []


@pytest.mark.parametrize("position", SIGNED)
async def test_a_signed_message_is_answered_byte_for_byte_as_the_reference_does(
    position: int,
) -> None:
    exchange = EXCHANGES[position]
    signed = bytes.fromhex(json.loads(exchange.body)["signed-message"])

    async def result_as_recorded(request: AggregationRequest) -> Aggregation:
        assert request.message is not None
        assert signed.startswith(request.message.raw)
        return aggregation(signed)

    async with client_of(ApiSetup(aggregator=ScriptedAggregator(result_as_recorded))) as client:
        response = await client.request(exchange.method, exchange.path, data=exchange.raw_request)
        assert await response.text() == exchange.body
    assert (response.status, response.headers["content-type"]) == (
        exchange.status,
        exchange.content_type,
    )


async def test_health_has_the_keys_of_the_reference() -> None:
    recorded = json.loads(EXCHANGES[63].body)
    async with client_of(ApiSetup()) as client:
        response = await client.get("/health")
        reply = await response.json()
    assert response.status == EXCHANGES[63].status
    assert reply["status"] == recorded["status"]
    name = "signature-aggregator-health"
    assert reply["details"][name].keys() == recorded["details"][name].keys()


async def test_the_metrics_page_has_every_series_of_the_reference_with_its_type_and_help() -> None:
    setup = ApiSetup()
    app = metrics_app(MetricsPage(setup.metrics), setup.settings, setup.metrics)
    async with serving(app) as server, aiohttp.ClientSession(server.url) as client:
        response = await client.get("/metrics")
        page = (await response.text()).splitlines()
    recorded = EXCHANGES[64].body.splitlines()
    assert len(recorded) == 34
    assert [line for line in recorded if line not in page] == []
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
