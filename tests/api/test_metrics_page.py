"""GET /metrics: on its own port, encoded outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from tests.api.fixtures import ApiSetup, client_of, serving
from warpseal.api.routes import metrics_app
from warpseal.api.status.probes import MetricsPage
from warpseal.metrics.registry import Metrics
from warpseal.metrics.samples import SubnetSample, ValidatorSample


@asynccontextmanager
async def metrics_client(metrics: Metrics) -> AsyncIterator[aiohttp.ClientSession]:
    setup = ApiSetup(metrics=metrics)
    app = metrics_app(MetricsPage(metrics), setup.settings, metrics)
    async with serving(app) as server, aiohttp.ClientSession(server.url) as client:
        yield client


async def test_metrics_are_on_the_metrics_port_only() -> None:
    async with client_of(ApiSetup()) as client:
        assert (await client.get("/metrics")).status == 404
    async with metrics_client(Metrics()) as client:
        response = await client.get("/metrics")
        assert response.status == 200
        assert "warpseal_build_info{" in await response.text()
        response = await client.get("/health")
        assert (response.status, (await response.json())["code"]) == (404, "not_found")


async def test_the_event_loop_runs_while_a_metrics_page_of_1000_validators_is_encoded() -> None:
    metrics = Metrics()
    for outcome in ("ok", "quorum_not_reached", "quorum_impossible", "node_unavailable"):
        metrics.observe_aggregation(outcome, dict.fromkeys(("validators", "collect", "total"), 0.1))
    metrics.samples.register(
        ValidatorSample,
        lambda: (ValidatorSample(f"NodeID-{n:033}", n, n, 0, 0, 0.01) for n in range(1000)),
    )
    metrics.samples.register(
        SubnetSample, lambda: (SubnetSample(f"{n:050}", 67, 100) for n in range(500))
    )
    turns = 0
    page = asyncio.create_task(asyncio.to_thread(await metrics.snapshot()))
    while not page.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await page).count(b"warpseal_validator_latency_seconds{") == 1000
    # The writing thread lets others run between two of its fifty families.
    assert turns > 20


async def test_concurrent_scrapes_are_all_answered() -> None:
    async with metrics_client(Metrics()) as client:
        responses = await asyncio.gather(*(client.get("/metrics") for _ in range(5)))
        assert [response.status for response in responses] == [200] * 5
