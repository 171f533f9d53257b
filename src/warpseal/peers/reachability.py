"""Whether a node can be reached before a deadline. Pure; the reasons are stable and appear in error responses."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from warpseal.peers.dial_schedule import DialStage, DialState
from warpseal.peers.statistics import ConnectionFailure


class ReachState(Enum):
    """CONNECTED: may be asked now. PENDING: may connect in time. UNREACHABLE: cannot, as far as is known."""

    CONNECTED = "connected"
    PENDING = "pending"
    UNREACHABLE = "unreachable"


class UnreachableReason(StrEnum):
    """Why a node cannot be reached in time."""

    NOT_CONNECTED = "not_connected"
    PRIVATE_ADDRESS = "private_address"
    NO_ADDRESS = "no_address"
    WRONG_IDENTITY = "wrong_identity"


class Reachability(NamedTuple):
    """reason: of UNREACHABLE only. next_dial_at: on the loop's clock; None if no dial is scheduled."""

    state: ReachState
    reason: str = ""
    next_dial_at: float | None = None


CONNECTED: Final = Reachability(ReachState.CONNECTED)
PENDING: Final = Reachability(ReachState.PENDING)
# This daemon itself: its key is in a validator set if it runs under the certificate of a validator.
OWN_NODE: Final = Reachability(ReachState.UNREACHABLE, UnreachableReason.NOT_CONNECTED)
PRIVATE_ADDRESS: Final = Reachability(ReachState.UNREACHABLE, UnreachableReason.PRIVATE_ADDRESS)
NO_ADDRESS: Final = Reachability(ReachState.UNREACHABLE, UnreachableReason.NO_ADDRESS)


def reachability_while_dialing(state: DialState, deadline: float) -> Reachability:
    """Return UNREACHABLE if the last dial of an unconnected node failed and none is due before the deadline."""
    if state.stage is not DialStage.WAITING or not state.failures or state.due_at < deadline:
        return PENDING
    is_wrong_identity = state.reason == ConnectionFailure.WRONG_IDENTITY
    reason = UnreachableReason.WRONG_IDENTITY if is_wrong_identity else UnreachableReason.NOT_CONNECTED
    return Reachability(ReachState.UNREACHABLE, reason, state.due_at)
