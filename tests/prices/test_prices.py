"""What an AVAX was worth: from a file, from the web, or not known; never invented."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.eventually import finish
from tests.node.recorded_node import serve_app
from warpseal.chains.ids import AssetID
from warpseal.errors import StartupError
from warpseal.prices.settings import PriceSettings, fill_template, price_url
from warpseal.prices.sources import AvaxPrices, WebPrices, file_source, format_price, read_table
from warpseal.resources.outputs import Asset
from warpseal.runtime.settings import InvalidSetting

DAY = date(2024, 3, 9)
NOON = 1_709_985_600
AVAX = Asset(AssetID(b"\xa1" * 32), "Avalanche", "AVAX", 9)


def written(folder: Path, text: str) -> Path:
    file = folder / "prices.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_has_prices_by_day_and_currency(tmp_path: Path) -> None:
    table = read_table(
        written(tmp_path, "date,currency,price\n2024-03-09,USD, 42.420\n\n2024-03-09,jpy,6e3\n")
    )
    assert len(table) == 2
    assert table["usd", DAY] == "42.420"
    assert table["jpy", DAY] == "6000"
    assert ("usd", date(2024, 3, 10)) not in table


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("day,price\n", 1),
        ("date,currency,price\n2024-03-09,usd\n", 2),
        ("date,currency,price\n2024-03-09,usd,1\n09.03.2024,usd,1\n", 3),
        ("date,currency,price\n2024-03-09,dollar,1\n", 2),
        ("date,currency,price\n2024-03-09,usd,-1\n", 2),
        ("date,currency,price\n2024-03-09,usd,NaN\n", 2),
        ("date,currency,price\n2024-03-09,usd," + "9" * 50 + "\n", 2),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(StartupError, match=f"line {line}:"):
        read_table(written(tmp_path, text))


def test_without_a_file_there_are_no_prices_and_a_file_that_cannot_be_read_is_named(
    tmp_path: Path,
) -> None:
    assert read_table(tmp_path / "prices.csv") == {}
    with pytest.raises(StartupError, match=f"{tmp_path} cannot be read"):
        read_table(tmp_path)


@given(st.decimals(min_value="0.000000000001", max_value="1000000000000", places=12))
def test_prices_keep_every_digit(price: Any) -> None:
    assert format_price(price) == format(price, "f")


async def test_only_avax_has_a_price_and_the_first_source_that_has_it_is_used() -> None:
    first, second = (
        file_source({("usd", DAY): "1"}),
        file_source({("usd", DAY): "2", ("eur", DAY): "3"}),
    )
    prices = AvaxPrices(AVAX.asset_id, [first, second])
    assert await prices.price(AVAX, "usd", NOON) == "1"
    assert await prices.price(AVAX, "eur", NOON) == "3"
    assert await prices.price(AVAX, "chf", NOON) is None
    assert await prices.price(AVAX, "usd", NOON + 86_400) is None
    assert await prices.price(AVAX, "usd", 2**64 - 1) is None
    lookalike = Asset(AssetID(b"\xa2" * 32), "Avalanche", "AVAX", 9)
    assert await prices.price(lookalike, "usd", NOON) is None


def test_the_placeholders_of_a_template_are_replaced() -> None:
    template = "{currency}/{CURRENCY}/{date}/{day}-{month}-{year}/{timestamp}/{other}"
    assert fill_template(template, "usd", DAY) == "usd/USD/2024-03-09/09-03-2024/1709942400/{other}"
    with pytest.raises(InvalidSetting, match=r"\{other\} means nothing"):
        price_url(f"https://prices.example/{template}", "price-url")


@asynccontextmanager
async def source(
    response: Callable[[web.Request], Awaitable[web.StreamResponse]], **changes: Any
) -> AsyncIterator[WebPrices]:
    """Prices of a web server with configured responses."""

    async def respond(request: web.Request) -> web.StreamResponse:
        return await response(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", respond)
    async with serve_app(app) as url, aiohttp.ClientSession() as session:
        settings = PriceSettings(url=f"{url}/{{date}}?vs={{currency}}#market.0.{{currency}}")
        yield WebPrices(replace(settings, **changes), session)


class Web:
    """Answers with a body, and counts."""

    def __init__(self, body: Any, status: int = 200) -> None:
        self.text = body if isinstance(body, str) else json.dumps(body)
        self.status = status
        self.requests: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        await asyncio.sleep(0.01)
        return web.Response(text=self.text, status=self.status, headers={"location": "/x"})


async def test_a_price_is_fetched_once_exactly_and_remembered() -> None:
    server = Web('{"market": [{"usd": 42.123456789012345678901}]}')
    async with source(server) as prices:
        prices_read = await asyncio.gather(*(prices.price(("usd", DAY)) for _ in range(5)))
        assert prices_read == ["42.123456789012345678901"] * 5
        assert await prices.price(("usd", DAY)) == prices_read[0]
    assert server.requests == ["/2024-03-09?vs=usd"]


@pytest.mark.parametrize(
    "server",
    [
        Web("not json"),
        Web({}),
        Web({"market": []}),
        Web({"market": [{"usd": None}]}),
        Web({"market": [{"usd": True}]}),
        Web({"market": [{"usd": -1}]}),
        Web({"market": [{"usd": [1]}]}),
        Web({"market": [{"usd": 1}]}, 404),
        Web({"market": [{"usd": 1}]}, 302),
        Web({"market": [{"usd": 1}]}, 500),
        Web('{"market": [{"usd": 1}]}' + " " * 2_000),
        Web("[" * 100_000),
    ],
)
async def test_a_source_without_a_price_is_retried_later(server: Web) -> None:
    async with source(server, max_answer_bytes=1_000) as prices:
        assert await prices.price(("usd", DAY)) is None
        assert await prices.price(("usd", DAY)) is None
    assert len(server.requests) == 1
    server.requests.clear()
    async with source(server, max_answer_bytes=1_000, retry_failed_after_s=0.0) as prices:
        assert await prices.price(("usd", DAY)) is None
        assert await prices.price(("usd", DAY)) is None
    assert len(server.requests) == 2


async def test_a_reply_may_come_in_pieces() -> None:
    async def pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"market": [{"us', b'd": 4', b"2}]}"):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    async with source(pieces) as prices:
        assert await prices.price(("usd", DAY)) == "42"


async def test_a_slow_source_does_not_delay_the_response() -> None:
    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with source(slow, timeout_s=0.05) as prices:
        assert await finish(prices.price(("usd", DAY))) is None
