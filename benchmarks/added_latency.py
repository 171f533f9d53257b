"""The latency that an aggregator adds: from the share that completes the quorum to the answer.

For 5, 100 and 1,000 validators one L1 each is simulated. Each validator has a weight and a round
trip, both drawn by a seed: the weight between 500 and 1,500, the round trip between 30 and 250 ms,
to which each response adds up to 5 %. A client posts messages that were never asked for, one after
another, with a quorum of 67 %; the next request begins when the last validator has responded.

- The share that completes the quorum: the shares of a request in the order in which validators
  wrote them; the first one with which the sum of their weights is at least 67 % of all weight.
- Its arrival: the moment at which its validator begins to encrypt and send it. TLS of the
  validator, the system calls of both sides and the loopback device are therefore in the figure.
- The answer: the moment at which the client's socket becomes readable. The client is a blocking
  socket in a thread of its own.

Both are read from the machine's monotonic clock. The validators share one process and one event
loop. How long that loop was late with the completing share is no part of the figure, because a
share arrives when it is written, and is shown beside it. What does count is that validators, client
and aggregator share the machine's cores.

The floor is measured in turns with the aggregator, on the same network: a bare aggregator, see
`bare_aggregator`, which counts weights and does nothing else.

    python -m benchmarks.added_latency --aggregator BINARY

also measures, in turns with both, any aggregator that takes `--config-file FILE` with the keys of
the reference aggregator and answers POST /aggregate-signatures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import accumulate
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.daemon import REQUEST_PATH, RequestFailed, Start, daemon
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.process import STOP_TIMEOUT_S, running
from benchmarks.report import (
    Aim,
    Figure,
    Report,
    print_report,
    quantile,
    violations_figure,
)
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import required_weight
from warpseal_simnet.report import free_ports

REQUESTS: Final = {5: 200, 100: 200, 1000: 60}
QUICK_REQUESTS: Final = {5: 8, 20: 8}
AIMS_MS: Final = {5: 2.5, 100: 3.0, 1000: 6.0}
WARM_UPS: Final = 3
QUORUM: Final = 67
SEED: Final = 41
ROUND_TRIP_MS: Final = (30, 250)
JITTER: Final = 0.05
# The table of validators has a line for each of so many, and for each class of round trips of more.
MOST_SINGLE: Final = 20
CLASS_MS: Final = 44
WEIGHTS: Final = "uniform:500-1500"
PRIMARY_VALIDATORS: Final = 4
SETTLE_S: Final = 0.05
TOGETHER: Final = 10
TIMEOUT_S: Final = 60.0
READY_TIMEOUT_S: Final = 180.0
RETRY_S: Final = 0.5
MS: Final = 1e-6
WARPSEAL: Final = "Warpseal"
FLOOR: Final = "bare aggregator"
OTHER: Final = "other aggregator"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer, times on the monotonic clock in nanoseconds."""

    message: str
    started_ns: int
    first_byte_ns: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A request, and the share that completed its quorum.

    index: place of the validator in the L1.
    asked_ns: time at which the network had read the request to that validator.
    round_trips_ms: time from the request to the share of each validator that signed, by place.
    """

    exchange: Exchange
    index: int
    asked_ns: int
    written_ns: int
    round_trips_ms: Mapping[int, float]

    @property
    def added_ms(self) -> float:
        """The time from the completing share to the answer."""
        return (self.exchange.first_byte_ns - self.written_ns) * MS

    @property
    def whole_ms(self) -> float:
        """The time of the whole request."""
        return (self.exchange.first_byte_ns - self.exchange.started_ns) * MS

    @property
    def asking_ms(self) -> float:
        """The time until the network had read the request to that validator."""
        return (self.asked_ns - self.exchange.started_ns) * MS


@dataclass(frozen=True, slots=True)
class Validators:
    """The validators of the L1: weights and drawn round trips by their place in it.

    first: place of the first of them among all validators of the network.
    """

    first: int
    weights: tuple[int, ...]
    round_trips_ms: tuple[float, ...]

    @property
    def longest_s(self) -> float:
        """The longest round trip."""
        return max(self.round_trips_ms) * (1 + JITTER) / 1000

    def complete(self, exchange: Exchange, shares: Sequence[tuple[int, int, int]]) -> Completion:
        """Return the completion of a request.

        shares: index, asked and written of each share of the message, also of earlier requests for
            it, in the order in which they were written.
        """
        first_shares: dict[int, tuple[int, int]] = {}
        for index, asked_ns, written_ns in shares:
            if asked_ns > exchange.started_ns:
                first_shares.setdefault(index - self.first, (asked_ns, written_ns))
        round_trips_ms = {
            index: (written_ns - asked_ns) * MS
            for index, (asked_ns, written_ns) in first_shares.items()
        }
        required = required_weight(sum(self.weights), QUORUM)
        signed_weights = accumulate(self.weights[index] for index in first_shares)
        for (index, (asked_ns, written_ns)), weight in zip(
            first_shares.items(), signed_weights, strict=True
        ):
            if weight >= required:
                return Completion(exchange, index, asked_ns, written_ns, round_trips_ms)
        raise RequestFailed("an answer left before validators had written a quorum of shares")


@dataclass(slots=True)
class Subject:
    """An aggregator that is measured, at a port of the loopback address."""

    name: str
    port: int
    completions: list[Completion] = field(default_factory=list)
    together: list[Completion] = field(default_factory=list)

    def wait_until_it_signs(self, message: str) -> None:
        """Ask for a message until it is signed."""
        give_up_at = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                post(self.connect(), message)
                return
            except (OSError, HTTPException, RequestFailed):
                if time.monotonic() > give_up_at:
                    raise
            time.sleep(RETRY_S)

    def connect(self) -> HTTPConnection:
        """Return a connection; it is opened by its first request."""
        return HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)


def run(quick: bool, aggregator: Path | None = None, sizes: Sequence[int] = ()) -> Report:
    """Measure each size on a network of its own.

    aggregator: binary of another aggregator.
    sizes: numbers of validators, all by default.
    """
    requests = QUICK_REQUESTS if quick else REQUESTS
    figures: list[Figure] = []
    notes = [f"load average at the start: {load()}"]
    samples: dict[str, Sequence[float]] = {}
    violations = 0
    for count in sizes or requests:
        with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
            measured = Size(count, requests.get(count, max(requests.values())), Path(folder))
            asyncio.run(measured.measure(aggregator))
        figures += measured.figures(judge=not quick)
        notes += measured.notes()
        violations += measured.violations
        for subject in measured.subjects:
            samples[f"added_ms_{subject.name}_{count}"] = [
                completion.added_ms for completion in subject.completions
            ]
    figures.append(violations_figure(violations))
    notes.append(f"load average at the end: {load()}")
    return Report("added_latency", quick, tuple(figures), tuple(notes), samples)


class Size:
    """The measurement with one number of validators."""

    def __init__(self, count: int, requests: int, folder: Path) -> None:
        self.subjects: list[Subject] = []
        self.violations = 0
        self._weights: tuple[int, ...] = ()
        self._count = count
        self._requests = requests
        self._folder = folder
        draw = random.Random(SEED)
        self._round_trips_ms = tuple(draw.uniform(*ROUND_TRIP_MS) for _ in range(count))

    async def measure(self, aggregator: Path | None) -> None:
        """Run the network and all aggregators, and ask each of them for all messages."""
        rules = self._folder / "rules.json"
        rules.write_text(json.dumps(delay_rules(self._round_trips_ms)))
        l1 = f"validators={self._count},weights={WEIGHTS}"
        extra = ("--l1", l1, "--behaviours", str(rules), "--seed", str(SEED))
        messages = WARM_UPS + self._requests + TOGETHER
        plan = NetworkPlan(PRIMARY_VALIDATORS, (), messages, extra)
        async with AsyncExitStack() as stack:
            network = stack.enter_context(simulated_network(plan, self._folder))
            subnet_id = network.subnet_of_size(self._count)
            arguments = (str(self._folder / "network.json"), subnet_id, str(QUORUM))
            floor = stack.enter_context(
                running(arguments, self._folder / "bare.log", module="benchmarks.bare_aggregator")
            )
            self.subjects.append(Subject(FLOOR, int(floor.ready_line)))
            product = await stack.enter_async_context(
                daemon(network, Start(self._folder / "daemon"))
            )
            self.subjects.append(Subject(WARPSEAL, urlsplit(product.api).port or 0))
            if aggregator is not None:
                port = stack.enter_context(other_aggregator(aggregator, network, self._folder))
                self.subjects.append(Subject(OTHER, port))
            await product.connected()
            await asyncio.to_thread(self._ask_all, network, subnet_id)
            self.violations = network.violations()

    def _ask_all(self, network: Network, subnet_id: str) -> None:
        validators = self._validators(network, subnet_id)
        self._weights = validators.weights
        messages = network.own_messages(subnet_id)
        warm_ups, rest = messages[:WARM_UPS], messages[WARM_UPS:]
        one_by_one, together = rest[: self._requests], rest[self._requests :]
        for subject in self.subjects:
            for message in warm_ups:
                subject.wait_until_it_signs(message)
        pause_s = validators.longest_s + SETTLE_S
        time.sleep(pause_s)
        for message in one_by_one:
            for subject in self.subjects:
                exchange = post(subject.connect(), message)
                time.sleep(pause_s)
                shares = network.sent_shares()[message_id(message)]
                subject.completions.append(validators.complete(exchange, shares))
        for subject in self.subjects:
            if subject.name != FLOOR:
                time.sleep(pause_s)
                exchanges = post_together(subject, together)
                time.sleep(2 * pause_s)
                all_sent = network.sent_shares()
                subject.together = [
                    validators.complete(exchange, all_sent[message_id(exchange.message)])
                    for exchange in exchanges
                ]

    def _validators(self, network: Network, subnet_id: str) -> Validators:
        subnet = next(item for item in network.facts["subnets"] if item["subnetId"] == subnet_id)
        weights = tuple(item["weight"] for item in subnet["validators"])
        return Validators(PRIMARY_VALIDATORS, weights, self._round_trips_ms)

    def figures(self, *, judge: bool) -> list[Figure]:
        """Return the figures of all subjects."""
        figures: list[Figure] = []
        for subject in self.subjects:
            aim_ms = AIMS_MS.get(self._count) if subject.name == WARPSEAL and judge else None
            figures += _figures(f"{self._count} validators, {subject.name}: ", subject, aim_ms)
        return figures

    def notes(self) -> list[str]:
        """Return the table of the validators: a line for each, or for each class of many."""
        return [
            self._validators_note(subject, name, members)
            for subject in self.subjects
            if subject.name != FLOOR
            for name, members in self._groups()
        ]

    def _groups(self) -> list[tuple[str, set[int]]]:
        if self._count <= MOST_SINGLE:
            return [
                (f"validator {index}, round trip of {round_trip_ms:.0f} ms", {index})
                for index, round_trip_ms in enumerate(self._round_trips_ms)
            ]
        groups = []
        for low_ms in range(*ROUND_TRIP_MS, CLASS_MS):
            high_ms = min(low_ms + CLASS_MS, ROUND_TRIP_MS[1])
            members = {
                index
                for index, round_trip_ms in enumerate(self._round_trips_ms)
                if low_ms <= round_trip_ms < high_ms
            }
            name = f"round trips of {low_ms} to {high_ms} ms: {len(members)} validators"
            groups.append((name, members))
        return groups

    def _validators_note(self, subject: Subject, name: str, members: set[int]) -> str:
        weight = sum(self._weights[index] for index in members)
        text = (
            f"{subject.name}, {self._count} validators, {name},"
            f" {100 * weight / sum(self._weights):.0f} % of the weight"
        )
        round_trips_ms = [
            round_trip_ms
            for completion in subject.completions
            for index, round_trip_ms in completion.round_trips_ms.items()
            if index in members
        ]
        if round_trips_ms:
            text += f"; measured p50 {quantile(round_trips_ms, 0.5):.0f} ms"
        completing = [item for item in subject.completions if item.index in members]
        text += f"; completed {len(completing)} of {len(subject.completions)} requests"
        if completing:
            added_ms = quantile([item.added_ms for item in completing], 0.5)
            text += f", added p50 {added_ms:.2f} ms"
        return text


def _figures(at: str, subject: Subject, aim_ms: float | None) -> list[Figure]:
    added_ms = [item.added_ms for item in subject.completions]
    whole_ms = [item.whole_ms for item in subject.completions]
    asking_ms = [item.asking_ms for item in subject.completions]
    shares = [item.added_ms / item.whole_ms for item in subject.completions]
    aim, tail_aim = (Aim(aim_ms), Aim(2 * aim_ms)) if aim_ms is not None else (None, None)
    figures = [
        Figure(at + "added latency p50", quantile(added_ms, 0.5), "ms", aim),
        Figure(at + "added latency p99", quantile(added_ms, 0.99), "ms", tail_aim),
        Figure(at + "whole request p50", quantile(whole_ms, 0.5), "ms"),
        Figure(at + "whole request p99", quantile(whole_ms, 0.99), "ms"),
        Figure(at + "share of the whole p50", 100 * quantile(shares, 0.5), "%"),
        Figure(
            at + "until the completing validator has the request, p50",
            quantile(asking_ms, 0.5),
            "ms",
        ),
    ]
    if subject.together:
        together_ms = [item.added_ms for item in subject.together]
        name = f"{at}added latency, {TOGETHER} requests at a time, "
        figures += [
            Figure(name + "p50", quantile(together_ms, 0.5), "ms"),
            Figure(name + "longest", max(together_ms), "ms"),
        ]
    return figures


def delay_rules(round_trips_ms: Sequence[float]) -> list[str]:
    """Return the behaviours of the L1's validators, as `warpseal simnet` takes them."""
    return [
        f"l1-0/{index}:slow={shortest_ms:.2f}ms-{shortest_ms * (1 + JITTER):.2f}ms"
        for index, shortest_ms in enumerate(round_trips_ms)
    ]


