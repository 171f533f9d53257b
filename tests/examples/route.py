"""A route for relayers: two EVM nodes (anvil) with messengers, the simulated validators of both,
and a daemon.

A node in front of anvil does what Avalanche's nodes do with the access list of a transaction: it
verifies the signed message there, for the next block of the simulated chain, and only then the
stand-in for the Warp precompile has it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import rlp
from aiohttp import web

from tests.chains.evm.icm_logs import PRECOMPILE
from tests.clients.recorded_network import daemon_of
from tests.eventually import TIMEOUT_S, until
from tests.forwarding.evm.evm import TcpProxy, open_proxy
from tests.indexer.evm.anvil_chain import open_anvil_chain
from tests.indexer.evm.test_icm_contracts import MESSENGER, SEND, IcmNode, sent
from tests.integration.daemon import run_network, write_config_file
from tests.integration.process import start_command
from tests.node.recorded_node import serve_app
from warpseal.warp.ids import id_text
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan

# As the stand-in for the precompile has it.
NETWORK_ID: Final = 12_345
PLAN: Final = Plan(
    validators=4, l1s=(L1Plan(shared=True), L1Plan(shared=True)), network_id=NETWORK_ID, messages=0
)
_DYNAMIC_FEE_TX: Final = b"\x02"
_ACCESS_LIST: Final = 8
# The second account of anvil; the first one sends the messages.
RELAYER: Final = 1
RELAYER_KEY: Final = "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d"
_GAS: Final = 200_000


@dataclass
class WarpNode:
    """The RPC of a chain: anvil's, with the verification of the signed messages in access lists."""

    node: IcmNode
    network: SimulatedNetwork
    url: str = ""

    async def serve(self, request: web.Request) -> web.Response:
        """Handle a call; a transaction is in a block of its own when its sender has the reply."""
        call = await request.json()
        # The indexer sends batches.
        is_transaction = isinstance(call, dict) and call["method"] == "eth_sendRawTransaction"
        if is_transaction:
            await self._stage(bytes.fromhex(call["params"][0][2:]))
        async with self.node.chain.session.post(self.node.chain.url, json=call) as reply:
            response = await reply.json()
        if is_transaction:
            await self.node.chain.mine()
        return web.json_response(response)

    async def _stage(self, transaction: bytes) -> None:
        """Give the stand-in the message in the access list of a transaction, or nothing if it does
        not verify.
        """
        assert transaction[:1] == _DYNAMIC_FEE_TX
        predicates = [
            words
            for address, words in rlp.decode(transaction[1:])[_ACCESS_LIST]
            if address == PRECOMPILE
        ]
        staged = bytes(32), bytes(20), b""
        for words in predicates:
            raw, end, padding = b"".join(words).rpartition(b"\xff")
            assert (end, padding.strip(b"\0")) == (b"\xff", b"")
            if self.network.verify_next(self.node.id, raw).accepted:
                message = SignedMessage.parse(raw).unsigned
                call = AddressedCall.parse(message.payload)
                staged = message.source_chain_id, call.source_address, call.payload
        await self.node.run(PRECOMPILE, "stage(bytes32,address,bytes)", *staged)


@dataclass
class Route:
    """The route from one chain to another.

    proxies: they stand before the ports of the daemon, and can be cut.
    """

    source: IcmNode
    destination: IcmNode
    network: SimulatedNetwork
    proxies: Sequence[TcpProxy]
    environment: dict[str, str]
    bodies: int = 0

    async def send(
        self, relayers: Sequence[bytes] = (), is_signed: bool = True
    ) -> tuple[str, UnsignedMessage]:
        """Send a message; return its Warp id, and it.

        is_signed: the validators have it.
        """
        self.bodies += 1
        fee, body = (bytes(20), 0), self.bodies.to_bytes(4, "big")
        arguments = self.destination.id, self.destination.receiver, fee, _GAS, list(relayers), body
        _, call = sent(await self.source.run(MESSENGER, SEND, arguments))
        message = UnsignedMessage.build(NETWORK_ID, self.source.id, call.encode())
        if is_signed:
            self.accept(message)
        return f"0x{message.id.hex()}", message

    def accept(self, message: UnsignedMessage) -> None:
        """Let the validators have a message."""
        self.network.state.message_ids.add(message.id)

    async def count_delivered(self) -> int:
        """Return how many messages the receiver has executed."""
        count: int = await self.destination.chain.call(
            self.destination.receiver, "received()", "uint256"
        )
        return count


