"""The configured sources of prices, opened: the file is read once, the web is asked when somebody wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

import warpseal
from warpseal.prices.avax import DailyPrices
from warpseal.prices.fetched import FetchedPrices
from warpseal.prices.settings import PriceSettings
from warpseal.prices.table import read_table


@asynccontextmanager
async def open_sources(settings: PriceSettings) -> AsyncIterator[tuple[DailyPrices, ...]]:
    """Hold the sources in the order in which they are asked; none where none is configured. Raises StartupError."""
    sources: list[DailyPrices] = []
    async with AsyncExitStack() as stack:
        if settings.file is not None:
            sources.append(await asyncio.to_thread(read_table, settings.file))
        if settings.url:
            sources.append(FetchedPrices(settings, await stack.enter_async_context(_session())))
        yield tuple(sources)


def _session() -> aiohttp.ClientSession:
    """Return a session that keeps no cookies and takes nothing compressed, whose size nobody could know before."""
    headers = {"User-Agent": f"warpseal/{warpseal.__version__}", "Accept-Encoding": "identity"}
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), headers=headers, auto_decompress=False)
