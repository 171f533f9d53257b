"""(c) A thousand connections: memory and CPU of each, and how soon enough weight is connected, cold
and warm.

The network has 1,000 validators. Resident memory and CPU count from the moment at which the daemon
listens until three seconds after the last connection; they include the address book, the validator
sets and the signed IPs. They are compared with a bare TLS handshake by `ssl` (both certificates, as
the protocol requires). The daemon starts three times: `info.peers` lists all addresses; it lists
five and gossip brings the rest; the same again with the addresses on disk.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon import Start, daemon
from benchmarks.floors import transport_floor
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, violations_figure

VALIDATORS = 1000
QUICK_VALIDATORS = 20
SETTLE_S = 3.0
LISTED_PEERS = 5
ENOUGH_PERCENT = 67
MEMORY_AIM = Aim(90)
CPU_AIM = Aim(4)
KIBIBYTE = 1024


@dataclass(frozen=True, slots=True)
class Connected:
    """The time and the memory that a daemon needs to connect.

    Times are in seconds since its process was started; the rest is growth since it listened.
    """

    listening_s: float
    enough_s: float
    all_s: float
    rss_bytes: int
    cpu_s: float


def run(quick: bool) -> Report:
    """Measure two starts of the daemon: without remembered addresses, and again with them."""
    validators = QUICK_VALIDATORS if quick else VALIDATORS
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(validators, Path(folder), quick))


async def _measure(validators: int, folder: Path, quick: bool) -> Report:
    with transport_floor(folder, 1, 1) as floor:
        handshake_s = floor.connect(validators)
    with simulated_network(NetworkPlan(validators, (validators,), 1), folder) as network:
        hinted = await _connect(network, folder / "hinted")
        violations = network.violations()
    few = NetworkPlan(validators, (validators,), 1, ("--info-peers", str(LISTED_PEERS)))
    with simulated_network(few, folder) as network:
        gossip = await _connect(network, folder / "gossip")
        warm = await _connect(network, folder / "gossip")
        violations += network.violations()
    figures = [
        Figure(
            "RSS growth per connection", hinted.rss_bytes / validators / KIBIBYTE, "KiB", MEMORY_AIM
        ),
        Figure(
            "CPU per connection / bare TLS handshake",
            hinted.cpu_s / validators / handshake_s,
            "x",
            CPU_AIM,
        ),
        Figure("CPU per connection", hinted.cpu_s / validators * 1e3, "ms"),
        Figure("CPU per connection, addresses by gossip", gossip.cpu_s / validators * 1e3, "ms"),
        Figure("CPU per connection, addresses remembered", warm.cpu_s / validators * 1e3, "ms"),
        Figure("bare TLS handshake, CPU of the client", handshake_s * 1e3, "ms"),
        *_times("cold, all addresses from info.peers", hinted),
        *_times(f"cold, {LISTED_PEERS} addresses from info.peers, the rest by gossip", gossip),
        *_times(f"warm, {LISTED_PEERS} addresses from info.peers, the rest remembered", warm),
        violations_figure(violations),
    ]
    return Report("connections", quick, tuple(figures))


async def _connect(network: Network, folder: Path) -> Connected:
    async with daemon(network, Start(folder)) as subject:
        listening_s = time.perf_counter() - subject.started_at
        rss_bytes, cpu_s = subject.process.rss_bytes(), subject.process.cpu_s()
        enough_s = await subject.connected(ENOUGH_PERCENT)
        all_s = await subject.connected()
        await asyncio.sleep(SETTLE_S)
        rss_bytes, cpu_s = subject.process.rss_bytes() - rss_bytes, subject.process.cpu_s() - cpu_s
    return Connected(listening_s, enough_s, all_s, rss_bytes, cpu_s)


def _times(start: str, result: Connected) -> tuple[Figure, ...]:
    return (
        Figure(f"{start}: listening after", result.listening_s, "s"),
        Figure(f"{start}: {ENOUGH_PERCENT} % of the weight after", result.enough_s, "s"),
        Figure(f"{start}: 100 % of the weight after", result.all_s, "s"),
    )
