"""Whether a node can still be reached before a deadline. Pure; the reasons are stable and shown to callers."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from warpseal.peers.dial_schedule import Prospect, Stage
from warpseal.peers.failures import Failure


class Reachability(Enum):
    """CONNECTED: may be asked now. COMING: may still connect in time. LOST: cannot, as far as can be known."""

    CONNECTED = "connected"
    COMING = "coming"
    LOST = "lost"


class LostReason(StrEnum):
    """Why a node cannot be reached in time."""

    NOT_CONNECTED = "not_connected"
    PRIVATE_ADDRESS = "private_address"
    NO_ADDRESS = "no_address"
    WRONG_IDENTITY = "wrong_identity"


class Reach(NamedTuple):
    """How a node stands. reason: of LOST alone. next_dial_at: on the loop's clock; None where none is planned."""

    state: Reachability
    reason: str = ""
    next_dial_at: float | None = None


CONNECTED: Final = Reach(Reachability.CONNECTED)
COMING: Final = Reach(Reachability.COMING)
# Ourselves: whose key may be in a validator set, where the daemon runs under a validator's certificate.
NEVER: Final = Reach(Reachability.LOST, LostReason.NOT_CONNECTED)
PRIVATE_ADDRESS: Final = Reach(Reachability.LOST, LostReason.PRIVATE_ADDRESS)
NO_ADDRESS: Final = Reach(Reachability.LOST, LostReason.NO_ADDRESS)


def reach_of_waiting(prospect: Prospect, deadline: float) -> Reach:
    """Return how an unconnected node with an address stands: lost after a failed dial with no other in time."""
    if prospect.stage is not Stage.WAITING or not prospect.failures or prospect.due_at < deadline:
        return COMING
    is_other = prospect.reason == Failure.WRONG_IDENTITY
    reason = LostReason.WRONG_IDENTITY if is_other else LostReason.NOT_CONNECTED
    return Reach(Reachability.LOST, reason, prospect.due_at)
