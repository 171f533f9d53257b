"""`import warpseal` offers what its documentation says."""

from __future__ import annotations

import doctest

import pytest

import warpseal


def test_the_examples_of_the_public_interface_are_true() -> None:
    outcome = doctest.testmod(warpseal)
    assert outcome.failed == 0
    assert outcome.attempted > 5


def test_every_public_name_exists() -> None:
    assert [name for name in warpseal.__all__ if not hasattr(warpseal, name)] == []


def test_a_message_that_no_validator_of_the_set_signed_has_a_fault_and_no_quorum() -> None:
    message = warpseal.UnsignedMessage.build(5, warpseal.P_CHAIN, b"payload")
    signed = warpseal.SignedMessage(message, b"\x01", b"\xc0" + bytes(95)).encode()
    verification = warpseal.verify(signed, warpseal.build_canonical_set([]))
    assert not verification.meets_quorum
    assert verification.fault == "signer 0 is not one of the 0 validators of this set"


def test_bytes_that_are_no_signed_message_are_malformed() -> None:
    with pytest.raises(warpseal.MalformedMessage):
        warpseal.verify(b"\x00\x00", warpseal.build_canonical_set([]))
