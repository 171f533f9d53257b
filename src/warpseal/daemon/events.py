"""The event log: what other subsystems report, the feed of listeners, and webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from warpseal.daemon.core import Core
from warpseal.daemon.subsystems import webhooks
from warpseal.events.feed import EventFeed
from warpseal.events.recorder import EventRecorder
from warpseal.store.errors import StoreDown

_WEBHOOK_POLL_S: Final = 2.0


class Events:
    """The recorder of events, and the feed of the event log; without a store there is no feed."""

    def __init__(self, recorder: EventRecorder, feed: EventFeed | None) -> None:
        self.recorder = recorder
        self.feed = feed


@asynccontextmanager
async def open_events(core: Core, tasks: asyncio.TaskGroup) -> AsyncIterator[Events]:
    """Take events, and send them to webhooks."""
    feed = EventFeed(core.store.events) if core.has_store else None
    if feed is not None:
        core.keep_running(tasks, "webhooks", lambda: _send_webhooks(core, feed))
    yield Events(EventRecorder(core.store.events), feed)


async def _send_webhooks(core: Core, feed: EventFeed) -> None:
    """Send events to webhooks, once this daemon leads and there is a webhook."""
    has_webhooks = False
    while not has_webhooks:
        await asyncio.sleep(_WEBHOOK_POLL_S)
        await core.leadership.wait_until_held()
        with suppress(StoreDown):
            has_webhooks = bool(await feed.log.exchange_webhooks())
    policy, report = core.config.data_api.webhook_policy, core.metrics.report_paused_webhooks
    await webhooks.WebhookSender(feed, core.leadership, policy, report_paused=report).run()
