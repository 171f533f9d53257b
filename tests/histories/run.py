"""A run: two daemons and their clients, disturbed at drawn moments, and the judgement of it."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from msgspec import Struct

from tests.chains.evm.icm_logs import NETWORK_ID
from tests.histories.clients import Clients
from tests.histories.deployment import Deployment, Seat, run_deployment
from tests.histories.judge import Violation, judge, measure_blocks
from tests.histories.operations import GONE, Operation, read_history
from tests.histories.receiver import FAILURES
from tests.integration.daemon import run_network
from tests.store.postgres import PostgresServer
from warpseal_simnet.plan import L1Plan, Plan

PLAN: Final = Plan(
    network_id=NETWORK_ID,
    validators=4,
    l1s=(L1Plan(shared=True),),
    messages=5_000,
    epoch_blocks=0,
)
SETTLE_S: Final = 90.0
"""Time in which the readers and the webhook get all events behind the last disturbance."""

Disturb = Callable[[Deployment, Seat, Random], Awaitable[None]]


class Judgement(Struct, frozen=True):
    """The result of a run.

    operations: numbers of operations by their kinds and results.
    disturbances: numbers of disturbances by their names.
    block_waits_s: time in which each block did not hold yet on the other daemon, ascending.
    """

    violations: Sequence[Violation]
    operations: Mapping[str, int]
    disturbances: Mapping[str, int]
    block_waits_s: Sequence[float]


async def lose_link(
    _: Deployment, seat: Seat, random: Random, *, requests: bool = True, replies: bool = True
) -> None:
    """Lose all bytes between the daemon and the database for longer or shorter than a lease is
    valid.

    requests, replies: directions whose bytes are lost.
    """
    seat.cut(requests=requests, replies=replies)
    await asyncio.sleep(random.uniform(6.5, 11.0))
    seat.heal()


async def reset_link(_: Deployment, seat: Seat, random: Random) -> None:
    """Break all connections to the database."""
    seat.heal()


async def kill(_: Deployment, seat: Seat, random: Random) -> None:
    """Kill the daemon, and start it again."""
    await seat.end(signal.SIGKILL)
    await asyncio.sleep(random.uniform(0.0, 3.0))
    await seat.start()


async def restart(_: Deployment, seat: Seat, random: Random) -> None:
    """Stop the daemon, and start it again."""
    await seat.end(signal.SIGTERM)
    await seat.start()


async def pause(_: Deployment, seat: Seat, random: Random) -> None:
    """Stop the process for longer or shorter than a lease is valid."""
    seat.pause()
    await asyncio.sleep(random.uniform(1.0, 11.0))
    seat.resume()


async def pause_server(deployment: Deployment, _: Seat, random: Random) -> None:
    """Let the server answer nothing for some time."""
    begin = monotonic()
    with deployment.server.paused():
        await asyncio.sleep(random.uniform(0.5, 4.0))
    for seat in deployment.seats:
        seat.add_cut(begin)


async def crash_server(deployment: Deployment, _: Seat, random: Random) -> None:
    """Crash the server, and start it again."""
    begin = monotonic()
    await asyncio.to_thread(deployment.server.stop)
    try:
        await asyncio.sleep(random.uniform(0.0, 2.0))
    finally:
        await asyncio.to_thread(deployment.server.start)
    for seat in deployment.seats:
        seat.add_cut(begin)


async def fail_receiver(deployment: Deployment, _: Seat, random: Random) -> None:
    """Let the receiver of the webhook fail for some time, during the next disturbances as well."""
    await deployment.receiver.fail(random.choice(FAILURES), random.uniform(1.0, 15.0))


async def respond_with_410(deployment: Deployment, _: Seat, random: Random) -> None:
    """Let the receiver of the webhook pause it, for some time."""
    await deployment.receiver.fail(str(GONE), random.uniform(1.0, 5.0))


DISTURBANCES: Final[Mapping[str, Disturb]] = {
    "lose link": lose_link,
    "lose requests": partial(lose_link, replies=False),
    "lose replies": partial(lose_link, requests=False),
    "reset link": reset_link,
    "kill": kill,
    "restart": restart,
    "pause": pause,
    "pause server": pause_server,
    "crash server": crash_server,
    "fail receiver": fail_receiver,
    "respond with 410": respond_with_410,
}


async def run_history(
    server: PostgresServer,
    folder: Path,
    seed: int,
    seconds: float,
    *,
    disturbances: Sequence[str] = tuple(DISTURBANCES),
    defects: Sequence[str] = (),
) -> Judgement:
    """Run a history and judge it.

    seconds: least time of the disturbances.
    disturbances: each comes once in this order, and then they are drawn.
    """
    # Of their own, since the clients draw as often as the machine is fast.
    random, random_of_clients = Random(seed), Random(~seed)
    async with (
        run_network(PLAN) as network,
        run_deployment(network, server, folder, random, random_of_clients, defects) as deployment,
    ):
        clients = Clients(deployment, random_of_clients)
        await clients.prepare()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(clients.read_events())
            operating = tasks.create_task(clients.operate_webhook())
            await clients.until_reading()
            await deployment.until_followed()
            working = tasks.create_task(clients.run())
            counts = await disturb(deployment, random, monotonic() + seconds, disturbances)
            working.cancel()
            await deployment.until_ready()
            await deployment.receiver.until_recovered()
            await clients.sign_last(SETTLE_S)
            operating.cancel()
            reading.cancel()
        for seat in deployment.seats:
            await seat.end(signal.SIGTERM)
        statements = [file for seat in deployment.seats for file in seat.statements]
    history = read_history([folder / "clients.jsonl", *statements])
    return Judgement(judge(history), count_operations(history), counts, measure_blocks(history))


async def disturb(
    deployment: Deployment, random: Random, end: float, names: Sequence[str]
) -> Counter[str]:
    """Disturb a deployment in the order of the names, and then by drawn ones until a moment.

    Two thirds of the disturbances are those of the daemon that leads. Returns how often each was.
    """
    counts: Counter[str] = Counter()
    order = iter(names)
    while True:
        name = next(order, None)
        if name is None and monotonic() >= end:
            return counts
        await asyncio.sleep(random.uniform(0.5, 4.0))
        if not names:
            continue
        name = name or random.choice(names)
        leader = await deployment.leader()
        seat = leader if leader and random.random() < 2 / 3 else random.choice(deployment.seats)
        counts[name] += 1
        await DISTURBANCES[name](deployment, seat, random)


def count_operations(history: Sequence[Operation]) -> dict[str, int]:
    """Return the numbers of operations by their kinds and results, or the status of responses."""
    counts: Counter[str] = Counter()
    for operation in history:
        result = getattr(operation, "result", getattr(operation, "status", ""))
        counts[f"{operation.__struct_config__.tag} {result}".rstrip()] += 1
    return dict(sorted(counts.items()))
