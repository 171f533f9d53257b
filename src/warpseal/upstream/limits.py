"""Limits of the calls to one upstream node: concurrency, calls per second, and pauses.

Calls of the daemon itself neither wait nor count, so that callers can never delay them. A node has
one limit for callers and another for the follower of blocks, so that neither waits for the other.
These let calls start at once, up to their rate: an even pace would delay the few calls of a
request. Batches of an EVM chain have an even pace instead: a batch in the background delays a new
block by its own share of a second, and not by a whole one.
Source of truth: RFC 9110, section 10.2.3 (Retry-After), RFC 6585 (429).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import deque
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from math import inf
from typing import Final

from msgspec import Struct

from warpseal.runtime.settings import MEBIBYTE
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import CallFailure, NodeFailure

MAX_WAITING = 1_000
MAX_PAUSE_S: Final = 3_600.0
DEFAULT_CALLS_PER_S: Final = 200
_WINDOW_S = 1.0


class NodeLimits(Struct, frozen=True):
    """Limits of the calls to each node of a list.

    Durations in seconds, sizes of one response in bytes.

    connect_timeout_s: time for a connection; None allows it as long as the call.
    max_pause_s: longest pause that a node gets by its Retry-After.
    has_default_pauses: true makes a 429 without a Retry-After a pause as well.
    in_flight, per_s: limits of typed calls on behalf of requests.
    background_in_flight, background_per_s: limits of the follower of blocks, or of the indexer.
    cooldown_s: time for which a failed node is used only if no other node is usable.
    caller_cooldown_s: this time for typed calls on behalf of requests.
    check_timeout_s: timeout of a call for the identity or the head of a node.
    poll_s: interval at which the heads of several nodes are compared.
    """

    timeout_s: float = 5.0
    connect_timeout_s: float | None = None
    max_bytes: int = MEBIBYTE
    max_large_bytes: int = 16 * MEBIBYTE
    max_pause_s: float = MAX_PAUSE_S
    has_default_pauses: bool = True
    in_flight: int = 8
    per_s: int = 50
    background_in_flight: int = 4
    background_per_s: int = 20
    cooldown_s: float = 10.0
    caller_cooldown_s: float = 30.0
    check_timeout_s: float = 2.0
    poll_s: float = 2.0


class CallOrigin(Enum):
    """The part that makes a call.

    DAEMON: the daemon itself, for polls and refreshes.
    FOLLOWER: its follower of blocks.
    """

    CALLER = auto()
    DAEMON = auto()
    FOLLOWER = auto()


class UpstreamLimit:
    """Delays calls, in their order, until the limits of one node allow them.

    `async with` holds the slot of a call.

    Used from one event loop.

    max_concurrency: number of calls in flight.
    per_s: number of starts within any one second.
    max_waiting: number of calls that may wait.
    """

    def __init__(self, max_concurrency: int, per_s: int, max_waiting: int = MAX_WAITING) -> None:
        self._slots = asyncio.Semaphore(max_concurrency)
        self._turn = asyncio.Lock()
        self._starts: deque[float] = deque(maxlen=per_s)
        self._per_s = per_s
        self._max_waiting = max_waiting
        self._waiting = 0

    async def __aenter__(self) -> None:
        """Wait for a slot. Raises CallFailure if too many calls wait already."""
        if self._waiting >= self._max_waiting:
            raise CallFailure(
                NodeFailure.BUSY, "too many calls wait for this node", blames_node=False
            )
        self._waiting += 1
        try:
            await self._slots.acquire()
            try:
                # Only the first of the waiting calls sleeps, so that they start in their order.
                async with self._turn:
                    await self._wait_for_rate()
            except BaseException:
                self._slots.release()
                raise
        finally:
            self._waiting -= 1

    async def _wait_for_rate(self) -> None:
        """Wait until the oldest of the last `per_s` starts is a second ago, and add a start."""
        clock = asyncio.get_running_loop().time
        allowed_at = clock()
        if len(self._starts) == self._per_s:
            allowed_at = self._starts[0] + _WINDOW_S
        wait_s = allowed_at - clock()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        self._starts.append(max(allowed_at, clock()))

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()


_FIRST_PAUSE_S: Final = 2.0
_MAX_DEFAULT_PAUSE_S: Final = 60.0
# No date is longer.
_MAX_TEXT: Final = 64


def parse_retry_after(
    text: str | None, unix_now_s: float, max_s: float = MAX_PAUSE_S
) -> float | None:
    """Return the seconds that a Retry-After header asks to wait; None if it cannot be read.

    text: seconds, or an HTTP date, which is compared with `unix_now_s`.
    max_s: the longest wait that is returned.
    """
    if text is None or len(text) > _MAX_TEXT:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(max_s, float(text))
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max_s, max(0.0, moment.timestamp() - unix_now_s))


class RetryAfter:
    """The pause that one node asks for.

    Without a Retry-After it doubles each time, until a call after it succeeds.
    """

    def __init__(self) -> None:
        self._until = float("-inf")
        self._default_s = 0.0

    def remaining_s(self, now: float) -> float:
        """Return the seconds until the pause ends; 0 if there is none."""
        return max(0.0, self._until - now)

    def record_request(self, now: float, wait_s: float | None) -> None:
        """Note that the node asks to wait.

        wait_s: time that the node names; None if it names none.
        """
        if wait_s is None:
            # Concurrent replies are of one pause, which only the first of them doubles.
            if self.remaining_s(now) > 0:
                return
            self._default_s = min(_MAX_DEFAULT_PAUSE_S, self._default_s * 2 or _FIRST_PAUSE_S)
            wait_s = self._default_s
        self._until = max(self._until, now + wait_s)

    def record_success(self, now: float) -> None:
        """Note a reply. A reply within the pause does not end it."""
        if self.remaining_s(now) <= 0:
            self._default_s = 0.0


class CallRate:
    """Spreads the calls to one node over time.

    Used from one event loop.

    pause: the pause that the node asks for.
    """

    def __init__(self, endpoint: NodeEndpoint) -> None:
        self.pause = RetryAfter()
        self._endpoint = endpoint
        self._chain_per_s: int | None = None
        self._default_per_s: float | None = None
        self._free_at = 0.0
        self._waiting = 0

    @property
    def per_s(self) -> float:
        """Calls per second; infinite without a limit, or if none is known before the first call."""
        return self._chain_per_s or self._default_per_s or inf

    def limit(self, per_s: int) -> None:
        """Keep to the rate of a chain; the smallest rate of all chains counts."""
        self._chain_per_s = min(per_s, self._chain_per_s or per_s)

    async def take(self, count: int, *, is_background: bool = False) -> None:
        """Wait until `count` calls may start.

        Calls in the background wait until no other call waits.
        """
        if self._chain_per_s is None and self._default_per_s is None:
            self._default_per_s = inf if await is_private(self._endpoint) else DEFAULT_CALLS_PER_S
        if self.per_s == inf:
            return
        clock = asyncio.get_running_loop().time
        # Sleeps are as long as these calls would take: no event says that no other call waits.
        while is_background and (self._waiting or self._free_at > clock()):  # noqa: ASYNC110
            await asyncio.sleep(max(count / self.per_s, self._free_at - clock()))
        starts_at = max(clock(), self._free_at)
        self._free_at = starts_at + count / self.per_s
        self._waiting += 1
        try:
            await asyncio.sleep(starts_at - clock())
        finally:
            self._waiting -= 1


class CallRates:
    """The rates of all nodes.

    URLs with the same scheme, host and port are of one node, such as a gateway.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str | None, int | None], CallRate] = {}

    def of(self, endpoint: NodeEndpoint, per_s: int | None) -> CallRate:
        """Return the rate of a node.

        per_s: rate that a chain is configured with; None if it has none.
        """
        url = endpoint.url("")
        rate = self._rates.setdefault((url.scheme, url.host, url.port), CallRate(endpoint))
        if per_s is not None:
            rate.limit(per_s)
        return rate


async def is_private(endpoint: NodeEndpoint) -> bool:
    """Return whether every address of a node is private.

    A name that cannot be resolved counts as public.
    """
    url = endpoint.url("")
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            url.host, url.port, type=socket.SOCK_STREAM
        )
    except OSError:
        return False
    return all(ipaddress.ip_address(address[4][0]).is_private for address in addresses)
