"""P-Chain heights at which validator sets are taken: the proposed height, and epochs (ACP-181).

The proposed height does not go back when a poll reaches another node, which lags. It goes back only
if every poll returned a lower height for as long as a height may be stale: then the higher one was
wrong. If no node has replied for as long, the newest height of the index takes its place: the tip,
which nodes propose half a minute later.

The first height, and one above the last confirmed one, is confirmed by a second node, if there is
one, or by the index. While the second node lags or fails, the height grows as fast as the P-Chain
can, a block a second, and a leap of one node is not followed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from warpseal.chains.proposervm import Epoch
from warpseal.node.chain_apis import NO_EPOCH, ProposerVMClient
from warpseal.node.platform import PlatformClient
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache, loop_time
from warpseal.upstream.errors import NodeAttempt, NodesDisagree, NodeUnavailable, RpcRefusal
from warpseal.upstream.json_values import MAX_HEIGHT
from warpseal.upstream.limits import CallOrigin
from warpseal.warp.ids import ChainID

log = logging.getLogger(__name__)

T = TypeVar("T")

_PROPOSED_HEIGHT = "the proposed P-Chain height"
_EPOCH_TTL_S = 1.0
# A request waits for a set that is so far beyond the tip, see ValidatorSettings.max_height_ahead.
_MARGIN = 8
# A node may lag for an hour.
_FIRST_MARGIN = 1_000
_WARN_AGAIN_AFTER_S = 60.0
_MAX_CHAINS = 4_096


class _Confirmed(NamedTuple):
    """A height that two nodes had reached, and when, in seconds."""

    height: int
    at: float


class ProposedHeight:
    """Keeps the proposed height up to date while `run` runs. Used from one event loop.

    read_index: returns the newest height of the index; None: there is no index, or it has no
        height.
    """

    def __init__(
        self,
        platform: PlatformClient,
        *,
        poll_s: float = 2.0,
        stale_after_s: float = 60.0,
        now: Callable[[], float] | None = None,
        read_index: Callable[[], Awaitable[int | None]] | None = None,
    ) -> None:
        self._platform = platform
        self._read_index = read_index
        self._poll_s = poll_s
        self._stale_after_s = stale_after_s
        self._now = now or loop_time
        self._height: int | None = None
        self._succeeded_at = float("-inf")
        self._lower_since: float | None = None
        self._confirmed: _Confirmed | None = None
        self._warned_at = float("-inf")
        self._is_from_index = False
        self._attempts: Sequence[NodeAttempt] = ()
        self._polled = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        self._watched: tuple[int | None, bool] = (None, False)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the height changes, becomes stale, or is fresh again."""
        self._watchers.append(changed)

    def current(self) -> int:
        """Return the height. Raises NodeUnavailable if no poll succeeded for `stale_after_s`."""
        if self._height is None or not self.is_fresh:
            raise NodeUnavailable(_PROPOSED_HEIGHT, self._attempts)
        return self._height

    @property
    def is_fresh(self) -> bool:
        """Whether `current` would return."""
        return self._height is not None and self._now() - self._succeeded_at <= self._stale_after_s

    @property
    def last(self) -> int | None:
        """The last height, however old; None before the first poll succeeds."""
        return self._height

    async def latest(self) -> int:
        """Wait for the first poll; return the last height, however old. Raises NodeUnavailable."""
        await self._polled.wait()
        return self.current() if self._height is None else self._height

    async def first(self) -> int:
        """Wait for the first poll; return the height. Raises NodeUnavailable."""
        await self._polled.wait()
        return self.current()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(self._poll_s)

    async def poll(self) -> None:
        """Poll once and record the height or the failure."""
        try:
            height = await self._confirm(
                await self._platform.proposed_height(origin=CallOrigin.DAEMON)
            )
        except NodeUnavailable as error:
            self._attempts = error.attempts
            await self._read_indexed()
        except RpcRefusal as error:
            log.warning("proposed height refused", extra={"answer": error.text})
        else:
            self._is_from_index = False
            self._record(height, self._now())
        self._polled.set()
        before, self._watched = self._watched, (self._height, self.is_fresh)
        if self._watched != before:
            for changed in self._watchers:
                changed()

    async def _read_indexed(self) -> None:
        """Record the height of the index before that of a node becomes stale, and from then on."""
        age_s = self._now() - self._succeeded_at
        if self._read_index is None or not (
            self._is_from_index or age_s > self._stale_after_s - 2 * self._poll_s
        ):
            return
        height = await self._read_index()
        if height is not None:
            self._is_from_index = True
            self._record(height, self._now())

    async def _confirm(self, proposed: int) -> int:
        """Return a proposed height if it is no leap, else the one that a second node confirms."""
        base = self._confirmed
        is_leap = base is None or proposed > base.height + _MARGIN
        if not is_leap or not self._platform.confirms_heights or await self._is_indexed(proposed):
            return proposed
        margin = _FIRST_MARGIN if base is None else _MARGIN
        height = await self._platform.confirmed_height(
            margin, CallOrigin.DAEMON, has_stalled=base is None
        )
        now = self._now()
        if height is not None and (base is None or height >= base.height):
            self._confirmed = _Confirmed(height, now)
        if height is not None and proposed <= height + margin:
            return proposed
        if base is None:
            return proposed if height is None else self._lower(proposed, height, now)
        # The second node lags or fails, and the chain goes on.
        reachable = base.height + _MARGIN + int(now - base.at)
        if proposed <= reachable:
            return proposed
        return self._lower(proposed, reachable if height is None else max(height, base.height), now)

    def _lower(self, proposed: int, height: int, now: float) -> int:
        """Return the height that counts in place of a proposed one."""
        if now - self._warned_at >= _WARN_AGAIN_AFTER_S:
            self._warned_at = now
            log.warning(
                "proposed height not confirmed", extra={"proposed": proposed, "used": height}
            )
        if self._height == proposed:
            # It was used while no second node replied.
            self._height = None
        return height

    async def _is_indexed(self, height: int) -> bool:
        newest = None if self._read_index is None else await self._read_index()
        return newest is not None and height <= newest

    def _record(self, height: int, now: float) -> None:
        self._succeeded_at = now
        self._attempts = ()
        if self._height is None or height >= self._height:
            self._height = height
            self._lower_since = None
        elif self._lower_since is None:
            self._lower_since = now
        elif now - self._lower_since >= self._stale_after_s:
            log.warning("proposed height went back", extra={"from": self._height, "to": height})
            self._height = height
            self._lower_since = None
            self._confirmed = None


