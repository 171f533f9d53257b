"""Cost of `p-chain-quorum: 2`: CPU of a request of a daemon with it and of a daemon without, in
turns.

Two daemons with the same three nodes, one of them with `p-chain-quorum: 2`, have the same requests
in turns: one message again and again, new messages of an L1 of 100 validators whose set is known,
and one message at heights whose sets are not known yet. A block is accepted each second.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.daemon import REQUEST_PATH, Daemon, Start, daemon
from benchmarks.load import post_again_and_again
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure

VALIDATORS = 100
QUICK_VALIDATORS = 10
NODES = 3
TURNS = 40
QUICK_TURNS = 2
TURN_S = 0.25
QUICK_TURN_S = 0.1
TURN_MESSAGES = 10
TURN_HEIGHTS = 20
WARM_UP = 20
CLIENTS = 8
HEIGHT = 5_000
COST_AIM = Aim(1.05)
# The P-Chain follower and the store would use CPU between the requests.
FLAGS = ("--follow-p-chain", "false", "--store-url", "off", "--max-p-chain-lookback", "-1")
NOTES = (
    (
        f"{NODES} nodes, a block each second; both daemons run side by side, and only one of them"
        " has requests"
    ),
    "turns of each daemon in alternating order; a ratio is the median of the turns",
    (
        "a new height: the set at a height that the daemon does not know yet is fetched for each"
        " request"
    ),
)

Turn = Callable[[Daemon], Awaitable[int]]
"""Sends one turn's requests to a daemon and returns their number."""


def run(quick: bool) -> Report:
    """Compare a repeated request, new messages for a known set, and requests for a new set."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    validators, turns, seconds = (
        (QUICK_VALIDATORS, QUICK_TURNS, QUICK_TURN_S) if quick else (VALIDATORS, TURNS, TURN_S)
    )
    flags = ("--nodes", str(NODES), "--block-interval", "1", "--height", str(HEIGHT))
    plan = NetworkPlan(validators, (validators,), WARM_UP + (turns + 1) * TURN_MESSAGES, flags)
    with simulated_network(plan, folder) as network:
        messages = network.messages(network.subnet_of_size(validators))
        async with (
            daemon(network, Start(folder / "one", flags=FLAGS, keys=_keys(network, 1))) as one,
            daemon(network, Start(folder / "two", flags=FLAGS, keys=_keys(network, 2))) as two,
        ):
            for subject in (one, two):
                await subject.connected()
                for message in messages[:WARM_UP]:
                    await subject.sign(message)
            cached = await compare_daemons(one, two, turns, _repeat(messages[0], seconds))
            warm = await compare_daemons(one, two, turns, sign_new(messages[WARM_UP:]))
            heights = await compare_daemons(one, two, turns, ask_heights(messages[0]))
        violations = network.violations()
    figures = (
        *_figures("a repeated request", cached, COST_AIM),
        *_figures("a new message, the set is known", warm, COST_AIM),
        *_figures("a repeated request at a new height", heights, None),
        violations_figure(violations),
    )
    return Report("agreement", quick, figures, NOTES)


def _keys(network: Network, quorum: int) -> dict[str, Any]:
    nodes = [{"base-url": uri} for uri in network.facts["nodeUris"]]
    return {"p-chain-api": nodes, "info-api": nodes, "p-chain-quorum": quorum}


async def compare_daemons(
    one: Daemon, two: Daemon, turns: int, turn: Callable[[int], Turn]
) -> tuple[list[float], float]:
    """Return the ratio of each turn, and the CPU of a request to the first daemon; the first turn
    does not count.
    """
    ratios, plain_s = [], []
    for number in range(turns + 1):
        used = {}
        for subject in (one, two) if number % 2 else (two, one):
            before_s = subject.process.cpu_s()
            count = await turn(number)(subject)
            used[subject.api] = (subject.process.cpu_s() - before_s) / count
        if number:
            ratios.append(used[two.api] / used[one.api])
            plain_s.append(used[one.api])
    return ratios, quantile(plain_s, 0.5)


def _repeat(message: str, seconds: float) -> Callable[[int], Turn]:
    body = json.dumps({"message": message}).encode()

    async def post(subject: Daemon) -> int:
        load = await asyncio.to_thread(
            post_again_and_again, subject.api, REQUEST_PATH, body, clients=CLIENTS, seconds=seconds
        )
        return load.requests

    return lambda _: post


def sign_new(messages: list[str]) -> Callable[[int], Turn]:
    def of_turn(number: int) -> Turn:
        async def sign(subject: Daemon) -> int:
            for message in messages[number * TURN_MESSAGES : (number + 1) * TURN_MESSAGES]:
                await subject.sign(message)
            return TURN_MESSAGES

        return sign

    return of_turn


def ask_heights(message: str) -> Callable[[int], Turn]:
    def of_turn(number: int) -> Turn:
        async def sign(subject: Daemon) -> int:
            for place in range(TURN_HEIGHTS):
                await subject.sign(
                    message, **{"pchain-height": HEIGHT - 1 - number * TURN_HEIGHTS - place}
                )
            return TURN_HEIGHTS

        return sign

    return of_turn


def _figures(
    name: str, sample: tuple[list[float], float], aim: Aim | None
) -> tuple[Figure, Figure]:
    ratios, plain_s = sample
    ratio = Figure(f"{name}: CPU, quorum 2 / 1", quantile(ratios, 0.5), "x", aim)
    return ratio, Figure(f"{name}: CPU, quorum 1", plain_s * 1e6, "us")
