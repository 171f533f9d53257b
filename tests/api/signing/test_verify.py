"""The endpoint of the preflight: its fields in every spelling, its limits and its errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from tests.api.fixtures import (
    CHAINS,
    MESSAGE,
    PREFLIGHT,
    PREFLIGHT_BODY,
    SUBNET,
    ApiSetup,
    ScriptedPreflight,
    client_of,
)
from tests.eventually import TIMEOUT_S, until
from warpseal.delivery.errors import DestinationUnavailable, WarpDisabled
from warpseal.delivery.preflight import DestinationCall, PreflightAnswer, PreflightRequest
from warpseal.errors import WarpsealError
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, ChainID, id_text
from warpseal.warp.message import SignedMessage

PATH: Final = "/v1/signatureAggregator/fuji/verify"
CHAIN: Final = ChainID(b"\x05" * 32)
MESSAGE_SIGNED: Final = SignedMessage(MESSAGE, b"\x05", b"\x01" * 96)
RAW: Final = MESSAGE_SIGNED.encode()
BODY: Final = {"signedMessage": RAW.hex(), "destinationBlockchainId": id_text(CHAIN)}


async def post(setup: ApiSetup, body: Any) -> tuple[int, dict[str, Any]]:
    async with client_of(setup) as client, client.post(PATH, json=body) as response:
        return response.status, await response.json()


async def parsed_request(**fields: Any) -> PreflightRequest:
    setup = ApiSetup()
    status, body = await post(setup, {**BODY, **fields})
    assert status == 200, body
    (request,) = setup.preflight.requests
    return request


async def test_a_well_formed_message_is_answered_with_200() -> None:
    setup = ApiSetup()
    assert await post(setup, BODY) == (200, PREFLIGHT)
    assert setup.preflight.requests == [PreflightRequest(MESSAGE_SIGNED, CHAIN)]


@pytest.mark.parametrize(
    "body",
    [
        {"signedMessage": "0x" + RAW.hex(), "destinationBlockchainId": "0x" + CHAIN.hex()},
        {"signed-message": RAW.hex(), "destination-blockchain-id": CHAIN.hex()},
        {"SIGNEDMESSAGE": RAW.hex().upper(), "DestinationBlockchainID": id_text(CHAIN)},
        {**BODY, "signed-message": "0x" + RAW.hex(), "call": None, "signingSubnetId": ""},
        # The storage keys of an access list.
        {
            **BODY,
            "signedMessage": (RAW + b"\xff").ljust(-(-(len(RAW) + 1) // 32) * 32, b"\x00").hex(),
        },
    ],
)
async def test_every_spelling_and_form_means_the_same(body: dict[str, Any]) -> None:
    setup = ApiSetup()
    assert (await post(setup, body))[0] == 200
    assert setup.preflight.requests == [PreflightRequest(MESSAGE_SIGNED, CHAIN)]


async def test_optional_fields_reach_the_service() -> None:
    request = await parsed_request(
        destinationBlockchainId=id_text(P_CHAIN),
        **{"signing-subnet-id": id_text(SUBNET), "quorum-percentage": "80"},
    )
    assert (request.destination_id, request.signing_subnet_id, request.quorum) == (
        P_CHAIN,
        SUBNET,
        80,
    )
    assert (await parsed_request(quorumPercentage=0)).quorum is None


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"to": "0x" + "02" * 20}, DestinationCall(None, b"\x02" * 20, b"", 5_000_000)),
        (
            {"from": "01" * 20, "to": "0x" + "02" * 20, "data": "0xABcd", "gas": 100},
            DestinationCall(b"\x01" * 20, b"\x02" * 20, b"\xab\xcd", 100),
        ),
        ({"to": "02" * 20, "gas": "0x64"}, DestinationCall(None, b"\x02" * 20, b"", 100)),
        (
            {"to": "02" * 20, "gas": "50000000"},
            DestinationCall(None, b"\x02" * 20, b"", 50_000_000),
        ),
    ],
)
async def test_a_call_of_the_caller_reaches_the_service(
    call: dict[str, Any], expected: DestinationCall
) -> None:
    assert (await parsed_request(call=call)).call == expected


async def test_a_padded_bit_set_is_well_formed() -> None:
    padded = SignedMessage(MESSAGE, b"\x00\x05", b"\x01" * 96)
    assert (await parsed_request(signedMessage=padded.encode().hex())).signed == padded


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"signedMessage": None}, "invalid_request", "signedMessage"),
        ({"signedMessage": "zz"}, "undecodable_message", "signedMessage"),
        ({"signedMessage": 5}, "undecodable_body", "signedMessage"),
        ({"signedMessage": MESSAGE.raw.hex()}, "not_a_warp_message", "signedMessage"),
        ({"signedMessage": RAW.hex()[:-2]}, "not_a_warp_message", "signedMessage"),
        ({"signedMessage": RAW.hex() + "00"}, "not_a_warp_message", "signedMessage"),
        ({"signedMessage": "00" * 80_000}, "field_too_large", "signedMessage"),
        ({"destinationBlockchainId": None}, "invalid_request", "destinationBlockchainId"),
        ({"destinationBlockchainId": "Q"}, "invalid_destination", "destinationBlockchainId"),
        (
            {"destination-blockchain-id": id_text(P_CHAIN)},
            "conflicting_spellings",
            "destinationBlockchainId",
        ),
        ({"signingSubnetId": "x"}, "invalid_signing_subnet", "signingSubnetId"),
        ({"quorumPercentage": 101}, "invalid_quorum", "quorumPercentage"),
        ({"quorumPercentage": 6.5}, "undecodable_body", "quorumPercentage"),
        ({"pChainHeight": 5}, "unknown_field", "pChainHeight"),
        ({"call": []}, "invalid_request", "call"),
        ({"call": "0x"}, "invalid_request", "call"),
        ({"call": {}}, "invalid_request", "call.to"),
        ({"call": {"to": "0x01"}}, "invalid_request", "call.to"),
        ({"call": {"to": 1}}, "undecodable_body", "call.to"),
        ({"call": {"to": "02" * 20, "from": "0x"}}, "invalid_request", "call.from"),
        ({"call": {"to": "02" * 20, "data": "0x1"}}, "invalid_request", "call.data"),
        ({"call": {"to": "02" * 20, "data": "00" * 70_000}}, "field_too_large", "call.data"),
        ({"call": {"to": "02" * 20, "gas": 0}}, "invalid_request", "call.gas"),
        ({"call": {"to": "02" * 20, "gas": 50_000_001}}, "invalid_request", "call.gas"),
        ({"call": {"to": "02" * 20, "gas": "0xg"}}, "undecodable_body", "call.gas"),
        ({"call": {"to": "02" * 20, "value": 1}}, "unknown_field", "call.value"),
        ({"call": {"to": "02" * 20, "TO": "03" * 20}}, "conflicting_spellings", "call.to"),
    ],
)
async def test_each_error_of_a_request_has_its_code_and_names_the_field(
    changes: dict[str, Any], code: str, field: str
) -> None:
    setup = ApiSetup()
    status, body = await post(setup, {**BODY, **changes})
    assert (status, body["code"], body["detail"]["field"]) == (400, code, field)
    assert setup.preflight.requests == []


async def test_primary_chains_are_destinations_by_their_letters() -> None:
    for letter, chain_id in (("P", P_CHAIN), ("X", CHAINS.x), ("C", CHAINS.c)):
        assert (await parsed_request(destinationBlockchainId=letter)).destination_id == chain_id


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{" * 300, b'{"call":' + b'{"to":' * 300])
async def test_bodies_that_are_no_objects_are_refused(body: bytes) -> None:
    async with client_of(ApiSetup()) as client, client.post(PATH, data=body) as response:
        assert (response.status, (await response.json())["code"]) == (400, "undecodable_body")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NodeUnavailable("x"), 502),
        (DestinationUnavailable("c", "why"), 502),
        (WarpDisabled("c", "off"), 400),
    ],
)
async def test_errors_of_the_service_have_their_status(error: WarpsealError, status: int) -> None:
    async def fail(_: PreflightRequest) -> PreflightAnswer:
        raise error

    status_code, body = await post(ApiSetup(preflight=ScriptedPreflight(fail)), BODY)
    assert (status_code, body["code"]) == (status, error.code)


async def test_another_network_is_not_served() -> None:
    async with (
        client_of(ApiSetup(network_id=5)) as client,
        client.post(PATH.replace("fuji", "mainnet"), json=BODY) as response,
    ):
        assert (response.status, (await response.json())["code"]) == (404, "network_not_served")


async def test_requests_in_flight_are_limited_together_with_the_others() -> None:
    release = asyncio.Event()

    async def wait(_: PreflightRequest) -> PreflightAnswer:
        await release.wait()
        return PREFLIGHT_BODY

    setup = ApiSetup(preflight=ScriptedPreflight(wait)).with_settings(max_requests_in_flight=2)
    async with client_of(setup) as client:
        first = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: len(setup.preflight.requests) == 1)
        async with client.post(PATH, json=BODY) as response:
            assert (response.status, (await response.json())["code"]) == (429, "too_many_requests")
        release.set()
        assert (await first).status == 200


async def test_a_client_that_leaves_ends_its_preflight() -> None:
    cancelled = asyncio.Event()

    async def hang(_: PreflightRequest) -> PreflightAnswer:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return PREFLIGHT_BODY

    setup = ApiSetup(preflight=ScriptedPreflight(hang))
    async with client_of(setup) as client:
        request = asyncio.create_task(client.post(PATH, data=json.dumps(BODY)))
        await until(lambda: bool(setup.preflight.requests))
        request.cancel()
        await asyncio.wait_for(cancelled.wait(), TIMEOUT_S)
