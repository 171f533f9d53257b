"""What the store keeps of what was observed of peers: values of plain bytes and numbers, without any SQL in them."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.warp.ids import NodeID


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """Counters of one validation (id of 32 bytes), in milliseconds. first_at, seen_at: unix seconds.

    first_at: when it was first watched; seen_at: when it was last known to be under way.
    """

    validation_id: bytes
    node_id: NodeID
    first_at: int
    seen_at: int
    observed_ms: int
    connected_ms: int


@dataclass(frozen=True, slots=True)
class HourRow:
    """One hour of one node, in milliseconds. hour: hours since 1970."""

    hour: int
    node_id: NodeID
    observed_ms: int
    connected_ms: int


@dataclass(frozen=True, slots=True)
class RecalledObservations:
    """What a process begins with. met: nodes that were observed lately."""

    validations: tuple[ValidationRow, ...] = ()
    hours: tuple[HourRow, ...] = ()
    met: frozenset[NodeID] = frozenset()
