"""(k) The report of `/ext/health`, again and again: answered from the last round, whatever the
number of checks.

A client on one core asks a healthy daemon on the other for the report of `/ext/health`, over eight
keep-alive connections, by GET and by JSON-RPC.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.load import Load, get_again_and_again, post_again_and_again
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure

VALIDATORS = 20
CLIENTS = 8
SECONDS = 6.0
QUICK_SECONDS = 1.0
PATH = "/ext/health"
CALL = b'{"jsonrpc":"2.0","id":1,"method":"health.health","params":{"tags":[]}}'
RATE_AIM = Aim(2000, at_least=True)
NOTES = (
    (
        f"{CLIENTS} keep-alive connections from another process on the other core; the daemon has"
        " one core"
    ),
)


def run(quick: bool) -> Report:
    """Ask a healthy daemon on one core from the other, by GET and by JSON-RPC."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), seconds, quick))


async def _measure(folder: Path, seconds: float, quick: bool) -> Report:
    cores = sorted(os.sched_getaffinity(0))
    with simulated_network(NetworkPlan(VALIDATORS, (VALIDATORS,), 2), folder) as network:
        os.sched_setaffinity(network.process.pid, {cores[0]})
        async with daemon(network, Start(folder / "daemon", cores[-1])) as subject:
            await subject.connected()
            await _until_healthy(subject)
            get_load = await asyncio.to_thread(_get, subject.api, seconds, cores[0])
            cpu_s = subject.process.cpu_s()
            post_load = await asyncio.to_thread(_post, subject.api, seconds, cores[0])
            cpu_s = subject.process.cpu_s() - cpu_s
        violations = network.violations()
    return Report(
        "ext_health",
        quick,
        (*_figures(get_load, post_load, cpu_s), violations_figure(violations)),
        NOTES,
    )


async def _until_healthy(subject: Daemon) -> None:
    async with asyncio.timeout(60):
        while True:
            async with subject.http.get(subject.api + PATH) as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.1)


def _get(url: str, seconds: float, core: int) -> Load:
    os.sched_setaffinity(0, {core})  # Pins this thread only.
    return get_again_and_again(url, PATH, clients=CLIENTS, seconds=seconds)


def _post(url: str, seconds: float, core: int) -> Load:
    os.sched_setaffinity(0, {core})
    return post_again_and_again(url, PATH, CALL, clients=CLIENTS, seconds=seconds)


def _figures(get_load: Load, post_load: Load, cpu_s: float) -> Sequence[Figure]:
    return (
        Figure("GET requests per second", get_load.requests / get_load.took_s, "/s", RATE_AIM),
        Figure("GET latency p99", quantile(get_load.latencies_s, 0.99) * 1e3, "ms"),
        Figure(
            "JSON-RPC requests per second", post_load.requests / post_load.took_s, "/s", RATE_AIM
        ),
        Figure("JSON-RPC latency p99", quantile(post_load.latencies_s, 0.99) * 1e3, "ms"),
        Figure("CPU per JSON-RPC request", cpu_s / post_load.requests * 1e6, "us"),
    )
