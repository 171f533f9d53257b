"""What was observed of peers, as values: validations to watch, and for how long nodes were observed and connected.

Source of truth: docs/node-interfaces.md, "What Warpseal observes". Milliseconds are of a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.warp.ids import NodeID

HOUR_S = 3_600
HOUR_MS = HOUR_S * 1_000


@dataclass(frozen=True, slots=True)
class Subject:
    """One validation under way.

    validation_id: 32 bytes, the L1 validation's, or the id of the transaction that added a permissioned validator.
    is_active: an inactive L1 validator is observed, but never counts as connected, as nodes count it.
    """

    validation_id: bytes
    node_id: NodeID
    start_unix_s: int
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class Uptime:
    """For how long something was observed, and for how long of that it was connected."""

    observed_ms: int = 0
    connected_ms: int = 0

    @property
    def observed_s(self) -> int:
        """Whole seconds."""
        return self.observed_ms // 1_000

    @property
    def connected_s(self) -> int:
        """Whole seconds."""
        return self.connected_ms // 1_000

    @property
    def percentage(self) -> float:
        """0..100; 100 where nothing was observed."""
        return 100.0 * self.connected_ms / self.observed_ms if self.observed_ms else 100.0


@dataclass(frozen=True, slots=True)
class ObservedHour:
    """One hour of one node. start_unix_s: when it began, a multiple of 3,600."""

    start_unix_s: int
    observed_ms: int
    connected_ms: int
