"""The start of a daemon with 5 validators: from exec to the ports, to the first response, and to `/ready` 200."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.daemon import CONNECT_TIMEOUT_S, Start, prepare_start
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.process import Process, ProcessFailed
from benchmarks.report import Figure, Report, quantile

VALIDATORS: Final = 5
ROUNDS: Final = 9
QUICK_ROUNDS: Final = 2
POLL_S: Final = 0.005
SETTLE_S: Final = 1.5
_OK: Final = 200


class StartCost(NamedTuple):
    """Seconds from exec, CPU seconds until ready, and resident bytes some time later."""

    listening_s: float
    response_s: float
    ready_s: float
    cpu_s: float
    rss_bytes: float


def run(quick: bool) -> Report:
    """Start a daemon again and again, on a new data folder and then on the same one."""
    # Installed packages are compiled; modules of a checkout are compiled at the first start, which does not count.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    plan = NetworkPlan(VALIDATORS, (VALIDATORS,), 1)
    costs: dict[str, list[StartCost]] = {"new data folder": [], "existing data folder": []}
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder, simulated_network(plan, Path(folder)) as net:
        _start(net, Path(folder) / "compile")
        for number in range(QUICK_ROUNDS if quick else ROUNDS):
            for samples in costs.values():
                samples.append(_start(net, Path(folder) / str(number)))
    figures = [figure for name, samples in costs.items() for figure in _figures(name, samples)]
    notes = (f"the median of {ROUNDS if not quick else QUICK_ROUNDS} starts each, with compiled modules",)
    return Report("start", quick, tuple(figures), notes)


def _start(network: Network, folder: Path) -> StartCost:
    """Start a daemon, wait until it is ready, and stop it. Raises ProcessFailed."""
    port = _free_port()
    arguments = prepare_start(network, Start(folder, flags=("--api-port", str(port))))
    with (folder / "daemon.log").open("a") as log:
        started_at = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-m", "warpseal", *arguments], stdout=subprocess.DEVNULL, stderr=log)

    def wait() -> None:
        if child.poll() is not None or time.perf_counter() - started_at > CONNECT_TIMEOUT_S:
            raise ProcessFailed(f"the daemon was not ready (exit code {child.returncode}): see {folder}")
        time.sleep(POLL_S)

    try:
        while not _accepts(port):
            wait()
        listening_s = time.perf_counter() - started_at
        _get_status(port, "/health")
        response_s = time.perf_counter() - started_at
        while _get_status(port, "/ready") != _OK:
            wait()
        process = Process(child.pid, "", folder)
        ready_s, cpu_s = time.perf_counter() - started_at, process.cpu_s()
        time.sleep(SETTLE_S)
        return StartCost(listening_s, response_s, ready_s, cpu_s, process.rss_bytes())
    finally:
        child.terminate()
        child.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _get_status(port: int, path: str) -> int:
    """Return the status of a response; the request waits while the daemon starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=CONNECT_TIMEOUT_S) as response:
            status: int = response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return status


def _figures(name: str, costs: list[StartCost]) -> list[Figure]:
    listening, response, ready, cpu, rss = (quantile(values, 0.5) for values in zip(*costs, strict=True))
    return [
        Figure(f"{name}: from exec until the ports listen", listening, "s"),
        Figure(f"{name}: until the first response of /health", response, "s"),
        Figure(f"{name}: until /ready is 200", ready, "s"),
        Figure(f"{name}: CPU until /ready is 200", cpu, "s"),
        Figure(f"{name}: resident memory when ready", rss / 2**20, "MiB"),
    ]
