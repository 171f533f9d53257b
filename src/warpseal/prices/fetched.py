"""Prices from a JSON document on the web: each day and currency is fetched once and cached."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import date
from decimal import Decimal
from typing import Any, Final

import aiohttp

from warpseal.prices.settings import PriceSettings
from warpseal.prices.table import format_price
from warpseal.prices.urls import fill_template
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache

log = logging.getLogger(__name__)

Key = tuple[str, date]
_MAX_CONCURRENCY: Final = 4


class WebPrices:
    """Fetches the configured URL, which may hold a secret and is never logged."""

    def __init__(self, settings: PriceSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        self._flights: SingleFlight[Key, str | None] = SingleFlight()
        self._slots = AsyncSemaphore(_MAX_CONCURRENCY)
        self._cache: TtlCache[Key, str | None] = TtlCache(settings.max_remembered)

    async def price(self, currency: str, day: date) -> str | None:
        """Return the price of a day; None if the source does not return it now. Never raises for the source."""
        key = currency, day
        cached = self._cache.get(key)
        if cached is not None:
            return cached.value
        return await self._flights.run(key, lambda: self._fetch(key))

    async def _fetch(self, key: Key) -> str | None:
        try:
            async with self._slots, asyncio.timeout(self._settings.timeout_s):
                price: str | None = self._parse(await self._read_body(key), key)
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError, RecursionError) as error:
            log.warning(
                "price fetch failed", extra={"currency": key[0], "day": str(key[1]), "reason": type(error).__name__}
            )
            price = None
        ttl_s = self._settings.retry_failed_after_s if price is None else float("inf")
        self._cache.put(key, price, ttl_s=ttl_s)
        return price

    async def _read_body(self, key: Key) -> bytes:
        async with self._session.get(fill_template(self._settings.url, *key), allow_redirects=False) as response:
            response.raise_for_status()
            if response.status != 200:
                raise ValueError("the status is not 200")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > self._settings.max_answer_bytes:
                    raise ValueError("the answer is too long")
            return bytes(body)

    def _parse(self, body: bytes, key: Key) -> str:
        value: Any = json.loads(body, parse_float=Decimal)
        for step in fill_template(self._settings.path, *key).split("."):
            if step:
                value = value[int(step)] if isinstance(value, list) else value[step]
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise TypeError("the price is not a number")
        return format_price(value)
