"""(e) Equal concurrent requests: they share one round, counted in the requests that the validators
receive.

The benchmark counts the AppRequests that the validators receive for one request, and for 100 equal
requests at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.daemon import SETTLE_S, Daemon, Start, daemon
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, violations_figure

VALIDATORS = 1000
QUICK_VALIDATORS = 20
CALLERS = 100
REQUESTS_AIM = Aim(1.0)


def run(quick: bool) -> Report:
    """Compare the AppRequests of one request with those of many equal requests at once."""
    validators = QUICK_VALIDATORS if quick else VALIDATORS
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(validators, Path(folder), quick))


async def _measure(validators: int, folder: Path, quick: bool) -> Report:
    with simulated_network(NetworkPlan(validators, (validators,), 3), folder) as network:
        messages = network.messages(network.subnet_of_size(validators))
        async with daemon(network, Start(folder / "daemon")) as subject:
            await subject.connected()
            await subject.sign(messages[0])
            alone, alone_s, _ = await _send(subject, network, messages[1], 1)
            many, many_s, responses = await _send(subject, network, messages[2], CALLERS)
        violations = network.violations()
    figures = (
        Figure(
            f"AppRequests of {CALLERS} equal requests at once / of one",
            many / alone,
            "x",
            REQUESTS_AIM,
        ),
        Figure("AppRequests of one request", alone, ""),
        Figure(f"AppRequests of {CALLERS} equal requests at once", many, ""),
        Figure(f"daemon CPU of {CALLERS} equal requests / of one", many_s / alone_s, "x"),
        Figure("distinct answers", responses, "", Aim(1.0)),
        violations_figure(violations),
    )
    return Report("coalescing", quick, figures)


async def _send(
    subject: Daemon, network: Network, message: str, callers: int
) -> tuple[float, float, int]:
    """Post one message from `callers` at once; return AppRequests, CPU seconds, and how many
    answers differ.
    """
    await asyncio.sleep(SETTLE_S)
    before, cpu_s = network.counted("appRequests"), subject.process.cpu_s()
    responses = await asyncio.gather(*[subject.sign(message) for _ in range(callers)])
    await asyncio.sleep(SETTLE_S)
    cpu_s = subject.process.cpu_s() - cpu_s
    return network.counted("appRequests") - before, cpu_s, len(set(responses))
