"""`import warpseal` offers what its documentation says."""

from __future__ import annotations

import doctest
import re

import pytest

import warpseal
from tests.paths import DOCS


def test_the_examples_of_the_public_interface_are_true() -> None:
    outcome = doctest.testmod(warpseal)
    assert outcome.failed == 0
    assert outcome.attempted > 5


def test_the_examples_of_the_page_about_the_package_are_true() -> None:
    page = DOCS / "python.md"
    examples = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert outcome.failed == 0
    assert outcome.attempted > 25


def test_the_page_about_the_package_names_everything_public() -> None:
    text = (DOCS / "python.md").read_text()
    assert [name for name in warpseal.__all__ if f"`{name}`" not in text] == []


def test_every_public_name_exists() -> None:
    assert [name for name in warpseal.__all__ if not hasattr(warpseal, name)] == []


def test_a_message_that_no_validator_of_the_set_signed_has_an_error_and_no_quorum() -> None:
    message = warpseal.UnsignedMessage.build(5, warpseal.P_CHAIN, b"payload")
    signed = warpseal.SignedMessage(message, b"\x01", b"\xc0" + bytes(95)).encode()
    verification = warpseal.verify(signed, warpseal.build_canonical_set([]))
    assert not verification.meets_quorum
    assert verification.fault == "signer 0 is not one of the 0 validators of this set"


def test_bytes_that_are_no_signed_message_are_malformed() -> None:
    with pytest.raises(warpseal.MalformedMessage):
        warpseal.verify(b"\x00\x00", warpseal.build_canonical_set([]))
