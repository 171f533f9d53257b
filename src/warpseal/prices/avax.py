"""What an AVAX was worth on a day, from the first source that knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Protocol

from warpseal.chains.ids import AssetID
from warpseal.history.outputs import Asset


class DailyPrices(Protocol):
    """One source."""

    async def price(self, currency: str, day: date) -> str | None:
        """Return the price of a day in a currency, None where it is not known. Never raises."""
        ...


class AvaxPrices:
    """Prices of the one asset that is AVAX by its id; a day is that of UTC."""

    def __init__(self, avax: AssetID, sources: Sequence[DailyPrices]) -> None:
        self._avax = avax
        self._sources = tuple(sources)

    async def price(self, asset: Asset, currency: str, at_unix_s: int) -> str | None:
        """Return the price of one whole AVAX on the day of a moment; None for anything else."""
        if asset.asset_id != self._avax:
            return None
        day = datetime.fromtimestamp(at_unix_s, UTC).date()
        for source in self._sources:
            found = await source.price(currency, day)
            if found is not None:
                return found
        return None
