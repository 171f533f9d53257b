"""`warpseal forecast`: what an operator reads, and the exit code; a loopback server answers in
place of a daemon.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest

from warpseal.api.data.forecast_resources import (
    Forecast,
    ForecastCourse,
    ForecastFee,
    ForecastLoss,
    ForecastQuorum,
    ForecastTopUp,
    ValidatorForecast,
)
from warpseal.api.status.document import StatusDocument, SubnetStatus, utc_text
from warpseal.cli.forecast import ALARM_DAYS, is_alarming
from warpseal.cli.main import main
from warpseal.resources.base import UNSET
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

CannedResponses = Mapping[str, tuple[int, Any]]

DAY_S = 86_400
AS_OF = 1_795_226_807
L1 = "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"
MARGINS = ForecastQuorum(
    percentage=67,
    total_weight="1000",
    required_weight="670",
    active_weight="800",
    margin=0.13,
    answering_weight="500",
    answering_margin=-0.17,
)
ROWS = (
    ValidatorForecast(
        validation_id="dry",
        node_id="NodeID-dry",
        weight="200",
        is_active=False,
        has_key=True,
        balance="0",
        seconds_left=0,
        seconds_left_at_capacity=0,
    ),
    ValidatorForecast(
        validation_id="rich",
        node_id="NodeID-rich",
        weight="300",
        is_active=True,
        has_key=True,
        balance=str(10**18),
    ),
    ValidatorForecast(
        validation_id="short",
        node_id="NodeID-\x1b[2Jshort",
        weight="500",
        is_active=True,
        has_key=True,
        has_answered=False,
        balance="100000000",
        seconds_left=195_312,
        runs_out_at=AS_OF + 195_312,
        seconds_left_at_capacity=18_974,
        runs_out_at_capacity=AS_OF + 18_974,
    ),
)


def loss_at(second: int) -> ForecastLoss:
    return ForecastLoss(
        at=AS_OF + second,
        validation_ids=("short",),
        weight_lost="500",
        active_weight="300",
        total_weight="1000",
    )


def course(
    impossible_in_s: int | None, *top_ups: ForecastTopUp, is_lost: bool = False
) -> ForecastCourse:
    return ForecastCourse(
        losses=() if impossible_in_s is None else (loss_at(impossible_in_s),),
        quorum_impossible_at=UNSET if impossible_in_s is None else AS_OF + impossible_in_s,
        top_ups=UNSET if is_lost else top_ups,
        top_up_total=UNSET if is_lost else str(sum(int(top_up.amount) for top_up in top_ups)),
    )


FEE = ForecastFee(price="512", excess="0", source="minimum", target=10_000, capacity=20_000)
SHORT = Forecast(
    subnet_id=L1,
    kind="l1",
    as_of=AS_OF,
    fee=FEE,
    quorum=MARGINS,
    validators=ROWS,
    today=course(195_312, ForecastTopUp(validation_id="short", amount="1227104512")),
    at_capacity=course(18_974),
)


class ResponseServer(ThreadingHTTPServer):
    """Responses by path. seen: paths and keys of the requests."""

    daemon_threads = True

    def __init__(self, responses: CannedResponses) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = responses
        self.seen: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ResponseServer

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["x-service-api-key"]))
        status, body = self.server.replies.get(
            self.path, (404, {"message": "no such path", "code": "not_found"})
        )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else msgspec.json.encode(body))

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serve_responses(responses: CannedResponses) -> Iterator[ResponseServer]:
    with ResponseServer(responses) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def status_of(
    *subnet_ids: str, network: str | None = None, moment: str = "2026-01-01T00:00:00Z"
) -> StatusDocument:
    """Return the status of a daemon that tracks these subnets; requests add another one."""
    subnets = [
        SubnetStatus(subnet_id, True, subnet_id != "named", True, "1", "1", "1", 0, [])
        for subnet_id in (id_text(PRIMARY_NETWORK), *subnet_ids, "named")
    ]
    return StatusDocument("1", moment, moment, True, network=network, subnets=subnets)


def path_of(subnet_id: str, network: str = "mainnet") -> str:
    return f"/v1/networks/{network}/subnets/{subnet_id}/forecast"


def run(
    capsys: pytest.CaptureFixture[str], responses: Mapping[str, tuple[int, Any]], *words: str
) -> tuple[int, str, str]:
    with serve_responses(responses) as server:
        code = main(["forecast", "--url", server.url, *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_an_operator_reads_margin_end_and_whom_to_fund(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, {"/status.json": (200, status_of(L1)), path_of(L1): (200, SHORT)})
    assert code == 1
    assert out.splitlines() == [
        f"subnet {L1} (L1) at 2026-11-21 02:06 UTC",
        "  quorum      67.0 % of the weight must sign (670 of 1,000)",
        "  active      80.0 % of the weight, 13.0 % above the quorum",
        "  answering   50.0 % of the weight, 17.0 % below the quorum (answered in the last day)",
        "  first loss  in 2 d 6 h (2026-11-23 08:21 UTC): NodeID-?[2Jshort, 50.0 % of the weight",
        "  halts       in 2 d 6 h (2026-11-23 08:21 UTC)",
        (
            "              in 5 h 16 min (2026-11-21 07:23 UTC), if there were 20,000 active"
            " validators of all L1s from now on"
        ),
        (
            "  fee         512 nAVAX a second (1.3272 AVAX in 30 days); active validators of all"
            " L1s: at most 10,000"
        ),
        "  fund        1.2272 AVAX to validation short of NodeID-?[2Jshort",
        (
            "  NODE              WEIGHT  STATE           LEFT           BALANCE                  AT"
            " CAPACITY"
        ),
        "  NodeID-dry        20.0 %  inactive        0 s            0.0000 AVAX              0 s",
        (
            "  NodeID-?[2Jshort  50.0 %  active, silent  2 d 6 h        0.1000 AVAX              5"
            " h 16 min"
        ),
        (
            "  NodeID-rich       30.0 %  active          over 10 years  1,000,000,000.0000 AVAX "
            " over 10 years"
        ),
    ]


def test_halted_l1s_and_l1s_that_no_balance_can_keep_are_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    halted = msgspec.structs.replace(
        SHORT,
        fee=msgspec.structs.replace(FEE, source="unknown"),
        quorum=msgspec.structs.replace(MARGINS, answering_weight=UNSET, answering_margin=UNSET),
        today=course(0, is_lost=True),
        validators=(),
    )
    _, out, _ = run(capsys, {"/status.json": (200, status_of(L1)), path_of(L1): (200, halted)})
    assert "halts       NOW: the quorum is impossible\n" in out
    assert "from now on" not in out, "the course at capacity adds nothing"
    assert "active validators of all L1s: unknown, so the price is taken as constant" in out
    assert "answering   not known" in out
    assert (
        "fund        no balance keeps the quorum for 30 days: add validators, or remove inactive"
        " ones" in out
    )
    assert "NODE" not in out


def test_nothing_that_a_forecast_announces_lies_in_the_past(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 58 seconds after the end at capacity; the P-Chain has had no block since.
    late = status_of(L1, moment=utc_text(AS_OF + 18_974 + 58))
    _, out, _ = run(capsys, {"/status.json": (200, late), path_of(L1): (200, SHORT)})
    assert "first loss  in 2 d 0 h (2026-11-23 08:21 UTC)" in out
    assert "  NOW: the quorum is impossible, if there were 20,000 active validators" in out
    left = {
        line.split()[0]: line.split()[-2:]
        for line in out.splitlines()
        if line.startswith("  NodeID")
    }
    assert left["NodeID-?[2Jshort"] == ["0", "s"]
    ended = status_of(L1, moment=utc_text(AS_OF + DAY_S * 3))
    _, out, _ = run(capsys, {"/status.json": (200, ended), path_of(L1): (200, SHORT)})
    assert "first loss  now: NodeID" in out
    assert "halts       NOW: the quorum is impossible\n" in out


def test_several_subnets_follow_each_other_and_many_validators_are_cut_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stakes = tuple(
        ValidatorForecast(
            tx_hash=f"tx{number}",
            node_id=f"NodeID-{number}",
            weight="1",
            is_active=True,
            has_key=False,
            ends_at=AS_OF,
        )
        for number in range(22)
    )
    tops = (
        ForecastTopUp(validation_id="short", amount="1"),
        ForecastTopUp(validation_id="dry", amount="1000000000"),
    )
    calm = msgspec.structs.replace(SHORT, today=course(ALARM_DAYS * DAY_S, *tops), fee=FEE)
    primary = msgspec.structs.replace(
        SHORT,
        kind="primary",
        fee=UNSET,
        at_capacity=UNSET,
        validators=stakes,
        today=course(None, is_lost=True),
    )
    responses = {
        "/status.json": (200, status_of("a", "b")),
        path_of("a"): (200, calm),
        path_of("b"): (200, primary),
    }
    code, out, _ = run(capsys, responses)
    first, second = out.split("\n\n")
    assert code == 0
    assert "fund        0.0001 AVAX to validation short of" in first
    assert "fund        1.0001 AVAX in all keep the quorum for 30 days" in first
    assert "(Primary Network)" in second
    assert "halts       not within ten years\n  NODE " in second
    assert "no BLS key  over 10 years\n" in second
    assert "… and 2 validators that last longer: --json" in second
    assert "AVAX" not in second


def test_json_is_a_list_of_what_the_daemon_answers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys,
        {"/status.json": (200, status_of()), path_of(L1): (200, SHORT)},
        "--subnet",
        L1,
        "--json",
    )
    assert (code, json.loads(out)) == (1, [json.loads(msgspec.json.encode(SHORT))])


def test_the_network_is_found_by_its_name_and_the_key_is_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusal = {
        "message": "network 'fuji' is not served",
        "code": "network_not_served",
        "detail": {"served": ["devnet"]},
    }
    responses = {
        "/status.json": (200, status_of(L1, network="fuji")),
        path_of(L1, "fuji"): (404, refusal),
        path_of(L1, "devnet"): (200, SHORT),
    }
    with serve_responses(responses) as server:
        assert main(["forecast", "--url", server.url, "--api-key", "secret"]) == 1
    assert server.seen[1:] == [(path_of(L1, "fuji"), "secret"), (path_of(L1, "devnet"), "secret")]
    assert f"subnet {L1}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (
            (401, {"message": "this service needs an API key", "code": "api_key_required"}),
            "API key: give --api-key",
        ),
        (
            (502, {"message": "no usable answer\x1b[2J", "code": "node_unavailable"}),
            "no usable answer?[2J",
        ),
        ((500, b"<html>"), "answered 500"),
        ((500, b'{"message":3,"code":"network_not_served","detail":null}'), "answered 500"),
        (
            (
                404,
                {"message": "m", "code": "network_not_served", "detail": {"served": ["mainnet"]}},
            ),
            "m",
        ),
        ((200, {"subnetId": 7}), "the answer is of another version than this command"),
    ],
)
def test_a_refusal_of_the_daemon_is_one_line(
    capsys: pytest.CaptureFixture[str], response: tuple[int, Any], text: str
) -> None:
    code, out, err = run(capsys, {"/status.json": (200, status_of(L1)), path_of(L1): response})
    assert (code, out, text in err, err.count("\n")) == (1, "", True, 1)


@pytest.mark.parametrize(
    ("impossible_in_s", "alarms"),
    [(None, False), (0, True), (7 * DAY_S - 1, True), (7 * DAY_S, False)],
)
def test_a_quorum_that_ends_within_seven_days_is_alarming(
    impossible_in_s: int | None, alarms: bool
) -> None:
    assert is_alarming(msgspec.structs.replace(SHORT, today=course(impossible_in_s))) is alarms
