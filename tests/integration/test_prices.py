"""Prices in a whole daemon: rewards have their value from a file, from the web, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.integration.daemon import Daemon
from tests.integration.indexed_daemon import fetch_all, node_ids, run_synthetic_daemon, write_prices
from tests.ledger import made_up_network as made_up
from tests.node.recorded_node import serve_app
from warpseal.errors import StartupError
from warpseal.warp.ids import id_text

NETWORK = "/v1/networks/fuji"
AVAX = id_text(made_up.AVAX)


async def rewards_of(daemon: Daemon, **more: str) -> list[dict[str, Any]]:
    """Return all rewards that were paid."""
    txs = await fetch_all(daemon, f"{NETWORK}/blockchains/p-chain/transactions", "transactions")
    words = "".join(f"&{name}={value}" for name, value in more.items())
    return await fetch_all(
        daemon, f"{NETWORK}/rewards?nodeIds={','.join(node_ids(txs))}{words}", "historicalRewards"
    )


def day_of(reward: dict[str, Any], times: dict[str, int]) -> str:
    """Return the (UTC) day on which a reward was paid."""
    return datetime.fromtimestamp(times[reward["rewardTxHash"]], UTC).date().isoformat()


async def times_of(daemon: Daemon) -> dict[str, int]:
    """Return when each transaction was accepted."""
    txs = await fetch_all(daemon, f"{NETWORK}/blockchains/p-chain/transactions", "transactions")
    return {tx["txHash"]: tx["blockTimestamp"] for tx in txs}


@asynccontextmanager
async def price_server(
    prices: dict[tuple[str, str], Any],
) -> AsyncIterator[tuple[str, Counter[str]]]:
    """Serve prices by (day, currency); yield its url and what was asked."""
    requests: Counter[str] = Counter()

    async def respond(request: web.Request) -> web.Response:
        day, currency = request.match_info["day"], request.query["in"]
        requests[f"{day} {currency}"] += 1
        if (day, currency) not in prices:
            return web.json_response({}, status=404)
        return web.json_response({"market": {"price": {currency: prices[day, currency]}}})

    app = web.Application()
    app.router.add_get("/avax/{day}", respond)
    async with serve_app(app) as url:
        yield url, requests


async def test_without_a_source_no_price_is_invented(tmp_path: Path) -> None:
    async with run_synthetic_daemon(tmp_path) as daemon:
        rewards = await rewards_of(daemon)
    assert len(rewards) > 10
    assert not [reward for reward in rewards if "historicalPrice" in reward["reward"]]


async def test_the_file_is_asked_before_the_web_and_only_avax_has_a_price(tmp_path: Path) -> None:
    async with run_synthetic_daemon(tmp_path) as daemon:
        times = await times_of(daemon)
        days = sorted(
            {
                day_of(item, times)
                for item in await rewards_of(daemon)
                if item["reward"]["assetId"] == AVAX
            }
        )
    assert len(days) >= 3
    write_prices(tmp_path / "again", f"{days[0]},eur,5.25\n")
    async with price_server({(days[0], "eur"): 9, (days[1], "eur"): 6.5}) as (url, requests):
        price_url = f"{url}/avax/{{date}}?in={{currency}}#market.price.{{currency}}"
        async with run_synthetic_daemon(tmp_path / "again", price_url=price_url) as daemon:
            rewards = await rewards_of(daemon, currency="eur")
            again = await rewards_of(daemon, currency="eur")
    assert again == rewards
    reply = {
        (reward["reward"]["assetId"] == AVAX, day_of(reward, times)): reward["reward"].get(
            "historicalPrice"
        )
        for reward in rewards
    }
    assert reply[True, days[0]] == {"currencyCode": "eur", "value": "5.25"}
    assert reply[True, days[1]] == {"currencyCode": "eur", "value": "6.5"}
    assert all(reply[True, day] is None for day in days[2:])
    assert {price for (is_avax, _), price in reply.items() if not is_avax} == {None}
    assert requests == {f"{day} eur": 1 for day in days[1:]}


async def test_sdks_receive_prices_as_numbers(tmp_path: Path) -> None:
    async with run_synthetic_daemon(tmp_path) as daemon:
        times = await times_of(daemon)
        days = {day_of(item, times) for item in await rewards_of(daemon)}
    write_prices(tmp_path / "again", "".join(f"{day},usd,5.25\n" for day in days))
    async with run_synthetic_daemon(tmp_path / "again", compat="sdk") as daemon:
        prices = [item["reward"].get("historicalPrice") for item in await rewards_of(daemon)]
    assert {"currencyCode": "usd", "value": 5.25} in prices


async def test_a_file_that_cannot_be_read_keeps_the_daemon_from_starting_and_is_named(
    tmp_path: Path,
) -> None:
    write_prices(tmp_path, "2024-03-09,usd,nothing\n")
    with pytest.raises(StartupError, match=r"/prices\.csv, line 2"):
        async with run_synthetic_daemon(tmp_path) as daemon:
            await daemon.ended
