"""Signed messages of the recorded network, verified against its sets, as nodes returned them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import paths
from tests.node.recorded_node import C_CHAIN, L1, RecordedNode, recorded_result, upstream_of
from warpseal.errors import InvalidSigningSubnet, UnknownChain
from warpseal.l1.describe import unwrap
from warpseal.l1.verification import VerificationTarget, percentage_text, verify_at, verify_signed
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID, id_text, parse_id, parse_node_id
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

LOCALNET = paths.LOCALNET
DELIVERED = [
    SignedMessage.parse(unwrap(bytes.fromhex(load["storageKeys"]))[0])
    for load in json.loads((LOCALNET / "icm.json").read_text())["delivered"]
]
CONVERSION, REMOVAL, REGISTRATION = DELIVERED
SIGNED = {
    item["subnetID"]: SignedMessage.parse(bytes.fromhex(item["signedMessage"]))
    for item in json.loads((LOCALNET / "warp.json").read_text())["signed"]
}
FROM_L1, FROM_C_CHAIN = SIGNED[id_text(L1)], SIGNED[id_text(PRIMARY_NETWORK)]


def members_at(height: int, subnet_id: bytes = L1) -> CanonicalValidatorSet:
    listed = recorded_result("platform.getValidatorsAt", height=height, subnetID=id_text(subnet_id))
    return build_canonical_set(
        (
            parse_node_id(node),
            bytes.fromhex(entry["publicKey"][2:]) if entry["publicKey"] else None,
            int(entry["weight"]),
        )
        for node, entry in listed.items()
    )


async def verified(message: SignedMessage, against: VerificationTarget, **answers: Any) -> dict[str, Any]:
    async with upstream_of(RecordedNode(answers)) as upstream:
        return await verify_at(upstream.platform, message, against)


@pytest.mark.parametrize(("message", "heights"), [(CONVERSION, [7]), (REMOVAL, [*range(7, 19)])])
def test_what_a_contract_took_verifies_at_the_heights_of_the_set_that_signed(
    message: SignedMessage, heights: list[int]
) -> None:
    found = {height: verify_signed(message, members_at(height)) for height in range(5, 20)}
    assert [height for height, result in found.items() if result.fault is None] == heights
    assert all(found[height].meets_quorum for height in heights)


def test_signers_are_named_with_their_weights_and_the_others_too() -> None:
    verification = verify_signed(CONVERSION, members_at(7)).as_json()
    assert [item["index"] for item in verification["signed"]] == [0, 2, 4]
    assert [entry["index"] for entry in verification["notSigned"]] == [1, 3]
    assert verification["signedPercentage"] == "99.90"
    assert sum(int(element["weight"]) for element in verification["signed"]) == int(verification["signedWeight"])
    assert verification["totalWeight"] == str(members_at(7).total_weight)
    assert all(element["nodeIds"][0].startswith("NodeID-") for element in verification["signed"])


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
def test_a_signature_of_others_is_refused_with_the_reason(signers: tuple[int, ...], words: str) -> None:
    message = SignedMessage(CONVERSION.unsigned, encode_signers(signers), CONVERSION.signature)
    result = verify_signed(message, members_at(7))
    assert words in (result.fault or "")
    assert not result.meets_quorum
    assert result.as_json()["fault"] == result.fault


async def test_a_message_of_an_l1_is_verified_against_its_subnet_at_the_proposed_height() -> None:
    verification = await verified(FROM_L1, VerificationTarget())
    assert verification["signingSubnetId"]["cb58"] == id_text(L1)
    assert (verification["pChainHeight"], verification["signatureValid"], verification["quorumMet"]) == (
        "19",
        True,
        True,
    )


async def test_what_the_p_chain_says_of_a_validation_is_signed_by_the_subnet_of_its_manager() -> None:
    verification = await verified(REGISTRATION, VerificationTarget(height=18))
    assert verification["signingSubnetId"]["cb58"] == id_text(L1)
    assert verification["signatureValid"]
    assert not (await verified(REGISTRATION, VerificationTarget(height=19)))["signatureValid"]


@pytest.mark.parametrize("message", [CONVERSION, REMOVAL])
async def test_where_a_message_does_not_tell_who_signs_the_caller_must(message: SignedMessage) -> None:
    with pytest.raises(InvalidSigningSubnet):
        await verified(message, VerificationTarget(height=7))
    assert (await verified(message, VerificationTarget(SubnetID(L1), 7)))["signatureValid"]


async def test_a_message_of_the_c_chain_may_be_signed_by_the_l1_that_it_goes_to() -> None:
    verification = await verified(FROM_C_CHAIN, VerificationTarget())
    assert verification["signingSubnetId"]["cb58"] == id_text(PRIMARY_NETWORK)
    assert verification["signatureValid"]
    primary = recorded_result("platform.getValidatorsAt", height=19, subnetID=id_text(PRIMARY_NETWORK))

    def swapped(params: Any) -> Any:
        """As if the L1 had the validators that signed, and the Primary Network none."""
        return primary if params["subnetID"] == id_text(L1) else {}

    verification = await verified(FROM_C_CHAIN, VerificationTarget(), **{"platform.getValidatorsAt": swapped})
    assert FROM_C_CHAIN.unsigned.source_chain_id == C_CHAIN
    assert verification["signingSubnetId"]["cb58"] == id_text(L1)
    assert verification["signatureValid"]


async def test_a_chain_that_the_p_chain_does_not_know_is_named() -> None:
    stray = UnsignedMessage.build(88_888, ChainID(parse_id(id_text(bytes(31) + b"\x09"))), FROM_L1.unsigned.payload)
    with pytest.raises(UnknownChain):
        await verified(SignedMessage(stray, FROM_L1.signers, FROM_L1.signature), VerificationTarget())


def test_a_percentage_is_never_rounded_up() -> None:
    assert percentage_text(66_999_999, 100_000_000) == "66.99"
    assert percentage_text(67, 100) == "67.00"
    assert percentage_text(1, 0) == "0.00"
