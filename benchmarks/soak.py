"""`make soak`: hours of load on one daemon, with faults, as a table; it fails if memory or
descriptors keep growing.

`make soak` is not one of `make bench`: it runs for an hour. A network of 100 validators, of which
5 % cannot be reached, 10 % answer after 0.2 to 2 s and 2 % sign another message, makes a block
every two seconds and changes a weight every minute. 20 requests a second arrive evenly, a quarter
of them for new messages, the others for one of the last thousand; latencies count from the moment
at which a request was due. The daemon has 16 MiB for signature shares and results in place of 256,
so that they are full early, and growth after that is a leak: in the longest life of a daemon the
median of the last quarter may be above that of the second one by 10 % and 8 MiB of memory, or 10 %
and 16 open files; the exit code is 1 otherwise, and for a wrong answer or a violation of the
protocol. Lives of less than ten minutes are not judged. In an hour a leak of 650 bytes a request is
beyond the bound if the daemon has 150 MiB. `make soak SOAK="--minutes 15 --kill-every 5 --dead 20"`
shows what its arguments are like. The machine must have room for the load: beside other work the
nodes of the network answer too late, and requests end with `node_unavailable`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from benchmarks.daemon import REQUEST_PATH, Daemon, Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.process import Process, ProcessFailed, allow_many_sockets
from benchmarks.report import Aim, Figure, Report, print_report, quantile, violations_figure
from warpseal.store.url import redacted_url

# Each chain of the network has the same number of messages, and those of the Primary Network are
# not sent.
CHAINS = 40
RECENT_MESSAGES = 1_000
SAMPLE_S = 1.0
MEBIBYTE = 1 << 20
CACHE_BYTES = 16 * MEBIBYTE
# A shorter life of a daemon is not judged: its caches may still fill.
SHORTEST_LIFE_S = 600.0
GROWTH_RATIO = 0.1
MEMORY_MARGIN = 8 * MEBIBYTE
FILES_MARGIN = 16
COLUMNS = "minute requests ok% p50ms p95ms p99ms MiB files cpu% errors"
ROW = "{:>6} {:>8} {:>6} {:>6} {:>6} {:>6} {:>5} {:>5} {:>5}  {}"


@dataclass(frozen=True, slots=True)
class Soak:
    """The plan of a run.

    new, dead, slow, bad: shares in percent.
    kill_every: minutes between two kills of the daemon; 0 for no kills.
    """

    minutes: float
    rate: float
    new: float
    validators: int
    dead: int
    slow: int
    bad: int
    kill_every: float
    interval: float
    store_url: str

    @property
    def requests(self) -> int:
        """The number of requests of the run."""
        return int(self.minutes * 60 * self.rate)

    @property
    def new_messages(self) -> int:
        """The largest number of new messages that the run may need."""
        return 2 + int(self.requests * self.new / 100)

    @property
    def dead_percent(self) -> float:
        """The share of the validators that never connect."""
        return 100 * round(self.validators * self.dead / 100) / self.validators

    def plan(self) -> NetworkPlan:
        """Return the network: validators by place, first the dead ones, then the slow ones, then
        the wrong ones.
        """
        rules: list[str] = []
        first = 0
        for percent, behaviour in (
            (self.dead, "closed"),
            (self.slow, "slow=200ms-2s"),
            (self.bad, "wrong"),
        ):
            count = round(self.validators * percent / 100)
            if count:
                rules += ["--behave", f"{first}-{first + count - 1}:{behaviour}"]
            first += count
        l1 = f"validators={self.validators},shared,chains={CHAINS}"
        moving = ("--block-interval", "2", "--churn", "30")
        # Signing all messages at the start would take longer than many a run.
        extra = ("--l1", l1, "--presign", "0", *moving, *rules)
        return NetworkPlan(self.validators, (), -(-self.new_messages // CHAINS), extra)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request.

    code: code of an error, "unreachable" if the daemon died, "" for a signed message.
    """

    latency_s: float
    code: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What the daemon and its processes use at a moment: resident memory, open files, CPU time
    since its start.
    """

    memory_bytes: int
    files: int
    cpu_s: float

    @classmethod
    def read(cls, process: Process) -> Usage:
        """Read it from the kernel's books. Raises ProcessFailed if the process has ended."""
        family = process.family()
        memory_bytes = sum(member.rss_bytes() for member in family)
        # A zombie is still in the books, without memory.
        if not memory_bytes:
            last = "\n".join(process.log.read_text().splitlines()[-20:])
            raise ProcessFailed(f"the daemon has ended by itself:\n{last}")
        files = sum(len(os.listdir(f"/proc/{member.pid}/fd")) for member in family)
        return cls(memory_bytes, files, sum(member.cpu_s() for member in family))


