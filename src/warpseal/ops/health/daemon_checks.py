"""Checks of the daemon itself: its peers, unanswered requests, clock, store, disk, and the indexer's process.

Source of truth: the specification's messages; limits and texts of avalanchego `network` and `snow/networking/router`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck, go_duration
from warpseal.ops.health.settings import HealthSettings

MIN_PEERS: Final = 1
MAX_SILENCE_S: Final = 60.0
MAX_SEND_FAIL_RATE: Final = 0.9
MAX_OUTSTANDING: Final = 1_024
MAX_REQUEST_S: Final = 300.0
_GLOBAL: Final = frozenset({APPLICATION})


@dataclass(frozen=True, slots=True)
class PeerTraffic:
    """Traffic between the daemon and its peers. Moments are of one monotonic clock; None: never.

    sent, unsent: requests that were written or queued, and those that no queue accepted, since the start. capacity:
    limit of unanswered requests. oldest_request_at: None if no request is unanswered.
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
    # Of connections that are closed by now as well.
    latest: dict[str, float] = {}

    def run() -> CheckOutcome:
        current = traffic()
        for name, moment in (("Received", current.received_at), ("Sent", current.sent_at)):
            if moment is not None:
                latest[name] = max(moment, latest.get(name, moment))
        rate = current.unsent / (current.sent + current.unsent) if current.unsent else 0
        message: dict[str, Any] = {"connectedPeers": current.peers, "sendFailRate": rate}
        silences = {name: now() - moment for name, moment in latest.items()}
        for name, silence_s in silences.items():
            message[f"timeSinceLastMsg{name}"] = go_duration(silence_s)
        errors = ", ".join(_network_errors(current, silences, rate))
        return CheckOutcome(message, f"network layer is unhealthy reason: {errors}" if errors else None)

    return HealthCheck("network", run, _GLOBAL)


def router_check(traffic: Callable[[], PeerTraffic], now: Callable[[], float]) -> HealthCheck:
    """Return the check of unanswered requests. The limit grows with the validators, all of which one round may ask."""

    def run() -> CheckOutcome:
        current = traffic()
        longest_s = now() - current.oldest_request_at if current.oldest_request_at is not None else 0.0
        message = {"longestRunningRequest": go_duration(longest_s), "outstandingRequests": current.outstanding}
        limit, errors = max(MAX_OUTSTANDING, current.capacity), []
        if current.outstanding > limit:
            errors.append(f"number of outstanding requests {current.outstanding} > {limit}")
        if longest_s > MAX_REQUEST_S:
            errors.append(f"time for outstanding requests {go_duration(longest_s)} > {go_duration(MAX_REQUEST_S)}")
        reason = ", ".join(errors)
        return CheckOutcome(message, f"the router is not healthy reason: {reason}" if reason else None)

    return HealthCheck("router", run, _GLOBAL)


def clock_check(offset_s: Callable[[], float | None], tolerance_s: float) -> HealthCheck:
    """Return the check of the clock against the peers' clocks; peers refuse a handshake with too large an offset."""

    def run() -> CheckOutcome:
        offset = offset_s()
        message = {"offsetSeconds": None if offset is None else round(offset, 3)}
        if offset is None or abs(offset) <= tolerance_s:
            return CheckOutcome(message)
        return CheckOutcome(message, f"the clock is {abs(offset):.1f} s off the peers', {tolerance_s:g} s are allowed")

    return HealthCheck("clock", run, _GLOBAL)


def database_check(error: Callable[[], str | None]) -> HealthCheck:
    """Return the check of the store, without a message. error: why the store is down, None if it is up."""
    return HealthCheck("database", lambda: CheckOutcome(error=error()), _GLOBAL)


def diskspace_check(folder: Path, settings: HealthSettings) -> HealthCheck:
    """Return the check of the disk of a folder, or of its nearest parent that exists.

    The message warns of little space; the check fails with hardly any. The daemon never stops for it.
    """
    warn, fail = settings.warn_disk_percent, settings.fail_disk_percent

    async def run() -> CheckOutcome:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        usage = await asyncio.to_thread(shutil.disk_usage, existing)
        if not usage.total:
            return CheckOutcome({})  # A file system without a size.
        percent = usage.free * 100 // usage.total
        message: dict[str, Any] = {"availableDiskBytes": usage.free, "availableDiskPercentage": percent}
        reason = f"remaining available disk space percentage ({percent}%) is below"
        if percent < fail:
            return CheckOutcome(message, f"{reason} minimum required available space percentage ({fail}%)")
        if percent < warn:
            message["warning"] = f"{reason} warning threshold available space percentage ({warn}%)"
        return CheckOutcome(message)

    return HealthCheck("diskspace", run, _GLOBAL)


def indexer_check(
    silence_s: Callable[[], float | None], settings: HealthSettings, stops: Callable[[], Sequence[str]] = tuple
) -> HealthCheck:
    """Return the check of the indexer's process; it fails if the process is silent for two rounds.

    stops: the chains that it stopped indexing, with height and reason; each is a failure as well.
    """
    allowed_s = 2 * settings.check_frequency_s

    def run() -> CheckOutcome:
        silent_s = silence_s()
        if silent_s is None:
            return CheckOutcome(error="nothing was heard of the indexer yet")
        message = {"timeSinceLastReport": go_duration(silent_s)}
        errors = list(stops())
        if silent_s > allowed_s:
            errors.insert(0, f"silent for {go_duration(silent_s)} > {go_duration(allowed_s)}")
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck("indexer", run, _GLOBAL)


def _network_errors(traffic: PeerTraffic, silences: Mapping[str, float], rate: float) -> Iterator[str]:
    if traffic.peers < MIN_PEERS:
        yield f"not connected to a minimum of {MIN_PEERS} peer(s) only {traffic.peers}"
    for name, never, lately in (
        ("Received", "received from network", "from network received"),
        ("Sent", "sent to network", "to network sent"),
    ):
        if name not in silences:
            yield f"no messages {never}"
        elif silences[name] > MAX_SILENCE_S:
            yield f"no messages {lately} in {go_duration(silences[name])} > {go_duration(MAX_SILENCE_S)}"
    if rate > MAX_SEND_FAIL_RATE:
        yield f"messages failure send rate {rate:g} > {MAX_SEND_FAIL_RATE:g}"
