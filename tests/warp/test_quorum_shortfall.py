"""The weight that a quorum lacks, as the detail of an error."""

from __future__ import annotations

from msgspec import UNSET

from warpseal.warp.quorum_shortfall import QuorumShortfall, Verdict

SHORTFALL = QuorumShortfall(Verdict.WAIT, 5, 67, 100, 40, "subnet", {"refused": 1}, ())


def test_the_detail_of_an_error_has_weights_as_text_and_advice_if_there_is_any() -> None:
    assert SHORTFALL.detail() == {
        "verdict": "wait",
        "signed_weight": "5",
        "required_weight": "67",
        "total_weight": "100",
        "p_chain_height": "40",
        "signing_subnet_id": "subnet",
        "counts": {"refused": 1},
        "validators": (),
        "hints": UNSET,
    }
    assert SHORTFALL.advised("first").detail()["hints"] == ("first",)


def test_later_advice_comes_first_and_is_the_cause() -> None:
    advised = SHORTFALL.advised("first").advised("second")
    assert advised.hints == ("second", "first")
    assert advised.cause == "second"
    assert SHORTFALL.hints == ()
