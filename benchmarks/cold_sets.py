"""Cost of validator sets from the index: CPU of a cold request with `validator-sets: both` and
`node`, in turns.

Two daemons with an index of the P-Chain, one with `validator-sets: both`, the other with `node`,
sign new messages in turns, each at a height whose set is not known yet.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.agreement import Turn, compare_daemons
from benchmarks.daemon import POLL_S, Daemon, Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure

VALIDATORS = 1_000
QUICK_VALIDATORS = 100
TURNS = 20
QUICK_TURNS = 20
TURN_MESSAGES = 5
WARM_UP = 5
HEIGHT = 1_000
COST_AIM = Aim(1.02)
INDEX_TIMEOUT_S = 300.0
INDEX_HEIGHT = "warpseal_index_height"
FLAGS = (
    "--follow-p-chain",
    "false",
    "--store-url",
    "off",
    "--max-p-chain-lookback",
    "-1",
    "--index-chains",
    "p",
)
NOTES = (
    "both daemons run side by side, each with an index, and only one of them has requests",
    "turns of each daemon in alternating order; a ratio is the median of the turns",
    "a new message at a new height: no set is known, so it comes from a node or from the index",
)


def run(quick: bool) -> Report:
    """Compare new messages, each at a height whose set the daemon does not know yet."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    validators, turns = (QUICK_VALIDATORS, QUICK_TURNS) if quick else (VALIDATORS, TURNS)
    genesis = folder / "genesis.bin"
    flags = ("--height", str(HEIGHT), "--write-genesis", str(genesis))
    plan = NetworkPlan(validators, (validators,), WARM_UP + (turns + 1) * TURN_MESSAGES, flags)
    with simulated_network(plan, folder) as network:
        messages = network.messages(network.subnet_of_size(validators))
        keys = {"genesis-file": str(genesis)}
        async with (
            daemon(
                network,
                Start(folder / "node", flags=FLAGS, keys={**keys, "validator-sets": "node"}),
            ) as node,
            daemon(
                network,
                Start(folder / "both", flags=FLAGS, keys={**keys, "validator-sets": "both"}),
            ) as both,
        ):
            for subject in (node, both):
                await subject.connected()
                await _until_indexed(subject)
                for message in messages[:WARM_UP]:
                    await subject.sign(message)
            ratios, plain_s = await compare_daemons(
                node, both, turns, _sign_cold(messages[WARM_UP:])
            )
            calls = "warpseal_node_calls_total"
            set_calls = [
                await subject.value(calls, method="platform.getValidatorsAt")
                for subject in (node, both)
            ]
        violations = network.violations()
    figures = (
        Figure("CPU of a cold request, both / node", quantile(ratios, 0.5), "x", COST_AIM),
        Figure("its quartiles: lower", quantile(ratios, 0.25), "x"),
        Figure("its quartiles: upper", quantile(ratios, 0.75), "x"),
        Figure("CPU of a cold request with node", plain_s * 1e3, "ms"),
        Figure("sets that nodes were asked for: node", set_calls[0], ""),
        Figure("sets that nodes were asked for: both", set_calls[1], ""),
        violations_figure(violations),
    )
    return Report("cold_sets", quick, figures, (f"{validators} validators", *NOTES))


async def _until_indexed(subject: Daemon) -> None:
    async with asyncio.timeout(INDEX_TIMEOUT_S):
        # There is no event to wait for.
        while await subject.value(INDEX_HEIGHT) < HEIGHT:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


def _sign_cold(messages: list[str]) -> Callable[[int], Turn]:
    def of_turn(number: int) -> Turn:
        async def sign(subject: Daemon) -> int:
            first = number * TURN_MESSAGES
            for place, message in enumerate(messages[first : first + TURN_MESSAGES], first):
                await subject.sign(message, **{"pchain-height": HEIGHT - 1 - place})
            return TURN_MESSAGES

        return sign

    return of_turn
