"""GET /metrics, on the metrics port only: a snapshot taken on the event loop, encoded in a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from warpseal.metrics import CONTENT_TYPE
from warpseal.runtime.locks import AsyncLock


class MetricsSource(Protocol):
    """Where the page comes from."""

    async def snapshot(self) -> Callable[[], bytes]:
        """Return how to write the page as it is now."""
        ...


class MetricsPage:
    """Shows the metrics; one page is written at a time, so that scrapers cannot crowd out the event loop."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._one_at_a_time = AsyncLock()

    async def show(self, request: Request) -> Response:
        """GET /metrics."""
        async with self._one_at_a_time:
            page = await asyncio.to_thread(await self._source.snapshot())
        return Response(page, headers={"content-type": CONTENT_TYPE})
