"""The aggregation endpoints over real HTTP: responses to clients and calls to the service."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import aiohttp
import pytest
from msgspec import structs
from msgspec.json import encode
from msgspec.structs import replace

from tests.api.fixtures import (
    KEBAB,
    MESSAGE,
    NETWORK_ID,
    SETTINGS,
    SIGNED,
    SUBNET,
    V1,
    ApiSetup,
    EndlessAggregation,
    ScriptedAggregator,
    aggregation,
    client_of,
    serving,
    shortfall,
)
from tests.eventually import finish
from warpseal.aggregation.errors import (
    NoValidators,
    QuorumImpossible,
    QuorumNotReached,
    WrongNetwork,
)
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.http.error_bodies import ErrorDetail
from warpseal.api.http.error_response import kebab_name
from warpseal.api.http.errors import TooManyRequests
from warpseal.api.http.in_flight import InFlight
from warpseal.errors import InternalError, WarpsealError
from warpseal.runtime.request_id import request_id
from warpseal.upstream.errors import NodeAttempt, NodeUnavailable, PublicFailure
from warpseal.validators.errors import HeightTooNew, UnknownChain, UnknownSubnet
from warpseal.warp.ids import id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode, Verdict

BODY = {"message": MESSAGE.raw.hex()}


def failing(error: Exception) -> ScriptedAggregator:
    async def fail(request: AggregationRequest) -> Aggregation:
        raise error

    return ScriptedAggregator(fail)


async def test_v1_answers_201_with_bare_hex() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        response = await client.post(V1, json=BODY, headers={"x-glacier-api-key": "k"})
        assert response.status == 201
        assert response.headers["content-type"] == "application/json"
        assert await response.json() == {"signedMessage": SIGNED.hex()}
    assert setup.aggregator.requests == [AggregationRequest(MESSAGE, b"", None, 67, 0, None, None)]


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_the_kebab_path_answers_200_to_post_and_put_as_the_reference_does(
    method: str,
) -> None:
    async with client_of(ApiSetup()) as client:
        response = await client.request(method, KEBAB, json=BODY)
        assert response.status == 200
        assert response.headers["content-type"] == "application/json"
        assert await response.text() == f'{{"signed-message":"{SIGNED.hex()}"}}'


async def test_both_paths_take_both_spellings() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        for path, height_key in ((V1, "pchain-height"), (KEBAB, "pChainHeight")):
            async with client.post(path, json={**BODY, height_key: 7}) as response:
                assert response.ok
    assert [request.height for request in setup.aggregator.requests] == [7, 7]


async def test_the_response_names_the_height_and_subnet_that_were_used() -> None:
    async with client_of(ApiSetup()) as client:
        response = await client.post(KEBAB, json=BODY)
        assert response.headers["X-Warpseal-P-Chain-Height"] == "19"
        assert response.headers["X-Warpseal-Signing-Subnet-Id"] == id_text(SUBNET)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
async def test_a_probe_of_the_kebab_path_gets_the_400_of_the_reference(method: str) -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        response = await client.request(method, KEBAB)
        assert response.status == 400
        assert response.headers["content-type"] == "application/json"
        if method != "HEAD":
            assert (await response.json())["error"].startswith("Could not decode request body: ")
    assert setup.aggregator.requests == []


@pytest.mark.parametrize(
    ("network_id", "served"),
    [(1, ["mainnet"]), (5, ["fuji", "testnet"]), (88888, ["mainnet", "fuji", "testnet"])],
)
async def test_the_network_id_decides_which_network_names_are_served(
    network_id: int, served: list[str]
) -> None:
    setup = ApiSetup(network_id=network_id)
    async with client_of(setup) as client:
        for name in ("mainnet", "fuji", "testnet", "FUJI", "nope"):
            async with client.post(V1.replace("fuji", name), json=BODY) as response:
                assert response.status == (201 if name.lower() in served else 404)
                if response.status == 404:
                    reply = await response.json()
                    assert reply["code"] == "network_not_served"
                    assert reply["detail"]["served"] == served
                    assert all(ours in reply["message"] for ours in served)


async def test_the_network_names_can_be_configured() -> None:
    setup = ApiSetup(network_id=1).with_settings(network_names=("DevNet",))
    async with client_of(setup) as client:
        async with client.post(V1.replace("fuji", "devnet"), json=BODY) as response:
            assert response.status == 201
        async with client.post(V1.replace("fuji", "mainnet"), json=BODY) as response:
            assert response.status == 404


OUTCOMES: list[tuple[WarpsealError, int, int, str]] = [
    (WrongNetwork(1, NETWORK_ID), 400, 400, "wrong_network"),
    (NoValidators("s", 1), 400, 400, "no_validators"),
    (HeightTooNew(9, 3), 400, 400, "height_too_new"),
    (UnknownSubnet("s"), 400, 400, "unknown_subnet"),
    (UnknownChain("c"), 404, 404, "unknown_chain"),
    (QuorumImpossible(shortfall(Verdict.NEVER)), 400, 400, "quorum_impossible"),
    (QuorumNotReached(shortfall(Verdict.WAIT), at_deadline=False), 503, 503, "quorum_not_reached"),
    (QuorumNotReached(shortfall(Verdict.WAIT), at_deadline=True), 503, 504, "quorum_not_reached"),
    (
        NodeUnavailable("the height", [NodeAttempt(0, PublicFailure.TIMEOUT)]),
        502,
        502,
        "node_unavailable",
    ),
    (InternalError("x"), 500, 500, "internal_error"),
]


@pytest.mark.parametrize(
    ("error", "v1", "kebab", "code"), OUTCOMES, ids=lambda value: str(value)[:20]
)
async def test_errors_of_the_service_have_their_status_in_each_dialect(
    error: WarpsealError, v1: int, kebab: int, code: str
) -> None:
    setup = ApiSetup(aggregator=failing(error))
    async with client_of(setup) as client:
        async with client.post(V1, json=BODY) as response:
            reply = await response.json()
            assert (response.status, reply["statusCode"], reply["error"]) == (
                v1,
                v1,
                response.reason,
            )
            assert (reply["message"], reply["code"]) == (str(error), code)
            detail = reply["detail"]
            assert detail == json.loads(encode(ErrorDetail(**error.detail)))
        async with client.post(KEBAB, json=BODY) as response:
            reply = await response.json()
            assert (response.status, reply["code"]) == (kebab, code)
            assert set(reply["detail"]) == set(map(kebab_name, detail))
            assert set(reply) == {"error", "code", "detail"}
            assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("named_s", "header"), [(None, "2"), (0.2, "1"), (7.3, "8"), (1000.0, "60")]
)
async def test_a_retryable_error_has_a_retry_after_header(
    named_s: float | None, header: str
) -> None:
    setup = ApiSetup(
        aggregator=failing(QuorumNotReached(shortfall(Verdict.WAIT, named_s), at_deadline=True))
    )
    async with client_of(setup) as client:
        for path in (V1, KEBAB):
            async with client.post(path, json=BODY) as response:
                assert response.headers["Retry-After"] == header


async def test_addresses_of_validators_are_hidden_from_other_machines() -> None:
    lost = DisconnectedNode(
        node_id="NodeID-1", address="10.0.0.1:9651", disconnected_since="1970-01-01T00:00:00Z"
    )
    missing = structs.replace(shortfall(Verdict.WAIT).missing[0], connections=(lost,))
    incomplete = replace(shortfall(Verdict.WAIT), missing=(missing,))
    setup = ApiSetup(aggregator=failing(QuorumNotReached(incomplete, at_deadline=False)))
    async with client_of(setup) as client:
        for path in (V1, KEBAB):
            assert "10.0.0.1" in await (await client.post(path, json=BODY)).text()
            for name in ("X-Forwarded-For", "Forwarded", "X_Forwarded_Host"):
                assert (
                    "10.0.0.1"
                    not in await (await client.post(path, json=BODY, headers={name: "a"})).text()
                )


async def test_an_internal_error_is_json_without_its_text_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = ApiSetup(aggregator=failing(RuntimeError("secret")))
    async with client_of(setup) as client:
        for path in (V1, KEBAB):
            async with client.post(path, json=BODY, headers={"X-Request-Id": "abc"}) as response:
                text = await response.text()
                assert response.status == 500
                assert "secret" not in text
                assert "abc" in text
                assert (await response.json())["code"] == "internal_error"
    assert any(record.exc_info and "internal error" in record.message for record in caplog.records)


async def test_every_wrong_path_and_method_is_answered_in_json() -> None:
    expected = [
        ("GET", V1, 400, "method_not_allowed"),
        ("PUT", V1, 400, "method_not_allowed"),
        ("POST", "/v1/nope", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("POST", "/", 405, "method_not_allowed"),
        ("GET", "/status", 404, "not_found"),
        ("GET", "/metrics", 404, "not_found"),
        ("POST", KEBAB + "/", 404, "not_found"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("POST", "/ready", 405, "method_not_allowed"),
        ("BREW", "/health", 400, "malformed_http"),
    ]
    async with client_of(ApiSetup()) as client:
        for method, path, status, code in expected:
            async with client.request(method, path) as response:
                reply = await response.json()
                assert (method, path, response.status, reply["code"]) == (
                    method,
                    path,
                    status,
                    code,
                )
                assert ("statusCode" in reply) == path.startswith("/v1")
                assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "near"),
    [
        ("POST", "/aggregate-signature", "; did you mean /aggregate-signatures?"),
        (
            "POST",
            "/v1/signatureAggregator/aggregateSignatures",
            f"; did you mean {V1.replace('fuji', '{network}')}?",
        ),
        ("GET", "/healthz", "; did you mean /health?"),
        ("GET", "/wp-login.php", ""),
        ("GET", "/%3Cscript%3E", ""),
        ("GET", "/health" + "/x" * 4_000, "; did you mean /health?"),
    ],
)
async def test_a_wrong_path_names_the_nearest_one_and_the_list_of_all(
    method: str, path: str, near: str
) -> None:
    async with client_of(ApiSetup()) as client, client.request(method, path) as response:
        reply = await response.json()
    assert (response.status, reply.get("message") or reply["error"]) == (
        404,
        f"no such path{near}; /docs lists all paths",
    )


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (b"", {}, "empty; send a JSON object"),
        (b" \r\n", {}, "empty; send a JSON object"),
        (
            b'{"message": "00",\nquorum}',
            {},
            "not JSON: Expecting property name enclosed in double quotes at line 2, column 1",
        ),
        (
            b'{"quorumPercentage": NaN}',
            {},
            "not JSON: it has a number that is none, or that is too large",
        ),
        (b"[]", {}, "a JSON array, not a JSON object"),
        (b'"{}"', {}, "a JSON string, not a JSON object"),
        (b"6.5", {}, "a JSON number, not a JSON object"),
        (b"\xff{}", {}, "not UTF-8"),
        (gzip.compress(b"{}", mtime=0), {}, "compressed with gzip; send it uncompressed"),
        *(
            (
                data,
                {"Content-Encoding": name},
                f"compressed (Content-Encoding: {name}); send it uncompressed",
            )
            for data, name in (
                (gzip.compress(b"{}", mtime=0), "gzip"),
                (zlib.compress(b"{}"), "deflate"),
                (b"\x8b\x01", "br"),
            )
        ),
    ],
)
async def test_bodies_that_are_no_json_object_have_texts_of_their_own(
    body: bytes, headers: dict[str, str], reason: str
) -> None:
    verify = V1.replace("aggregateSignatures", "verify")
    async with client_of(ApiSetup()) as client:
        for path, key in ((V1, "message"), (KEBAB, "error"), (verify, "message")):
            async with client.post(path, data=body, headers=headers) as response:
                reply = await response.json()
            assert (response.status, reply["code"], reply["detail"]["field"]) == (
                400,
                "undecodable_body",
                "body",
            )
            assert reply[key].partition(": ")[2] == reason, path


async def test_an_encoding_that_a_plain_body_does_not_have_is_ignored() -> None:
    async with client_of(ApiSetup()) as client:
        body = {"message": MESSAGE.raw.hex()}
        async with client.post(V1, json=body, headers={"Content-Encoding": "identity"}) as response:
            assert response.status == 201
        async with client.post(
            V1, json={**body, "x": 1}, headers={"Content-Encoding": "gzip"}
        ) as response:
            assert (await response.json())["code"] == "unknown_field"


@pytest.mark.parametrize(
    ("digits", "reason"),
    [("0x123", "an odd number of hex digits, 3: one is missing"), ("12g", "not hex")],
)
async def test_an_odd_number_of_hex_digits_is_named(digits: str, reason: str) -> None:
    async with (
        client_of(ApiSetup()) as client,
        client.post(V1, json={"message": digits}) as response,
    ):
        reply = await response.json()
    assert (reply["code"], reply["message"]) == ("undecodable_message", f"message: {reason}")


async def test_a_request_id_is_echoed_and_reaches_the_service() -> None:
    seen: list[str] = []

    async def note(request: AggregationRequest) -> Aggregation:
        seen.append(request_id.get())
        return aggregation()

    setup = ApiSetup(aggregator=ScriptedAggregator(note))
    async with client_of(setup) as client:
        async with client.post(
            KEBAB, json=BODY, headers={"X-Request-Id": "my request/1"}
        ) as response:
            assert response.headers["X-Request-Id"] == "my request/1"
        async with client.get("/nope", headers={"X-Request-Id": "i" * 128}) as response:
            assert response.headers["X-Request-Id"] == "i" * 128
        for unusable in ("i" * 129, "caf\u00e9", ""):
            async with client.post(
                KEBAB, json=BODY, headers={"X-Request-Id": unusable}
            ) as response:
                assert response.headers["X-Request-Id"] not in ("", unusable)
                assert response.headers["X-Request-Id"] == seen[-1]
    assert seen[0] == "my request/1"
    assert len(set(seen)) == 4


async def test_each_request_is_logged_on_a_single_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warpseal.api")
    async with client_of(ApiSetup()) as client:
        await (await client.post(KEBAB, json=BODY)).read()
        await (await client.post(V1, json={})).read()
        await (await client.get("/health")).read()
    lines = [record for record in caplog.records if record.message == "request"]
    assert [(line.method, line.path, line.status) for line in lines] == [  # type: ignore[attr-defined]
        ("POST", KEBAB, 200),
        ("POST", V1, 400),
    ]
    assert lines[0].message_id == id_text(MESSAGE.id)  # type: ignore[attr-defined]
    assert lines[1].code == "nothing_to_sign"  # type: ignore[attr-defined]


async def test_a_disconnected_client_cancels_only_its_own_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "warpseal.api")
    endless = EndlessAggregation()
    setup = ApiSetup(aggregator=ScriptedAggregator(endless.aggregate))
    async with client_of(setup) as client:
        leaving = asyncio.create_task(client.post(KEBAB, json=BODY))
        await endless.started.wait()
        leaving.cancel()
        await finish(endless.cancelled.wait())
    assert [record.status for record in caplog.records if record.message == "request"] == [499]  # type: ignore[attr-defined]


class Gate:
    """Aggregations that wait until the gate opens."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self._arrivals: asyncio.Queue[AggregationRequest] = asyncio.Queue()

    async def pass_through(self, request: AggregationRequest) -> Aggregation:
        self._arrivals.put_nowait(request)
        await self.open.wait()
        return aggregation()

    async def until_waiting(self, count: int) -> None:
        for _ in range(count):
            await finish(self._arrivals.get())


