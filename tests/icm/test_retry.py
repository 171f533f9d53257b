"""What to do about a message that is not executed: the first thing that helps, and the call that it
needs.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.chains.evm.icm_logs import MESSAGE, MESSAGE_V2, MESSENGER, Message
from tests.index.evm.icm_histories import PEOPLE, RELAYERS, A, B
from tests.indexer.evm.anvil_chain import encode_call
from warpseal.delivery.report import DeliveryAdvice
from warpseal.delivery.statement import PreflightStatement
from warpseal.icm.resources import (
    IcmCall,
    IcmDelivery,
    IcmDeliveryGas,
    IcmExecution,
    IcmSignature,
    WarpsealBlock,
)
from warpseal.icm.retry import STORING_S, CallTrial, JoinedMessage, advise_retry
from warpseal.index.evm.records import ReceivedMessage, SentMessage
from warpseal.resources.base import UNSET
from warpseal.resources.text import account_text, hex_text
from warpseal.warp.ids import P_CHAIN
from warpseal.warp.quorum_shortfall import MissingSigner, Verdict

SENT_AT = 1_000
LATER = SENT_AT + STORING_S
MESSAGE_V1 = Message(A, B, 7, PEOPLE[0], PEOPLE[1], 50_000, RELAYERS, [(3, RELAYERS[0])], b"\1\2")
OLD = MESSAGE_V1._replace(adapter=PEOPLE[4])
STATEMENT = PreflightStatement(kind="teleporter", accepted=True, text="")
REFUSED = PreflightStatement(kind="teleporter", accepted=False, text="it is for another chain")
ADVICE = DeliveryAdvice(
    pinned_height="1", needed_height="2", blocks_before=1, not_before=5_000, text="build one block"
)


def sent(message: Message = MESSAGE_V1) -> SentMessage:
    """Return a message as the index of its source has it."""
    body_words = 1 + -(-len(message.body) // 32)
    tail = message.payload[32 * (9 + (message.adapter is not None)) : -body_words * 32]
    return SentMessage(
        message_id=message.id,
        messenger=message.messenger,
        source=A,
        destination=message.destination,
        nonce=message.nonce,
        sender=message.sender,
        recipient=message.recipient,
        gas_limit=message.gas_limit,
        tail=tail,
        body=message.body,
        tx_hash=bytes(32),
        height=1,
        time=SENT_AT,
        tx_fee=1,
        key=1,
        warp_sender=message.adapter or message.messenger,
        is_v2=message.adapter is not None,
        asset=bytes(20),
        asset_name="",
        asset_symbol="",
        asset_decimals=0,
        reward=0,
        has_receipt=False,
        receive=None,
    )


def missing(weight: int, reason: str = "no_answer", **more: Any) -> MissingSigner:
    fields: dict[str, Any] = {"node_ids": ("NodeID-1",), "verdict": Verdict.WAIT, **more}
    return MissingSigner(weight=str(weight), reason=reason, **fields)


def refusing(weight: int) -> MissingSigner:
    return missing(weight, "refused", error_code=1)


def lacking_for_good(weight: int) -> MissingSigner:
    return missing(weight, "no_bls_key", verdict=Verdict.NEVER)


def signature(state: Any, *signers: MissingSigner) -> dict[str, Any]:
    """Return the signature of a set of weight 100, of which 67 is the quorum."""
    weights = {"signed_weight": "1", "required_weight": "67", "total_weight": "100"}
    return {"signature": IcmSignature(state=state, **weights, missing=signers or UNSET)}


def not_connected(unreachable_weight: str, *signers: MissingSigner) -> dict[str, Any]:
    """Return the signature of a set of weight 100, of which no validator has signed."""
    weights = {"signed_weight": "0", "required_weight": "67", "total_weight": "100"}
    return {
        "signature": IcmSignature(
            state="not_asked",
            **weights,
            unreachable_weight=unreachable_weight,
            missing=signers or UNSET,
        )
    }


def delivery(verifies_now: bool, **more: Any) -> dict[str, Any]:
    return {"delivery": IcmDelivery(verifies_now=verifies_now, **{"statement": STATEMENT, **more})}


def execution(gas_limit: str = "50000", **more: Any) -> dict[str, Any]:
    return {"execution": IcmExecution(gas_limit=gas_limit, **more)}


SIGNED = signature("signed")
GAS = {"delivery_gas": IcmDeliveryGas(required="600000", block_limit="500000")}
CASES: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "nothing is known of the signature": ({}, None, ""),
    "no body": ({"state": "received"}, "none", "no body"),
    "failed": ({"state": "failed"}, "retry_execution", "may execute it"),
    "not requested": (signature("not_asked", lacking_for_good(100)), "wait", "not requested"),
    "requested now, in a list": (signature("collecting"), "wait", "may still sign"),
    "some have not replied": (
        signature("collecting", missing(60), refusing(33)),
        "wait",
        "may still sign",
    ),
    "some are drained, and others suffice": (
        signature("collecting", missing(33, "inactive"), missing(20)),
        "wait",
        "may still sign",
    ),
    "drained ones are needed": (
        signature(
            "collecting",
            missing(20, state="underfunded: balance 0.000000001 AVAX"),
            missing(14, "inactive"),
        ),
        "top_up",
        "Top up",
    ),
    "drained ones would not suffice": (
        signature("collecting", missing(30, "inactive"), refusing(34)),
        "resend",
        "retrySendCrossChainMessage",
    ),
    "validators do not have it": (
        signature("collecting", refusing(34)),
        "resend",
        "retrySendCrossChainMessage",
    ),
    "some are lost, and others do not have it": (
        signature("collecting", lacking_for_good(30), refusing(10)),
        "resend",
        "retrySendCrossChainMessage",
    ),
    "too many are lost": (
        signature("impossible", lacking_for_good(34), missing(20)),
        "none",
        "never sign",
    ),
    "impossible, in a list": (signature("impossible"), None, ""),
    "signed, in a list": (SIGNED, "wait", "waits for a relayer"),
    "signed for another set": (signature("signed", missing(50)), "sign_again", "another epoch"),
    "signed, and the destination takes it": (
        {**SIGNED, **delivery(True)},
        "wait",
        "waits for a relayer",
    ),
    "delivered already": (
        {
            **SIGNED,
            **delivery(
                True, reason="already_delivered", reason_text="it is there", statement=REFUSED
            ),
        },
        "wait",
        "it is there",
    ),
    "verifies in a later epoch": (
        {**SIGNED, **delivery(False, reason="weight", advice=ADVICE)},
        "wait",
        "build one block",
    ),
    "verified in an earlier epoch": (
        {**SIGNED, **delivery(False, reason="bit_set", reason_text="9 is no signer")},
        "sign_again",
        "9 is no signer",
    ),
    "of another network": (
        {**SIGNED, **delivery(False, reason="network_id", reason_text="7")},
        "none",
        "refuses",
    ),
    "needs more gas than a block has": ({**SIGNED, **delivery(True), **GAS}, "raise_gas", "600000"),
    "fails with its gas": (
        {**SIGNED, **execution(succeeds=True, gas_required="50001")},
        "raise_gas",
        "Deliver",
    ),
    "reverts now": (
        {**SIGNED, **delivery(True), **execution(succeeds=False, error="not now")},
        "wait",
        "The execution would fail now: not now. The message is signed",
    ),
    "reverts now, and is too early": (
        {
            **SIGNED,
            **delivery(False, reason="weight", advice=ADVICE),
            **execution(succeeds=False, error="not now"),
        },
        "wait",
        "The execution would fail now: not now. build one block",
    ),
    "the destination takes no such message": (
        {**SIGNED, **delivery(True, reason="other_destination", statement=REFUSED)},
        "none",
        "it is for another chain",
    ),
    "the destination does not exist": (
        {**signature("not_asked"), **delivery(False, reason="unknown_chain", statement=REFUSED)},
        "none",
        "it is for another chain",
    ),
    "the quorum is not connected": (
        not_connected(
            "34", missing(20, "no_address", node_ids=("NodeID-7",)), missing(66, "not_asked")
        ),
        "wait",
        "34.0 % of the weight are unreachable: NodeID-7 (no_address). No signature can be made",
    ),
    "some are not connected": (
        not_connected("33", missing(33, "no_address")),
        "wait",
        "not requested",
    ),
    "has enough gas": (
        {**SIGNED, **execution(succeeds=True, gas_required="50000")},
        "wait",
        "waits for a relayer",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_thing_that_helps_is_advised(name: str) -> None:
    keys, action, text = CASES[name]
    retry = advise_retry(
        JoinedMessage(sent(), None), WarpsealBlock(**{"state": "sent", "since": 1, **keys}), LATER
    )
    if action is None:
        assert retry is UNSET
        return
    assert retry is not UNSET
    assert retry.action == action
    assert text in retry.text
    assert (retry.call is UNSET) == (action not in ("resend", "retry_execution"))
    assert retry.not_before == (5_000 if ADVICE.text in retry.text else UNSET)


FAILED = WarpsealBlock(state="failed", since=1)
LACKING = WarpsealBlock(state="sent", since=1, **signature("collecting", refusing(34)))
BAD_HASH = "TeleporterMessenger: invalid message hash"
AGAIN = "TeleporterMessenger: retry execution failed"
FAILING = execution(succeeds=False, error="not now")
TRIALS: dict[str, tuple[WarpsealBlock, CallTrial, str, str]] = {
    "a retry succeeds": (FAILED, CallTrial(True, 91_234), "retry_execution", "needs 91234 gas"),
    "a retry succeeds, and no node says its gas": (
        FAILED,
        CallTrial(True),
        "retry_execution",
        "executes it now",
    ),
    "no node tried a retry": (FAILED, CallTrial(), "retry_execution", "No node has tried"),
    "the messenger refuses a retry": (
        FAILED,
        CallTrial(False, None, BAD_HASH, b"1"),
        "none",
        BAD_HASH,
    ),
    "the messenger refuses a retry, and the recipient fails": (
        replace(FAILED, **FAILING),
        CallTrial(False, None, BAD_HASH),
        "none",
        BAD_HASH,
    ),
    "the recipient fails again": (
        replace(FAILED, **FAILING),
        CallTrial(False, None, AGAIN),
        "retry_execution",
        f'It would fail again now: retryMessageExecution reverts with "{AGAIN}"',
    ),
    "a retry runs out of gas": (
        FAILED,
        CallTrial(False, None, "out of gas"),
        "retry_execution",
        "out of gas",
    ),
    "a retry runs out of gas, and the recipient does not": (
        replace(FAILED, **execution(succeeds=True)),
        CallTrial(False, None, "out of gas"),
        "none",
        "out of gas",
    ),
    "a resend succeeds": (LACKING, CallTrial(True, 70_000), "resend", "needs 70000 gas"),
    "no node tried a resend": (LACKING, CallTrial(), "resend", "No node has tried"),
    "the messenger refuses a resend": (LACKING, CallTrial(False, None, BAD_HASH), "none", BAD_HASH),
}


@pytest.mark.parametrize("name", TRIALS)
def test_a_call_is_advised_only_if_it_succeeds_when_it_is_tried(name: str) -> None:
    block, trial, action, text = TRIALS[name]
    retry = advise_retry(JoinedMessage(sent(), None), block, LATER, trial)
    assert retry is not UNSET
    assert retry.action == action
    assert text in retry.text
    assert (retry.call is not UNSET) == (trial.succeeds is True)
    assert retry.call is UNSET or (retry.call.gas or None) == (
        str(trial.gas) if trial.gas else None
    )
    assert (retry.error or "") == trial.error
    assert (retry.revert_data or "0x") == hex_text(trial.revert_data)


def test_the_p_chain_takes_no_message_of_a_messenger() -> None:
    message = JoinedMessage(sent(MESSAGE_V1._replace(destination=P_CHAIN)), None)
    for keys in ({}, signature("not_asked"), SIGNED, signature("collecting", refusing(34))):
        retry = advise_retry(message, WarpsealBlock(state="sent", since=1, **keys), LATER)
        assert retry is not UNSET
        assert (retry.action, "no transaction of the P-Chain" in retry.text) == ("none", True)


def test_the_advice_names_the_accounts_that_may_deliver() -> None:
    relayers = [bytes([number]) * 20 for number in range(1, 6)]
    message = JoinedMessage(sent(MESSAGE_V1._replace(relayers=relayers)), None)
    for keys in (
        signature("not_asked"),
        SIGNED,
        {**SIGNED, **execution(succeeds=True, gas_required="50001")},
    ):
        retry = advise_retry(message, WarpsealBlock(state="sent", since=1, **keys), LATER)
        assert retry is not UNSET
        accounts = ", ".join(map(account_text, relayers[:3]))
        assert retry.text.endswith(f"Only these accounts may deliver it: {accounts}, and 2 others.")
    open_to_all = advise_retry(
        JoinedMessage(sent(MESSAGE_V1._replace(relayers=[])), None),
        WarpsealBlock(state="sent", since=1, **SIGNED),
        LATER,
    )
    assert open_to_all is not UNSET
    assert open_to_all.text == "The message is signed and waits for a relayer."


def test_a_validator_that_does_not_have_a_new_message_may_get_it() -> None:
    block = WarpsealBlock(state="sent", since=1, **signature("collecting", refusing(34)))
    for now, resent_at, action in (
        (LATER - 1, UNSET, "wait"),
        (LATER, UNSET, "resend"),
        (LATER, LATER, "wait"),
    ):
        retry = advise_retry(JoinedMessage(sent(), None), replace(block, resent_at=resent_at), now)
        assert retry is not UNSET
        assert retry.action == action


@pytest.mark.parametrize(("message", "types"), [(MESSAGE_V1, MESSAGE), (OLD, MESSAGE_V2)])
def test_calls_carry_the_message_as_the_abi_library_encodes_it(
    message: Message, types: str
) -> None:
    fields = (
        message.fields
        if message.adapter is None
        else (*message.fields[:2], MESSENGER, *message.fields[2:])
    )
    resending = WarpsealBlock(state="sent", since=1, **signature("collecting", refusing(34)))
    expected = {
        resending: encode_call(f"retrySendCrossChainMessage({types})", fields),
        WarpsealBlock(state="failed", since=1): encode_call(
            f"retryMessageExecution(bytes32,{types})", A, fields
        ),
    }
    for block, data in expected.items():
        retry = advise_retry(JoinedMessage(sent(message), None), block, LATER)
        assert retry is not UNSET
        assert retry.call == IcmCall(to=account_text(MESSENGER), data=hex_text(data))


def test_a_message_whose_fields_are_not_known_has_no_call() -> None:
    """Its source was indexed once, and is no longer."""
    fields = {
        name: getattr(sent(), name)
        for name in ReceivedMessage.__struct_fields__
        if hasattr(sent(), name)
    }
    receive = ReceivedMessage(
        **{**fields, "gas_limit": None, "body": None},
        deliverer=PEOPLE[2],
        redeemer=PEOPLE[3],
        is_executed=False,
        has_failed=True,
    )
    retry = advise_retry(
        JoinedMessage(receive, receive), WarpsealBlock(state="failed", since=1), LATER
    )
    assert retry is not UNSET
    assert (retry.action, retry.call) == ("retry_execution", UNSET)