class _ChainFacts(Generic[T]):
    """The replies of chains' nodes to one call, cached for a second; callers share a call.

    last_reply_s: seconds for which the last reply is used while no node of the chain replies.
    """

    def __init__(
        self,
        fetch: Callable[[ChainID], Awaitable[T]],
        last_reply_s: float,
        now: Callable[[], float] | None,
    ) -> None:
        self._fetch = fetch
        self._last_reply_s = last_reply_s
        self._last: TtlCache[ChainID, T] = TtlCache(_MAX_CHAINS, now)
        self._cache: TtlCache[ChainID, T] = TtlCache(_MAX_CHAINS, now)
        self._flights: SingleFlight[ChainID, T] = SingleFlight()

    async def get(self, chain_id: ChainID) -> T:
        """Return a reply of a node; the last one if no node replies. Raises NodeUnavailable."""
        cached = self._cache.get(chain_id)
        if cached is not None:
            return cached.value
        return await self._flights.run(chain_id, lambda: self._read(chain_id))

    async def _read(self, chain_id: ChainID) -> T:
        try:
            reply = await self._fetch(chain_id)
            self._last.put(chain_id, reply, ttl_s=self._last_reply_s)
        except NodeUnavailable as error:
            cached = None if isinstance(error, NodesDisagree) else self._last.get(chain_id)
            if cached is None:
                raise
            reply = cached.value
        self._cache.put(chain_id, reply, ttl_s=_EPOCH_TTL_S)
        return reply


class EpochHeights:
    """The epochs and the proposed heights of chains' next blocks, cached for a second.

    Used from one event loop. Methods raise NodeUnavailable if a node that may run the chain fails.
    epoch: function that returns the epoch of a chain's next block; NO_EPOCH before Granite, and
        None if no node runs the chain.
    proposed_height: function that returns the P-Chain height that the next block would carry; None
        if no node runs the chain.
    last_reply_s: seconds for which the last reply is used while no node of the chain replies.
    newest_height: function that waits for the proposed height; None: there is none. A reply that is
        far beyond it does not count if another node of the chain has a lower one.
    """

    def __init__(
        self,
        proposervm: ProposerVMClient,
        *,
        last_reply_s: float = 0.0,
        now: Callable[[], float] | None = None,
        newest_height: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        async def most_height() -> int:
            if newest_height is not None:
                with suppress(NodeUnavailable):
                    return await newest_height() + _MARGIN
            return MAX_HEIGHT

        async def fetch_epoch(chain_id: ChainID) -> Epoch | None:
            return await proposervm.current_epoch(chain_id, await most_height())

        async def fetch_height(chain_id: ChainID) -> int | None:
            return await proposervm.proposed_height(chain_id, await most_height())

        self.epoch = _ChainFacts(fetch_epoch, last_reply_s, now).get
        self.proposed_height = _ChainFacts(fetch_height, last_reply_s, now).get

    async def height(self, chain_id: ChainID) -> int | None:
        """Return the P-Chain height of the epoch.

        None: no node runs the chain, or the chain has no epochs. Raises NodeUnavailable if a node
        that may run it fails.
        """
        epoch = await self.epoch(chain_id)
        return None if epoch is None or epoch == NO_EPOCH else epoch.p_chain_height

    async def any_at(self, height: int, chain_ids: Iterable[ChainID]) -> bool:
        """Return whether `height` is the current epoch height of one of these chains.

        A chain whose nodes fail does not count.
        """

        async def height_or_none(chain_id: ChainID) -> int | None:
            with suppress(NodeUnavailable):
                return await self.height(chain_id)
            return None

        return height in await asyncio.gather(*map(height_or_none, set(chain_ids)))
