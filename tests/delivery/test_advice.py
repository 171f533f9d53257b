"""What an idle destination needs: how many blocks, when, and for which height."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from warpseal.chains.proposervm import Epoch
from warpseal.delivery.destination import Destination
from warpseal.delivery.report import advise
from warpseal.delivery.warp_rules import WarpRules
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.warp.ids import ChainID, SubnetID, id_text

CHAIN = ChainID(b"\x01" * 32)
NOON = 1_795_219_200
DESTINATION = Destination(
    CHAIN, SubnetID(b"\x02" * 32), Epoch(291_012, 7, NOON - 290), 300, 302_200, WarpRules(), 0.0
)
U64 = st.integers(0, 2**64 - 1)


def test_one_block_seals_the_epoch_when_its_time_has_come() -> None:
    advice = advise(DESTINATION, 302_155, NOON)
    assert to_builtins(advice) == {
        "pinnedHeight": "291012",
        "neededHeight": "302155",
        "blocksBefore": 1,
        "notBefore": NOON + 10,
        "text": (
            f"{id_text(CHAIN)} verifies at P-Chain height 291012, the message needs 302155: build"
            " one block there at or after 00:00:10 UTC; the block after it verifies at the P-Chain"
            " height of that block"
        ),
    }
    assert (
        "build one block there now; the block after it"
        in advise(DESTINATION, 302_155, NOON + 10).text
    )
    assert (
        "at or after 2026-11-21 00:00:10 UTC" in advise(DESTINATION, 302_155, NOON - 100_000).text
    )


def test_nodes_that_propose_a_lower_height_are_awaited() -> None:
    lagging = replace(DESTINATION, proposed_height=302_154)
    assert advise(lagging, 302_155, NOON).text.endswith(
        ". Its nodes propose only P-Chain height 302154 now: build it when they propose 302155"
    )


def test_before_granite_no_block_has_to_be_built() -> None:
    advice = advise(
        replace(DESTINATION, epoch=NO_EPOCH, proposed_height=302_154), 302_155, NOON + 0.5
    )
    assert (advice.pinned_height, advice.blocks_before, advice.not_before) == ("302154", 0, NOON)
    assert advice.text.endswith(
        "its nodes propose only P-Chain height 302154 now; send the message in a block after that"
    )


@given(U64, U64, U64, U64, st.integers(0, 10**9), st.floats(0, 4e9))
def test_advice_follows_the_rule_of_epochs_for_any_numbers(
    height: int, start: int, proposed: int, needed: int, duration_s: int, now: float
) -> None:
    destination = replace(
        DESTINATION,
        epoch=Epoch(height, 1, start),
        proposed_height=proposed,
        epoch_duration_s=duration_s,
    )
    advice = advise(destination, needed, now)
    assert (advice.pinned_height, advice.needed_height) == (str(height), str(needed))
    assert (advice.blocks_before, advice.not_before) == (1, start + duration_s)
    assert ("now;" in advice.text) == (start + duration_s <= now)
