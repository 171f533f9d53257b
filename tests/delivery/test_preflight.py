"""The preflight of signed messages of the recorded network at the chains to which they were
delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
from aiohttp import web
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.delivery.preflights import PreflightSetup, eth_calls
from tests.delivery.recorded_chains import EPOCH, PROPOSED, RECORDED_AT, RECORDED_CONFIGS, ChainNode
from tests.messages.test_verification import (
    CONVERSION,
    FROM_C_CHAIN,
    FROM_L1,
    REGISTRATION,
    REMOVAL,
    changed,
)
from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NETWORK_ID,
    NO_CHAIN,
    RefusedCall,
    recorded_result,
)
from tests.validators.fixtures import SET, nth_key, nth_node, started_services
from warpseal.delivery import preflight, statement
from warpseal.delivery.errors import DestinationUnavailable, WarpDisabled
from warpseal.delivery.preflight import DestinationCall, PreflightRequest
from warpseal.errors import InvalidRequest
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import UnknownChain
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, id_text, node_id_text
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers

SIGNATURE: Final = FROM_L1.signature


@asynccontextmanager
async def preflight_over(node: ChainNode | None = None) -> AsyncIterator[PreflightSetup]:
    async with started_services(node or ChainNode()) as services:
        await services.heights.poll()
        yield PreflightSetup(services, NETWORK_ID, lambda: RECORDED_AT)


async def check(
    signed: SignedMessage,
    destination_id: ChainID = L1_CHAIN,
    replies: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    async with preflight_over(ChainNode(replies or {})) as setup:
        return await setup.check(signed, destination_id, **options)


def epoch(number: int, height: int) -> dict[str, str]:
    return {"number": str(number), "startTime": "1795226806", "pChainHeight": str(height)}


def at(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the row of one height."""
    height_row: dict[str, Any] = next(row for row in body["heights"] if row["epoch"] == name)
    return height_row


async def test_a_delivered_message_verifies_in_its_epoch_and_not_in_the_next() -> None:
    body = await check(REGISTRATION)
    assert (body["verifiesNow"], body["verifiesAt"]) == (True, ["current"])
    assert [(row["epoch"], row["pChainHeight"], row.get("number")) for row in body["heights"]] == [
        ("current", "18", 30),
        ("next", "19", 31),
        ("proposed", "19", None),
    ]
    assert at(body, "next")["predicted"] is True
    assert at(body, "next")["reason"] == "weight"
    current = at(body, "current")
    assert int(current["signedWeight"]) >= int(current["requiredWeight"])
    assert current["signerCount"] == len(current["signers"])
    assert sum(int(signer["weight"]) for signer in current["signers"]) == int(
        current["signedWeight"]
    )
    assert all(signer["nodeIds"][0].startswith("NodeID-") for signer in current["signers"])
    destination = body["destination"]
    assert (destination["signingSubnetId"], destination["signedBy"]) == (id_text(L1), "destination")
    assert (destination["pChainHeight"], destination["pChainHeightSource"]) == ("18", "epoch")
    assert destination["epoch"] == {
        "number": 30, "startTime": 1_795_226_806, "pChainHeight": "18", "sealedFrom": 1_795_226_810
    }  # fmt: skip
    assert destination["quorum"] == {"percentage": 67, "source": "default"}


@pytest.mark.parametrize(("message", "heights"), [(CONVERSION, [7]), (REMOVAL, [*range(7, 19)])])
async def test_recorded_messages_verify_at_the_heights_of_the_set_that_signed(
    message: SignedMessage, heights: Iterable[int]
) -> None:
    verifying_heights = [
        height
        for height in range(5, 20)
        if (await check(message, replies={EPOCH: epoch(30, height)}))["verifiesNow"]
    ]
    assert verifying_heights == list(heights)


async def test_the_epoch_before_is_reported_once_the_daemon_has_seen_it() -> None:
    node = ChainNode({EPOCH: epoch(30, 18)})
    async with preflight_over(node) as setup:
        assert (await setup.check(REGISTRATION, L1_CHAIN))["verifiesAt"] == ["current"]
        node.replies[EPOCH] = epoch(31, 19)
        setup.services.clock.now += 2
        body = await setup.check(REGISTRATION, L1_CHAIN)
    assert (body["verifiesNow"], body["verifiesAt"], body["reason"]) == (
        False,
        ["previous"],
        "weight",
    )
    assert (at(body, "previous")["pChainHeight"], at(body, "previous")["number"]) == ("18", 30)


