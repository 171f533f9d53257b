"""Advice on a destination whose epoch is pinned to an old validator set: the blocks that it needs first. Pure.

Source of truth: ACP-181; avalanchego `vms/proposervm/acp181/epoch.go`. The first block at or after the end of an epoch
still verifies at its height; the block after it verifies at the P-Chain height in the header of that block.
"""

from __future__ import annotations

from datetime import UTC, datetime

from warpseal.delivery.destination import Destination
from warpseal.resources.base import Resource
from warpseal.runtime.settings import DAY_S
from warpseal.warp.ids import id_text


class DeliveryAdvice(Resource, frozen=True, gc=False, kw_only=True):
    """The blocks that have to be built on a destination before the one with the message.

    pinned_height: the P-Chain height at which the chain verifies now. needed_height: the lowest known one from which on
    the set is the present one. not_before: Unix seconds; earlier blocks do not end the epoch. text: the same in words.
    """

    pinned_height: str
    needed_height: str
    blocks_before: int
    not_before: int
    text: str


def advise(destination: Destination, needed_height: int, now: float) -> DeliveryAdvice:
    """Return how the destination comes to verify at a height. now: Unix seconds."""
    pinned, proposed, sealed_from = destination.height, destination.proposed_height, destination.sealed_from
    text = f"{id_text(destination.chain_id)} verifies at P-Chain height {pinned}, the message needs {needed_height}: "
    lag = f"its nodes propose only P-Chain height {proposed} now"
    if sealed_from is None:
        blocks_before, not_before = 0, int(now)
        text += f"{lag}; send the message in a block after that"
    else:
        blocks_before, not_before = 1, sealed_from
        when = "now" if sealed_from <= now else f"at or after {time_text(sealed_from, now)}"
        text += f"build one block there {when}; the block after it verifies at the P-Chain height of that block"
        if proposed < needed_height:
            text += f". {lag[:1].upper()}{lag[1:]}: build it when they propose {needed_height}"
    return DeliveryAdvice(
        pinned_height=str(pinned),
        needed_height=str(needed_height),
        blocks_before=blocks_before,
        not_before=not_before,
        text=text,
    )


def time_text(moment: int, now: float) -> str:
    """Return a time in words, with the date if it is not within a day. Both are Unix seconds."""
    try:
        pattern = "%H:%M:%S UTC" if abs(moment - now) < DAY_S else "%Y-%m-%d %H:%M:%S UTC"
        return datetime.fromtimestamp(moment, UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return f"Unix time {moment}"
