"""Advice on a destination whose epoch is pinned to an old validator set: the blocks that it needs first. Pure.

Source of truth: ACP-181; avalanchego `vms/proposervm/acp181/epoch.go`. The first block at or after the end of an epoch
still verifies at its height; the block after it verifies at the P-Chain height in the header of that block.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from warpseal.delivery.destination import Destination
from warpseal.runtime.settings import DAY_S
from warpseal.warp.ids import id_text


@dataclass(frozen=True, slots=True)
class Advice:
    """The blocks that have to be built on a destination before the one with the message.

    pinned_height: the P-Chain height at which the chain verifies now. needed_height: the lowest known one from which on
    the set is the present one. not_before: Unix seconds; earlier blocks do not end the epoch.
    """

    pinned_height: int
    needed_height: int
    blocks_before: int
    not_before: int
    text: str

    def as_json(self) -> dict[str, Any]:
        return {
            "pinnedHeight": str(self.pinned_height),
            "neededHeight": str(self.needed_height),
            "blocksBefore": self.blocks_before,
            "notBefore": self.not_before,
            "text": self.text,
        }


def advise(destination: Destination, needed_height: int, now: float) -> Advice:
    """Return how the destination comes to verify at a height. now: Unix seconds."""
    pinned, proposed, sealed_from = destination.height, destination.proposed_height, destination.sealed_from
    text = f"{id_text(destination.chain_id)} verifies at P-Chain height {pinned}, the message needs {needed_height}: "
    lag = f"its nodes propose only P-Chain height {proposed} now"
    if sealed_from is None:
        not_before = int(now)
        return Advice(pinned, needed_height, 0, not_before, f"{text}{lag}; send the message in a block after that")
    when = "now" if sealed_from <= now else f"at or after {time_text(sealed_from, now)}"
    text += f"build one block there {when}; the block after it verifies at the P-Chain height of that block"
    if proposed < needed_height:
        text += f". {lag[:1].upper()}{lag[1:]}: build it when they propose {needed_height}"
    return Advice(pinned, needed_height, 1, sealed_from, text)


def time_text(moment: int, now: float) -> str:
    """Return a time in words, with the date if it is not within a day. Both are Unix seconds."""
    try:
        pattern = "%H:%M:%S UTC" if abs(moment - now) < DAY_S else "%Y-%m-%d %H:%M:%S UTC"
        return datetime.fromtimestamp(moment, UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return f"Unix time {moment}"