async def _post(client: aiohttp.ClientSession, path: str) -> tuple[int, dict[str, Any]]:
    async with client.post(path, json=BODY) as response:
        return response.status, await response.json()


async def test_a_client_has_at_most_half_of_the_concurrent_requests() -> None:
    gate = Gate()
    setup = ApiSetup(aggregator=ScriptedAggregator(gate.pass_through)).with_settings(
        max_requests_in_flight=8
    )
    async with client_of(setup) as client:
        holding = [asyncio.create_task(_post(client, KEBAB)) for _ in range(4)]
        await gate.until_waiting(4)
        async with client.post(V1, json=BODY) as response:
            reply = await response.json()
            assert (response.status, reply["code"], reply["error"]) == (
                429,
                "too_many_requests",
                "Too Many Requests",
            )
            assert reply["detail"] == {"limit": 4, "scope": "client"}
            assert int(response.headers["Retry-After"]) >= 1
        assert (await _post(client, KEBAB))[0] == 429
        async with client.get("/health") as response:
            assert response.status == 200
        gate.open.set()
        assert {(await task)[0] for task in holding} == {200}
        assert (await _post(client, KEBAB))[0] == 200


@pytest.mark.parametrize(
    ("addresses", "is_one"),
    [
        (("2001:db8::1", "2001:db8::ffff:1"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("192.0.2.1", "::ffff:192.0.2.1"), True),
        (("192.0.2.1", "192.0.2.2"), False),
        (("", ""), True),
    ],
)
def test_clients_are_counted_by_the_networks_of_rate_limits(
    addresses: tuple[str, str], is_one: bool
) -> None:
    places = InFlight(8, 1)
    with places.slot(addresses[0]):
        context = pytest.raises(TooManyRequests) if is_one else nullcontext()
        with context, places.slot(addresses[1]):
            pass


def test_fair_places_keep_no_network_out() -> None:
    places, networks = InFlight(8, 6, is_fair=True), Counter[str]()
    with ExitStack() as stack:
        for address in (*["192.0.2.1"] * 6, *["192.0.2.2"] * 6, *["192.0.2.3"] * 6, "192.0.2.4"):
            with suppress(TooManyRequests):
                stack.enter_context(places.slot(address))
                networks[address[-1]] += 1
        assert networks == {"1": 6, "2": 4, "3": 2, "4": 1}
    with ExitStack() as stack:
        for number in range(100):
            stack.enter_context(places.slot(f"192.0.2.{number}"))


async def test_all_clients_together_have_a_limit() -> None:
    gate = Gate()
    setup = ApiSetup(aggregator=ScriptedAggregator(gate.pass_through)).with_settings(
        max_requests_in_flight=4
    )

    def local(host: str) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(local_addr=(host, 0))

    async with (
        serving(setup.app()) as server,
        aiohttp.ClientSession(server.url, connector=local("127.0.0.1")) as one,
        aiohttp.ClientSession(server.url, connector=local("127.0.0.2")) as two,
        aiohttp.ClientSession(server.url, connector=local("127.0.0.3")) as three,
    ):
        holding = [asyncio.create_task(_post(client, KEBAB)) for client in (one, one, two, two)]
        await gate.until_waiting(4)
        status, reply = await _post(three, KEBAB)
        assert (status, reply["detail"]) == (429, {"limit": 4, "scope": "daemon"})
        gate.open.set()
        assert {(await task)[0] for task in holding} == {200}


async def test_requests_and_responses_are_counted() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        await _post(client, KEBAB)
        await (await client.get("/nope")).read()
        await (await client.post(V1, json={})).read()
    page = (await setup.metrics.snapshot())().decode()
    assert 'warpseal_http_requests_total{route="/aggregate-signatures",status="200"} 1.0' in page
    assert 'warpseal_http_requests_total{route="unknown",status="404"} 1.0' in page
    assert "\nsignature_aggregator_agg_sigs_req_count 2\n" in page


def test_the_settings_of_the_tests_stay_on_loopback() -> None:
    assert SETTINGS.api_host == "127.0.0.1"
