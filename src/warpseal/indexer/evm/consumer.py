"""The consumer of an EVM chain's blocks: read on the event loop, written on the chain's thread.

Nodes are polled for new blocks. With WebSocket endpoints, `newHeads` wakes the indexing at each new
block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from warpseal.chains.evm.checks import BlockContradiction, BlockRules, ParentBlock, check_parents
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.follow.blocks import ChainStopped, StopReason
from warpseal.follow.chain_follower import ChainConsumer
from warpseal.forwarding.evm.sockets import EvmSockets, WebSocketUnavailable
from warpseal.index.evm.records import EvmChainIdentity
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.indexer.evm.block_reader import EvmBlockSource, stop_at
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.runtime.retry import Backoff, Retrier, RetryDelays
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.identity import ChainIdentity

log = logging.getLogger(__name__)

LoadRules = Callable[[], Awaitable[BlockRules]]
"""Returns the rules of the chain's headers, by the upgrade times of its network."""
AskInterfaces = Callable[[Collection[bytes], int], Awaitable[Mapping[bytes, bool]]]
"""Returns which contracts are ERC-721 by ERC-165 at a height. Raises NodeUnavailable."""


class EvmChainConsumer(ChainConsumer[EvmBlockFacts]):
    """Writes the blocks of one EVM chain.

    ask_interfaces: decides on events that are of an NFT only if their contract is ERC-721.
    """

    log = log

    def __init__(
        self,
        source: EvmBlockSource,
        context: EvmChainContext,
        retrier: Retrier,
        load_rules: LoadRules,
        ask_interfaces: AskInterfaces,
    ) -> None:
        super().__init__(source, retrier)
        self.name = context.name
        self._blocks = source
        self._context = context
        self._load_rules = load_rules
        self._ask_interfaces = ask_interfaces

    async def resume(self) -> int | None:
        """Return to the last written block; an index with another `from` or `holders` is dropped.

        Raises ChainStopped if the nodes are of another chain than the index.
        """
        # A node may have learnt of an upgrade since the last time.
        settings = self._context.settings
        rules = await self._retrier.call(self._load_rules)
        has_erc20 = settings.has_holders and not settings.first_height
        self._blocks.rules = replace(rules, has_erc20=has_erc20, has_icm=settings.has_icm)
        before = await self._context.write(EvmIndexWriter.identity)
        reported = await self._retrier.call(self._identify)
        identity = EvmChainIdentity(
            self._context.chain_id,
            reported.chain_id,
            bytes.fromhex(reported.genesis_hash[2:]),
            settings.first_height,
            settings.has_holders,
        )
        # After a node has reported the right identity, because this drops an index with other
        # settings.
        checkpoint = await self._context.write(EvmIndexWriter.start, identity)
        if before is not None and before != identity:
            changed = f"`from` has changed from {before.first} to {identity.first}"
            if before.first == identity.first:
                changed = f"`holders` has changed to {str(identity.has_holders).lower()}"
            self.notice = f"the index is being rebuilt: {changed}"
            log.warning("rebuilding the index", extra={"chain": self.name, "reason": self.notice})
        if checkpoint is None:
            self._blocks.written = None
            return None
        self._blocks.written = checkpoint.height, ParentBlock(checkpoint.hash, checkpoint.time)
        self._context.first_height = checkpoint.first_height
        await self._check_last(checkpoint.height, checkpoint.hash)
        self._context.note_written(checkpoint.height)
        return checkpoint.height

    async def begin(self, min_height: int, tip: int) -> int:
        """Begin at `min_height`, or at the lowest height above it whose receipts a node has."""
        first = await self._retrier.call(partial(self.source.find_first, min_height, tip))
        block, *_ = await self._blocks.read(first, 1)
        await self._context.write(EvmIndexWriter.begin, first, block.parent_hash)
        self._context.first_height = first
        return first

    async def write(self, first_height: int, blocks: Sequence[EvmBlockFacts]) -> None:
        written = self._blocks.written
        # Spans of several nodes were joined, and the first was perhaps read before its parent was
        # written.
        try:
            check_parents(blocks, first_height, None if written is None else written[1])
        except BlockContradiction as error:
            if error.number > first_height:
                await self.write(first_height, blocks[: error.number - first_height])
            elif written is not None:
                await self._check_last(written[0], written[1].hash)
            raise stop_at(error) from None
        contracts = await self._context.write(EvmIndexWriter.candidates, blocks)
        if contracts:
            # The contracts may be as new as these blocks.
            interfaces = await self._retrier.call(
                partial(self._ask_interfaces, contracts, blocks[-1].number)
            )
            await self._context.write(EvmIndexWriter.set_interfaces, interfaces)
        checkpoint = await self._context.write(EvmIndexWriter.write, blocks)
        self._blocks.written = checkpoint.height, ParentBlock(checkpoint.hash, checkpoint.time)
        self._context.note_written(checkpoint.height)

    async def _identify(self) -> ChainIdentity:
        """Return the identity that a node reports. Raises NodeUnavailable, ChainStopped."""
        nodes = self._context.nodes
        try:
            await nodes.require_candidates()
        except NodeUnavailable:
            # The index may belong to the chain of a node that is down.
            if len(refused := nodes.mismatches()) == len(nodes):
                detail = "; ".join(
                    f"node {position} {reason}" for position, reason in sorted(refused.items())
                )
                raise ChainStopped(StopReason.ANOTHER_CHAIN, 0, detail) from None
            raise
        if nodes.identity.expected is None:
            raise NodeUnavailable("eth_chainId", replies=nodes.describe_failures())
        return nodes.identity.expected

    async def _check_last(self, height: int, indexed_hash: bytes) -> None:
        """Raise ChainStopped if nodes have another block than the last written one.

        An accepted block is final, so the index or the nodes are of another chain.
        """
        other = await self._retrier.call(
            partial(self._blocks.find_other_hash, height, indexed_hash)
        )
        if other is not None:
            detail = (
                f"a node has {other.hex()}, block {height} is {indexed_hash.hex()} in the index"
            )
            raise ChainStopped(StopReason.ANOTHER_HASH, height + 1, detail)


_SUBSCRIBE: Final = '{"jsonrpc":"2.0","id":3,"method":"eth_subscribe","params":["newHeads"]}'
_EVENT: Final = '"eth_subscription"'
_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)
# While events come, nodes are polled this much less often.
_SLOWER: Final = 10.0
# A node may send more events than there are blocks.
_MIN_INTERVAL_S: Final = 0.05


class NewHeads:
    """The `newHeads` events of one chain.

    sockets: WebSocket endpoints of the chain's nodes; without endpoints there are no events.
    """

    def __init__(self, sockets: EvmSockets) -> None:
        self._sockets = sockets
        self._is_subscribed = False
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Stay subscribed until cancelled."""
        delays = RetryDelays(_RETRY)
        while self._sockets.is_configured:
            try:
                async with self._sockets.connect("indexer") as socket:
                    await socket.send(_SUBSCRIBE)
                    async for message in socket.messages():
                        if _EVENT in message:
                            self._is_subscribed = True
                            delays.reset()
                            self._arrived.set()
            except WebSocketUnavailable:
                pass
            self._is_subscribed = False
            await asyncio.sleep(delays.next())

    async def wait(self, poll_s: float) -> None:
        """Wait for an event, or for the time after which nodes are polled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_s * _SLOWER if self._is_subscribed else poll_s):
                await self._arrived.wait()
                await asyncio.sleep(_MIN_INTERVAL_S)
        self._arrived.clear()
