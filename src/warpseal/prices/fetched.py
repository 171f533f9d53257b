"""Prices from a JSON document on the web: each day and currency is fetched once and remembered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from datetime import date
from decimal import Decimal
from typing import Any, Final

import aiohttp

from warpseal.prices.settings import PriceSettings
from warpseal.prices.table import format_price
from warpseal.prices.urls import fill_template
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.runtime.single_flight import SingleFlight

log = logging.getLogger(__name__)

Key = tuple[str, date]
_AT_ONCE: Final = 4
_FOREVER: Final = float("inf")


class WebPrices:
    """Asks the configured url; what it may hold of secrets is never logged."""

    def __init__(self, settings: PriceSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        self._flights: SingleFlight[Key, str | None] = SingleFlight()
        self._slots = AsyncSemaphore(_AT_ONCE)
        self._known: OrderedDict[Key, tuple[str | None, float]] = OrderedDict()

    async def price(self, currency: str, day: date) -> str | None:
        """Return the price of a day; None where the source does not tell it now. Never raises for the source."""
        key = currency, day
        known = self._known.get(key)
        if known is not None and known[1] > asyncio.get_running_loop().time():
            return known[0]
        return await self._flights.run(key, lambda: self._fetched(key))

    async def _fetched(self, key: Key) -> str | None:
        try:
            async with self._slots, asyncio.timeout(self._settings.timeout_s):
                price: str | None = self._found(await self._body(key), key)
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError, RecursionError) as error:
            log.warning("no price", extra={"currency": key[0], "day": str(key[1]), "reason": type(error).__name__})
            price = None
        retry_at = asyncio.get_running_loop().time() + self._settings.retry_failed_after_s
        self._known[key] = price, retry_at if price is None else _FOREVER
        if len(self._known) > self._settings.max_remembered:
            self._known.popitem(last=False)
        return price

    async def _body(self, key: Key) -> bytes:
        async with self._session.get(fill_template(self._settings.url, *key), allow_redirects=False) as answer:
            answer.raise_for_status()
            if answer.status != 200:
                raise ValueError("neither an answer nor a failure")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > self._settings.max_answer_bytes:
                    raise ValueError("the answer is too long")
            return bytes(body)

    def _found(self, body: bytes, key: Key) -> str:
        value: Any = json.loads(body, parse_float=Decimal)
        for step in fill_template(self._settings.path, *key).split("."):
            if step:
                value = value[int(step)] if isinstance(value, list) else value[step]
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise TypeError("no number where the price should be")
        return format_price(value)
