"""A cached request without traces, with traces of 1 % of the requests, and with traces of all:
daemons in turns.

Three daemons repeat a cached request in bursts of a tenth of a second, in turns: without traces,
with those of 1 % of the requests, and with those of all. A collector in the process of the
benchmark takes the traces.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.daemon import REQUEST_PATH, Daemon, Start, daemon
from benchmarks.load import post_again_and_again
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile

VALIDATORS = 100
CLIENTS = 8
TURNS = 200
QUICK_TURNS = 2
TURN_S = 0.1
TRACED_AIM = Aim(1.1)
RATIOS = ("0.01", "1")
NOTES = (
    (
        "all daemons have one core, and one of them at a time has requests; the collector is on the"
        " other core"
    ),
    (
        "bursts of a tenth of a second, one of each daemon a turn, in alternating order; the ratio"
        " is the median turn"
    ),
)


def run(quick: bool) -> Report:
    """Compare the CPU of a request, on eight connections."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder, _collector() as url:
        return asyncio.run(_measure(Path(folder), url, quick))


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector that takes everything and keeps nothing; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


async def _measure(folder: Path, url: str, quick: bool) -> Report:
    cores = sorted(os.sched_getaffinity(0))
    turns = QUICK_TURNS if quick else TURNS
    async with AsyncExitStack() as stack:
        network = stack.enter_context(
            simulated_network(NetworkPlan(VALIDATORS, (VALIDATORS,), 1), folder)
        )
        os.sched_setaffinity(network.process.pid, {cores[0]})
        message = network.messages(network.subnet_of_size(VALIDATORS))[0]
        daemons = []
        for ratio in ("", *RATIOS):
            environment: dict[str, str] = {}
            if ratio:
                environment = {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": url,
                    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                    "OTEL_TRACES_SAMPLER_ARG": ratio,
                }
            start = Start(folder / f"daemon{ratio}", cores[-1], environment=environment)
            subject = await stack.enter_async_context(daemon(network, start))
            await subject.connected()
            await subject.sign(message)
            daemons.append(subject)
        plain_us, ratios = await _compare(daemons, json.dumps({"message": message}).encode(), turns)
    figures = (
        Figure("CPU of a request, 1 % traced / none", quantile(ratios[0], 0.5), "x", TRACED_AIM),
        Figure("CPU of a request, all traced / none", quantile(ratios[1], 0.5), "x"),
        Figure("CPU of a request, none traced", quantile(plain_us, 0.5), "us"),
    )
    return Report("traces", quick, figures, NOTES)


async def _compare(
    daemons: list[Daemon], body: bytes, turns: int
) -> tuple[list[float], list[list[float]]]:
    """Return the CPU of an untraced request of each turn, and the ratios of the others to it; the
    first is dropped.
    """
    plain_us: list[float] = []
    ratios: list[list[float]] = [[] for _ in RATIOS]
    for turn in range(turns + 1):
        used_us = {}
        for subject in daemons if turn % 2 else reversed(daemons):
            used_us[subject.api] = await asyncio.to_thread(_cpu_us, subject, body)
        plain, *traced = (used_us[subject.api] for subject in daemons)
        if turn:
            plain_us.append(plain)
            for values, value in zip(ratios, traced, strict=True):
                values.append(value / plain)
    return plain_us, ratios


def _cpu_us(subject: Daemon, body: bytes) -> float:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Pins this thread only.
    before_s = subject.process.cpu_s()
    load = post_again_and_again(subject.api, REQUEST_PATH, body, clients=CLIENTS, seconds=TURN_S)
    return (subject.process.cpu_s() - before_s) / load.requests * 1e6
