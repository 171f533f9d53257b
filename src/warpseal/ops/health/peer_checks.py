"""Checks of the peer network (`network`), of what it was asked (`router`) and of the time of day (`clock`).

Source of truth: the specification's messages; limits and texts of avalanchego `network` and `snow/networking/router`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck, go_duration

MIN_PEERS: Final = 1
MAX_SILENCE_S: Final = 60.0
MAX_SEND_FAIL_RATE: Final = 0.9
MAX_OUTSTANDING: Final = 1_024
MAX_REQUEST_S: Final = 300.0
_GLOBAL: Final = frozenset({APPLICATION})


@dataclass(frozen=True, slots=True)
class PeerTraffic:
    """What goes on between us and our peers. Moments are of one clock that never goes back; None: never.

    sent, unsent: requests that were written or queued, and that no queue took, since the start. capacity: how many
    requests may be unanswered at once. oldest_request_at: None where nothing is unanswered.
    """

    peers: int
    received_at: float | None
    sent_at: float | None
    sent: int
    unsent: int
    outstanding: int
    capacity: int
    oldest_request_at: float | None


def network_check(traffic: Callable[[], PeerTraffic], now: Callable[[], float]) -> HealthCheck:
    """Return the check of the connections."""
    heard = _Latest()

    def look() -> CheckOutcome:
        current = traffic()
        heard.note(current)
        rate = current.unsent / (current.sent + current.unsent) if current.unsent else 0
        message: dict[str, Any] = {"connectedPeers": current.peers, "sendFailRate": rate}
        silences = {name: now() - moment for name, moment in heard.moments.items()}
        for name, silence_s in silences.items():
            message[f"timeSinceLastMsg{name}"] = go_duration(silence_s)
        faults = ", ".join(_network_faults(current, silences, rate))
        return CheckOutcome(message, f"network layer is unhealthy reason: {faults}" if faults else None)

    return HealthCheck("network", look, _GLOBAL)


def router_check(traffic: Callable[[], PeerTraffic], now: Callable[[], float]) -> HealthCheck:
    """Return the check of unanswered requests. A round over many validators is no fault: the limit grows with them."""

    def look() -> CheckOutcome:
        current = traffic()
        longest_s = now() - current.oldest_request_at if current.oldest_request_at is not None else 0.0
        message = {"longestRunningRequest": go_duration(longest_s), "outstandingRequests": current.outstanding}
        limit, faults = max(MAX_OUTSTANDING, current.capacity), []
        if current.outstanding > limit:
            faults.append(f"number of outstanding requests {current.outstanding} > {limit}")
        if longest_s > MAX_REQUEST_S:
            faults.append(f"time for outstanding requests {go_duration(longest_s)} > {go_duration(MAX_REQUEST_S)}")
        told = ", ".join(faults)
        return CheckOutcome(message, f"the router is not healthy reason: {told}" if told else None)

    return HealthCheck("router", look, _GLOBAL)


def clock_check(offset_s: Callable[[], float | None], tolerance_s: float) -> HealthCheck:
    """Return the check of our clock against that of our peers: they refuse who is too far off."""

    def look() -> CheckOutcome:
        offset = offset_s()
        message = {"offsetSeconds": None if offset is None else round(offset, 3)}
        if offset is None or abs(offset) <= tolerance_s:
            return CheckOutcome(message)
        return CheckOutcome(message, f"the clock is {abs(offset):.1f} s off the peers', {tolerance_s:g} s are allowed")

    return HealthCheck("clock", look, _GLOBAL)


class _Latest:
    """When a message last came and went, that of connections which are gone included."""

    def __init__(self) -> None:
        self.moments: dict[str, float] = {}

    def note(self, traffic: PeerTraffic) -> None:
        for name, moment in (("Received", traffic.received_at), ("Sent", traffic.sent_at)):
            if moment is not None:
                self.moments[name] = max(moment, self.moments.get(name, moment))


def _network_faults(traffic: PeerTraffic, silences: Mapping[str, float], rate: float) -> Iterator[str]:
    if traffic.peers < MIN_PEERS:
        yield f"not connected to a minimum of {MIN_PEERS} peer(s) only {traffic.peers}"
    for name, words in (("Received", "received from network"), ("Sent", "sent to network")):
        if name not in silences:
            yield f"no messages {words}"
        elif silences[name] > MAX_SILENCE_S:
            what = "from network received" if name == "Received" else "to network sent"
            yield f"no messages {what} in {go_duration(silences[name])} > {go_duration(MAX_SILENCE_S)}"
    if rate > MAX_SEND_FAIL_RATE:
        yield f"messages failure send rate {rate:g} > {MAX_SEND_FAIL_RATE:g}"