async def test_each_reason_of_a_signature_is_named() -> None:
    weight = changed(REGISTRATION, signers=encode_signers([0]))
    refused = {
        "bit_set": [
            changed(REGISTRATION, signers=b"\x00" + REGISTRATION.signers),
            changed(REGISTRATION, signers=b"\xff" * 60_000),
        ],
        "signature": [
            changed(REGISTRATION, signature=SIGNATURE),
            changed(REGISTRATION, signature=bytes(96)),
        ],
        "weight": [changed(REGISTRATION, signers=b""), weight],
        "payload": [
            signed(UnsignedMessage.build(NETWORK_ID, L1_CHAIN, b"\x00\x00\x00\x00\x00\x07"))
        ],
        "unknown_source": [
            signed(UnsignedMessage.build(NETWORK_ID, NO_CHAIN, CONVERSION.unsigned.payload))
        ],
        "network_id": [signed(UnsignedMessage.build(5, L1_CHAIN, FROM_L1.unsigned.payload))],
    }
    async with preflight_over() as setup:
        for reason, messages in refused.items():
            for message in messages:
                body = await setup.check(message, L1_CHAIN)
                assert (body["verifiesNow"], body["reason"]) == (False, reason)
                assert at(body, "current")["verifies"] is False
                assert body["reasonText"]


def signed(unsigned: UnsignedMessage) -> SignedMessage:
    return SignedMessage(unsigned, b"\x07", SIGNATURE)


async def test_without_any_validators_there_are_no_signers() -> None:
    body = await check(changed(REGISTRATION, signers=b""), replies={SET: {}})
    assert body["reason"] == "no_signers"
    assert (await check(REGISTRATION, replies={SET: {}}))["reason"] == "bit_set"


@pytest.mark.parametrize(
    ("message", "destination_id", "subnet_id", "source"),
    [
        (REGISTRATION, L1_CHAIN, L1, "destination"),
        (REGISTRATION, C_CHAIN, PRIMARY_NETWORK, "destination"),
        (FROM_L1, C_CHAIN, L1, "source"),
        (FROM_L1, P_CHAIN, L1, "source"),
        (FROM_C_CHAIN, L1_CHAIN, PRIMARY_NETWORK, "primary_network"),
        (FROM_C_CHAIN, P_CHAIN, PRIMARY_NETWORK, "primary_network"),
    ],
)
async def test_the_destination_decides_who_signs(
    message: SignedMessage, destination_id: ChainID, subnet_id: SubnetID, source: str
) -> None:
    replies = {EPOCH: epoch(5, 19), PROPOSED: {"height": "19"}}
    destination = (await check(message, destination_id, replies))["destination"]
    assert (destination["signingSubnetId"], destination["signedBy"]) == (id_text(subnet_id), source)


async def test_a_chain_that_requires_no_primary_network_verifies_with_its_own_validators() -> None:
    config = {
        **RECORDED_CONFIGS[L1_CHAIN],
        "warpConfig": {"blockTimestamp": 0, "quorumNumerator": 40},
    }
    async with preflight_over(ChainNode(configs={L1_CHAIN: config})) as setup:
        body = await setup.check(FROM_C_CHAIN, L1_CHAIN)
        assert (body["destination"]["signingSubnetId"], body["verifiesNow"]) == (id_text(L1), False)
        assert body["destination"]["quorum"] == {"percentage": 40, "source": "genesis"}
        response = await setup.check(FROM_C_CHAIN, L1_CHAIN, signing_subnet_id=PRIMARY_NETWORK)
    assert (response["destination"]["signedBy"], response["verifiesAt"]) == (
        "request",
        ["current", "next", "proposed"],
    )


async def test_a_higher_quorum_of_the_caller_counts_and_a_lower_one_does_not() -> None:
    body = await check(REGISTRATION, quorum=100)
    assert (body["reason"], body["destination"]["quorum"]) == (
        "weight",
        {"percentage": 100, "source": "request"},
    )
    assert at(body, "current")["signatureValid"] is True
    body = await check(REGISTRATION, quorum=1)
    assert (body["verifiesNow"], body["destination"]["quorum"]["percentage"]) == (True, 67)


