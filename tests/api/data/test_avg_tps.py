"""Endpoint 17: days of a chain and sums over chains are those of a plain model, page by page."""

from __future__ import annotations

from itertools import accumulate
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.api.data import samples as s
from tests.api.data.fixtures import Clock, client_of
from tests.api.data.metrics_fixtures import (
    DAY,
    MadeChain,
    block_at,
    file_urls,
    metrics_setup,
    request,
    walk,
    write_chain,
)
from warpseal.api.data.settings import Compat

NOW = s.NOW
TODAY = NOW // DAY


def made_chain(
    number: int, first: int = 0, *, ended_days: int = 0, is_current: bool = True
) -> MadeChain:
    """Return a chain whose last block is some days old; its blocks are hours or days apart."""
    random = Random(number)
    steps = [random.choice((0, 7, 3_600, 30_000, 200_000)) for _ in range(49)]
    start = NOW - 600 - sum(steps) - ended_days * DAY
    times = list(accumulate(steps, initial=start))
    blocks = [block_at(height, time, random.randrange(9)) for height, time in enumerate(times)]
    blocks[0] = block_at(0, 0, 0)
    return MadeChain(number, blocks[first:], is_current=is_current)


def model(*chains: MadeChain) -> dict[int, float]:
    """Return the value of each day from the newest to the first complete one."""
    sums: dict[int, float] = {}
    for chain in chains:
        blocks = [block for block in chain.blocks if block.number]
        first = blocks[0].time // DAY + (blocks[0].number > 1)
        last = max(TODAY, blocks[-1].time // DAY) if chain.is_current else blocks[-1].time // DAY
        for day in range(first, last + 1):
            of_day = [block for block in blocks if block.time // DAY == day]
            before = [block for block in blocks if block.time // DAY < day] or blocks[:1]
            seconds = of_day[-1].time - before[-1].time if of_day else 0
            value = sum(block.tx_count for block in of_day) / seconds if seconds else 0.0
            sums[day] = sums.get(day, 0.0) + value
    return {day: sums.get(day, 0.0) for day in range(max(sums), min(sums) - 1, -1)}


def points(values: dict[int, float]) -> list[dict[str, Any]]:
    """Return the values as results of a response."""
    return [
        {"timestamp": day * DAY, "value": pytest.approx(value)} for day, value in values.items()
    ]


CHAINS = (
    made_chain(1),
    made_chain(2, 9, ended_days=4),
    made_chain(3, 1, ended_days=40, is_current=False),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the indexes of the chains; tests only read them."""
    path = tmp_path_factory.mktemp("tps")
    for chain in CHAINS:
        write_chain(file_urls(path)[0], chain, NOW - 7)
    return path


@pytest.mark.parametrize("alone", [True, False])
async def test_each_day_of_a_chain_and_of_all_chains_is_that_of_the_model(
    folder: Path, alone: bool
) -> None:
    chains_by_id = {str(chain.evm_chain_id): (chain,) for chain in CHAINS}
    random = Random(5)
    async with metrics_setup(*file_urls(folder), *CHAINS) as setup, client_of(setup) as client:
        for name, chains in {**chains_by_id, "total": CHAINS, "testnet": CHAINS}.items():
            values = model(*chains)
            assert len(values) > (60 if name == "total" else 10)
            path = f"/v1/avg_tps/{name}"
            whole = await request(client, path, pageSize=2160)
            assert (whole.status, whole.body["results"]) == (200, points(values))
            assert (whole.body["status"], whole.body["lastRun"]) == (200, NOW - 7)
            size = random.randrange(3, 9)
            pages = await walk(client, path, "results", {"pageSize": size}, alone=alone)
            assert [len(page) for page in pages[:-1]] == [size] * (ceil(len(values) / size) - 1)
            assert [point for page in pages for point in page] == points(values)
            first, last = sorted(random.sample(sorted(values), 2))
            bounds = {
                "from": first * DAY - random.randrange(DAY),
                "to": last * DAY + random.randrange(DAY),
            }
            cut = await walk(client, path, "results", {**bounds, "pageSize": 9}, alone=alone)
            inside = {day: value for day, value in values.items() if first <= day <= last}
            assert [point for page in cut for point in page] == points(inside)


async def test_today_is_the_first_point_unless_the_index_lacks_blocks(folder: Path) -> None:
    async with metrics_setup(*file_urls(folder), *CHAINS) as setup, client_of(setup) as client:
        responses = [await request(client, f"/v1/avg_tps/{chain.evm_chain_id}") for chain in CHAINS]
    first_points = [response.body["results"][0] for response in responses]
    assert [point["timestamp"] // DAY for point in first_points] == [
        TODAY,
        TODAY,
        CHAINS[2].blocks[-1].time // DAY,
    ]
    assert first_points[1]["value"] == 0
    assert "lag=0" in responses[1].headers["x-warpseal-index"]
    assert len(responses[0].body["results"]) == 100 or "nextPageToken" not in responses[0].body


async def test_sums_name_every_chain_and_the_network_must_be_the_daemons(folder: Path) -> None:
    async with metrics_setup(*file_urls(folder), *CHAINS) as setup, client_of(setup) as client:
        total = await request(client, "/v1/avg_tps/total")
        other = await request(client, "/v1/avg_tps/mainnet")
    items = total.headers["x-warpseal-index"].split(", ")
    assert [item.partition(";")[0] for item in items] == [
        str(chain.evm_chain_id) for chain in CHAINS
    ]
    assert (other.status, other.body["code"]) == (404, "network_not_served")
    assert other.body["message"] == [
        "network 'mainnet' is not served here; this daemon serves total, testnet (network id 5)"
    ]
    async with (
        metrics_setup(*file_urls(folder), *CHAINS, network_id=1) as setup,
        client_of(setup) as client,
    ):
        statuses = [
            (await request(client, f"/v1/avg_tps/{name}")).status
            for name in ("mainnet", "testnet", "total")
        ]
    assert statuses == [200, 404, 200]


async def test_start_keys_are_page_tokens_by_another_name(folder: Path) -> None:
    path = f"/v1/avg_tps/{CHAINS[0].evm_chain_id}"
    async with metrics_setup(*file_urls(folder), *CHAINS) as setup, client_of(setup) as client:
        first = (await request(client, path, pageSize=3)).body
        assert first["nextPageStartKey"] == first["nextPageToken"]
        by_key = (await request(client, path, startKey=first["nextPageToken"])).body
        by_token = (await request(client, path, pageToken=first["nextPageToken"])).body
        both = await request(
            client, path, pageToken=first["nextPageToken"], startKey=by_key["nextPageToken"]
        )
    assert by_key["results"] == by_token["results"] == points(model(CHAINS[0]))[3:6]
    assert (both.status, both.body["code"]) == (400, "conflicting_spellings")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"from": "5", "to": "4"}, "to"),
        ({"from": "-1"}, "from"),
        ({"to": "2024-01-01"}, "to"),
        ({"pageSize": "0"}, "pageSize"),
        ({"pageSize": "2161"}, "pageSize"),
        ({"pageToken": "x"}, "pageToken"),
        ({"startKey": "0" * 36}, "pageToken"),
    ],
)
async def test_a_malformed_parameter_is_named(
    folder: Path, params: dict[str, str], field: str
) -> None:
    async with metrics_setup(*file_urls(folder), *CHAINS) as setup, client_of(setup) as client:
        response = await request(client, f"/v1/avg_tps/{CHAINS[0].evm_chain_id}", **params)
    assert (response.status, response.body["detail"]["field"]) == (400, field)
    (message,) = response.body["message"]
    assert isinstance(message, str)
    assert (response.body["error"], response.body["statusCode"]) == ("Bad Request", 400)


async def test_chains_without_an_index_or_a_block_are_named(tmp_path: Path) -> None:
    plain, empty, started = (
        MadeChain(4, indexing=None),
        MadeChain(5),
        MadeChain(6, [block_at(0, 0, 0)]),
    )
    for chain in (empty, started):
        write_chain(file_urls(tmp_path)[0], chain, NOW)
    async with metrics_setup(*file_urls(tmp_path), plain) as setup, client_of(setup) as client:
        responses = [
            await request(client, f"/v1/avg_tps/{name}")
            for name in ("total", "0x" + plain.blockchain_id.hex(), "1")
        ]
    assert [(response.status, response.body["code"]) for response in responses] == [
        (404, "index_not_enabled"),
        (404, "index_not_enabled"),
        (404, "unknown_chain"),
    ]
    async with metrics_setup(*file_urls(tmp_path), empty) as setup, client_of(setup) as client:
        response = await request(client, "/v1/avg_tps/total")
    assert (response.status, response.body["code"]) == (503, "index_not_ready")
    async with (
        metrics_setup(*file_urls(tmp_path), plain, empty, started) as setup,
        client_of(setup) as client,
    ):
        response = await request(client, "/v1/avg_tps/total")
    assert (response.status, response.body) == (200, {"results": [], "status": 200, "lastRun": NOW})


async def test_keys_do_not_count_and_limits_are_those_of_the_address(folder: Path) -> None:
    path = f"/v1/avg_tps/{CHAINS[0].evm_chain_id}"
    clock = Clock()
    async with metrics_setup(*file_urls(folder), *CHAINS, clock=clock) as setup:
        setup = setup.with_settings(
            require_api_key=True,
            rate_limit_loopback=True,
            rate_limit_per_minute=1,
            metrics_api_rate_limit_per_minute=45,
        ).with_data(compat=Compat.SDK)
        async with client_of(setup) as client:
            first = await request(client, path)
            second = await request(client, path, **{"header_x-service-api-key": "wrong"})
            third = await request(client, path, **{"header_x-glacier-api-key": "wrong"})
            clock.now += 60
            later = await request(client, path)
    assert [response.status for response in (first, second, third, later)] == [200, 200, 429, 200]
    assert second.headers["ratelimit-policy"] == "45;w=60"
    assert second.headers["ratelimit-remaining"] == "5"
    assert (third.body["code"], len(third.body["message"])) == ("rate_limited", 1)
    assert int(third.headers["retry-after"]) >= 1