@dataclass
class Relayer:
    """A running relayer."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    async def until_said(self, *words: str) -> None:
        """Wait until it has printed a line that begins with these words.

        Lines before count as well.
        """
        start = " ".join(words)

        async def read() -> None:
            assert self.process.stdout is not None
            while not any(line.startswith(start) for line in self.lines):
                line = (await self.process.stdout.readline()).decode()
                assert line, (start, self.lines)
                self.lines.append(line)

        try:
            await asyncio.wait_for(read(), TIMEOUT_S)
        except TimeoutError:
            raise AssertionError((start, self.lines)) from None


@asynccontextmanager
async def relaying(route: Route, command: Sequence[str], cursor: Path) -> AsyncIterator[Relayer]:
    """Run a relayer, and wait until it has a cursor.

    cursor: the file in which it keeps the cursor.
    """
    environment = {**os.environ, **route.environment, "CURSOR_FILE": str(cursor)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE)
    try:
        await until(
            lambda: (cursor.exists() and cursor.stat().st_size) or process.returncode is not None
        )
        yield Relayer(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def relay_messages(route: Route, command: Sequence[str], folder: Path) -> None:
    """Assert what a relayer does with messages that it can deliver, now, later or never; it is cut
    off, and killed.
    """
    delivered, cursor = await route.count_delivered(), folder / "cursor"
    async with relaying(route, command, cursor) as relayer:
        late_id, late = await route.send(is_signed=False)
        others_id, _ = await route.send(relayers=[bytes(20)])
        await relayer.until_said("refused", others_id)
        await relayer.until_said("waiting", late_id)
        route.accept(late)
        await relayer.until_said("delivered", late_id)
        for proxy in route.proxies:
            proxy.cut()
        await relayer.until_said("reconnecting")
        missed_id, _ = await route.send()
        for proxy in route.proxies:
            proxy.is_cut = False
        await relayer.until_said("delivered", missed_id)
    last_id, _ = await route.send(relayers=[route.source.chain.accounts[RELAYER]])
    async with relaying(route, command, cursor) as relayer:
        await relayer.until_said("delivered", last_id)
    assert await route.count_delivered() == delivered + 3


@asynccontextmanager
async def open_route(folder: Path, grpc_port: int | None = None) -> AsyncIterator[Route]:
    """Run everything, until a message that is sent is an event.

    grpc_port: None for a daemon without gRPC.
    """
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(run_network(PLAN))
        nodes = [await stack.enter_async_context(_node(network, place)) for place in (1, 2)]
        entries = [
            {
                "blockchain-id": id_text(node.node.id),
                "rpc": [node.url],
                "index": {"traces": "off", "icm-messengers": [f"0x{MESSENGER.hex()}"]},
            }
            for node in nodes
        ]
        # A message that its validators do not have is answered soon.
        keys: dict[str, Any] = {
            "evm-chains": entries,
            "request-timeout-seconds": 2,
            "index-low-priority": False,
        }
        if grpc_port is not None:
            keys["grpc-port"] = grpc_port
        file = write_config_file(network, folder, keys)
        process = await stack.enter_async_context(start_command("serve", "--config", file))
        daemon = await stack.enter_async_context(daemon_of(process))
        api, grpc = [
            await stack.enter_async_context(open_proxy(port))
            for port in (int(daemon.api_url.rpartition(":")[2]), grpc_port or 0)
        ]
        await daemon.until_ready()
        await until(
            lambda: _count_sources(folder / "data" / str(NETWORK_ID) / "store.db") == len(nodes)
        )
        source, destination = nodes
        environment = {
            "DAEMON_URL": f"http://127.0.0.1:{api.port}",
            "DAEMON_ADDRESS": f"127.0.0.1:{grpc.port}",
            "NODE_URL": network.node_uri,
            "NETWORK": "fuji",
            "SOURCE_BLOCKCHAIN_ID": id_text(source.node.id),
            "SOURCE_RPC_URL": source.url,
            "DESTINATION_BLOCKCHAIN_ID": id_text(destination.node.id),
            "DESTINATION_RPC_URL": destination.url,
            "MESSENGER": f"0x{MESSENGER.hex()}",
            "PRIVATE_KEY": RELAYER_KEY,
        }
        yield Route(source.node, destination.node, network, (api, grpc), environment)


@asynccontextmanager
async def _node(network: SimulatedNetwork, place: int) -> AsyncIterator[WarpNode]:
    chain_id = network.state.chains_of(network.subnets[place].subnet_id)[0]
    number = str(network.state.chains[chain_id].evm_chain_id)
    async with open_anvil_chain("--chain-id", number) as chain:
        node = WarpNode(IcmNode(chain_id, chain), network)
        await node.node.prepare()
        app = web.Application()
        app.router.add_post("/rpc", node.serve)
        async with serve_app(app) as url:
            node.url = f"{url}/rpc"
            yield node


def _count_sources(store: Path) -> int:
    """Return how many indexes the daemon reads for events."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            return len(connection.execute("SELECT source FROM event_sources").fetchall())
    except sqlite3.OperationalError:
        return 0  # The store is not there yet.
