"""Signed messages of the recorded network, verified against the sets that nodes returned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from tests import paths
from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    NETWORK_ID,
    RecordedNode,
    open_upstream,
    recorded_result,
)
from warpseal.bls import parse_public_key
from warpseal.messages.describe import unwrap
from warpseal.messages.errors import InvalidSigningSubnet
from warpseal.messages.verification import percentage_text, verify_at, verify_signed
from warpseal.validators.errors import UnknownChain
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID, id_text, parse_id, parse_node_id
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

LOCALNET = paths.LOCALNET
DELIVERED = [
    SignedMessage.parse(unwrap(bytes.fromhex(entry["storageKeys"]))[0])
    for entry in json.loads((LOCALNET / "icm.json").read_text())["delivered"]
]
CONVERSION, REMOVAL, REGISTRATION = DELIVERED
SIGNED = {
    entry["subnetID"]: SignedMessage.parse(bytes.fromhex(entry["signedMessage"]))
    for entry in json.loads((LOCALNET / "warp.json").read_text())["signed"]
}
FROM_L1, FROM_C_CHAIN = SIGNED[id_text(L1)], SIGNED[id_text(PRIMARY_NETWORK)]


def members_at(height: int, subnet_id: bytes = L1) -> CanonicalValidatorSet:
    validators = recorded_result(
        "platform.getValidatorsAt", height=height, subnetID=id_text(subnet_id)
    )
    return build_canonical_set(
        (
            parse_node_id(node),
            bytes.fromhex(entry["publicKey"][2:]) if entry["publicKey"] else None,
            int(entry["weight"]),
        )
        for node, entry in validators.items()
    )


async def verify(
    message: SignedMessage,
    subnet_id: SubnetID | None = None,
    height: int | None = None,
    **replies: Any,
) -> dict[str, Any]:
    async with open_upstream(RecordedNode(replies)) as upstream:
        result: dict[str, Any] = to_builtins(
            await verify_at(upstream.platform, message, subnet_id, height)
        )
        return result


@pytest.mark.parametrize(("message", "heights"), [(CONVERSION, [7]), (REMOVAL, [*range(7, 19)])])
def test_delivered_messages_verify_at_the_heights_of_the_set_that_signed(
    message: SignedMessage, heights: list[int]
) -> None:
    results = {height: verify_signed(message, members_at(height)) for height in range(5, 20)}
    assert [height for height, result in results.items() if result.fault is None] == heights
    assert all(results[height].meets_quorum for height in heights)


def test_signers_and_non_signers_are_reported_with_their_weights() -> None:
    report = verify_signed(CONVERSION, members_at(7)).report(SubnetID(L1), 7)
    assert [signer.index for signer in report.signed] == [0, 2, 4]
    assert [member.index for member in report.not_signed] == [1, 3]
    assert report.signed_percentage == "99.90"
    assert sum(int(signer.weight) for signer in report.signed) == int(report.signed_weight)
    assert report.total_weight == str(members_at(7).total_weight)
    assert all(signer.node_ids[0].startswith("NodeID-") for signer in report.signed)


def test_a_quorum_that_the_weight_does_not_reach_is_not_met() -> None:
    result = verify_signed(REMOVAL, members_at(18), quorum=100)
    assert result.fault is None
    assert not result.meets_quorum


@pytest.mark.parametrize(
    ("signers", "words"),
    [
        ((), "no validator has signed"),
        ((0, 9), "signer 9 is not one of the 5"),
        ((0, 2, 3), "not valid for these validators"),
    ],
)
def test_a_signature_of_other_validators_is_refused_with_the_reason(
    signers: tuple[int, ...], words: str
) -> None:
    message = SignedMessage(CONVERSION.unsigned, encode_signers(signers), CONVERSION.signature)
    result = verify_signed(message, members_at(7))
    assert words in (result.fault or "")
    assert not result.meets_quorum
    assert result.report(SubnetID(L1), 7).fault == result.fault


async def test_a_message_of_an_l1_is_verified_against_its_subnet_at_the_proposed_height() -> None:
    result = await verify(FROM_L1)
    assert result["signingSubnetId"]["cb58"] == id_text(L1)
    assert (result["pChainHeight"], result["signatureValid"], result["quorumMet"]) == (
        "19",
        True,
        True,
    )


async def test_a_p_chain_message_about_a_validation_is_verified_by_its_manager_subnet() -> None:
    result = await verify(REGISTRATION, height=18)
    assert result["signingSubnetId"]["cb58"] == id_text(L1)
    assert result["signatureValid"]
    assert not (await verify(REGISTRATION, height=19))["signatureValid"]


@pytest.mark.parametrize("message", [CONVERSION, REMOVAL])
async def test_the_caller_names_the_signing_subnet_if_the_message_does_not_imply_it(
    message: SignedMessage,
) -> None:
    with pytest.raises(InvalidSigningSubnet):
        await verify(message, height=7)
    assert (await verify(message, SubnetID(L1), 7))["signatureValid"]


async def test_a_message_of_the_c_chain_may_be_signed_by_its_destination_l1() -> None:
    result = await verify(FROM_C_CHAIN)
    assert result["signingSubnetId"]["cb58"] == id_text(PRIMARY_NETWORK)
    assert result["signatureValid"]
    primary = recorded_result(
        "platform.getValidatorsAt", height=19, subnetID=id_text(PRIMARY_NETWORK)
    )

    def swapped(params: Any) -> Any:
        """Return the signing validators for the L1, and none for the Primary Network."""
        return primary if params["subnetID"] == id_text(L1) else {}

    result = await verify(FROM_C_CHAIN, None, None, **{"platform.getValidatorsAt": swapped})
    assert FROM_C_CHAIN.unsigned.source_chain_id == C_CHAIN
    assert result["signingSubnetId"]["cb58"] == id_text(L1)
    assert result["signatureValid"]


async def test_a_source_chain_that_the_p_chain_does_not_know_raises_unknown_chain() -> None:
    stray = UnsignedMessage.build(
        88_888, ChainID(parse_id(id_text(bytes(31) + b"\x09"))), FROM_L1.unsigned.payload
    )
    with pytest.raises(UnknownChain):
        await verify(SignedMessage(stray, FROM_L1.signers, FROM_L1.signature))


def changed(message: SignedMessage, **parts: Any) -> SignedMessage:
    fields = {
        "unsigned": message.unsigned,
        "signers": message.signers,
        "signature": message.signature,
        **parts,
    }
    return SignedMessage(**fields)


OTHER_SIGNATURE = REMOVAL.signature
REFUSED = {
    "network_id": (CONVERSION, NETWORK_ID + 1),
    "bit_set": (changed(CONVERSION, signers=b"\x00" + CONVERSION.signers), NETWORK_ID),
    "weight": (changed(CONVERSION, signers=encode_signers([1])), NETWORK_ID),
    "signature": (changed(CONVERSION, signature=OTHER_SIGNATURE), NETWORK_ID),
}


@pytest.mark.parametrize(("reason", "refused"), REFUSED.items(), ids=list(REFUSED))
def test_each_check_of_a_verifier_has_a_code(
    reason: str, refused: tuple[SignedMessage, int]
) -> None:
    message, network_id = refused
    result = verify_signed(message, members_at(7), network_id=network_id)
    assert result.refusal == reason
    assert result.refusal_text
    assert not result.meets_quorum


def test_checks_are_made_in_the_order_of_the_verifiers() -> None:
    members = members_at(7)
    broken = changed(CONVERSION, signers=b"\x00\xff\xff", signature=bytes(96))
    assert verify_signed(broken, members, network_id=1).refusal == "network_id"
    assert verify_signed(broken, members, network_id=NETWORK_ID).refusal == "bit_set"
    beyond = changed(broken, signers=b"\xff\xff")
    assert verify_signed(beyond, members, network_id=NETWORK_ID).refusal == "bit_set"
    light = changed(broken, signers=encode_signers([1]))
    assert verify_signed(light, members, network_id=NETWORK_ID).refusal == "weight"
    # Every quorum of a set without weight is reached.
    empty = verify_signed(
        changed(broken, signers=b""), build_canonical_set([]), network_id=NETWORK_ID
    )
    assert empty.refusal == "no_signers"


def test_a_valid_signature_of_too_little_weight_is_refused_for_its_weight_alone() -> None:
    result = verify_signed(REMOVAL, members_at(18), quorum=100)
    assert (result.fault, result.refusal) == (None, "weight")
    assert str(result.required_weight) in (result.refusal_text or "")
    assert result.report(SubnetID(L1), 7).reason == "weight"


def test_a_huge_bit_set_is_refused_at_once() -> None:
    result = verify_signed(changed(CONVERSION, signers=b"\xff" * 100_000), members_at(7))
    assert (result.refusal, result.signers) == ("bit_set", (0, 1, 2, 3, 4))


def test_padded_signers_are_parsed_only_for_their_refusal() -> None:
    padded = changed(CONVERSION, signers=b"\x00" + CONVERSION.signers)
    assert SignedMessage.parse(padded.encode(), allows_padding=True) == padded
    with pytest.raises(MalformedMessage):
        SignedMessage.parse(padded.encode())


def test_parsed_keys_of_the_set_give_the_same_result() -> None:
    members = members_at(7)
    keys = [parse_public_key(validator.public_key) for validator in members.validators]
    assert verify_signed(CONVERSION, members, keys=keys) == verify_signed(CONVERSION, members)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_mutation_of_a_signed_message_verifies(data: st.DataObject) -> None:
    """A changed bit, a cut or a repeated byte: it is no message, or no verifier accepts it."""
    raw = bytearray(CONVERSION.encode())
    place = data.draw(st.integers(0, len(raw) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "repeat", "replace"]))
    if kind == "flip":
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[place]
    elif kind == "repeat":
        raw.insert(place, raw[place])
    else:
        raw[place : place + 4] = data.draw(st.binary(min_size=4, max_size=4))
    assume(bytes(raw) != CONVERSION.encode())
    try:
        mutated = SignedMessage.parse(bytes(raw), allows_padding=True)
    except MalformedMessage:
        return
    result = verify_signed(mutated, members_at(7), network_id=NETWORK_ID)
    assert result.refusal is not None
    assert not result.meets_quorum


def test_a_percentage_is_never_rounded_up() -> None:
    assert percentage_text(66_999_999, 100_000_000) == "66.99"
    assert percentage_text(67, 100) == "67.00"
    assert percentage_text(1, 0) == "0.00"
