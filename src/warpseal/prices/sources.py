"""Daily prices of AVAX: from prices.csv, read once, and from a URL, fetched on demand.

Source of truth of the file, which lies in the data folder: its header `date,currency,price`, dates
as 2026-11-21 (UTC), prices as plain decimals.
"""

from __future__ import annotations

import asyncio
import csv
import json
import logging
import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from warpseal.chains.ids import AssetID
from warpseal.errors import StartupError
from warpseal.prices.settings import PriceSettings, fill_template
from warpseal.resources.outputs import Asset
from warpseal.runtime.http_session import aiohttp, new_session, read_body
from warpseal.runtime.process import error_words, os_error_text
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache

log = logging.getLogger(__name__)

Key = tuple[str, date]
"""A currency, as three lower-case letters, and a day."""

PriceSource = Callable[[Key], Awaitable[str | None]]
"""Returns the price of a day in a currency; None if it is unknown. Never raises."""

FILE_NAME: Final = "prices.csv"
HEADER: Final = ("date", "currency", "price")
_MAX_CONCURRENCY: Final = 4
_MAX_CHARACTERS: Final = 40


class AvaxPrices:
    """Prices of the asset with the id of AVAX; days are in UTC."""

    def __init__(self, avax: AssetID, sources: Sequence[PriceSource]) -> None:
        self._avax = avax
        self._sources = tuple(sources)

    async def price(self, asset: Asset, currency: str, at_unix_s: int) -> str | None:
        """Return the price of one whole AVAX on the day of a moment; None for anything else."""
        if asset.asset_id != self._avax:
            return None
        try:
            day = datetime.fromtimestamp(at_unix_s, UTC).date()
        except (ValueError, OverflowError, OSError):
            # Beyond the year 9999, which a block may say.
            return None
        for source in self._sources:
            price = await source((currency, day))
            if price is not None:
                return price
        return None


@asynccontextmanager
async def open_price_sources(
    settings: PriceSettings, data_dir: Path
) -> AsyncIterator[tuple[PriceSource, ...]]:
    """Hold the sources that there are, in the order in which they are asked: file, URL.

    Raises StartupError.
    """
    sources: list[PriceSource] = []
    async with AsyncExitStack() as stack:
        file = data_dir / FILE_NAME
        if os.access(file, os.F_OK) and (table := await asyncio.to_thread(read_table, file)):
            sources.append(file_source(table))
        if settings.url:
            sources.append(
                WebPrices(settings, await stack.enter_async_context(new_session())).price
            )
        yield tuple(sources)


class WebPrices:
    """Fetches the configured URL, which may hold a secret and is never logged."""

    def __init__(self, settings: PriceSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._document_url, _, self._place = settings.url.partition("#")
        self._session = session
        self._flights: SingleFlight[Key, str | None] = SingleFlight()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENCY)
        self._cache: TtlCache[Key, str | None] = TtlCache(settings.max_remembered)

    async def price(self, key: Key) -> str | None:
        """Return the price of a day; None if the source does not return it now.

        Never raises for the source.
        """
        cached = self._cache.get(key)
        if cached is not None:
            return cached.value
        return await self._flights.run(key, lambda: self._fetch(key))

    async def _fetch(self, key: Key) -> str | None:
        try:
            async with self._slots, asyncio.timeout(self._settings.timeout_s):
                price: str | None = self._parse(await self._read_body(key), key)
        except (
            aiohttp.ClientError,
            TimeoutError,
            ValueError,
            LookupError,
            TypeError,
            RecursionError,
        ) as error:
            log.warning(
                "price fetch failed",
                extra={"currency": key[0], "day": str(key[1]), "reason": error_words(error)},
            )
            price = None
        ttl_s = self._settings.retry_failed_after_s if price is None else float("inf")
        self._cache.put(key, price, ttl_s=ttl_s)
        return price

    async def _read_body(self, key: Key) -> bytes:
        async with self._session.get(
            fill_template(self._document_url, *key), allow_redirects=False
        ) as response:
            response.raise_for_status()
            if response.status != 200:
                raise ValueError("the status is not 200")
            body = await read_body(response, self._settings.max_answer_bytes)
            if body is None:
                raise ValueError("the answer is too long")
            return body

    def _parse(self, body: bytes, key: Key) -> str:
        value: Any = json.loads(body, parse_float=Decimal)
        for step in fill_template(self._place, *key).split("."):
            if step:
                value = value[int(step)] if isinstance(value, list) else value[step]
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise TypeError("the price is not a number")
        return format_price(value)


def file_source(table: Mapping[Key, str]) -> PriceSource:
    """Return the source of the prices of a file."""

    async def price(key: Key) -> str | None:
        return table.get(key)

    return price


def read_table(path: Path) -> Mapping[Key, str]:
    """Return the prices of a file; none without the file. Raises StartupError naming the line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return dict(_entries(path, csv.reader(file)))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {os_error_text(error)}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise StartupError(f"{path} is not CSV: {error}") from error


def _entries(path: Path, rows: Iterable[list[str]]) -> Iterator[tuple[Key, str]]:
    lines = enumerate(rows, 1)
    _, header = next(lines, (1, []))
    if tuple(cell.strip().lower() for cell in header) != HEADER:
        raise StartupError(f"{path}, line 1: expected {','.join(HEADER)}")
    for number, row in lines:
        if not row:
            continue
        try:
            day, currency, price = (cell.strip() for cell in row)
            yield (_currency(currency), date.fromisoformat(day)), format_price(price)
        except ValueError as error:
            raise StartupError(f"{path}, line {number}: {error}") from None


def _currency(text: str) -> str:
    if not (len(text) == 3 and text.isascii() and text.isalpha()):
        raise ValueError(f"{text[:16]!r} is no currency of three letters")
    return text.lower()


def format_price(value: str | int | Decimal) -> str:
    """Return a price as plain decimal text, without exponent and never through a float.

    Raises ValueError unless it is a positive, finite number of at most 40 characters.
    """
    try:
        number = Decimal(value) if len(str(value)) <= _MAX_CHARACTERS else None
    except InvalidOperation:
        number = None
    if (
        number is None
        or not number.is_finite()
        or number <= 0
        or abs(number.adjusted()) > _MAX_CHARACTERS
    ):
        raise ValueError(f"{str(value)[:_MAX_CHARACTERS]!r} is no price")
    return format(number, "f")
