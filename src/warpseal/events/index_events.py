"""Adds the ICM messages of EVM indexes to the event log, each chain behind a stored position.

A position is a key of the chain's index. It moves in the transaction of its events, from the value
that the reader has seen: so neither a crash nor a second daemon adds an event twice, and a new
index continues where the old one ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from warpseal.errors import WarpsealError
from warpseal.index.evm.keys import block_key
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import IcmOccurrence, SentMessage
from warpseal.runtime.background import BackgroundWork
from warpseal.store.connection import Connection
from warpseal.store.event_rows import NewEvent, event_name
from warpseal.store.events import EventLog
from warpseal.store.locks import Leadership
from warpseal.store.values import Event
from warpseal.warp.ids import ChainID, id_text

log = logging.getLogger(__name__)

PlanTasks = Callable[[Sequence[IcmOccurrence]], Awaitable[Callable[[Connection], object]]]
"""Returns the write that belongs into the transaction of the events."""

_POLL_S: Final = 1.0
_MAX_ROWS: Final = 200
# A position without events is stored after this many blocks, so that the rows behind it stay few.
_MAX_LAG: Final = block_key(1_000)


class IndexEvents:
    """Adds the events of indexes. Used from one event loop.

    indexes: function that returns the indexes that have messages, by chain.
    unix_clock: clock in Unix seconds.
    background: service that keeps the reader of each chain running, so that an error in one index
        delays no other.
    """

    def __init__(
        self,
        log: EventLog,
        leadership: Leadership,
        indexes: Callable[[], Mapping[ChainID, EvmIndex]],
        network_id: int,
        background: BackgroundWork,
        plan_tasks: PlanTasks | None = None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._leadership = leadership
        self._indexes = indexes
        self._network_id = network_id
        self._background = background
        self._plan_tasks = plan_tasks
        self._unix_clock = unix_clock
        # As stored when this reader last saw them.
        self._positions: dict[ChainID, int] = {}

    async def run(self) -> None:
        """Read the indexes while this daemon leads, until cancelled."""
        followed = set[ChainID]()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for chain_id in self._indexes().keys() - followed:
                    followed.add(chain_id)
                    part = f"events of {id_text(chain_id)}"
                    tasks.create_task(
                        self._background.keep_running(part, partial(self._follow, chain_id))
                    )
                await asyncio.sleep(_POLL_S)

    async def _follow(self, chain_id: ChainID) -> None:
        """Read the index of a chain while this daemon leads, until cancelled."""
        while True:
            await self._leadership.wait_until_held()
            index = self._indexes().get(chain_id)
            if index is None or not await self._read(chain_id, index):
                await asyncio.sleep(_POLL_S)

    async def _read(self, chain_id: ChainID, index: EvmIndex) -> bool:
        """Add the next events of a chain; return whether more may follow at once."""
        source = id_text(chain_id)
        # If this fails, or another daemon has read the chain in the meantime, the position is read
        # again.
        position = self._positions.pop(chain_id, None)
        try:
            if position is None and (position := await self._log.position(source)) is None:
                # A new chain begins behind the last block that its nodes have, once they say so.
                progress = await index.progress()
                if (
                    progress is not None
                    and progress.height is not None
                    and not progress.is_node_behind
                    and self._leadership.is_leader
                ):
                    next_height = (progress.node_height or 0) + 1
                    await self._log.add_from_source(source, None, block_key(next_height) - 1, ())
                return False
            upto, occurrences = await index.icm_after(position, _MAX_ROWS)
            if occurrences or upto - position > _MAX_LAG:
                write = [] if self._plan_tasks is None else [await self._plan_tasks(occurrences)]
                events = list(map(self._event, occurrences))
                # A read waits for its database for longer than a lease is valid. Another daemon may
                # lead by now, and adds these events.
                if not self._leadership.is_leader:
                    return False
                if not await self._log.add_from_source(source, position, upto, events, *write):
                    return True
                position = upto
            self._positions[chain_id] = position
            return bool(occurrences)
        except WarpsealError as error:
            log.debug("index not read for events", extra={"chain_id": source, "reason": str(error)})
            return False

    def _event(self, occurrence: IcmOccurrence) -> NewEvent:
        """Return the event of a row, with the present time: the log deletes the oldest rows."""
        message = occurrence.message
        warp_id: str | UnsetType = UNSET
        if (
            isinstance(message, SentMessage)
            and (unsigned := message.warp_message(self._network_id)) is not None
        ):
            warp_id = f"0x{unsigned.id.hex()}"
        event = Event(
            type=occurrence.type,
            time=occurrence.time,
            source_blockchain_id=id_text(message.source),
            destination_blockchain_id=id_text(message.destination),
            message_id=warp_id,
            data={
                "icmMessageId": f"0x{message.message_id.hex()}",
                "txHash": f"0x{occurrence.tx_hash.hex()}",
            },
        )
        name = event_name(occurrence.type, message.message_id)
        return NewEvent(int(self._unix_clock()), name, msgspec.json.encode(event))
