"""The endpoint of L1 messages by transaction: its parameters, headers and error responses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.api.fixtures import BACKGROUND, SIGNED, SUBNET, V1, ApiSetup, client_of, shortfall
from warpseal.aggregation.errors import QuorumImpossible, QuorumNotReached
from warpseal.api.signing.errors import MalformedTransactionHash
from warpseal.api.status.probe_bodies import StoreState
from warpseal.delivery.request import L1DeliveryRequest
from warpseal.errors import WarpsealError
from warpseal.l1.errors import (
    FollowerProgress,
    InitialValidatorsProgress,
    ManagerLogsProgress,
    MessageSuperseded,
    OriginNotIndexed,
    OriginProgress,
    ProofMismatch,
    TransactionNotFound,
)
from warpseal.l1.request import L1Request, PresentStatement, SupersededStatement
from warpseal.messages.errors import NoMessage
from warpseal.resources.progress import IndexedChainState
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import id_text
from warpseal.warp.quorum_shortfall import Verdict

PROGRESS = OriginProgress(
    follower=FollowerProgress(off=True),
    initial_validators=InitialValidatorsProgress(subnets_tried=0, subnets=0),
    manager_chain_logs=ManagerLogsProgress(configured=False),
)
TX_ID = bytes(range(100, 132))
PATH = f"{V1}/{id_text(TX_ID)}"


@pytest.mark.parametrize("text", [id_text(TX_ID), "0x" + TX_ID.hex(), TX_ID.hex()])
async def test_a_hash_is_cb58_or_hex(text: str) -> None:
    setup = ApiSetup()
    async with client_of(setup) as client, client.get(f"{V1}/{text}") as response:
        assert response.status == 201
        assert await response.json() == {"signedMessage": SIGNED.hex()}
        assert response.headers["X-Warpseal-P-Chain-Height"] == "19"
        assert response.headers["X-Warpseal-P-Chain-Height-Source"] == "epoch"
        assert response.headers["X-Warpseal-Signing-Subnet-Id"] == id_text(SUBNET)
    assert setup.l1_messages.requests == [L1Request(TX_ID, 67, 0, is_default_quorum=True)]


async def test_a_header_marks_a_message_that_no_node_has_checked() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        async with client.get(PATH) as response:
            assert "X-Warpseal-Unchecked" not in response.headers
        setup.l1_messages.message = replace(setup.l1_messages.message, is_unchecked=True)
        async with client.get(PATH) as response:
            assert (response.status, response.headers["X-Warpseal-Unchecked"]) == (
                201,
                "node_unavailable",
            )


async def test_every_parameter_reaches_the_service() -> None:
    setup = ApiSetup()
    query = {
        "quorumPercentage": "80",
        "quorum-percentage-buffer": "5",
        "pChainHeight": "17",
        "registrationTxHash": "0x" + bytes(32).hex(),
        "justification": "0x0a24",
        "timeoutSeconds": "7.5",
    }
    async with client_of(setup) as client, client.get(PATH, params=query) as response:
        assert response.status == 201
    assert setup.l1_messages.requests == [L1Request(TX_ID, 80, 5, 17, bytes(32), b"\x0a\x24", 7.5)]


async def test_height_zero_means_the_proposed_height_and_no_height_the_epoch_height() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client:
        for nonce in ("0", str(2**64 - 1)):
            async with client.get(PATH, params={"pChainHeight": nonce}) as response:
                assert response.status == 201
        async with client.get(PATH) as response:
            assert response.status == 201
    assert [request.height for request in setup.l1_messages.requests] == [0, 0, None]


async def test_a_superseded_message_is_returned_with_the_current_state() -> None:
    setup = ApiSetup()
    superseded = SupersededStatement(now=PresentStatement(registered=False))
    setup.l1_messages.message = replace(setup.l1_messages.message, superseded=superseded)
    async with client_of(setup) as client, client.get(PATH) as response:
        assert response.status == 201
        assert await response.json() == {
            "signedMessage": SIGNED.hex(),
            "superseded": {"now": {"registered": False}},
        }


async def test_explain_mode_answers_200_without_a_message() -> None:
    setup = ApiSetup()
    async with client_of(setup) as client, client.get(PATH, params={"explain": "true"}) as response:
        assert response.status == 200
        assert await response.json() == {
            "transaction": {"txHash": "a"},
            "checks": [],
            "failing": None,
        }
    assert setup.l1_messages.requests == []
    assert setup.deliveries.explained == [
        L1DeliveryRequest(L1Request(TX_ID, 67, 0, is_default_quorum=True))
    ]


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("quorumPercentage=101", "invalid_quorum", "quorumPercentage"),
        (
            "quorumPercentage=67&quorumPercentageBuffer=34",
            "invalid_quorum_buffer",
            "quorumPercentageBuffer",
        ),
        ("quorumPercentage=a", "invalid_request", "quorumPercentage"),
        ("pChainHeight=-1", "invalid_request", "pChainHeight"),
        ("pChainHeight=1&pchain-height=2", "conflicting_spellings", "pChainHeight"),
        ("justification=0xzz", "undecodable_justification", "justification"),
        ("registrationTxHash=nothing", "malformed_transaction_hash", "registrationTxHash"),
        ("explain=perhaps", "invalid_request", "explain"),
        ("pChainHeigth=1", "unknown_field", "pChainHeigth"),
        ("quorumPercentag=1", "unknown_field", "quorumPercentag"),
    ],
)
async def test_a_bad_parameter_is_named(query: str, code: str, field: str) -> None:
    setup = ApiSetup()
    async with client_of(setup) as client, client.get(f"{PATH}?{query}") as response:
        assert response.status == 400
        body = await response.json()
    assert (body["code"], body["detail"]["field"]) == (code, field)
    assert setup.l1_messages.requests == []


@pytest.mark.parametrize("text", ["x", "0x12", id_text(TX_ID)[:-1], "0x" + "g" * 64])
async def test_a_malformed_hash_is_a_400(text: str) -> None:
    async with client_of(ApiSetup()) as client, client.get(f"{V1}/{text}") as response:
        assert response.status == 400
        assert (await response.json())["code"] == "malformed_transaction_hash"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TransactionNotFound("a"), 404),
        (NoMessage("DisableL1ValidatorTx"), 400),
        (MessageSuperseded("a", SupersededStatement(now=PresentStatement(registered=False))), 400),
        (ProofMismatch("justification", "it proves another validation"), 400),
        (MalformedTransactionHash("txHash", "too short"), 400),
        (QuorumImpossible(shortfall(Verdict.NEVER)), 400),
        (QuorumNotReached(shortfall(Verdict.WAIT), at_deadline=True), 503),
        (OriginNotIndexed("a", PROGRESS, 3.0), 503),
        (NodeUnavailable("a transaction"), 502),
    ],
)
async def test_errors_have_the_specification_s_statuses(error: WarpsealError, status: int) -> None:
    setup = ApiSetup()
    setup.l1_messages.error = error
    async with client_of(setup) as client, client.get(PATH) as response:
        assert response.status == status
        body = await response.json()
        assert body["statusCode"] == status
        assert ("Retry-After" in response.headers) is (status in (502, 503))
        if isinstance(error, QuorumNotReached):
            assert "threshold of stake" in body["message"]


async def test_another_network_is_a_404() -> None:
    async with (
        client_of(ApiSetup(network_id=5)) as client,
        client.get(PATH.replace("fuji", "mainnet")) as response,
    ):
        assert response.status == 404
        assert (await response.json())["code"] == "network_not_served"


async def test_a_post_is_refused_with_the_allowed_method() -> None:
    async with client_of(ApiSetup()) as client, client.post(PATH) as response:
        assert (await response.json())["code"] == "method_not_allowed"


async def test_ready_shows_background_services_without_depending_on_them() -> None:
    store = StoreState(url="sqlite:///store.db", up=False)
    setup = ApiSetup(
        background=replace(
            BACKGROUND, store=store, index={"p-chain": IndexedChainState(lag_blocks=7)}
        )
    )
    async with client_of(setup) as client, client.get("/ready") as response:
        assert response.status == 200
        body = await response.json()
    assert body["ready"]
    assert (body["store"]["up"], body["follower"]) == (False, {"off": True})
    assert body["index"] == {"p-chain": {"lagBlocks": 7}}