def post(connection: HTTPConnection, message: str) -> Exchange:
    """Post a request, and read the answer. Raises RequestFailed, OSError."""
    body = json.dumps({"message": message, "quorum-percentage": QUORUM})
    connection.connect()
    started_ns = time.monotonic_ns()
    connection.request("POST", REQUEST_PATH, body, {"content-type": "application/json"})
    readable, _, _ = select.select([connection.sock], [], [], TIMEOUT_S)
    first_byte_ns = time.monotonic_ns()
    if not readable:
        raise RequestFailed(f"no answer within {TIMEOUT_S:g} s")
    with connection.getresponse() as response:
        text = response.read()
    connection.close()
    if response.status != 200:
        raise RequestFailed(f"HTTP {response.status}: {text[:500]!r}")
    return Exchange(message, started_ns, first_byte_ns)


def post_together(subject: Subject, messages: Sequence[str]) -> list[Exchange]:
    """Post requests at the same time, each from a thread of its own."""
    exchanges: list[Exchange] = []
    threads = [
        threading.Thread(target=lambda m=message: exchanges.append(post(subject.connect(), m)))
        for message in messages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return exchanges


@contextmanager
def other_aggregator(binary: Path, network: Network, folder: Path) -> Iterator[int]:
    """Run an aggregator with the keys of the reference; yield the port of its API."""
    port, metrics_port = free_ports(2)
    config = {**network.facts["config"], "api-port": port, "metrics-port": metrics_port}
    file = folder / "other.json"
    file.write_text(json.dumps({**config, "log-level": "warn"}))
    with (folder / "other.log").open("w") as log:
        child = subprocess.Popen(
            [binary, "--config-file", file], stdout=log, stderr=log, cwd=folder
        )
    try:
        yield port
    finally:
        child.terminate()
        child.wait(STOP_TIMEOUT_S)


def message_id(message: str) -> str:
    """Return the id of a message; both in hex."""
    return UnsignedMessage.parse(bytes.fromhex(message)).id.hex()


def load() -> str:
    """Return the machine's load average."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument(
        "--aggregator", type=Path, metavar="BINARY", help="another aggregator to measure"
    )
    parser.add_argument(
        "--validators", type=int, action="append", default=[], help="one size; repeatable"
    )
    args = parser.parse_args()
    report = run(args.quick, args.aggregator and args.aggregator.absolute(), args.validators)
    print_report(report)
    print(f"  written to {report.write()}")


if __name__ == "__main__":
    main()
