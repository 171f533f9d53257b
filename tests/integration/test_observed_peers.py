"""The uptime of peers in a whole daemon: it is stored, survives a restart, and is returned by
endpoint 8.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.eventually import until
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.store.fixtures import PATIENCE_S, store_at
from warpseal.config.keys import Config
from warpseal.store.values import HourRow
from warpseal.validators.uptime.node_uptime import HOUR_MS, Uptime
from warpseal.warp.ids import NodeID, parse_node_id
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan

PLAN = Plan(validators=4, messages=0)
NETWORKS = "/v1/networks/mainnet"
# Everything is looked at more often than in earnest.
QUICK: Mapping[str, Mapping[str, Any]] = {
    "uptime": {"heartbeat_s": 0.05, "refresh_s": 0.1, "write_s": 0.2, "retry_s": 0.1},
    "peers": {"ping_interval_s": 0.2},
}


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder}/observed.db"


def quick_config(network: SimulatedNetwork, folder: Path) -> Config:
    """A daemon that hurries, with a store that the test looks into."""
    return build_config(network, folder, {"store-url": store_url(folder)}, **QUICK)


async def own_id(daemon: Daemon) -> NodeID:
    """Return the daemon's node id, as it is returned under /ext."""
    node_ids: list[str] = []

    async def is_told() -> bool:
        async with daemon.session.get(daemon.api_url + "/ext/health/liveness") as response:
            node_ids[:] = response.headers.getall("node-id", [])
        return bool(node_ids)

    await until(is_told)
    return parse_node_id(node_ids[0])


async def kept(folder: Path, observer: NodeID) -> dict[NodeID, Uptime]:
    """Return the stored uptime of each node over all hours. The daemon must have ended."""
    async with store_at(store_url(folder), call_timeout_s=PATIENCE_S) as store:
        rows = (await store.observed.load(observer, 0, 0)).hours
    return {
        node_id: Uptime(
            sum(row.observed_ms for row in rows if row.node_id == node_id),
            sum(row.connected_ms for row in rows if row.node_id == node_id),
        )
        for node_id in {row.node_id for row in rows}
    }


async def fetch_uptime(daemon: Daemon, name: str) -> tuple[float, float]:
    """Return uptime and reachability of a validator from endpoint 8."""
    response = await daemon.get(f"{NETWORKS}/validators/{name}")
    assert response.status == 200, response.body
    (body,) = response.body["validators"]
    return body["uptimePerformance"], body["validatorHealth"]["reachabilityPercent"]


async def observe(seconds: float) -> None:
    """Let time pass on the wall."""
    until_at = time.monotonic() + seconds
    await until(lambda: time.monotonic() >= until_at)


async def test_a_validator_that_goes_and_comes_back_is_credited_its_time_over_a_restart(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network:
        gone, there = network.validators[0].node_id, network.validators[1].node_id
        began = time.monotonic()
        async with run_daemon(quick_config(network, tmp_path)) as daemon:
            observer = await own_id(daemon)
            await daemon.until_connected(4)
            await observe(0.8)
            network.stop_validator(0)
            await daemon.until_connected(3)
            await observe(0.8)
            await network.start_validator(0)
            await daemon.until_connected(4)
            await observe(0.5)
        lived_ms = (time.monotonic() - began) * 1_000
        first = await kept(tmp_path, observer)
        assert set(first) == {validator.node_id for validator in network.validators}
        assert 0 < first[gone].connected_ms <= first[gone].observed_ms - 500
        assert 1_000 <= first[there].connected_ms <= first[there].observed_ms <= lived_ms
        assert first[gone].connected_ms < first[there].connected_ms

        await observe(1.0)
        began = time.monotonic()
        async with run_daemon(quick_config(network, tmp_path)) as daemon:
            assert await own_id(daemon) == observer
            await daemon.until_connected(4)
            await observe(0.8)
        lived_ms += (time.monotonic() - began) * 1_000
        second = await kept(tmp_path, observer)
        for node_id in (gone, there):
            assert second[node_id].connected_ms >= first[node_id].connected_ms + 300
            assert second[node_id].observed_ms <= lived_ms
        assert second[gone].observed_ms - second[gone].connected_ms >= 500


async def test_endpoint_8_returns_own_observations_after_a_full_day(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        tracked, unknown = network.validators[0], network.validators[1]
        async with run_daemon(quick_config(network, tmp_path)) as daemon:
            observer = await own_id(daemon)
            of_node = await fetch_uptime(daemon, tracked.name)
            assert await fetch_uptime(daemon, unknown.name) == of_node
        hour = int(time.time()) // 3_600
        halves = [
            HourRow(hour - number, tracked.node_id, HOUR_MS, HOUR_MS // 2)
            for number in range(1, 40)
        ]
        async with store_at(store_url(tmp_path), call_timeout_s=PATIENCE_S) as store:
            await store.observed.write(observer, [], halves)
        async with run_daemon(quick_config(network, tmp_path)) as daemon:
            uptime, reachability = await fetch_uptime(daemon, tracked.name)
            assert (round(uptime), round(reachability)) == (50, 50)
            assert await fetch_uptime(daemon, unknown.name) == of_node
            assert of_node[0] > 60
