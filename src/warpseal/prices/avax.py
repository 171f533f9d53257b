"""Daily prices of AVAX from the configured sources: a CSV file, read once, and a URL, fetched on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, date, datetime
from typing import Protocol

from warpseal.chains.ids import AssetID
from warpseal.history.outputs import Asset
from warpseal.prices.fetched import WebPrices
from warpseal.prices.settings import PriceSettings
from warpseal.prices.table import read_table
from warpseal.runtime.http_session import new_session


class PriceSource(Protocol):
    """A source of daily prices."""

    async def price(self, currency: str, day: date) -> str | None:
        """Return the price of a day in a currency; None if it is unknown. Never raises."""
        ...


class AvaxPrices:
    """Prices of the asset with the id of AVAX; days are in UTC."""

    def __init__(self, avax: AssetID, sources: Sequence[PriceSource]) -> None:
        self._avax = avax
        self._sources = tuple(sources)

    async def price(self, asset: Asset, currency: str, at_unix_s: int) -> str | None:
        """Return the price of one whole AVAX on the day of a moment; None for anything else."""
        if asset.asset_id != self._avax:
            return None
        day = datetime.fromtimestamp(at_unix_s, UTC).date()
        for source in self._sources:
            price = await source.price(currency, day)
            if price is not None:
                return price
        return None


@asynccontextmanager
async def open_price_sources(settings: PriceSettings) -> AsyncIterator[tuple[PriceSource, ...]]:
    """Hold the configured sources in the order in which they are used. Raises StartupError."""
    sources: list[PriceSource] = []
    async with AsyncExitStack() as stack:
        if settings.file is not None:
            sources.append(await asyncio.to_thread(read_table, settings.file))
        if settings.url:
            sources.append(WebPrices(settings, await stack.enter_async_context(new_session())))
        yield tuple(sources)
