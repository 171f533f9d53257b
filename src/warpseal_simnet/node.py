"""The simulated node: its HTTP server with the RPC calls, and the reports of the simulation."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from warpseal.warp.ids import ChainID, NodeID, id_text, node_id_text
from warpseal_simnet.balances import Balances, atomic_methods, x_balance_methods
from warpseal_simnet.blocks import Blocks, x_methods
from warpseal_simnet.evm import EvmChain
from warpseal_simnet.info import Info, NodeIdentity, proposervm_methods
from warpseal_simnet.listener import LOOPBACK, reserve_port
from warpseal_simnet.node_behaviours import (
    NodeBehaviour,
    with_info_lies,
    with_lies,
    with_proposervm_lies,
)
from warpseal_simnet.platform import Platform
from warpseal_simnet.rpc import Method, Params, RpcError, RpcServer
from warpseal_simnet.sent_shares import SentShares
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.state import SimState, StateAt
from warpseal_simnet.values import ChainKind, SimChain
from warpseal_simnet.versions import lacks
from warpseal_simnet.violations import Violations

Lies = Callable[[Mapping[str, Method], Callable[[], NodeBehaviour]], dict[str, Method]]

_SHUTDOWN_TIMEOUT_S: Final = 1.0
_HONEST: Final = NodeBehaviour()


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The common state of all nodes: chain state, listed peers, reports of the simulation."""

    state: SimState
    settings: NodeSettings
    violations: Violations
    listed_nodes: set[NodeID]
    x_transactions: Mapping[bytes, bytes]
    stats: Callable[[], dict[str, Any]]
    sent_shares: SentShares


class SimNode:
    """One node's HTTP server on the loopback address."""

    def __init__(self, identity: NodeIdentity, view: NodeContext) -> None:
        self._view = view
        # The number of blocks by which the node's own chain is behind the tip.
        self.lag = 0
        self.behaviour = NodeBehaviour()
        # Replies that were not the honest ones.
        self.lies: Counter[NodeBehaviour] = Counter()
        # Replies of an earlier state.
        self.late_replies = 0
        self.release = view.settings.release
        self.rpc = RpcServer(
            node_id_text(identity.identity.node_id),
            lambda method: lacks(self.release.version, method),
        )
        info = Info(view.state, view.settings, identity, view.listed_nodes, lambda: self.release)
        self.rpc.serve(("/ext/info",), self._with(with_info_lies, info.methods()))
        sources = (
            Platform(view.state, self._current_state),
            Blocks(self._current_state),
            Balances(self._current_state),
        )
        platform = {name: method for source in sources for name, method in source.methods().items()}
        self.rpc.serve(("/ext/P", "/ext/bc/P"), self._with(with_lies, platform))
        for chain in view.state.chains.values():
            self._serve_chain(chain)
        self._runner: web.AppRunner | None = None
        self.port = 0
        self._reserved: socket.socket | None = None

    @property
    def uri(self) -> str:
        """The base URL of the node."""
        return f"http://{LOOPBACK}:{self.port}"

    def _with(self, lies: Lies, methods: Mapping[str, Method]) -> dict[str, Method]:
        """Return the calls of a node that lies as its behaviour says, and count its lies."""
        lying = lies(methods, lambda: self.behaviour)

        def counted(name: str) -> Method:
            def reply_to(params: Params) -> Any:
                reply = lying[name](params)
                if self.behaviour != _HONEST and _differs(reply, methods[name], params):
                    self.lies[self.behaviour] += 1
                return reply

            return reply_to

        return {name: counted(name) for name in lying}

    def _current_state(self) -> StateAt:
        self.late_replies += self.lag > 0
        return StateAt(self._view.state, self._view.state.heights.current - self.lag)

    def _serve_chain(self, chain: SimChain) -> None:
        paths = [f"/ext/bc/{name}" for name in (id_text(chain.chain_id), chain.alias) if name]
        if not chain.is_simplex:
            proposervm = proposervm_methods(
                self._view.state.proposervm[chain.chain_id], self._current_state
            )
            lying = self._with(with_proposervm_lies, proposervm)
            self.rpc.serve(tuple(f"{path}/proposervm" for path in paths), lying)
        if chain.kind is ChainKind.X:
            self.rpc.serve(
                ("/ext/X", *paths), x_methods(self._view.x_transactions) | x_balance_methods()
            )
        if chain.alias == "C":
            self.rpc.serve(("/ext/C/avax", *(f"{path}/avax" for path in paths)), atomic_methods())
        if chain.kind is ChainKind.EVM:
            self.rpc.serve_evm(
                tuple(f"{path}/rpc" for path in paths), EvmChain(self._view.state, chain).respond
            )

    def stop_chain(self, chain_id: ChainID) -> None:
        """Stop running a chain: its calls get status 404."""
        chain = self._view.state.chains[chain_id]
        self.rpc.absent.update(
            f"/ext/bc/{name}" for name in (id_text(chain_id), chain.alias) if name
        )

    async def down(self) -> None:
        """Stop serving, but keep the port."""
        if self._runner is not None:
            self._reserved = reserve_port(self.port)
        await self._end()

    async def up(self) -> None:
        """Serve again on the same port."""
        await self.start(self.port)

    async def start(self, port: int = 0) -> None:
        """Serve on `port`; 0 lets the system choose one. Raises OSError if the port is in use."""
        if port and self._reserved is None:
            # With SO_REUSEPORT two processes would share the port.
            socket.create_server((LOOPBACK, port)).close()
        application = self.rpc.application(
            {
                "/simnet/violations": self._violations,
                "/simnet/stats": self._stats,
                "/simnet/shares": self._sent_shares,
            }
        )
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, port, reuse_port=True).start()
        self.port = int(self._runner.addresses[0][1])
        self._release_port()

    async def stop(self) -> None:
        """Stop serving; connections are ended."""
        await self._end()
        self._release_port()

    async def _end(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _release_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _violations(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self._view.violations.as_json())

    async def _stats(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self._view.stats())

    async def _sent_shares(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self._view.sent_shares.as_json())


def _differs(reply: Any, method: Method, params: Params) -> bool:
    """Return whether a reply is another one than an honest node's."""
    try:
        honest = method(params)
    except RpcError:
        return True
    return bool(reply != (json.loads(honest) if isinstance(honest, bytes) else honest))
