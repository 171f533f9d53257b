"""Signs the messages of L1 transactions of tracked subnets before a caller requests them.

The queue is in the store and survives restarts. Of several daemons on one store only the leader
signs. A transaction is retried for hours, since validators may be offline for that long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from warpseal.aggregation.errors import QuorumImpossible, SubnetNotConverted
from warpseal.aggregation.interfaces import SubnetLookup
from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_txs import parse_p_tx
from warpseal.errors import InvalidRequest
from warpseal.l1.errors import MessageSuperseded
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.l1.settings import L1Settings
from warpseal.messages.attestation import derive_attestation
from warpseal.messages.errors import NoMessage, UndecodableTransaction
from warpseal.store.errors import StoreDown
from warpseal.store.l1_records import L1Records
from warpseal.store.locks import Leadership
from warpseal.store.task_runner import TaskRunner
from warpseal.store.values import EagerTask, L1Transaction
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import UnknownChain, UnknownSubnet
from warpseal.warp.ids import SubnetID

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
# For transactions whose block has no time: about as many as others have within their hours.
_MAX_ATTEMPTS: Final = 150


class TransactionSigner(Protocol):
    """Signs messages by transaction (`l1.service.L1MessageService`)."""

    async def get(self, request: L1Request) -> L1SignedMessage: ...


class TransactionFeed(Protocol):
    """Publishes new transactions (`l1.follower.PChainFollower`)."""

    def subscribe(self, listener: Callable[[L1Transaction], None]) -> Callable[[], None]: ...


class EagerSigner:
    """Used from one event loop.

    tracked: subnets whose transactions are signed.
    now_unix: seconds since 1970.
    """

    def __init__(
        self,
        messages: TransactionSigner,
        records: L1Records,
        leadership: Leadership,
        chains: SubnetLookup,
        follower: TransactionFeed,
        tracked: frozenset[SubnetID],
        network_id: int,
        settings: L1Settings,
        *,
        now_unix: Callable[[], float] = time.time,
    ) -> None:
        self._messages = messages
        self._records = records
        self._leadership = leadership
        self._chains = chains
        self._follower = follower
        self._tracked = tracked
        self._network_id = network_id
        self._settings = settings
        self._now_unix = now_unix
        self._pending: deque[L1Transaction] = deque(maxlen=_MAX_PENDING)
        self._runner = TaskRunner(
            records.tasks,
            self._sign,
            self._is_expired,
            PERMANENT_ERRORS,
            max_running=settings.eager_max_concurrency,
            key_name="tx_id",
            now_unix=now_unix,
        )
        self._has_loaded_recent = False

    async def run(self) -> None:
        """Sign until cancelled; return at once if it is switched off."""
        if not self._settings.eager_l1_messages:
            return
        unsubscribe = self._follower.subscribe(self._on_transaction)
        try:
            async with asyncio.TaskGroup() as attempts:
                while True:
                    await self._leadership.wait_until_held()
                    await self._load_recent()
                    await self._enqueue()
                    await self._runner.start_due(attempts)
                    await self._runner.wait(_POLL_S)
        finally:
            unsubscribe()

    def _on_transaction(self, transaction: L1Transaction) -> None:
        self._pending.append(transaction)
        self._runner.wake.set()

    async def _load_recent(self) -> None:
        """Add recent transactions, once: a process that died may not have enqueued all that it had
        read.
        """
        if self._has_loaded_recent:
            return
        since = self._now_unix() - self._settings.eager_retry_for_s
        try:
            newest = await self._records.newest(_MAX_RECENT)
        except StoreDown:
            return
        self._has_loaded_recent = True
        # Most of them are signed already. Each of those costs one read of the store.
        self._pending.extend(
            transaction for transaction in reversed(newest) if transaction.time >= since
        )

    async def _enqueue(self) -> None:
        """Write pending transactions to the queue; those that cannot be checked or written now stay
        pending.
        """
        for _ in range(len(self._pending)):
            transaction = self._pending.popleft()
            try:
                if await self._is_tracked(transaction):
                    await self._records.tasks.schedule(transaction.tx_id, self._now_unix(), 0)
            except (StoreDown, NodeUnavailable, UnknownChain):
                self._pending.append(transaction)

    async def _is_tracked(self, transaction: L1Transaction) -> bool:
        """Return whether the L1 or its signing subnet is tracked.

        Raises StoreDown, NodeUnavailable.
        """
        try:
            attestation = derive_attestation(parse_p_tx(transaction.raw), self._network_id)
        except (NoMessage, UndecodableTransaction, MalformedChainBytes):
            return False
        if await self._chains.subnet_of(attestation.manager_chain_id) in self._tracked:
            return True
        l1 = attestation.subnet_id
        if l1 is None and attestation.validation_id is not None:
            origin = await self._records.origin(attestation.validation_id)
            l1 = origin.subnet_id if origin else None
        return l1 in self._tracked

    async def _sign(self, task: EagerTask) -> None:
        await self._messages.get(L1Request(task.key, self._settings.eager_quorum, 0))
        await self._records.tasks.end(task.key)

    async def _is_expired(self, task: EagerTask) -> bool:
        try:
            row = await self._records.transaction(task.key)
        except StoreDown:
            return False
        if row is None or not row.time:
            return task.attempts >= _MAX_ATTEMPTS
        return self._now_unix() - row.time > self._settings.eager_retry_for_s
