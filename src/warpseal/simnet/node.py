"""The simulated node: its HTTP server with the RPC calls, and the reports of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from warpseal.simnet.info import Info, NodeSelf, proposervm_methods
from warpseal.simnet.listener import LOOPBACK
from warpseal.simnet.platform import Platform
from warpseal.simnet.rpc import RpcServer
from warpseal.simnet.settings import PeerSettings
from warpseal.simnet.violations import Violations
from warpseal.simnet.world import ChainKind, World
from warpseal.warp.ids import NodeID, id_text, node_id_text

_SHUTDOWN_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a node tells of: the world, its peers, and the reports of the whole simulation."""

    world: World
    settings: PeerSettings
    violations: Violations
    named_peers: list[NodeID]
    stats: Callable[[], dict[str, Any]]


class SimNode:
    """One node's HTTP server on the loopback address."""

    def __init__(self, who: NodeSelf, view: NodeView) -> None:
        self._view = view
        self.rpc = RpcServer(node_id_text(who.identity.node_id))
        info = Info(view.world, view.settings, who, view.named_peers)
        self.rpc.serve(("/ext/info",), info.methods())
        self.rpc.serve(("/ext/P", "/ext/bc/P"), Platform(view.world).methods())
        for chain in view.world.chains.values():
            if chain.kind is not ChainKind.P:
                names = filter(None, (id_text(chain.chain_id), chain.alias))
                paths = tuple(f"/ext/bc/{name}/proposervm" for name in names)
                self.rpc.serve(paths, proposervm_methods(view.world))
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def uri(self) -> str:
        """Where the node is served, without a path."""
        return f"http://{LOOPBACK}:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Serve on `port`; 0 lets the system choose one."""
        application = self.rpc.application({"/simnet/violations": self._violations, "/simnet/stats": self._stats})
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop serving; connections are ended."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _violations(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self._view.violations.as_json())

    async def _stats(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self._view.stats())
