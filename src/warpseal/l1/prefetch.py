"""Signs what is accepted about tracked subnets unasked, so that a caller's request is answered at once.

What is to be done is kept in the store, so that it survives restarts; of several daemons on one store only the leader
does it. It is tried again for hours, since validators may be away for that long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_txs import parse_p_tx
from warpseal.errors import (
    InvalidRequest,
    MessageSuperseded,
    NodeUnavailable,
    NoMessage,
    QuorumImpossible,
    StoreDown,
    SubnetNotConverted,
    UndecodableTransaction,
    UnknownChain,
    UnknownSubnet,
    WarpsealError,
)
from warpseal.l1.attestation import Attestation, derive_attestation
from warpseal.l1.ports import Chains, EagerQueue, Lead
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.l1.settings import L1Settings
from warpseal.store.values import EagerTask, L1Transaction
from warpseal.warp.ids import SubnetID, id_text

log = logging.getLogger("warpseal.l1")

Subscribe = Callable[[Callable[[L1Transaction], None]], Callable[[], None]]
"""Registers who is told of new transactions; returns how to end that."""

FINAL: Final = (
    InvalidRequest,
    MessageSuperseded,
    NoMessage,
    QuorumImpossible,
    SubnetNotConverted,
    UndecodableTransaction,
    UnknownSubnet,
)
"""Errors that waiting does not mend."""

_MAX_HEARD: Final = 10_000
_MAX_LOOKED_AT: Final = 2_000
_LOOK_EVERY_S: Final = 1.0
# Should the process die during an attempt, the next one begins after this time.
_LEASE_S: Final = 60.0
_FIRST_RETRY_S: Final = 2.0
_LATEST_RETRY_S: Final = 300.0
_MOST_DOUBLINGS: Final = 8
# Of transactions whose block names no time; about the same as the hours that others have.
_MOST_ATTEMPTS: Final = 150


class Messages(Protocol):
    """The use case."""

    async def get(self, request: L1Request) -> L1SignedMessage:
        """Return the signed message of a transaction. Raises WarpsealError."""
        ...


@dataclass(frozen=True, slots=True)
class EagerDeps:
    """What eager work works with. subscribe: the follower's."""

    messages: Messages
    queue: EagerQueue
    lead: Lead
    chains: Chains
    subscribe: Subscribe