async def test_before_granite_the_proposed_height_decides() -> None:
    body = await check(FROM_L1, C_CHAIN, {EPOCH: epoch(0, 0) | {"startTime": "0"}})
    assert [(row["epoch"], row["pChainHeight"]) for row in body["heights"]] == [
        ("current", "19"),
        ("proposed", "19"),
    ]
    assert (body["verifiesNow"], body["destination"]["pChainHeightSource"]) == (True, "proposed")
    assert "epoch" not in body["destination"]


async def test_a_message_whose_statement_is_refused_verifies_and_has_the_reason() -> None:
    body = await check(FROM_L1, P_CHAIN, {EPOCH: epoch(5, 19), PROPOSED: {"height": "19"}})
    assert (body["verifiesNow"], body["reason"]) == (True, "other_destination")
    assert (body["statement"]["accepted"], body["statement"]["reason"]) == (
        False,
        "other_destination",
    )


async def test_destinations_that_cannot_verify_are_errors() -> None:
    async with preflight_over() as setup:
        with pytest.raises(UnknownChain):
            await setup.check(FROM_L1, NO_CHAIN)
    async with preflight_over(
        ChainNode(configs={L1_CHAIN: {**RECORDED_CONFIGS[L1_CHAIN], "warpConfig": None}})
    ) as setup:
        with pytest.raises(WarpDisabled):
            await setup.check(REGISTRATION, L1_CHAIN)
    async with preflight_over(ChainNode({EPOCH: lambda _: web.Response(status=404)})) as setup:
        with pytest.raises(DestinationUnavailable):
            await setup.check(REGISTRATION, L1_CHAIN)


async def test_the_set_of_the_next_block_is_needed_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "OTHER_SET_TIMEOUT_S", 0.2)

    def only(height: int) -> Any:
        def reply_to(params: Any) -> Any:
            if params["height"] != height:
                raise RefusedCall("no such set")
            return recorded_result(SET, **params)

        return reply_to

    body = await check(REGISTRATION, replies={SET: only(18)})
    assert (body["verifiesNow"], at(body, "next")["verifies"]) == (True, None)
    assert "signedWeight" not in at(body, "next")
    with pytest.raises(NodeUnavailable) as error:
        await check(REGISTRATION, replies={SET: only(19)})
    assert "127.0.0.1" not in str(error.value)
    # The destination's node is ahead of the P-Chain's: the next epoch's set does not exist yet.
    body = await check(REGISTRATION, replies={PROPOSED: {"height": "21"}, SET: ahead_of(20)})
    assert (body["verifiesNow"], at(body, "next")["verifies"]) == (True, None)


def ahead_of(tip: int) -> Any:
    def reply_to(params: Any) -> Any:
        if params["height"] > tip:
            text = (
                f"unfinalized height: current P-chain height ({tip}) < requested P-Chain height"
                f" ({params['height']})"
            )
            raise RefusedCall(f"failed to fetch validator set at {text}")
        return recorded_result(SET, **params)

    return reply_to


async def test_equal_sets_are_fetched_and_verified_once() -> None:
    node = ChainNode({EPOCH: epoch(5, 19)})
    async with preflight_over(node) as setup:
        await setup.check(FROM_L1, L1_CHAIN)
        assert node.calls[SET] == 1
        await asyncio.gather(*(setup.check(FROM_L1, L1_CHAIN) for _ in range(20)))
        assert node.calls[SET] == 1


CALL: Final = DestinationCall(b"\x01" * 20, b"\x02" * 20, b"\xab\xcd", 100_000)


async def test_a_call_of_the_caller_is_executed_at_the_destination() -> None:
    node = ChainNode({"eth_call": "0x" + "01" * 40})
    async with preflight_over(node) as setup:
        body = await setup.check(REGISTRATION, L1_CHAIN, call=CALL)
    assert (body["call"]["succeeded"], body["call"]["result"]) == (True, "0x" + "01" * 40)
    assert "execution only" in body["call"]["note"]
    path, call, block = next(seen for seen in eth_calls(node) if "from" in seen[1])
    assert id_text(L1_CHAIN) in path
    assert call == {
        "from": "0x" + "01" * 20,
        "to": "0x" + "02" * 20,
        "data": "0xabcd",
        "gas": "0x186a0",
    }
    assert block == "latest"
    assert "call" not in await check(REGISTRATION)


