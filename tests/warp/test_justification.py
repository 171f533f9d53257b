"""Justifications: documented bytes of both kinds, agreement with the protobuf definition,
strictness.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warp import l1_txs
from tests.warp.fuji import UNSIGNED_REGISTER
from tests.warp.test_l1_messages import registers
from warpseal.warp.ids import SubnetID, id_text, parse_id
from warpseal.warp.justification import L1ValidatorRegistrationJustification, MalformedJustification
from warpseal.warp.l1_messages import RegisterL1Validator, bootstrap_validation_id
from warpseal.warp.message import AddressedCall, UnsignedMessage

SUBNET = SubnetID(b"\x01" * 32)
subnet_ids = st.binary(min_size=32, max_size=32).map(SubnetID)


def test_a_bootstrap_proof_has_the_documented_bytes() -> None:
    raw = bytes.fromhex("0a240a20") + SUBNET + bytes.fromhex("1003")
    proof = L1ValidatorRegistrationJustification.bootstrap(SUBNET, 3)
    assert proof.raw == raw
    assert L1ValidatorRegistrationJustification.parse(raw) == proof
    assert (
        proof.validation_id.hex()
        == "ae9418a121508ce13a4b35cbb8b3f4e9fe283c2cd5ef5aa2beb862c97f821f22"
    )
    assert proof.subnet_id == SUBNET


def test_index_zero_may_be_left_out_or_written() -> None:
    short = bytes.fromhex("0a220a20") + l1_txs.SUBNET
    long = bytes.fromhex("0a240a20") + l1_txs.SUBNET + bytes.fromhex("1000")
    assert L1ValidatorRegistrationJustification.bootstrap(l1_txs.SUBNET, 0).raw == short
    for raw in (short, long):
        proof = L1ValidatorRegistrationJustification.parse(raw)
        assert id_text(proof.validation_id) == "9FAftNgNBrzHUMMApsSyV6RcFiL9UmCbvsCu28xdLV2mQ7CMo"
        assert proof.raw == raw


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (0, "2AutJAAwyD6Xs9eXhGQRmatvSkzaSRG5G4uk23vMVQ8M7rmmq7"),
        (5, "iko6bbk8Qk7SiPFuzC87dqCVb7W5eiUP7r9aS7UaUPqGXRBT9"),
    ],
)
def test_the_bootstrap_proofs_of_a_fuji_l1_name_their_validations(index: int, text: str) -> None:
    subnet_id = SubnetID(parse_id("2DN6PTi2uXNCzzNz1p2ckGcW2eqTfpt2kv2a1h7EV36hYV3XRJ"))
    raw = bytes.fromhex("0a240a20") + subnet_id + bytes([0x10, index])
    assert id_text(L1ValidatorRegistrationJustification.parse(raw).validation_id) == text


def test_the_proof_of_a_registered_validator_carries_its_registration() -> None:
    raw = bytes.fromhex("128e01") + l1_txs.REGISTER_PAYLOAD
    proof = L1ValidatorRegistrationJustification.registered(
        RegisterL1Validator.parse(l1_txs.REGISTER_PAYLOAD)
    )
    assert proof.raw == raw
    assert L1ValidatorRegistrationJustification.parse(raw) == proof
    assert id_text(proof.validation_id) == "S4V9xkctnx3zmGdB8tXy6scsgmxr51w8NTar9WdAw26PWwXiQ"
    assert proof.subnet_id == l1_txs.SUBNET


def test_the_removal_proof_of_a_fuji_validator_names_its_validation() -> None:
    payload = AddressedCall.parse(UnsignedMessage.parse(UNSIGNED_REGISTER).payload).payload
    proof = L1ValidatorRegistrationJustification.parse(bytes.fromhex("12b601") + payload)
    assert id_text(proof.validation_id) == "TEwxg8JzAUsqFibtYkaiiYH9G1h5ZfX56zYURXpyaPRCSppC4"
    assert id_text(proof.subnet_id) == "2DN6PTi2uXNCzzNz1p2ckGcW2eqTfpt2kv2a1h7EV36hYV3XRJ"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "exactly one"),
        ("0a220a20" + "01" * 32 + "0a220a20" + "01" * 32, "unexpected field 1"),
        ("128e01" + l1_txs.REGISTER_PAYLOAD.hex() + "0a220a20" + "01" * 32, "exactly one"),
        ("1a00", "unexpected field 3"),
        ("0800", "unexpected field 1 of wire type 0"),
        ("0a00", "32 bytes"),
        ("0a210a1f" + "01" * 31, "32 bytes"),
        ("0a230a21" + "01" * 33, "32 bytes"),
        ("0a280a20" + "01" * 32 + "108080808010", "below 2^32"),
        ("0a260a20" + "01" * 32 + "10031004", "unexpected field 2"),
        ("0a260a20" + "01" * 32 + "10031800", "unexpected field 3"),
        ("0a250a20" + "01" * 32 + "108300", "no minimal varint"),
        ("0a290a20" + "01" * 32 + "10ffffffffff01", "no minimal varint"),
        ("0a230a20" + "01" * 32 + "10", "no minimal varint"),
        ("0a240a20" + "01" * 32 + "10", "cut short"),
        ("0a", "no minimal varint"),
        ("1200", "malformed"),
        ("128d01" + l1_txs.REGISTER_PAYLOAD[:-1].hex(), "malformed"),
        ("128f01" + l1_txs.REGISTER_PAYLOAD.hex() + "00", "left over"),
        ("01" * 32, "unexpected field 0"),
    ],
)
def test_malformed_proofs_are_refused_with_the_reason(raw: str, reason: str) -> None:
    with pytest.raises(MalformedJustification, match=reason.replace("^", r"\^")):
        L1ValidatorRegistrationJustification.parse(bytes.fromhex(raw))


@given(subnet_ids, st.integers(0, 2**32 - 1))
def test_bootstrap_proofs_round_trip(subnet_id: SubnetID, index: int) -> None:
    proof = L1ValidatorRegistrationJustification.bootstrap(subnet_id, index)
    assert L1ValidatorRegistrationJustification.parse(proof.raw) == proof
    assert proof.validation_id == bootstrap_validation_id(subnet_id, index)


@given(registers, st.data())
def test_proofs_of_registrations_round_trip_and_every_other_length_is_refused(
    message: RegisterL1Validator, data: st.DataObject
) -> None:
    raw = L1ValidatorRegistrationJustification.registered(message).raw
    proof = L1ValidatorRegistrationJustification.parse(raw)
    assert (proof.subnet_id, proof.validation_id) == (message.subnet_id, message.validation_id)
    for wrong in (raw[: data.draw(st.integers(0, len(raw) - 1))], raw + b"\x00"):
        with pytest.raises(MalformedJustification):
            L1ValidatorRegistrationJustification.parse(wrong)


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_parsed_to_a_proof_of_these_bytes(raw: bytes) -> None:
    try:
        proof = L1ValidatorRegistrationJustification.parse(raw)
    except MalformedJustification:
        return
    assert proof.raw == raw
