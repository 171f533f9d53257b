"""Messages signed ahead: what a relayer's POST costs afterwards, and what callers notice of 1,000
pending messages.

The L1 has 100 validators, and `eager-icm` names its subnet. The benchmark writes the tasks that the
index would give into the store. The daemon signs 20 messages ahead; then their POSTs, for a
destination, and those of 20 new messages take turns. Then a caller posts new messages one after
another, 50 ms apart, in slices of 50 without pending messages and with 200 of them in turn, five of
each; a slice ends when all of its messages are signed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from itertools import islice
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, mean, quantile, violations_figure
from warpseal.warp.ids import ChainID, id_text

VALIDATORS = 100
QUICK_VALIDATORS = 10
# The messages are spread over the chains of the L1, because each chain of the network has the same
# number of them.
CHAINS = 40
PAIRS = 20
QUICK_PAIRS = 5
# A caller posts new messages in slices, with and without pending ones in turn.
SLICES = 5
PENDING, QUICK_PENDING = 1_000, 50
CALLS, QUICK_CALLS = 50, 5
PAUSE_S = 0.05
WARM_UPS = 10
SETTLE_S = 0.05
PATIENCE_S = 300.0
P99_AIM = Aim(1.5)
# No node of the indexed chain answers: the benchmark writes the tasks that the index would give.
NO_NODE = "http://127.0.0.1:1"
ADD = "INSERT INTO icm_tasks VALUES (?, ?, ?, ?, ?, 0, NULL, ?)"
WEEK_S = 7 * 86_400


class Tasks:
    """The tasks in the store of a daemon.

    destination: destination of all tasks.
    """

    def __init__(self, file: Path, destination: bytes) -> None:
        self._file = file
        self._destination = destination

    def add(self, messages: Sequence[str]) -> None:
        """Add tasks, as the events of an index do it."""
        now = time.time()
        rows = []
        for message in messages:
            raw = bytes.fromhex(message.removeprefix("0x"))
            message_id, source = sha256(raw).digest(), raw[6:38]
            rows.append((message_id, source, self._destination, raw, now, now + WEEK_S))
        with closing(sqlite3.connect(self._file, timeout=PATIENCE_S)) as connection, connection:
            connection.executemany(ADD, rows)

    async def until_signed(self) -> None:
        """Wait until all messages are signed."""
        query = "SELECT count(*) FROM icm_tasks WHERE set_digest IS NULL"
        async with asyncio.timeout(PATIENCE_S):
            with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as connection:
                # There is no event to wait for.
                while connection.execute(query).fetchone()[0]:  # noqa: ASYNC110
                    await asyncio.sleep(SETTLE_S)


def run(quick: bool) -> Report:
    """Measure one daemon and a network whose validators have signed all messages beforehand."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    validators = QUICK_VALIDATORS if quick else VALIDATORS
    pairs, pending, calls = (
        (QUICK_PAIRS, QUICK_PENDING, QUICK_CALLS) if quick else (PAIRS, PENDING, CALLS)
    )
    each = -(-(WARM_UPS + 2 * pairs + pending + 2 * SLICES * calls) // CHAINS)
    plan = NetworkPlan(
        validators, (), each, ("--l1", f"validators={validators},shared,chains={CHAINS}")
    )
    with simulated_network(plan, folder) as network:
        subnet_id = network.subnet_of_size(validators)
        messages = network.messages(subnet_id)
        destination = ChainID(bytes.fromhex(messages[0].removeprefix("0x"))[6:38])
        chain = {
            "blockchain-id": id_text(destination),
            "rpc": NO_NODE,
            "index": {"metadata": "off"},
        }
        keys = {"eager-icm": [subnet_id], "evm-chains": [chain]}
        async with daemon(network, Start(folder / "daemon", keys=keys)) as subject:
            await subject.connected()
            tasks = Tasks(_store_of(folder, network), destination)
            supply = iter(messages)
            for message in islice(supply, WARM_UPS):
                await _post(subject, destination, message)
            figures = await _compare_posts(subject, destination, tasks, supply, pairs)
            figures += await _compare_callers(subject, destination, tasks, supply, pending, calls)
        figures.append(violations_figure(network.violations()))
    notes = (
        (
            f"{validators} validators; a caller posts new messages one after another, {PAUSE_S:g} s"
            f" apart, in slices of {calls} with {pending // SLICES} pending messages, and without"
            " in turn"
        ),
    )
    return Report("eager_icm", quick, tuple(figures), notes)


def _store_of(folder: Path, network: Network) -> Path:
    return folder / "daemon" / "data" / str(network.facts["networkId"]) / "store.db"


async def _post(subject: Daemon, destination: ChainID, message: str) -> float:
    return await subject.timed(message, **{"destination-blockchain-id": id_text(destination)})


async def _compare_posts(
    subject: Daemon, destination: ChainID, tasks: Tasks, supply: Iterator[str], pairs: int
) -> list[Figure]:
    """Post messages that were signed ahead, and new ones in turn."""
    ahead, new = list(islice(supply, pairs)), list(islice(supply, pairs))
    tasks.add(ahead)
    await tasks.until_signed()
    took_s: dict[bool, list[float]] = {True: [], False: []}
    cpu_s: dict[bool, list[float]] = {True: [], False: []}
    for pair in zip(ahead, new, strict=True):
        for is_ahead, message in zip((True, False), pair, strict=True):
            before = subject.process.cpu_s()
            took_s[is_ahead].append(await _post(subject, destination, message))
            await asyncio.sleep(SETTLE_S)
            cpu_s[is_ahead].append(subject.process.cpu_s() - before)
    return [
        Figure("POST after signing ahead, p50", quantile(took_s[True], 0.5) * 1e3, "ms"),
        Figure("POST of a new message, p50", quantile(took_s[False], 0.5) * 1e3, "ms"),
        Figure("POST after signing ahead, CPU", mean(cpu_s[True]) * 1e3, "ms"),
        Figure("POST of a new message, CPU", mean(cpu_s[False]) * 1e3, "ms"),
    ]


async def _compare_callers(
    subject: Daemon,
    destination: ChainID,
    tasks: Tasks,
    supply: Iterator[str],
    pending: int,
    calls: int,
) -> list[Figure]:
    """Post new messages, with and without pending ones in turn."""
    took_s: dict[bool, list[float]] = {True: [], False: []}
    signing_s, cpu_s = 0.0, 0.0
    for _ in range(SLICES):
        for has_tasks in (False, True):
            started, before = time.perf_counter(), subject.process.cpu_s()
            if has_tasks:
                tasks.add(list(islice(supply, pending // SLICES)))
            took_s[has_tasks] += await _call(subject, destination, list(islice(supply, calls)))
            await tasks.until_signed()
            if has_tasks:
                signing_s += time.perf_counter() - started
                cpu_s += subject.process.cpu_s() - before
    figures = []
    for share in (0.5, 0.9, 0.99):
        beside, alone = (quantile(took_s[has_tasks], share) for has_tasks in (True, False))
        name = f"p{round(100 * share)} of callers"
        aim = P99_AIM if share > 0.9 else None
        figures.append(
            Figure(f"{name}, beside pending messages / without", beside / alone, "x", aim)
        )
        figures.append(Figure(f"{name}, beside pending messages", beside * 1e3, "ms"))
        figures.append(Figure(f"{name}, without", alone * 1e3, "ms"))
    figures.append(Figure(f"{pending} pending messages signed beside the callers", signing_s, "s"))
    return [*figures, Figure("CPU meanwhile, callers included", cpu_s, "s")]


async def _call(subject: Daemon, destination: ChainID, messages: Sequence[str]) -> list[float]:
    """Post messages one after another, with pauses; return the seconds of each."""
    took_s = []
    for message in messages:
        took_s.append(await _post(subject, destination, message))
        await asyncio.sleep(PAUSE_S)
    return took_s
