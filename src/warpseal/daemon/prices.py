"""The prices of AVAX for the Data API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from warpseal.daemon.core import Upstreams
from warpseal.daemon.registries import Registries
from warpseal.prices.sources import PriceSource, open_price_sources


@asynccontextmanager
async def open_prices(
    registries: Registries, upstreams: Upstreams
) -> AsyncIterator[Sequence[PriceSource]]:
    """Hold the sources of prices. Raises StartupError if their file cannot be used."""
    config = registries.config
    async with open_price_sources(config.prices, config.peers.data_dir) as sources:
        yield sources
