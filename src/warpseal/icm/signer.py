"""Signs ICM messages of indexed chains before a relayer asks, so that its request is a cache hit.

The tasks are written with the events of the indexes, and the leader of the store runs them while no
caller waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from warpseal.aggregation.admission import RoundAdmission
from warpseal.aggregation.errors import QuorumImpossible, SubnetNotConverted, WrongNetwork
from warpseal.aggregation.interfaces import SubnetLookup
from warpseal.aggregation.resolve import AggregationRequest
from warpseal.aggregation.service import Aggregation
from warpseal.delivery.errors import DestinationUnavailable
from warpseal.delivery.request import Delivery, DeliveryRequest
from warpseal.errors import DAY_S, InvalidRequest, WarpsealError
from warpseal.index.evm.records import IcmOccurrence, SentMessage
from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.errors import StoreDown
from warpseal.store.icm_tasks import IcmTasks, Route, change_tasks
from warpseal.store.locks import Leadership
from warpseal.store.task_runner import TaskRunner
from warpseal.store.values import EventType, IcmTask
from warpseal.validators.errors import UnknownChain, UnknownSubnet
from warpseal.warp.ids import ChainID, SubnetID
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import DEFAULT_QUORUM, CanonicalValidatorSet

_PERMANENT_ERRORS: Final = (
    InvalidRequest,
    SubnetNotConverted,
    UnknownChain,
    UnknownSubnet,
    WrongNetwork,
)
_MAX_RUNNING: Final = 2
_MAX_AGE_S: Final = 7 * DAY_S
_POLL_S: Final = 0.25
_BUSY_POLL_S: Final = 0.02
_SETS_INTERVAL_S: Final = 5.0
_SET_TIMEOUT_S: Final = 10.0
# A destination that no configured node runs is tried again after this time.
_NO_NODE_S: Final = 300.0


class DestinationSigner(Protocol):
    """Signs messages for a destination (`delivery.service.DeliveryService`)."""

    async def sign(self, request: DeliveryRequest) -> Delivery[Aggregation]: ...
    async def signing_set(
        self, source_chain_id: ChainID, destination_id: ChainID
    ) -> CanonicalValidatorSet: ...


class IcmSigner:
    """Signs messages ahead. Used from one event loop.

    subnet_ids: subnets of the chains whose messages are signed.
    now_unix: clock in Unix seconds.
    """

    def __init__(
        self,
        delivery: DestinationSigner,
        chains: SubnetLookup,
        admission: RoundAdmission,
        database: Database,
        leadership: Leadership,
        subnet_ids: frozenset[SubnetID],
        network_id: int,
        now_unix: Callable[[], float] = time.time,
    ) -> None:
        self._delivery = delivery
        self._chains = chains
        self._admission = admission
        self._leadership = leadership
        self._subnet_ids = subnet_ids
        self._network_id = network_id
        self._now_unix = now_unix
        self._tasks = IcmTasks(database)
        self._runner = TaskRunner(
            self._tasks,
            self._sign,
            self._is_expired,
            _PERMANENT_ERRORS,
            max_running=_MAX_RUNNING,
            key_name="icm_message_id",
            now_unix=now_unix,
        )

    async def run(self) -> None:
        """Sign until cancelled."""
        async with asyncio.TaskGroup() as attempts:
            attempts.create_task(self._renew())
            while True:
                await self._leadership.wait_until_held()
                is_idle = self._admission.is_idle
                if is_idle:
                    await self._runner.start_due(attempts)
                await self._runner.wait(_POLL_S if is_idle else _BUSY_POLL_S)

    async def plan_tasks(
        self, occurrences: Sequence[IcmOccurrence]
    ) -> Callable[[Connection], None]:
        """Return the write of the tasks that begin and end with these occurrences.

        Raises NodeUnavailable.
        """
        new, message_ids, now = list[IcmTask](), list[bytes](), self._now_unix()
        for occurrence in occurrences:
            message = occurrence.message
            if occurrence.type is EventType.ICM_RECEIVED:
                message_ids.append(message.message_id)
            elif isinstance(message, SentMessage) and message.receive is None:
                unsigned = (
                    message.warp_message(self._network_id) if message.foreign_warp is None else None
                )
                if unsigned is not None and await self._is_ahead(message.source):
                    route, ends_at = (
                        (message.source, message.destination),
                        min(now, occurrence.time) + _MAX_AGE_S,
                    )
                    new.append(IcmTask(message.message_id, now, 0, *route, unsigned.raw, ends_at))
        return partial(change_tasks, new=new, message_ids=message_ids)

    async def _is_ahead(self, chain_id: ChainID) -> bool:
        try:
            return await self._chains.subnet_of(chain_id) in self._subnet_ids
        except UnknownChain:
            return False

    async def _sign(self, task: IcmTask) -> None:
        """Sign a message for its destination, then wait for another set or the task's end."""
        if await self._is_expired(task):
            await self._tasks.end(task.key)
            return
        message = UnsignedMessage.parse(task.message)
        request = AggregationRequest(
            message, b"", None, DEFAULT_QUORUM, 0, None, None, is_ahead=True
        )
        try:
            delivery = await self._delivery.sign(DeliveryRequest(request, task.destination))
            digest = delivery.result.members.digest
        except QuorumImpossible:
            # Only another set can sign it.
            digest = (await self._delivery.signing_set(task.source, task.destination)).digest
        except DestinationUnavailable as error:
            if error.detail["nodes"]:
                raise
            await self._tasks.postpone(task.destination, self._now_unix() + _NO_NODE_S)
            return
        await self._tasks.settle(task.key, digest)

    async def _is_expired(self, task: IcmTask) -> bool:
        return self._now_unix() >= task.ends_at_unix_s

    async def _renew(self) -> None:
        """Let messages be signed again whose destination would refuse them, until cancelled."""
        while True:
            await asyncio.sleep(_SETS_INTERVAL_S)
            await self._leadership.wait_until_held()
            with suppress(StoreDown):
                settled = await self._tasks.settled()
                await asyncio.gather(
                    *(self._renew_route(route, digests) for route, digests in settled.items())
                )

    async def _renew_route(self, route: Route, digests: set[bytes]) -> None:
        with suppress(WarpsealError, TimeoutError):
            async with asyncio.timeout(_SET_TIMEOUT_S):
                signing_set = await self._delivery.signing_set(*route)
            if digests != {signing_set.digest}:
                await self._tasks.renew(route, signing_set.digest, self._now_unix())
                self._runner.wake.set()
