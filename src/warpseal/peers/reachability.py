"""Whether a node can still be reached before a deadline. Pure; the reasons are stable and shown to callers."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from warpseal.peers.dial_schedule import Prospect, Stage
from warpseal.peers.failures import Failure


class ReachState(Enum):
    """CONNECTED: may be asked now. COMING: may still connect in time. LOST: cannot, as far as can be known."""

    CONNECTED = "connected"
    PENDING = "coming"
    UNREACHABLE = "unreachable"


class UnreachableReason(StrEnum):
    """Why a node cannot be reached in time."""

    NOT_CONNECTED = "not_connected"
    PRIVATE_ADDRESS = "private_address"
    NO_ADDRESS = "no_address"
    WRONG_IDENTITY = "wrong_identity"


class Reachability(NamedTuple):
    """How a node stands. reason: of LOST alone. next_dial_at: on the loop's clock; None where none is planned."""

    state: ReachState
    reason: str = ""
    next_dial_at: float | None = None


CONNECTED: Final = Reachability(ReachState.CONNECTED)
PENDING: Final = Reachability(ReachState.PENDING)
# Ourselves: whose key may be in a validator set, where the daemon runs under a validator's certificate.
OWN_NODE: Final = Reachability(ReachState.UNREACHABLE, UnreachableReason.NOT_CONNECTED)
PRIVATE_ADDRESS: Final = Reachability(ReachState.UNREACHABLE, UnreachableReason.PRIVATE_ADDRESS)
NO_ADDRESS: Final = Reachability(ReachState.UNREACHABLE, UnreachableReason.NO_ADDRESS)


def reach_of_waiting(prospect: Prospect, deadline: float) -> Reachability:
    """Return how an unconnected node with an address stands: lost after a failed dial with no other in time."""
    if prospect.stage is not Stage.WAITING or not prospect.failures or prospect.due_at < deadline:
        return PENDING
    is_other = prospect.reason == Failure.WRONG_IDENTITY
    reason = UnreachableReason.WRONG_IDENTITY if is_other else UnreachableReason.NOT_CONNECTED
    return Reachability(ReachState.UNREACHABLE, reason, prospect.due_at)