@dataclass(slots=True)
class Traffic:
    """The requests of a run.

    outcomes: outcomes of all requests that have ended.
    lives: samples of each daemon, taken every second.
    """

    soak: Soak
    messages: Sequence[str]
    started_at: float
    outcomes: list[Outcome] = field(default_factory=list)
    lives: list[list[Usage]] = field(default_factory=list)
    request_count: int = 0
    _new_count: int = 0
    _recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_MESSAGES))
    _row_count: int = 0
    _row_outcomes: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    async def drive(self, subject: Daemon, seconds: float) -> None:
        """Send what is due, and sample the daemon, until so many seconds after the start of the
        run.
        """
        samples: list[Usage] = []
        self.lives.append(samples)
        ends_at, next_sample_at, now = self.started_at + seconds, time.perf_counter(), 0.0
        async with asyncio.TaskGroup() as tasks:
            while now < ends_at:
                now = time.perf_counter()
                while self.request_count < self.soak.requests and (due := self._next_due()) <= now:
                    self.request_count += 1
                    tasks.create_task(self._request(subject, self._next_message(), due))
                if next_sample_at <= now:
                    samples.append(Usage.read(subject.process))
                    next_sample_at += SAMPLE_S
                    self._print_rows(samples, now)
                next_at = min(self._next_due(), next_sample_at, ends_at)
                await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
            if self.request_count < self.soak.requests:
                os.kill(subject.process.pid, signal.SIGKILL)

    def _next_due(self) -> float:
        return self.started_at + self.request_count / self.soak.rate

    def _next_message(self) -> str:
        # The first request of a run is for a new message, since there is none to repeat.
        if self._new_count <= self.request_count * self.soak.new / 100 and self._new_count < len(
            self.messages
        ):
            self._recent.append(self.messages[self._new_count])
            self._new_count += 1
            return self._recent[-1]
        return self._random.choice(self._recent)

    async def _request(self, subject: Daemon, message: str, due: float) -> None:
        try:
            async with subject.http.post(
                subject.api + REQUEST_PATH, json={"message": message}
            ) as response:
                body = json.loads(await response.read())
                code = str(body.get("code", "")) if response.status != 200 else ""
            if not code and not body["signed-message"].startswith(message):
                code = "another_message"
        except aiohttp.ClientError:
            code = "unreachable"
        self.outcomes.append(Outcome(time.perf_counter() - due, code))

    def _print_rows(self, samples: Sequence[Usage], now: float) -> None:
        minutes = (now - self.started_at) / 60
        if minutes >= (self._row_count + 1) * self.soak.interval:
            self._row_count = int(minutes / self.soak.interval)
            print(
                format_row(
                    f"{minutes:.3g}",
                    self.outcomes[self._row_outcomes :],
                    samples,
                    self.soak.interval * 60,
                )
            )
            sys.stdout.flush()
            self._row_outcomes = len(self.outcomes)


def format_row(
    label: str, outcomes: Sequence[Outcome], samples: Sequence[Usage], seconds: float
) -> str:
    """Return a line of the table.

    samples: samples of a daemon; the last `seconds` count for its CPU time.
    """
    success_ms = [1e3 * outcome.latency_s for outcome in outcomes if not outcome.code] or [0.0]
    codes = Counter(outcome.code for outcome in outcomes if outcome.code)
    recent = samples[-int(seconds / SAMPLE_S) - 1 :]
    cpu = (recent[-1].cpu_s - recent[0].cpu_s) / max(SAMPLE_S, (len(recent) - 1) * SAMPLE_S)
    return ROW.format(
        label,
        len(outcomes),
        f"{100 * (1 - codes.total() / max(1, len(outcomes))):.2f}",
        *(f"{quantile(success_ms, share):.1f}" for share in (0.5, 0.95, 0.99)),
        round(recent[-1].memory_bytes / MEBIBYTE),
        recent[-1].files,
        f"{100 * cpu:.0f}",
        ", ".join(f"{code} {count}" for code, count in codes.most_common()) or "-",
    )


