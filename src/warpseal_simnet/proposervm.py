"""The proposervm blocks of one chain, and the epochs that follow from them.

Source of truth: ACP-181, avalanchego `vms/proposervm/acp181/epoch.go`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final

from warpseal_simnet.ledger import Heights


@dataclass(frozen=True, slots=True)
class ChainEpoch:
    """An epoch.

    start_time: unix seconds.
    p_chain_height: the P-Chain height whose validator sets verify messages in the epoch's blocks.
    """

    number: int
    start_time: int
    p_chain_height: int


NO_EPOCH: Final = ChainEpoch(0, 0, 0)


@dataclass(frozen=True, slots=True)
class ChainBlock:
    """The header of a block.

    time: Unix seconds.
    p_chain_height: the one that it proposes; epoch: NO_EPOCH if none.
    """

    height: int
    time: int
    p_chain_height: int
    epoch: ChainEpoch

    @property
    def verifying_height(self) -> int:
        """The P-Chain height whose validators sign the messages that the block accepts."""
        return self.p_chain_height if self.epoch == NO_EPOCH else self.epoch.p_chain_height


@dataclass(frozen=True, slots=True)
class EpochRule:
    """The rule that ends epochs.

    blocks: P-Chain blocks between two blocks of a busy chain; 0: there are no epochs.
    duration_s: the first block at or after the epoch's start plus this is the epoch's last.
    """

    blocks: int = 5
    duration_s: int = 0

    def epoch_after(self, parent: ChainBlock) -> ChainEpoch:
        """Return the epoch of the child of a block."""
        if not self.blocks:
            return NO_EPOCH
        if parent.epoch == NO_EPOCH:
            return ChainEpoch(1, parent.time, parent.p_chain_height)
        if parent.time < parent.epoch.start_time + self.duration_s:
            return parent.epoch
        return ChainEpoch(parent.epoch.number + 1, parent.time, parent.p_chain_height)


class ProposerVM:
    """The blocks of a chain since the simulation started.

    The first block has no epoch, and ends with the start.
    is_idle: a block is built only by `build`, and not with P-Chain blocks as well.
    """

    def __init__(self, heights: Heights, rule: EpochRule, *, is_idle: bool = False) -> None:
        self._heights = heights
        self.rule = rule
        self.is_idle = is_idle
        self._blocks = [self._first_block(heights.current)]
        # The height of the P-Chain when the block was built.
        self._built_at = [heights.current]

    @property
    def last(self) -> ChainBlock:
        """The last block."""
        return self._blocks[-1]

    @property
    def epochs(self) -> dict[int, int]:
        """The P-Chain height of every epoch so far, the next block's included, by number."""
        epochs = [*(block.epoch for block in self._blocks), self.next_epoch]
        return {epoch.number: epoch.p_chain_height for epoch in epochs if epoch != NO_EPOCH}

    @property
    def next_epoch(self) -> ChainEpoch:
        """The epoch of the next block."""
        return self.rule.epoch_after(self.last)

    @property
    def verifying_height(self) -> int:
        """The P-Chain height at which the next block verifies messages."""
        return self.next_block(self.last.time).verifying_height

    def next_block(self, unix_s: float) -> ChainBlock:
        """Return the block that a node would build at a time."""
        parent = self.last
        height = max(parent.p_chain_height, self._heights.proposed)
        return ChainBlock(
            parent.height + 1, max(parent.time, int(unix_s)), height, self.rule.epoch_after(parent)
        )

    def build(self, unix_s: float, built_at: int) -> ChainBlock:
        """Build the next block.

        built_at: the P-Chain height of the nodes that have it.
        """
        block = self.next_block(unix_s)
        self._blocks.append(block)
        self._built_at.append(built_at)
        return block

    def resume(self, epoch: ChainEpoch) -> None:
        """Continue in a recorded epoch instead of starting with the first one."""
        self._blocks = [replace(self._blocks[0], time=epoch.start_time, epoch=epoch)]

    def follow(self, p_chain_height: int, unix_s: float) -> None:
        """Build the block, if any, that a busy chain builds with a P-Chain block."""
        if (
            not self.is_idle
            and (p_chain_height - self._heights.first) % max(1, self.rule.blocks) == 0
        ):
            self.build(unix_s, p_chain_height)

    def epoch_at(self, p_chain_height: int) -> ChainEpoch:
        """Return the epoch of the next block at a node whose P-Chain has this height."""
        return self.rule.epoch_after(self._last_at(p_chain_height))

    def proposed_at(self, p_chain_height: int) -> int:
        """Return the P-Chain height that such a node would put into the next block."""
        return max(
            self._last_at(p_chain_height).p_chain_height, self._heights.proposed_at(p_chain_height)
        )

    def _last_at(self, p_chain_height: int) -> ChainBlock:
        built = bisect_right(self._built_at, p_chain_height)
        return self._blocks[built - 1] if built else self._first_block(p_chain_height)

    def _first_block(self, p_chain_height: int) -> ChainBlock:
        time = self._heights.time_of(p_chain_height)
        return ChainBlock(0, time, self._heights.proposed_at(p_chain_height), NO_EPOCH)