def refusing(text: str, data: Any = None) -> Any:
    error = {"code": 3, "message": text, **({} if data is None else {"data": data})}
    return lambda _: web.json_response({"jsonrpc": "2.0", "id": 1, "error": error})


async def call_result(reply: Any) -> dict[str, Any]:
    result: dict[str, Any] = (await check(REGISTRATION, replies={"eth_call": reply}, call=CALL))[
        "call"
    ]
    return result


async def test_a_revert_is_reported_with_its_reason_and_its_data() -> None:
    outcome = await call_result(refusing("execution reverted: not the owner", "0x08c379a0"))
    assert (outcome["succeeded"], outcome["error"]) == (False, "execution reverted: not the owner")
    assert outcome["revertData"] == "0x08c379a0"
    for data in ("0x", None, 5, "zz", "0x" + "00" * 10_000):
        assert "revertData" not in await call_result(refusing("execution reverted", data))


async def test_an_error_of_the_node_is_no_result_of_the_call() -> None:
    for reply in (
        refusing("missing trie node"),
        refusing("header not found"),
        refusing('Post "http://127.0.0.1:9650/ext/bc/C/rpc": connection refused'),
        lambda _: web.Response(status=500),
        lambda _: web.Response(status=404),
        {"no": "text"},
        "0xabc",
    ):
        outcome = await call_result(reply)
        assert outcome["succeeded"] is None
        assert outcome["error"]
        assert "127.0.0.1" not in outcome["error"]
    assert "bytes" in (await call_result("0x" + "00" * 70_000))["error"]
    long = await call_result(refusing("execution reverted: " + "\x1b\n" * 10_000))
    assert len(long["error"]) <= preflight.MAX_CALL_ERROR_CHARACTERS
    assert long["error"].isprintable()


async def test_a_call_that_the_operator_denies_is_not_executed() -> None:
    node = ChainNode({"eth_call": "0x01"})
    async with preflight_over(node) as setup:
        denying = setup.build(lambda chain_id: chain_id == L1_CHAIN)
        request = PreflightRequest(REMOVAL, L1_CHAIN, call=CALL)
        body = msgspec.to_builtins(await denying.check(request))
    assert (body["call"]["succeeded"], "denies eth_call" in body["call"]["error"]) == (None, True)
    assert all("from" not in call for _, call, _ in eth_calls(node))


async def test_a_call_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(statement, "LOOKUP_TIMEOUT_S", 0.1)

    async def hang(_: Any) -> Any:
        await asyncio.sleep(60)

    outcome = await call_result(hang)
    assert (outcome["succeeded"], outcome["error"]) == (
        None,
        "no node of the destination has answered",
    )


async def test_the_p_chain_executes_no_call() -> None:
    with pytest.raises(InvalidRequest, match="executes no contracts"):
        await check(FROM_L1, P_CHAIN, call=CALL)


async def test_at_most_a_hundred_signers_are_listed() -> None:
    members = {
        node_id_text(nth_node(number)): {
            "publicKey": "0x" + nth_key(number // 10).hex(),
            "weight": "1",
        }
        for number in range(1_300)
    }
    everyone = changed(REGISTRATION, signers=encode_signers(range(130)))
    current = at(await check(everyone, replies={SET: members}), "current")
    assert (current["signerCount"], len(current["signers"])) == (130, preflight.MAX_LISTED_SIGNERS)
    assert {len(signer["nodeIds"]) for signer in current["signers"]} == {preflight.MAX_LISTED_NODES}
    assert (current["signedWeight"], current["reason"]) == ("1300", "signature")


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_unsigned_message_is_never_reported_as_verifying(change: bytes, place: int) -> None:
    """Bytes anywhere in a message that verifies are replaced: it is malformed, or refused with a
    reason.
    """
    raw = bytearray(REGISTRATION.encode())
    place %= len(raw)
    raw[place : place + len(change)] = change
    try:
        mutated = SignedMessage.parse(bytes(raw), allows_padding=True)
    except MalformedMessage:
        return
    assume(mutated != REGISTRATION)
    body = asyncio.run(check(mutated))
    assert (body["verifiesNow"], body["verifiesAt"]) == (False, [])
    assert body["reason"] in {
        "network_id",
        "bit_set",
        "weight",
        "signature",
        "unknown_source",
        "payload",
    }
