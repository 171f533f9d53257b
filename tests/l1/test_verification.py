"""Signed messages of the recorded network, verified against the validator sets that nodes returned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import paths
from tests.node.recorded_node import C_CHAIN, L1, RecordedNode, open_upstream, recorded_result
from warpseal.errors import InvalidSigningSubnet, UnknownChain
from warpseal.l1.describe import unwrap
from warpseal.l1.verification import percentage_text, verify_at, verify_signed
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
    validators = recorded_result("platform.getValidatorsAt", height=height, subnetID=id_text(subnet_id))
    return build_canonical_set(
        (
            parse_node_id(node),
            bytes.fromhex(entry["publicKey"][2:]) if entry["publicKey"] else None,
            int(entry["weight"]),
        )
        for node, entry in validators.items()
    )


async def verify(
    message: SignedMessage, subnet_id: SubnetID | None = None, height: int | None = None, **answers: Any
) -> dict[str, Any]:
    async with open_upstream(RecordedNode(answers)) as upstream:
        return await verify_at(upstream.platform, message, subnet_id, height)


@pytest.mark.parametrize(("message", "heights"), [(CONVERSION, [7]), (REMOVAL, [*range(7, 19)])])
def test_delivered_messages_verify_at_the_heights_of_the_set_that_signed(
    message: SignedMessage, heights: list[int]
) -> None:
    found = {height: verify_signed(message, members_at(height)) for height in range(5, 20)}
    assert [height for height, result in found.items() if result.fault is None] == heights
    assert all(found[height].meets_quorum for height in heights)


def test_signers_and_non_signers_are_reported_with_their_weights() -> None:
    result = verify_signed(CONVERSION, members_at(7)).as_json()
    assert [signer["index"] for signer in result["signed"]] == [0, 2, 4]
    assert [signer["index"] for signer in result["notSigned"]] == [1, 3]
    assert result["signedPercentage"] == "99.90"
    assert sum(int(signer["weight"]) for signer in result["signed"]) == int(result["signedWeight"])
    assert result["totalWeight"] == str(members_at(7).total_weight)
    assert all(signer["nodeIds"][0].startswith("NodeID-") for signer in result["signed"])


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
def test_a_signature_of_other_validators_is_refused_with_the_reason(signers: tuple[int, ...], words: str) -> None:
    message = SignedMessage(CONVERSION.unsigned, encode_signers(signers), CONVERSION.signature)
    result = verify_signed(message, members_at(7))
    assert words in (result.fault or "")
    assert not result.meets_quorum
    assert result.as_json()["fault"] == result.fault


async def test_a_message_of_an_l1_is_verified_against_its_subnet_at_the_proposed_height() -> None:
    result = await verify(FROM_L1)
    assert result["signingSubnetId"]["cb58"] == id_text(L1)
    assert (result["pChainHeight"], result["signatureValid"], result["quorumMet"]) == ("19", True, True)


async def test_a_p_chain_message_about_a_validation_is_verified_against_the_subnet_of_its_manager() -> None:
    result = await verify(REGISTRATION, height=18)
    assert result["signingSubnetId"]["cb58"] == id_text(L1)
    assert result["signatureValid"]
    assert not (await verify(REGISTRATION, height=19))["signatureValid"]


@pytest.mark.parametrize("message", [CONVERSION, REMOVAL])
async def test_the_caller_names_the_signing_subnet_if_the_message_does_not_imply_it(message: SignedMessage) -> None:
    with pytest.raises(InvalidSigningSubnet):
        await verify(message, height=7)
    assert (await verify(message, SubnetID(L1), 7))["signatureValid"]


async def test_a_message_of_the_c_chain_may_be_signed_by_its_destination_l1() -> None:
    result = await verify(FROM_C_CHAIN)
    assert result["signingSubnetId"]["cb58"] == id_text(PRIMARY_NETWORK)
    assert result["signatureValid"]
    primary = recorded_result("platform.getValidatorsAt", height=19, subnetID=id_text(PRIMARY_NETWORK))

    def swapped(params: Any) -> Any:
        """Return the signing validators for the L1, and none for the Primary Network."""
        return primary if params["subnetID"] == id_text(L1) else {}

    result = await verify(FROM_C_CHAIN, None, None, **{"platform.getValidatorsAt": swapped})
    assert FROM_C_CHAIN.unsigned.source_chain_id == C_CHAIN
    assert result["signingSubnetId"]["cb58"] == id_text(L1)
    assert result["signatureValid"]


async def test_a_source_chain_that_the_p_chain_does_not_know_raises_unknown_chain() -> None:
    stray = UnsignedMessage.build(88_888, ChainID(parse_id(id_text(bytes(31) + b"\x09"))), FROM_L1.unsigned.payload)
    with pytest.raises(UnknownChain):
        await verify(SignedMessage(stray, FROM_L1.signers, FROM_L1.signature))


def test_a_percentage_is_never_rounded_up() -> None:
    assert percentage_text(66_999_999, 100_000_000) == "66.99"
    assert percentage_text(67, 100) == "67.00"
    assert percentage_text(1, 0) == "0.00"
