"""Where the simulated P-Chain stands, and when each of its blocks was made."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(slots=True)
class Heights:
    """The heights of the P-Chain. made_at: unix seconds of the blocks since `first`; began_at: of block 0.

    epoch_blocks: 0 where epochs have not begun, before Granite.
    """

    current: int
    proposed_lag: int = 0
    epoch_blocks: int = 5
    first: int = 0
    made_at: list[float] = field(default_factory=list)
    began_at: float = 0.0

    @property
    def proposed(self) -> int:
        """The height that a new block would refer to."""
        return self.proposed_at(self.current)

    @property
    def epoch(self) -> tuple[int, int, int]:
        """Number, start (unix seconds) and P-Chain height of the current epoch of every chain."""
        return self.epoch_at(self.current)

    @property
    def verifying(self) -> int:
        """The height whose sets chains verify with now: the epoch's, or the proposed one without epochs."""
        return self.epoch[2] if self.epoch_blocks else self.proposed

    def proposed_at(self, height: int) -> int:
        """Return the height that a new block refers to while the tip is at `height`."""
        return max(0, height - self.proposed_lag)

    def epoch_at(self, height: int) -> tuple[int, int, int]:
        """Return number, start (unix seconds) and P-Chain height of the epoch while the tip is at `height`.

        Zeros without epochs.
        """
        if not self.epoch_blocks:
            return 0, 0, 0
        if height < self.first:
            return 1, self.time_of(height), height
        number = (height - self.first) // self.epoch_blocks
        start = self.first + number * self.epoch_blocks
        return number + 1, self.time_of(start), start

    def time_of(self, height: int) -> int:
        """Return the time of a block (unix seconds); those before `first` are evenly spaced since `began_at`."""
        if height >= self.first:
            return int(self.made_at[height - self.first])
        return int(self.began_at + (self.made_at[0] - self.began_at) * height / self.first)

    def height_at(self, unix_s: float) -> int:
        """Return the last height whose block was made at `unix_s` or before."""
        made = bisect_right(self.made_at, unix_s)
        if made:
            return self.first + made - 1
        passed = (unix_s - self.began_at) / max(1.0, self.made_at[0] - self.began_at)
        return max(0, min(self.first - 1, int(passed * self.first)))
