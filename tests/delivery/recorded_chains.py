"""Destinations over a loopback node that answers from the recordings of a local network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from tests import paths
from tests.node.recorded_node import (
    C_CHAIN,
    L1_CHAIN,
    PERMISSIONED_CHAIN,
    RecordedNode,
    open_upstream,
)
from tests.validators.fixtures import Clock
from warpseal.delivery.destination import Destinations
from warpseal.node.upstream import Upstream
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights
from warpseal.warp.ids import ChainID, id_text

EPOCH: Final = "proposervm.getCurrentEpoch"
PROPOSED: Final = "proposervm.getProposedHeight"
CONFIG: Final = "eth_getChainConfig"
BLOCK: Final = "eth_getBlockByNumber"
RECORDED_AT: Final = 1_795_226_820
_CHAINS: Final = {"c-chain": C_CHAIN, "l1-0": L1_CHAIN, "l1-1": PERMISSIONED_CHAIN}


def _recorded_configs() -> dict[ChainID, Any]:
    lines = map(json.loads, (paths.LOCALNET / "evm-chains.jsonl").read_text().splitlines())
    calls = (line for line in lines if line.get("method") == CONFIG and "result" in line)
    return {_CHAINS[call["chain"]]: call["result"] for call in calls}


RECORDED_CONFIGS: Final = _recorded_configs()


@dataclass
class ChainNode(RecordedNode):
    """A node that runs the recorded chains.

    configs: their configurations; other chains lack the method.
    """

    configs: dict[ChainID, Any] = field(default_factory=lambda: dict(RECORDED_CONFIGS))

    async def _respond(
        self, path: str, method: str, params: Mapping[str, Any]
    ) -> web.StreamResponse:
        if method == CONFIG and method not in self.replies:
            matches = [
                config for chain_id, config in self.configs.items() if id_text(chain_id) in path
            ]
            if not matches:
                return web.Response(status=404)
            return web.json_response({"jsonrpc": "2.0", "result": matches[0], "id": 1})
        return await super()._respond(path, method, params)


@dataclass
class DestinationLookup:
    """Destinations over one upstream, with clocks that a test advances.

    unix: the time of day.
    """

    upstream: Upstream
    clock: Clock = field(default_factory=Clock)
    unix: float = RECORDED_AT

    def __post_init__(self) -> None:
        upstream = self.upstream
        chains, epochs = (
            ChainLookup(upstream.platform, now=self.clock),
            EpochHeights(upstream.proposervm, now=self.clock),
        )
        self.destinations = Destinations(
            upstream, chains, epochs, 88_888, now=self.clock, unix_now=lambda: self.unix
        )


@asynccontextmanager
async def destinations_over(*nodes: RecordedNode) -> AsyncIterator[DestinationLookup]:
    """Serve the nodes and yield the lookup of destinations at them."""
    async with open_upstream(*nodes, call_timeout_s=2.0, calls_per_s=10_000) as upstream:
        yield DestinationLookup(upstream)