class EagerSigner:
    """Used from one event loop. tracked: subnets whose transactions count. now_unix: seconds since 1970."""

    def __init__(
        self,
        rooms: EagerDeps,
        tracked: frozenset[SubnetID],
        network_id: int,
        settings: L1Settings,
        *,
        random: Random | None = None,
        now_unix: Callable[[], float] = time.time,
    ) -> None:
        self._rooms = rooms
        self._tracked = tracked
        self._network_id = network_id
        self._settings = settings
        self._random = random or Random()
        self._now_unix = now_unix
        self._heard: deque[L1Transaction] = deque(maxlen=_MAX_HEARD)
        self._wake = asyncio.Event()
        self._running: set[bytes] = set()
        self._has_looked_back = False

    async def run(self) -> None:
        """Work until cancelled; at once over where it is not wanted."""
        if not self._settings.eager_l1_messages:
            return
        forget = self._rooms.subscribe(self._hear)
        try:
            async with asyncio.TaskGroup() as attempts:
                while True:
                    await self._rooms.lead.wait_until_held()
                    await self._look_back()
                    await self._plan_heard()
                    await self._begin_due(attempts)
                    await self._rest()
        finally:
            forget()

    def _hear(self, transaction: L1Transaction) -> None:
        self._heard.append(transaction)
        self._wake.set()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    # What is to be done.

    async def _look_back(self) -> None:
        """Hear of what was accepted lately, once: a process that died may not have planned all that it had read."""
        if self._has_looked_back:
            return
        since = self._now_unix() - self._settings.eager_retry_for_s
        try:
            newest = await self._rooms.queue.newest(_MAX_LOOKED_AT)
        except StoreDown:
            return
        self._has_looked_back = True
        # Most of them are signed already, which costs one look into the store.
        self._heard.extend(transaction for transaction in reversed(newest) if transaction.time >= since)

    async def _plan_heard(self) -> None:
        """Put what was heard into the store; what cannot be judged or written now is looked at again."""
        for _ in range(len(self._heard)):
            transaction = self._heard.popleft()
            try:
                if await self._counts(transaction):
                    await self._rooms.queue.eager_schedule(transaction.tx_id, self._now_unix(), 0)
            except (StoreDown, NodeUnavailable, UnknownChain):
                self._heard.append(transaction)

    async def _counts(self, transaction: L1Transaction) -> bool:
        """Tell whether the L1 or the subnet that signs for it is tracked. Raises StoreDown, NodeUnavailable."""
        try:
            derived = derive_attestation(parse_p_tx(transaction.raw), self._network_id)
        except (NoMessage, UndecodableTransaction, MalformedChainBytes):
            return False
        if await self._rooms.chains.subnet_of(derived.manager_chain_id) in self._tracked:
            return True
        return await self._l1_of(derived) in self._tracked

    async def _l1_of(self, derived: Attestation) -> SubnetID | None:
        if derived.subnet_id is not None or derived.validation_id is None:
            return derived.subnet_id
        origin = await self._rooms.queue.origin(derived.validation_id)
        return origin.subnet_id if origin else None

    # Doing it.

    async def _begin_due(self, attempts: asyncio.TaskGroup) -> None:
        free = self._settings.eager_max_concurrency - len(self._running)
        if free <= 0:
            return
        now = self._now_unix()
        try:
            for task in await self._rooms.queue.eager_due(now, free):
                await self._rooms.queue.eager_schedule(task.tx_id, now + _LEASE_S, task.attempts + 1)
                attempts.create_task(self._attempt(task))
                self._running.add(task.tx_id)
        except StoreDown:
            return

    async def _attempt(self, task: EagerTask) -> None:
        with self._under_way(task.tx_id):
            try:
                await self._rooms.messages.get(L1Request(task.tx_id, self._settings.eager_quorum, 0))
            except FINAL as error:
                self._tell(task, "eager work has ended without a message", error)
            except WarpsealError as error:
                await self._later(task, error)
                return
            except Exception as error:
                # Nobody asked for this: a fault of ours may spoil the attempt, not the daemon.
                log.exception("eager work failed", extra={"tx_id": id_text(task.tx_id)})
                await self._later(task, error)
                return
            await self._written(self._rooms.queue.eager_done(task.tx_id))

    async def _later(self, task: EagerTask, error: Exception) -> None:
        if await self._is_old(task):
            self._tell(task, "eager work is given up", error)
            await self._written(self._rooms.queue.eager_done(task.tx_id))
            return
        delay_s = min(_LATEST_RETRY_S, _FIRST_RETRY_S * 2 ** min(task.attempts, _MOST_DOUBLINGS))
        at = self._now_unix() + delay_s * (3 + self._random.random()) / 4
        await self._written(self._rooms.queue.eager_schedule(task.tx_id, at, task.attempts + 1))

    async def _is_old(self, task: EagerTask) -> bool:
        try:
            row = await self._rooms.queue.transaction(task.tx_id)
        except StoreDown:
            return False
        if row is None or not row.time:
            return task.attempts >= _MOST_ATTEMPTS
        return self._now_unix() - row.time > self._settings.eager_retry_for_s

    async def _written(self, write: Awaitable[None]) -> None:
        """Wait for a write; where the store is down, the lease ends by itself."""
        try:
            await write
        except StoreDown:
            log.debug("eager work could not be noted in the store")

    @contextmanager
    def _under_way(self, tx_id: bytes) -> Iterator[None]:
        try:
            yield
        finally:
            self._running.discard(tx_id)
            self._wake.set()

    def _tell(self, task: EagerTask, what: str, error: Exception) -> None:
        log.info(what, extra={"tx_id": id_text(task.tx_id), "attempts": task.attempts + 1, "reason": str(error)})
