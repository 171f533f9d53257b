"""Every exchange recorded with the reference aggregator, against the whole daemon: the table says
what is expected.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.api.signing.reference_table import EXPECTED, SIGNED, Exchange, Expected, load_exchanges
from tests.integration.daemon import Daemon
from tests.integration.message_verifier import parse_signed_message
from tests.recorded import recording
from tests.recorded.starting import started
from warpseal_simnet.network import SimulatedNetwork

pytestmark = pytest.mark.asyncio(loop_scope="module")

Daemons = Callable[[Exchange], Daemon]

EXCHANGES = load_exchanges()
SPEAKING = [exchange for exchange in EXCHANGES if exchange.path != "/metrics"]
METRICS = [item for item in EXCHANGES if item.path == "/metrics"]
UNKNOWN_KEY = EXCHANGES[54]
# No validator answers this request, so it takes the whole timeout.
SILENT = EXCHANGES[38]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemons(
    daemon: Daemon, network: SimulatedNetwork, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Daemons]:
    """Return which daemon an exchange is replayed with: one with a short timeout if no validator
    answers it.
    """
    async with started(
        network, tmp_path_factory.mktemp("hasty"), request_timeout_seconds=0.5
    ) as hasty:
        await hasty.until_ready()
        yield lambda exchange: hasty if exchange is SILENT else daemon


async def _replay(daemon: Daemon, exchange: Exchange) -> tuple[int, str, dict[str, Any]]:
    """Send the recorded bytes; return status, content type and the JSON body."""
    url = daemon.api_url + exchange.path
    async with daemon.session.request(exchange.method, url, data=exchange.raw_request) as response:
        return response.status, response.headers["content-type"], await response.json()


def _text(exchange: Exchange, body: dict[str, Any]) -> str:
    return str(body["message" if exchange.path.startswith("/v1") else "error"])


def _assert_refused(exchange: Exchange, expected: Expected, body: dict[str, Any]) -> None:
    assert body["code"] == expected.code
    if expected.text is None:
        assert _text(exchange, body).startswith(json.loads(exchange.body)["error"] + ": ")
    else:
        assert expected.text in _text(exchange, body)


def _assert_signed(exchange: Exchange, body: dict[str, Any]) -> None:
    """Only the choice of signers is free: the message and its signed form are the reference's."""
    ours, theirs = (
        bytes.fromhex(body_json["signed-message"])
        for body_json in (body, json.loads(exchange.body))
    )
    assert body.keys() == {"signed-message"}
    assert parse_signed_message(ours)[0] == parse_signed_message(theirs)[0]
    assert (
        recording.sum_of_shares(parse_signed_message(ours)[0], recording.signers_of(ours))
        == parse_signed_message(ours)[2]
    )


@pytest.mark.parametrize("exchange", SPEAKING, ids=lambda entry: str(entry.position))
async def test_the_daemon_replies_as_the_table_says(daemons: Daemons, exchange: Exchange) -> None:
    expected = EXPECTED[exchange.position]
    status, content_type, body = await _replay(daemons(exchange), exchange)
    assert (status, content_type) == (expected.status, "application/json")
    if expected.code is not None:
        _assert_refused(exchange, expected, body)
    elif exchange.position in SIGNED:
        _assert_signed(exchange, body)
    else:
        assert exchange.path == "/health"
        recorded = json.loads(exchange.body)
        name = "signature-aggregator-health"
        assert body["status"] == recorded["status"] == "up"
        assert body["details"][name].keys() == recorded["details"][name].keys()


async def test_no_recorded_exchange_is_left_out() -> None:
    assert sorted(EXPECTED) == [entry.position for entry in (*SPEAKING, *METRICS)]


async def test_requests_that_the_reference_answers_500_are_never_a_500(daemons: Daemons) -> None:
    statuses = {
        entry.position: (await _replay(daemons(entry), entry))[0]
        for entry in EXCHANGES
        if entry.status == 500
    }
    assert len(statuses) == 10
    assert set(statuses.values()) == {400, 404, 503}


@pytest.mark.parametrize("exchange", METRICS, ids=lambda entry: str(entry.position))
async def test_the_metrics_port_has_every_recorded_series_with_its_help_and_type(
    daemon: Daemon, exchange: Exchange
) -> None:
    async with daemon.session.get(daemon.metrics_url + exchange.path) as response:
        page = (await response.text()).splitlines()
        assert response.status == EXPECTED[exchange.position].status
    assert [line for line in exchange.body.splitlines() if line not in page] == []
    async with daemon.session.get(daemon.api_url + exchange.path) as elsewhere:
        assert elsewhere.status == 404


async def test_the_series_of_the_reference_count_what_was_replayed(daemon: Daemon) -> None:
    name = "signature_aggregator_agg_sigs_req_count"
    before = (await daemon.metrics())[name]
    for position in (SIGNED[0], 1, 41):
        await _replay(daemon, EXCHANGES[position])
    assert (await daemon.metrics())[name] == before + 3


async def test_a_setting_makes_unknown_keys_ignored_as_the_reference_does(
    network: SimulatedNetwork, tmp_path: Path
) -> None:
    async with started(network, tmp_path, ignore_unknown_fields=True) as lenient:
        status, _, body = await _replay(lenient, UNKNOWN_KEY)
    assert status == UNKNOWN_KEY.status
    _assert_signed(UNKNOWN_KEY, body)
