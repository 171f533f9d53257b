"""(g) Repeated GETs of a stored signed message of an L1 transaction, from a daemon that did not
sign it.

One daemon process signs the message of a conversion, for an L1 of 100 validators. The client then
gets it from a fresh one on the same store, pinned to one core, over eight keep-alive connections
from the other core, while a block is accepted each second and an epoch ends every five. The daemon
asks no validator.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.load import Load, get_again_and_again
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.p_txs import ConvertSubnetToL1Tx
from warpseal.warp.ids import id_text

VALIDATORS = 100
QUICK_VALIDATORS = 10
CLIENTS = 8
SECONDS = 8.0
QUICK_SECONDS = 2.0
# A block each second; the epoch, and so the height of the responses, changes every five blocks.
HEIGHTS = ("--block-interval", "1")
PATH = "/v1/signatureAggregator/fuji/aggregateSignatures/"
RATE_AIM = Aim(2000, at_least=True)
P99_AIM = Aim(5.0)
READ_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """Results of a restarted daemon.

    first_s: time of its first response.
    requests: number of signature requests that it sent.
    """

    load: Load
    cpu_s: float
    first_s: float
    requests: int


def run(quick: bool) -> Report:
    """Sign the message of a conversion, restart the daemon on one core, and GET the message from
    the other.
    """
    validators, seconds = (QUICK_VALIDATORS, QUICK_SECONDS) if quick else (VALIDATORS, SECONDS)
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), validators, seconds, quick))


async def _measure(folder: Path, validators: int, seconds: float, quick: bool) -> Report:
    cores = sorted(os.sched_getaffinity(0))
    with simulated_network(NetworkPlan(validators, (validators,), 2, HEIGHTS), folder) as network:
        path = PATH + await asyncio.to_thread(
            conversion, network, network.subnet_of_size(validators)
        )
        async with daemon(network, Start(folder / "daemon")) as subject:
            await subject.connected()
            await get(subject, path)
        os.sched_setaffinity(network.process.pid, {cores[0]})
        async with daemon(network, Start(folder / "daemon", cores[-1])) as subject:
            served = await _serve(subject, network, path, seconds, cores[0])
        violations = network.violations()
    return Report("l1_get", quick, _figures(served, violations), NOTES)


NOTES = (
    (
        f"{CLIENTS} keep-alive connections from another process on the other core, which the"
        " simulated network also uses"
    ),
    "the daemon is a fresh process on one core; a block each second, another epoch every five",
)


async def _serve(subject: Daemon, network: Network, path: str, seconds: float, core: int) -> Served:
    await subject.connected()
    requests = network.counted("appRequests")
    started = time.perf_counter()
    await get(subject, path)
    first_s = time.perf_counter() - started
    cpu_s = subject.process.cpu_s()
    load = await asyncio.to_thread(_load, subject.api, path, seconds, core)
    return Served(
        load, subject.process.cpu_s() - cpu_s, first_s, network.counted("appRequests") - requests
    )


def _load(url: str, path: str, seconds: float, core: int) -> Load:
    os.sched_setaffinity(0, {core})  # Only this thread.
    return get_again_and_again(url, path, clients=CLIENTS, seconds=seconds)


async def get(subject: Daemon, path: str) -> str:
    """Return the signed message in the response to a GET."""
    async with subject.http.get(subject.api + path) as response:
        response.raise_for_status()
        signed: str = (await response.json())["signedMessage"]
    return signed


def conversion(network: Network, subnet_id: str) -> str:
    """Return the hash of the transaction that converted a subnet, from one of the first blocks."""
    height = 0
    while True:
        height += 1
        for tx in parse_p_block(_block(network, height)).txs:
            if (
                isinstance(tx.unsigned, ConvertSubnetToL1Tx)
                and id_text(tx.unsigned.subnet_id) == subnet_id
            ):
                return id_text(tx.id)


def _block(network: Network, height: int) -> bytes:
    params = {"height": str(height), "encoding": "hexnc"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "platform.getBlockByHeight", "params": params}
    url = f"{network.facts['nodeUri']}/ext/bc/P"
    request = urllib.request.Request(
        url, json.dumps(call).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=READ_TIMEOUT_S) as response:
        return bytes.fromhex(json.load(response)["result"]["block"].removeprefix("0x"))


def _figures(served: Served, violations: int) -> tuple[Figure, ...]:
    load = served.load
    return (
        Figure("GET requests per second", load.requests / load.took_s, "/s", RATE_AIM),
        Figure("latency p99", quantile(load.latencies_s, 0.99) * 1e3, "ms", P99_AIM),
        Figure("latency p50", quantile(load.latencies_s, 0.5) * 1e3, "ms"),
        Figure("CPU per request", served.cpu_s / load.requests * 1e6, "us"),
        Figure("first answer, from the store", served.first_s * 1e3, "ms"),
        Figure("distinct answers", len(load.bodies), ""),
        Figure("signature requests", served.requests, "", Aim(0)),
        violations_figure(violations),
    )