def growth(values: Sequence[float]) -> float:
    """Return the median of the last quarter minus that of the second one: the first is for the
    start and the caches.
    """
    quarter = max(1, len(values) // 4)
    return quantile(values[-quarter:], 0.5) - quantile(values[quarter : 2 * quarter] or values, 0.5)


def growth_figures(life: Sequence[Usage]) -> list[Figure]:
    """Return the growth of memory and files in a daemon's life; each may grow by a tenth and a
    margin.
    """
    is_judged = len(life) * SAMPLE_S >= SHORTEST_LIFE_S
    figures = []
    memory, files = [sample.memory_bytes for sample in life], [sample.files for sample in life]
    parts = (
        ("memory", memory, "MiB", MEBIBYTE, MEMORY_MARGIN),
        ("files", files, "", 1, FILES_MARGIN),
    )
    for resource, values, unit, scale, margin in parts:
        aim = None
        if is_judged:
            most = GROWTH_RATIO * quantile(values, 0.5) + margin
            aim = Aim(round(most / scale, 1))
        name = f"growth of {resource} between the second and the last quarter"
        figures.append(Figure(name, growth(values) / scale, unit, aim))
    return figures


async def run(soak: Soak, folder: Path) -> Report:
    """Run the load, print a line of the table for each interval, and return the figures of the
    whole.
    """
    keys: dict[str, object] = {"signature-cache-bytes": CACHE_BYTES}
    if soak.store_url:
        keys["store-url"] = soak.store_url
    start = Start(folder / "daemon", keys=keys)
    with simulated_network(soak.plan(), folder) as network:
        messages = network.messages(network.subnet_of_size(soak.validators))
        seconds = 60 * soak.minutes
        life_s = 60 * soak.kill_every or seconds
        print(ROW.format(*COLUMNS.split()))
        async with daemon(network, start) as subject:
            await subject.connected(100 - soak.dead_percent - 1)
            traffic = Traffic(soak, messages, time.perf_counter())
            await traffic.drive(subject, min(seconds, life_s))
        while traffic.request_count < soak.requests:
            # The next daemon gets the requests that were due while there was none; they count from
            # then.
            async with daemon(network, start) as subject:
                await traffic.drive(
                    subject, min(seconds, time.perf_counter() - traffic.started_at + life_s)
                )
        violations = network.violations()
    outcomes, longest = traffic.outcomes, max(traffic.lives, key=len)
    print(format_row("all", outcomes, longest, seconds))
    success_ms = [1e3 * outcome.latency_s for outcome in outcomes if not outcome.code] or [0.0]
    codes = Counter(outcome.code for outcome in outcomes)
    figures = [
        Figure("requests", len(outcomes), ""),
        Figure("signed", 100 * codes[""] / max(1, len(outcomes)), "%"),
        *(
            Figure(f"latency p{round(100 * share)}", quantile(success_ms, share), "ms")
            for share in (0.5, 0.95, 0.99)
        ),
        *(Figure(f"errors: {code}", count, "") for code, count in codes.most_common() if code),
        Figure("answers with another message", codes["another_message"], "", Aim(0)),
        Figure("kills of the daemon", len(traffic.lives) - 1, ""),
        *growth_figures(longest),
        violations_figure(violations),
    ]
    note = str(replace(soak, store_url=redacted_url(soak.store_url)))
    series: dict[str, Sequence[float]] = {
        "memory_bytes": [item.memory_bytes for item in longest],
        "files": [item.files for item in longest],
    }
    return Report(
        "soak", len(longest) * SAMPLE_S < SHORTEST_LIFE_S, tuple(figures), (note,), series
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load of the command line; return 1 if an aim is missed: growth, wrong answers or
    violations.
    """
    soak = Soak(**vars(_parser().parse_args(argv)))
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    allow_many_sockets()
    with tempfile.TemporaryDirectory(prefix="warpseal-soak-") as folder:
        try:
            report = asyncio.run(run(soak, Path(folder)))
        except* ProcessFailed as errors:
            sys.exit(f"soak: {errors.exceptions[0]}")
    print_report(report)
    print(f"  written to {report.write()}")
    misses = [figure.name for figure in report.figures if figure.verdict == "missed"]
    for name in misses:
        print(f"soak: {name}: beyond its bound", file=sys.stderr)
    return 1 if misses else 0


def _parser() -> argparse.ArgumentParser:
    rule = (
        "Growth: in the longest life of a daemon, the median of the last quarter may be above that"
        f" of the second one by {100 * GROWTH_RATIO:.0f} % and {MEMORY_MARGIN // MEBIBYTE} MiB, or"
        f" {FILES_MARGIN} files; a life of less than {SHORTEST_LIFE_S / 60:.0f} minutes is not"
        " judged. The exit code is 1 if memory or files grew by more, if an answer was wrong, or"
        " if the daemon broke the peer protocol."
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        epilog=rule,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, metavar="N", help="length of the load"
    )
    parser.add_argument("--rate", type=float, default=20.0, metavar="N", help="requests a second")
    parser.add_argument(
        "--new", type=float, default=25.0, metavar="%", help="requests for messages that are new"
    )
    parser.add_argument(
        "--validators", type=int, default=100, metavar="N", help="validators of the network"
    )
    parser.add_argument(
        "--dead", type=int, default=5, metavar="%", help="validators that cannot be reached"
    )
    parser.add_argument(
        "--slow", type=int, default=10, metavar="%", help="validators that answer after 0.2 to 2 s"
    )
    parser.add_argument(
        "--bad", type=int, default=2, metavar="%", help="validators that sign another message"
    )
    parser.add_argument(
        "--kill-every",
        type=float,
        default=0.0,
        metavar="N",
        help="minutes between kills (-9); 0: none",
    )
    parser.add_argument(
        "--interval", type=float, default=5.0, metavar="N", help="minutes of a line of the table"
    )
    parser.add_argument(
        "--store-url", default="", metavar="URL", help="store of the daemon; a SQLite file if empty"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
