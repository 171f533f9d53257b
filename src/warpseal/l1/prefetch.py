"""Signs the messages of L1 transactions of tracked subnets before a caller requests them.

The queue is in the store and survives restarts. Of several daemons on one store only the leader signs. A transaction is
retried for hours, since validators may be offline for that long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

from msgspec import Struct

from warpseal.aggregation.errors import QuorumImpossible, SubnetNotConverted
from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_txs import parse_p_tx
from warpseal.errors import InvalidRequest, WarpsealError
from warpseal.l1.errors import MessageSuperseded
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.l1.settings import L1Settings
from warpseal.messages.attestation import Attestation, derive_attestation
from warpseal.messages.errors import NoMessage, UndecodableTransaction
from warpseal.store.errors import StoreDown
from warpseal.store.l1_records import L1Records
from warpseal.store.locks import Leadership
from warpseal.store.values import EagerTask, L1Transaction
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import UnknownChain, UnknownSubnet
from warpseal.warp.ids import ChainID, SubnetID, id_text

log = logging.getLogger("warpseal.l1")

Subscribe = Callable[[Callable[[L1Transaction], None]], Callable[[], None]]
"""Adds a listener for new transactions; returns the function that removes it."""

PERMANENT_ERRORS: Final = (
    InvalidRequest,
    MessageSuperseded,
    NoMessage,
    QuorumImpossible,
    SubnetNotConverted,
    UndecodableTransaction,
    UnknownSubnet,
)
"""Errors that no retry resolves."""

_MAX_PENDING: Final = 10_000
_MAX_RECENT: Final = 2_000
_POLL_S: Final = 1.0
# If the process dies during an attempt, the next attempt begins after this time.
_LEASE_S: Final = 60.0
_FIRST_RETRY_S: Final = 2.0
_MAX_RETRY_S: Final = 300.0
_MAX_DOUBLINGS: Final = 8
# For transactions whose block has no time: about as many as others have within their hours.
_MAX_ATTEMPTS: Final = 150


class EagerDeps(Struct, frozen=True):
    """The services that the signer uses. subscribe: of the follower."""

    sign: Callable[[L1Request], Awaitable[L1SignedMessage]]
    queue: L1Records
    leadership: Leadership
    find_subnet: Callable[[ChainID], Awaitable[SubnetID]]
    subscribe: Subscribe


class EagerSigner:
    """Used from one event loop. tracked: subnets whose transactions are signed. now_unix: seconds since 1970."""

    def __init__(
        self,
        deps: EagerDeps,
        tracked: frozenset[SubnetID],
        network_id: int,
        settings: L1Settings,
        *,
        now_unix: Callable[[], float] = time.time,
    ) -> None:
        self._deps = deps
        self._tracked = tracked
        self._network_id = network_id
        self._settings = settings
        self._random = Random()
        self._now_unix = now_unix
        self._pending: deque[L1Transaction] = deque(maxlen=_MAX_PENDING)
        self._wake = asyncio.Event()
        self._running: set[bytes] = set()
        self._has_loaded_recent = False

    async def run(self) -> None:
        """Sign until cancelled; return at once if it is switched off."""
        if not self._settings.eager_l1_messages:
            return
        unsubscribe = self._deps.subscribe(self._on_transaction)
        try:
            async with asyncio.TaskGroup() as attempts:
                while True:
                    await self._deps.leadership.wait_until_held()
                    await self._load_recent()
                    await self._enqueue()
                    await self._start_due(attempts)
                    await self._wait()
        finally:
            unsubscribe()

    def _on_transaction(self, transaction: L1Transaction) -> None:
        self._pending.append(transaction)
        self._wake.set()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await self._wake.wait()
        self._wake.clear()

    async def _load_recent(self) -> None:
        """Add recent transactions, once: a process that died may not have enqueued all that it had read."""
        if self._has_loaded_recent:
            return
        since = self._now_unix() - self._settings.eager_retry_for_s
        try:
            newest = await self._deps.queue.newest(_MAX_RECENT)
        except StoreDown:
            return
        self._has_loaded_recent = True
        # Most of them are signed already. Each of those costs one read of the store.
        self._pending.extend(transaction for transaction in reversed(newest) if transaction.time >= since)

    async def _enqueue(self) -> None:
        """Write pending transactions to the queue; those that cannot be checked or written now stay pending."""
        for _ in range(len(self._pending)):
            transaction = self._pending.popleft()
            try:
                if await self._is_tracked(transaction):
                    await self._deps.queue.eager_schedule(transaction.tx_id, self._now_unix(), 0)
            except (StoreDown, NodeUnavailable, UnknownChain):
                self._pending.append(transaction)

    async def _is_tracked(self, transaction: L1Transaction) -> bool:
        """Return whether the L1 or its signing subnet is tracked. Raises StoreDown, NodeUnavailable."""
        try:
            attestation = derive_attestation(parse_p_tx(transaction.raw), self._network_id)
        except (NoMessage, UndecodableTransaction, MalformedChainBytes):
            return False
        if await self._deps.find_subnet(attestation.manager_chain_id) in self._tracked:
            return True
        return await self._find_l1(attestation) in self._tracked

    async def _find_l1(self, attestation: Attestation) -> SubnetID | None:
        if attestation.subnet_id is not None or attestation.validation_id is None:
            return attestation.subnet_id
        origin = await self._deps.queue.origin(attestation.validation_id)
        return origin.subnet_id if origin else None

    async def _start_due(self, attempts: asyncio.TaskGroup) -> None:
        free = self._settings.eager_max_concurrency - len(self._running)
        if free <= 0:
            return
        now = self._now_unix()
        try:
            for task in await self._deps.queue.eager_due(now, free):
                await self._deps.queue.eager_schedule(task.tx_id, now + _LEASE_S, task.attempts + 1)
                attempts.create_task(self._attempt(task))
                self._running.add(task.tx_id)
        except StoreDown:
            return

    async def _attempt(self, task: EagerTask) -> None:
        try:
            await self._deps.sign(L1Request(task.tx_id, self._settings.eager_quorum, 0))
            await self._write(self._deps.queue.eager_done(task.tx_id))
        except PERMANENT_ERRORS as error:
            await self._end(task, "message prefetch failed", error)
        except Exception as error:
            if not isinstance(error, WarpsealError):
                # No caller waits for this, so an internal error ends the attempt and not the daemon.
                log.exception("internal error, message prefetch failed", extra={"tx_id": id_text(task.tx_id)})
            await self._reschedule(task, error)
        finally:
            self._running.discard(task.tx_id)
            self._wake.set()

    async def _reschedule(self, task: EagerTask, error: Exception) -> None:
        if await self._is_expired(task):
            await self._end(task, "message prefetch timed out", error)
            return
        delay_s = min(_MAX_RETRY_S, _FIRST_RETRY_S * 2 ** min(task.attempts, _MAX_DOUBLINGS))
        at = self._now_unix() + delay_s * (3 + self._random.random()) / 4
        await self._write(self._deps.queue.eager_schedule(task.tx_id, at, task.attempts + 1))

    async def _is_expired(self, task: EagerTask) -> bool:
        try:
            row = await self._deps.queue.transaction(task.tx_id)
        except StoreDown:
            return False
        if row is None or not row.time:
            return task.attempts >= _MAX_ATTEMPTS
        return self._now_unix() - row.time > self._settings.eager_retry_for_s

    async def _write(self, write: Awaitable[None]) -> None:
        """Wait for a write; if the store is down, the lease ends by itself."""
        try:
            await write
        except StoreDown:
            log.debug("message prefetch could not be recorded in the store")

    async def _end(self, task: EagerTask, event: str, error: Exception) -> None:
        log.info(event, extra={"tx_id": id_text(task.tx_id), "attempts": task.attempts + 1, "reason": str(error)})
        await self._write(self._deps.queue.eager_done(task.tx_id))
