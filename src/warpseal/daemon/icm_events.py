"""Events of ICM messages, from the indexes of EVM chains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from warpseal.daemon.core import Core
from warpseal.daemon.evm_index import EvmChains
from warpseal.events.index_events import IndexEvents
from warpseal.store.locks import Leadership

if TYPE_CHECKING:
    from warpseal.icm.signer import IcmSigner


@asynccontextmanager
async def open_icm_leadership(core: Core, tasks: asyncio.TaskGroup) -> AsyncIterator[Leadership]:
    """Elect the daemon that reports the messages, and signs them ahead."""
    leadership = core.store.leadership("icm")
    core.keep_running(tasks, "leadership for ICM messages", leadership.run)
    yield leadership


@asynccontextmanager
async def open_icm_events(
    core: Core,
    tasks: asyncio.TaskGroup,
    evm_index: EvmChains,
    icm_leadership: Leadership,
    eager_icm: IcmSigner | None,
) -> AsyncIterator[None]:
    """Add what the indexes have of ICM messages to the event log, and let them be signed ahead if
    configured.
    """
    plan_tasks = None if eager_icm is None else eager_icm.plan_tasks
    events, indexes = core.store.events, evm_index.message_indexes
    reader = IndexEvents(
        events, icm_leadership, indexes, core.network_id, core.background, plan_tasks
    )
    core.keep_running(tasks, "events of ICM messages", reader.run)
    yield
