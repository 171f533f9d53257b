"""The start of a daemon with 5 validators: from exec to the ports, to the first response, and to
`/ready` 200.

A daemon with five validators is started again and again, on a new data folder and then on the same
one: seconds from exec until the ports listen, until the first response of `/health`, and until
`/ready` is 200; its CPU time until then, and its memory when it is ready. Modules are compiled
before, as in an installed package. More starts with `-X importtime` and the log at DEBUG give the
share of each stage: the imports, and without them the interpreter, the configuration, the ports,
the network id from a node, the identity, the store, the services, the validators from nodes, and
the peers until the first quorum.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
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
_IMPORT: Final = re.compile(r"import time: +(\d+) \| +\d+ \| +([\w.]+)")
_IMPORTS: Final = "imports"
_STAGES: Final = {
    "interpreter": "import site",
    "configuration": "import warpseal.daemon.app",
    "ports": " listening ",
    "network id from a node": " network id read ",
    "identity": " identity locked ",
    "store": " store opened ",
    "services": " daemon started ",
    "validators from nodes": " dialed peer ",
    "peers until the first quorum": " first quorum reached ",
}
"""Stages in their order, and the text of the line that ends each."""


class StartCost(NamedTuple):
    """Seconds from exec, CPU seconds until ready, and resident bytes some time later."""

    listening_s: float
    response_s: float
    ready_s: float
    cpu_s: float
    rss_bytes: float


def run(quick: bool) -> Report:
    """Start a daemon again and again, on a new data folder and then on the same one."""
    # Installed packages are compiled; modules of a checkout are compiled at the first start, which
    # does not count.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    plan = NetworkPlan(VALIDATORS, (VALIDATORS,), 1)
    count = QUICK_ROUNDS if quick else ROUNDS
    rounds = range(count)
    costs: dict[str, list[StartCost]] = {"new data folder": [], "existing data folder": []}
    with (
        tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder,
        simulated_network(plan, Path(folder)) as net,
    ):
        _start(net, Path(folder) / "compile")
        for number in rounds:
            for samples in costs.values():
                samples.append(_start(net, Path(folder) / str(number)))
        stages = [_time_stages(net, Path(folder) / f"stages-{number}") for number in rounds]
    figures = [figure for name, samples in costs.items() for figure in _figures(name, samples)]
    total_s = sum(sum(seconds.values()) for seconds in stages)
    for stage in (_IMPORTS, *_STAGES):
        share = sum(seconds[stage] for seconds in stages) / total_s
        figures.append(Figure(f"share of a start on a new data folder: {stage}", 100 * share, "%"))
    notes = (f"the median of {count} starts each, with compiled modules",)
    return Report("start", quick, tuple(figures), notes)


def _time_stages(network: Network, folder: Path) -> dict[str, float]:
    """Start a daemon once, and stop it; return the seconds of each stage without imports, and of
    all imports.
    """
    arguments = prepare_start(network, Start(folder, keys={"log-level": "debug"}))
    command = [sys.executable, "-X", "importtime", "-m", "warpseal", *arguments]
    seconds, left = {_IMPORTS: 0.0}, list(_STAGES.items())
    since = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    imports_s = 0.0
    deadline = threading.Timer(CONNECT_TIMEOUT_S, child.kill)
    deadline.start()
    try:
        assert child.stderr is not None
        for line in child.stderr:
            imported = _IMPORT.match(line)
            if imported:
                imports_s += int(imported[1]) / 1e6
                line = f"import {imported[2]}"
            stage, end = left[0]
            if line == end if imported else end in line:
                now = time.perf_counter()
                # The imports before `site` belong to the interpreter.
                own_imports_s = 0.0 if "interpreter" not in seconds else imports_s
                seconds[stage] = max(0.0, now - since - own_imports_s)
                seconds[_IMPORTS] += own_imports_s
                since, imports_s = now, 0.0
                del left[0]
                if not left:
                    return seconds
        raise ProcessFailed(f"the daemon ended before {left[0][0]}: see {folder}")
    finally:
        deadline.cancel()
        child.terminate()
        child.communicate()


def _start(network: Network, folder: Path) -> StartCost:
    """Start a daemon, wait until it is ready, and stop it. Raises ProcessFailed."""
    port = _free_port()
    arguments = prepare_start(network, Start(folder, flags=("--api-port", str(port))))
    with (folder / "daemon.log").open("a") as log:
        started_at = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "warpseal", *arguments], stdout=subprocess.DEVNULL, stderr=log
        )

    def wait() -> None:
        if child.poll() is not None or time.perf_counter() - started_at > CONNECT_TIMEOUT_S:
            raise ProcessFailed(
                f"the daemon was not ready (exit code {child.returncode}): see {folder}"
            )
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
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}{path}", timeout=CONNECT_TIMEOUT_S
        ) as response:
            status: int = response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return status


def _figures(name: str, costs: list[StartCost]) -> list[Figure]:
    listening, response, ready, cpu, rss = (
        quantile(values, 0.5) for values in zip(*costs, strict=True)
    )
    return [
        Figure(f"{name}: from exec until the ports listen", listening, "s"),
        Figure(f"{name}: until the first response of /health", response, "s"),
        Figure(f"{name}: until /ready is 200", ready, "s"),
        Figure(f"{name}: CPU until /ready is 200", cpu, "s"),
        Figure(f"{name}: resident memory when ready", rss / 2**20, "MiB"),
    ]
