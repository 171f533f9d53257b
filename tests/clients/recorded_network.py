"""A whole daemon in front of the recorded network: what it indexes and forwards comes from the
recordings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.chains.exchanges import lines
from tests.cli.test_index import config_file
from tests.eventually import until
from tests.forwarding.evm.evm import Node, recorded, replay
from tests.indexer.replay import ReplayNode, serving
from tests.integration.daemon import Daemon
from tests.integration.process import RunningCommand, start_command
from tests.node.recorded_node import serve_app
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

L1_CHAIN: Final[str] = next(
    row["blockchainID"] for row in recorded() if row.get("chain") == "l1-0" and "genesis" in row
)
C_CHAIN: Final = "Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7"
P_CHAIN: Final = id_text(PRIMARY_NETWORK)
TIPS: Final = {"p-chain": 19, "x-chain": 13, "c-chain": 10}
VALIDATORS: Final[list[dict[str, Any]]] = next(lines("chain-validators.jsonl"))["result"][
    "validators"
]


@dataclass
class PrimaryNode(ReplayNode):
    """A node of the recorded primary chains; of recorded lists it returns the requested items."""

    def _result(self, path: str, method: str, params: Any) -> Any:
        node_ids = params.get("nodeIDs") if isinstance(params, dict) else None
        if not node_ids or method not in ("platform.getCurrentValidators", "info.peers"):
            return super()._result(path, method, params)
        whole = {} if method == "info.peers" else {"subnetID": P_CHAIN, **params, "nodeIDs": []}
        whole = super()._result(path, method, whole)
        ((key, listed),) = (
            (key, listed) for key, listed in whole.items() if isinstance(listed, list)
        )
        return whole | {key: [entry for entry in listed if entry["nodeID"] in node_ids]}


@dataclass
class L1Node(Node):
    """A node of the recorded L1, as subnet-evm serves it: `/rpc`, `/ws` and `/validators`."""

    listed: Callable[[], list[dict[str, Any]]] = lambda: VALIDATORS

    async def serve_validators(self, request: web.Request) -> web.Response:
        """Answer with all validators, or those that are named."""
        call = await request.json()
        node_ids = call["params"].get("nodeIDs")
        entries = [entry for entry in self.listed() if not node_ids or entry["nodeID"] in node_ids]
        return web.json_response(
            {"jsonrpc": "2.0", "id": call["id"], "result": {"validators": entries}}
        )


def recorded_l1(*without: str) -> L1Node:
    """Return a node that answers what the recorded one did, as if it had not some methods."""
    logs = next(call["result"] for call in lines("l1.jsonl") if call["method"] == "eth_getLogs")
    responses = {
        "eth_getLogs": logs,
        "eth_baseFee": "0x3b9aca00",
        "eth_maxPriorityFeePerGas": "0x1",
    }
    return L1Node(replies=responses, rule=replay("l1-0", *without))


@asynccontextmanager
async def serving_l1(node: L1Node) -> AsyncIterator[L1Node]:
    """Let a node answer at `url`, which ends with `/rpc`."""
    app = web.Application()
    app.router.add_post("/rpc", node.serve_http)
    app.router.add_get("/ws", node.serve_socket)
    app.router.add_post("/validators", node.serve_validators)
    async with serve_app(app) as url:
        node.port = int(url.rpartition(":")[2])
        node.url = f"{url}/rpc"
        yield node


@dataclass(frozen=True)
class RecordedDaemon:
    """The daemon, and the node of the L1 behind it."""

    daemon: Daemon
    l1: L1Node

    async def until_indexed_whole(self) -> None:
        """Wait until everything that was recorded is indexed."""

        async def is_indexed() -> bool:
            index = (await self.daemon.ready()).body.get("index", {})
            return {chain: item.get("height") for chain, item in index.items()} == {
                chain: str(tip) for chain, tip in TIPS.items()
            }

        await until(is_indexed)

    async def until_nodes_reply(self) -> None:
        """Wait until the network is known, and with it what is derived from it."""

        async def is_known() -> bool:
            checks = (await self.daemon.get("/ext/health")).body["checks"]
            return "P" in checks

        await until(is_known)

    async def until_there(self, path: str) -> None:
        """Wait until a path is there: by aliases of the primary chains only once the network is
        known.
        """

        async def is_there() -> bool:
            async with self.daemon.session.get(self.daemon.api_url + path) as response:
                return response.status != 404

        await until(is_there)


@asynccontextmanager
async def recorded_network(
    folder: Path, l1: L1Node | None = None, **keys: Any
) -> AsyncIterator[RecordedDaemon]:
    """Run a daemon in front of the recorded network; `_` in keys of its configuration stands for
    `-`.
    """
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(PrimaryNode()))
        l1 = await stack.enter_async_context(serving_l1(l1 or recorded_l1()))
        upgrades = folder / "upgrade.json"
        upgrades.write_text("{}")
        c_chain = await stack.enter_async_context(serving_l1(L1Node(rule=replay("c-chain"))))
        chains = [
            {"blockchain-id": L1_CHAIN, "rpc": [l1.url], "upgrade-file": str(upgrades)},
            {"blockchain-id": C_CHAIN, "rpc": [c_chain.url]},
        ]
        more = {"api-port": 0, "metrics-port": 0, "evm-chains": chains}
        more |= {name.replace("_", "-"): value for name, value in keys.items()}
        command = start_command("serve", "--config", config_file(folder, node, **more))
        process = await stack.enter_async_context(command)
        yield RecordedDaemon(await stack.enter_async_context(daemon_of(process)), l1)


@asynccontextmanager
async def daemon_of(process: RunningCommand) -> AsyncIterator[Daemon]:
    """Open a client of a daemon that is starting; at the end, stop it as an operator would."""
    api_url, metrics_url = await process.listening()
    async with aiohttp.ClientSession() as session:
        yield Daemon(api_url, metrics_url, session, process.exit_code)
    process.terminate()
    assert await process.ended() == 0
