"""Facts about EVM chains that only nodes of the network have: genesis files, times of upgrades.

Calls are forwarded before a node has named the network, so the clients of the nodes come later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from warpseal.node.info import InfoClient
from warpseal.node.node_view import NodeViewClient
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID

_OPEN_TIMEOUT_S: Final = 10.0


class EvmChainFacts:
    """Reads the genesis of chains, and the times of the network's upgrades, which are kept."""

    def __init__(self) -> None:
        self._view: NodeViewClient | None = None
        self._info: InfoClient | None = None
        self._opened = asyncio.Event()
        self._upgrade_times: Mapping[str, int] | None = None

    def open(self, view: NodeViewClient, info: InfoClient) -> None:
        """Set the clients of the nodes."""
        self._view = view
        self._info = info
        self._opened.set()

    async def genesis(self, chain_id: ChainID) -> bytes | None:
        """Return the genesis in the CreateChainTx of a chain; None if no node returns it now.

        Calls before `open` wait for it, for at most 10 seconds.
        """
        blockchain = None
        with suppress(NodeUnavailable, TimeoutError):
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await self._opened.wait()
            if self._view is not None:
                blockchain = await self._view.blockchain(chain_id)
        return None if blockchain is None else blockchain.genesis

    async def upgrade_times(self) -> Mapping[str, int] | None:
        """Return when each network upgrade begins, Unix seconds; None while no node says it."""
        if self._upgrade_times is None and self._info is not None:
            with suppress(NodeUnavailable):
                self._upgrade_times = await self._info.upgrades()
        return self._upgrade_times
