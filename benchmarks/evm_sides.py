"""An EVM node, a bare aiohttp proxy of it, and the daemon in front of it: each a process, all asked
in the same way.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.daemon import Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.process import Process, running
from warpseal.warp.ids import ChainID, id_text

VALIDATORS = 4
CHAIN = id_text(ChainID(bytes([7]) * 32))
NODE, BARE, FRONT = "the node", "bare proxy", "the daemon"
FRONT_PATH = f"/ext/bc/{CHAIN}"
NOTES = (
    (
        "node, load and simulated network share one core; the daemon, or the bare aiohttp proxy,"
        " has the other"
    ),
    (
        "the daemon logs no line for each request here (log-level warn, as in all benchmarks);"
        " neither does the proxy"
    ),
)


@dataclass(frozen=True, slots=True)
class Side:
    """An endpoint that is measured.

    url, path: URL and path of calls.
    ws_url, ws_path: URL and path of WebSockets.
    process: the process whose CPU time counts.
    """

    name: str
    url: str
    path: str
    ws_url: str
    ws_path: str
    process: Process


@dataclass(frozen=True, slots=True)
class EvmSides:
    """The three sides, the node first.

    violations: the daemon's violations that the simulated validators counted.
    """

    sides: tuple[Side, Side, Side]
    violations: Callable[[], int]


@asynccontextmanager
async def fronted(folder: Path, gateway_path: str = "", **keys: Any) -> AsyncIterator[EvmSides]:
    """Run the three until the block ends.

    gateway_path: path of the calls if the daemon is the gateway of the primary network; "" if it
        has an EVM chain.
    keys: more keys of the daemon's configuration, `_` for `-`.
    """
    cores = sorted(os.sched_getaffinity(0))
    async with AsyncExitStack() as stack:
        network = stack.enter_context(simulated_network(NetworkPlan(VALIDATORS, (), 1), folder))
        node = stack.enter_context(
            running((), folder / "node.log", module="benchmarks.evm_node", core=cores[0])
        )
        os.sched_setaffinity(network.process.pid, {cores[0]})
        at = dict(word.split("=", 1) for word in node.ready_line.split())
        urls = (at["rpc"] + "/rpc", at["ws"] + "/ws")
        bare = stack.enter_context(
            running(urls, folder / "bare.log", module="benchmarks.pass_through", core=cores[-1])
        )
        chain = {"blockchain-id": CHAIN, "rpc": [urls[0]], "ws": [urls[1].replace("http", "ws", 1)]}
        config = {name.replace("_", "-"): value for name, value in keys.items()}
        forwarded = {"gateway-nodes": at["rpc"]} if gateway_path else {"evm-chains": [chain]}
        start = Start(folder / "daemon", cores[-1], keys={**forwarded, **config})
        subject = await stack.enter_async_context(daemon(network, start))
        await subject.connected()
        direct = Side(NODE, at["rpc"], "/rpc", at["ws"], "/ws", node)
        proxy = Side(BARE, bare.ready_line, "/rpc", bare.ready_line, "/ws", bare)
        front = Side(
            FRONT,
            subject.api,
            gateway_path or FRONT_PATH + "/rpc",
            subject.api,
            FRONT_PATH + "/ws",
            subject.process,
        )
        yield EvmSides((direct, proxy, front), network.violations)
