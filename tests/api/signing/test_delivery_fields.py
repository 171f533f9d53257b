"""Requests with a destination: their spellings, and the report in the words of each dialect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.api.fixtures import (
    CHAINS,
    DESTINATION,
    KEBAB,
    MESSAGE,
    NETWORK_ID,
    SIGNED,
    V1,
    ApiSetup,
    client_of,
)
from tests.eventually import until
from warpseal.aggregation.service import AggregationRequest
from warpseal.delivery.errors import DestinationMismatch, DestinationUnavailable, WarpDisabled
from warpseal.delivery.request import DeliveryRequest, L1DeliveryRequest, NextSignedMessage
from warpseal.errors import WarpsealError
from warpseal.l1.request import L1Request
from warpseal.warp.ids import P_CHAIN, id_text

BODY: dict[str, Any] = {"message": MESSAGE.raw.hex()}
TX_ID = bytes(range(100, 132))
PATH = f"{V1}/{id_text(TX_ID)}"
NAMED = {"destinationBlockchainId": id_text(DESTINATION)}
REQUEST = AggregationRequest(MESSAGE, b"", None, 67, 0, None, None)
HEADERS = {
    "X-Warpseal-P-Chain-Height": "18",
    "X-Warpseal-P-Chain-Height-Source": "epoch",
    "X-Warpseal-Epoch": "30",
    "X-Warpseal-Quorum": "80; source=genesis",
    "X-Warpseal-Weights": "18=870/1000, 19=500/1000",
    "X-Warpseal-Verifies-Now": "true",
}


@pytest.mark.parametrize(
    "name",
    [
        "destinationBlockchainId",
        "destinationBlockchainID",
        "destination-blockchain-id",
        "destinationChainId",
        "destination-chain-id",
    ],
)
@pytest.mark.parametrize(
    "text", [id_text(DESTINATION), DESTINATION.hex(), "0x" + DESTINATION.hex()]
)
async def test_a_destination_is_named_in_any_spelling_on_both_paths(name: str, text: str) -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        for path in (V1, KEBAB):
            async with client.post(path, json={**BODY, name: text}) as response:
                assert response.ok
                assert {header: response.headers[header] for header in HEADERS} == HEADERS
                assert list((await response.json()).values()) == [SIGNED.hex()]
    assert setup.deliveries.requests == [DeliveryRequest(REQUEST, DESTINATION)] * 2
    assert setup.aggregator.requests == []


async def test_primary_chains_are_destinations_by_their_letters_on_all_paths() -> None:
    setup = ApiSetup()
    letters = {"P": P_CHAIN, "X": CHAINS.x, "C": CHAINS.c}
    async with client_of(setup) as client:
        for letter in letters:
            for path, name in (
                (V1, "destinationBlockchainId"),
                (KEBAB, "destination-blockchain-id"),
            ):
                assert (await client.post(path, json={**BODY, name: letter})).ok
            assert (await client.get(PATH, params={"destinationBlockchainId": letter})).ok
    expected = [chain_id for chain_id in letters.values() for _ in range(2)]
    assert [request.destination_id for request in setup.deliveries.requests] == expected
    assert [request.destination_id for request in setup.deliveries.l1_requests] == list(
        letters.values()
    )
    # The ids of a network's chains never change.
    assert setup.nodes.chain_lookups == 1


async def test_the_c_chain_by_its_letter_waits_for_the_start_of_the_daemon() -> None:
    setup = ApiSetup(network_id=None)
    async with client_of(setup) as client:
        waiting = asyncio.create_task(
            client.post(V1, json={**BODY, "destinationBlockchainId": "C"})
        )
        await until(lambda: setup.gate.waits == 1)
        setup.open(NETWORK_ID)
        assert (await waiting).status == 201


async def test_the_report_and_the_next_message_are_in_the_words_of_the_dialect() -> None:
    setup = ApiSetup()
    setup.deliveries.next = NextSignedMessage(
        predicted=True, p_chain_height="19", signed_message=SIGNED.hex()
    )
    async with client_of(setup) as client:
        async with client.post(
            V1, json={**BODY, **NAMED, "report": True, "quorumPercentage": 70}
        ) as response:
            v1 = await response.json()
        async with client.post(KEBAB, json={**BODY, **NAMED, "report": "true"}) as response:
            kebab = await response.json()
    assert [
        (requested.names_quorum, requested.wants_report) for requested in setup.deliveries.requests
    ] == [
        (True, True),
        (False, True),
    ]
    assert v1["report"] == {
        "destinationBlockchainId": id_text(DESTINATION),
        "signingSubnetId": v1["report"]["signingSubnetId"],
        "signedBy": "source",
        "pChainHeight": "18",
        "pChainHeightSource": "epoch",
        "epoch": {
            "number": 30,
            "startTime": 1_795_226_806,
            "pChainHeight": "18",
            "sealedFrom": 1_795_227_106,
        },
        "quorum": {"percentage": 80, "source": "genesis"},
        "heights": [
            {
                "epoch": label,
                "pChainHeight": height,
                "signedWeight": weight,
                "requiredWeight": "800",
                "totalWeight": "1000",
                "verifies": verifies,
            }
            for label, height, weight, verifies in (
                ("current", "18", "870", True),
                ("next", "19", "500", False),
                ("proposed", "19", "500", False),
            )
        ],
        "verifiesNow": True,
        "servesNext": False,
        "advice": {
            "pinnedHeight": "18",
            "neededHeight": "19",
            "blocksBefore": 1,
            "notBefore": 1_795_227_106,
            "text": "build one block there",
        },
    }
    assert v1["next"] == {"pChainHeight": "19", "predicted": True, "signedMessage": SIGNED.hex()}
    assert kebab["next"] == {
        "p-chain-height": "19",
        "predicted": True,
        "signed-message": SIGNED.hex(),
    }
    assert kebab["report"]["verifies-now"] is True
    assert kebab["report"]["heights"][0]["signed-weight"] == "870"


async def test_a_failed_next_message_has_a_code() -> None:
    setup = ApiSetup()
    setup.deliveries.next = NextSignedMessage(
        predicted=True, p_chain_height="19", error="quorum_not_reached"
    )
    async with (
        client_of(setup) as client,
        client.post(V1, json={**BODY, **NAMED, "report": True}) as response,
    ):
        following = (await response.json())["next"]
    assert following == {"pChainHeight": "19", "predicted": True, "error": "quorum_not_reached"}


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"report": True}, "invalid_request", "report"),
        ({"destinationBlockchainId": "x"}, "invalid_destination", "destinationBlockchainId"),
        ({"destinationBlockchainId": 5}, "undecodable_body", "destinationBlockchainId"),
        ({**NAMED, "report": 1}, "undecodable_body", "report"),
        (
            {**NAMED, "destination-blockchain-id": "00" * 32},
            "conflicting_spellings",
            "destinationBlockchainId",
        ),
    ],
)
async def test_wrong_fields_are_named(fields: dict[str, Any], code: str, field: str) -> None:
    async with (
        client_of(ApiSetup()) as client,
        client.post(V1, json={**BODY, **fields}) as response,
    ):
        body = await response.json()
    assert (response.status, body["code"], body["detail"]["field"]) == (400, code, field)


async def test_no_report_and_no_destination_is_a_plain_request() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        fields = {"destinationBlockchainId": "", "report": False}
        async with client.post(V1, json={**BODY, **fields}) as response:
            assert response.status == 201
        async with client.get(PATH, params={"report": "false"}) as response:
            assert response.status == 201
    assert setup.aggregator.requests == [REQUEST]
    assert setup.l1_messages.requests == [L1Request(TX_ID, 67, 0, is_default_quorum=True)]


async def test_by_transaction_a_destination_or_a_report_is_a_delivery() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        for query in (
            NAMED,
            {"report": "true"},
            {**NAMED, "report": "1", "quorumPercentage": "70"},
        ):
            async with client.get(PATH, params=query) as response:
                assert response.status == 201
                assert {header: response.headers[header] for header in HEADERS} == HEADERS
                assert ("report" in await response.json()) == ("report" in query)
        async with client.get(PATH, params={"report": "maybe"}) as response:
            assert (response.status, (await response.json())["code"]) == (400, "invalid_request")
    request = L1Request(TX_ID, 67, 0, is_default_quorum=True)
    assert setup.deliveries.l1_requests == [
        L1DeliveryRequest(request, DESTINATION),
        L1DeliveryRequest(request, None, True),
        L1DeliveryRequest(L1Request(TX_ID, 70, 0), DESTINATION, True),
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DestinationUnavailable("c", "no configured node reports its epoch"), 502),
        (DestinationMismatch("destinationBlockchainId", "verified elsewhere"), 400),
        (WarpDisabled("destinationBlockchainId", "disabled"), 400),
    ],
)
async def test_errors_of_a_destination_have_their_codes(error: WarpsealError, status: int) -> None:
    setup = ApiSetup()
    setup.deliveries.error = error
    async with client_of(setup) as client, client.post(V1, json={**BODY, **NAMED}) as response:
        assert (response.status, (await response.json())["code"]) == (status, error.code)
