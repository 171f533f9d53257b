"""Blocks of one EVM chain with their receipts, read from its nodes and checked.

A node's block is accepted only if its receipts agree with it, and another node that has it reports
the same hash. What a node lacks is never taken for empty. Source of truth: avalanchego
`graft/coreth/internal/ethapi`, `graft/coreth/eth` ("cannot query unfinalized data", "receipts
length mismatch").
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from cachetools import TTLCache

from warpseal.chains.evm.blocks import (
    HASH_BYTES,
    EvmHeader,
    MalformedBlock,
    parse_bytes,
    parse_quantity,
)
from warpseal.chains.evm.checks import (
    BlockContradiction,
    BlockMismatch,
    BlockRules,
    ParentBlock,
    UnprovenBlock,
    block_facts,
    check_parents,
    check_receipts_root,
)
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.follow.blocks import ChainStopped, StopReason
from warpseal.follow.sources import BlockSource
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.prover import BlockProver
from warpseal.runtime.retry import Retrier
from warpseal.upstream.batch import MAX_BATCH, ChainNode, NodeResource
from warpseal.upstream.errors import CallFailure, NodeFailure, NodeUnavailable
from warpseal.upstream.evm_blocks import (
    BLOCK,
    BLOCK_RECEIPTS,
    NO_RECEIPTS,
    NotHere,
    RawReceipts,
    decode_headers,
    read_receipts,
    read_single_receipts,
    result_bytes,
)
from warpseal.upstream.jsonrpc import RpcCall, rpc_call
from warpseal.upstream.node import run_decoder

T = TypeVar("T")

# The most batches of receipts that one span takes. A node returns a batch of receipts in a reply of
# the size that `upstream/batch` aims at.
_RECEIPT_BATCHES: Final = 4
# A gateway may have asked another node for the head; all nodes have the blocks of that node soon.
_HEAD_MARGIN: Final = 64
# Blocks without transactions do not show whether a node has receipts. After a state sync it has 256
# without them.
_PROBED_BLOCKS: Final = 32
_MAX_PROBED_BLOCKS: Final = 512
# At the first start the indexer waits this long for a node that is down, if the other nodes lack
# the first blocks: an index cannot get earlier blocks later.
_PATIENCE_S: Final = 300.0
# Attempts to read all receipts of a block at once. Then they are read one by one for a while.
_RECEIPT_TRIES: Final = 3
_RECEIPT_RETRY_S: Final = 600.0
# Blocks in a row whose receipts a node returns one by one alone. Then it counts as a node without
# the method: tries for each block would hold up a backfill.
_MAX_SINGLE_BLOCKS: Final = 4
_MAX_RECEIPT_FAILURES: Final = 1_000
# A span ends with the block in which it reaches them: the logs of a small block may move 50,000
# tokens (ERC-2309).
_MAX_EVENTS: Final = 20_000


class BlocksMissing(NodeUnavailable):
    """Nodes answer, but none has these blocks with their receipts now."""


class EvmBlockSource(BlockSource[EvmBlockFacts]):
    """The blocks of one chain.

    decoding: the thread of the chain that decodes large replies.
    rules: the rules of the chain's headers.
    """

    def __init__(
        self, nodes: ChainNodes, retrier: Retrier, decoding: Executor, prover: BlockProver
    ) -> None:
        super().__init__(nodes.heads, retrier)
        self.rules = BlockRules()
        # The last written block, which the next one has to follow, and its height.
        self.written: tuple[int, ParentBlock] | None = None
        self._nodes = nodes
        self._decoding = decoding
        self._prover = prover
        self._span = 1
        self._patient_until = 0.0
        self._most = MAX_BATCH
        # Blocks in a row that had to be read by single receipts, by the position of the node.
        self._single_blocks: Counter[int] = Counter()
        # How often a node returned no receipts of a block, by position and height.
        self._receipt_failures: TTLCache[tuple[int, int], int] = TTLCache(
            _MAX_RECEIPT_FAILURES, _RECEIPT_RETRY_S
        )

    @property
    def span(self) -> int:
        return self._span

    async def read(self, first: int, count: int) -> tuple[EvmBlockFacts, ...]:
        return await self._retrier.call(partial(self._read, first, count))

    async def find_first(self, min_height: int, tip: int) -> int:
        """Return the lowest height from `min_height` on that a node has.

        Raises NodeUnavailable, at first also while a node is down that may have lower blocks.
        """
        was_awaiting = self._is_awaiting_node()
        first = await super().find_first(min_height, tip)
        now = asyncio.get_running_loop().time()
        self._patient_until = self._patient_until or now + _PATIENCE_S
        # A node that came up during the search was not asked.
        is_awaiting = was_awaiting or self._is_awaiting_node()
        if first > min_height and is_awaiting and now < self._patient_until:
            raise BlocksMissing(BLOCK)
        return first

    async def has(self, height: int) -> bool:
        has_reply = False
        for node in await self._nodes.require_candidates():
            try:
                if await self._node_has(node, height):
                    return True
            except CallFailure:
                continue
            has_reply = True
        if not has_reply:
            raise NodeUnavailable(BLOCK)
        return False

    def use_fallback(self) -> None:
        """Do nothing: every read asks other nodes already."""

    async def alternatives(self, height: int) -> tuple[EvmBlockFacts, ...]:
        # Blocks of one hash may differ: a node can return the right one with another parent.
        blocks: list[EvmBlockFacts] = []
        for node in await self._nodes.require_candidates():
            try:
                # With any parent: the writing finds out whether the node is wrong, or the index.
                (block,) = await self._read_from(node, height, 1)
            except (CallFailure, NotHere, BlockContradiction, MalformedBlock):
                continue
            if block not in blocks:
                blocks.append(block)
        return tuple(blocks)

    async def find_other_hash(self, height: int, indexed_hash: bytes) -> bytes | None:
        """Return another hash that a node reports for a block.

        Returns None if a node reports `indexed_hash`, or no node has the block. Raises
        NodeUnavailable.
        """
        other: bytes | None = None
        for node in await self._nodes.require_candidates(NodeResource.BLOCKS, height):
            block_hash = await self._hash_from(node, height)
            if block_hash == indexed_hash:
                return None
            other = other or block_hash
        return other

    def _is_awaiting_node(self) -> bool:
        return any(node.is_awaited for node in self._nodes.nodes)

    async def _read(self, first: int, count: int) -> tuple[EvmBlockFacts, ...]:
        """Return blocks that a node returned and no other one denies.

        Raises NodeUnavailable, ChainStopped.
        """
        stop: ChainStopped | None = None
        failure: type[NodeUnavailable] = NodeUnavailable
        replies: list[str] = []
        # Only the parent of the next block to write is known; spans are read ahead of the writing.
        parent = None
        if self.written is not None:
            height, block = self.written
            parent = block if height == first - 1 else None
        for node in await self._nodes.require_candidates(NodeResource.BLOCKS, first):
            try:
                blocks = await self._read_from(node, first, count, parent)
            except CallFailure as error:
                if error.failure is NodeFailure.TOO_LARGE:
                    stop = stop or ChainStopped(
                        StopReason.ANSWER_TOO_LARGE, first, "no node returns less"
                    )
                replies.append(f"node {node.position}: {error.reply}")
                continue
            except NotHere as error:
                failure = BlocksMissing
                replies.append(f"node {node.position}: {node.node.endpoint.scrub(error.reply)}")
                continue
            except MalformedBlock as error:
                stop = stop or ChainStopped(StopReason.UNDECODABLE_BLOCK, first, str(error))
                continue
            except BlockContradiction as error:
                stop = stop or stop_at(error)
                continue
            # The hash of the last block first: it costs one call for each node, and settles all
            # blocks below. Events are compared only where headers do not commit to receipts.
            denial = await self._find_denial(node, blocks[-1])
            if denial is None:
                denial = await self._find_other_events(node, blocks)
            if denial is None:
                self._set_span(node, blocks)
                return blocks
            stop = ChainStopped(StopReason.NODES_DISAGREE, blocks[-1].number, denial)
        raise stop or failure(BLOCK, replies=replies)

    def _set_span(self, node: ChainNode, blocks: Sequence[EvmBlockFacts]) -> None:
        """Set the length of the next spans, from the blocks that a node has returned."""
        receipts = _RECEIPT_BATCHES * node.batch_size(BLOCK_RECEIPTS)
        largest = max(1, min(node.batch_size(BLOCK), receipts))
        if _are_many(blocks):
            # The blocks behind these were read in vain, so the next spans start as short.
            self._most = len(blocks)
        else:
            self._most = min(2 * self._most, MAX_BATCH)
        self._span = min(largest, self._most)

    async def _read_from(
        self, node: ChainNode, first: int, count: int, parent: ParentBlock | None = None
    ) -> tuple[EvmBlockFacts, ...]:
        """Return the blocks that a node has, up to the first that it lacks or that cannot be right.

        The blocks end earlier if they have many events.

        parent: the parent of the first block; None: any parent.
        Raises CallFailure, NotHere, MalformedBlock or BlockContradiction if the node lacks the
        first block, or it cannot be right.
        """
        heights = range(first, first + count)
        responses = await node.call_batch([_block_call(height) for height in heights])
        headers, error = await run_decoder(
            partial(decode_headers, responses), result_bytes(responses), self._decoding
        )
        if not headers and isinstance(error, NotHere):
            self._learn(node, NodeResource.BLOCKS, first)
        blocks: list[EvmBlockFacts] = []
        while len(blocks) < len(headers):
            rest = headers[len(blocks) : len(blocks) + max(1, node.batch_size(BLOCK_RECEIPTS))]
            try:
                part, raw = await self._read_receipts(node, rest, first + len(blocks))
            except CallFailure:
                # The blocks before it can be written.
                if blocks:
                    break
                raise
            parent = ParentBlock(blocks[-1].hash, blocks[-1].time) if blocks else parent
            accepted, receipt_error = await self._accept(part, raw, first + len(blocks), parent)
            blocks += accepted
            self._note_receipts(
                node, [raw[place] for place in range(len(accepted)) if place in raw]
            )
            if receipt_error is not None:
                if isinstance(receipt_error, NotHere):
                    self._note_receipt_failure(node, first + len(blocks))
                    if not blocks:
                        self._learn(node, NodeResource.RECEIPTS, first)
                error = receipt_error
                break
            if _are_many(blocks):
                break
        if not blocks:
            raise error or NotHere()
        return tuple(blocks)

    async def _read_receipts(
        self, node: ChainNode, headers: Sequence[EvmHeader], number: int
    ) -> tuple[Sequence[EvmHeader], Mapping[int, RawReceipts]]:
        """Return the first of these blocks, and their receipts by place.

        After a few failures the receipts of the first block are read alone, one by one: some nodes
        fail for single blocks when they are asked for all receipts of the block.

        number: height of the first block.
        Raises CallFailure.
        """
        if self._receipt_failures.get((node.position, number), 0) >= _RECEIPT_TRIES:
            return headers[:1], await read_single_receipts(node.call_batch, headers[:1])
        try:
            return headers, await read_receipts(node.call_batch, headers, node.lacks_methods)
        except CallFailure as error:
            if error.was_sent:
                self._note_receipt_failure(node, number)
            raise

    def _note_receipt_failure(self, node: ChainNode, number: int) -> None:
        key = node.position, number
        self._receipt_failures[key] = self._receipt_failures.get(key, 0) + 1

    def _note_receipts(self, node: ChainNode, receipts: Sequence[RawReceipts]) -> None:
        """Note in which way a node returned the receipts of accepted blocks."""
        if any(block.is_whole for block in receipts):
            self._single_blocks[node.position] = 0
        elif receipts and BLOCK_RECEIPTS not in node.lacks_methods:
            self._single_blocks[node.position] += 1
            if self._single_blocks[node.position] >= _MAX_SINGLE_BLOCKS:
                self._single_blocks[node.position] = 0
                node.lacks_methods[BLOCK_RECEIPTS] = True

    async def _accept(
        self,
        headers: Sequence[EvmHeader],
        raw: Mapping[int, RawReceipts],
        number: int,
        parent: ParentBlock | None,
    ) -> tuple[list[EvmBlockFacts], Exception | None]:
        """Return the facts of the accepted blocks, and the error for the first other block.

        number: height of the first block.
        parent: the parent of the first block; None: any parent.
        """
        size_bytes = sum(result_bytes(receipts.responses) for receipts in raw.values())
        check = partial(_check, headers, raw, number, parent, self.rules)
        checked = await run_decoder(check, size_bytes, self._decoding)
        disproven = None
        if checked.unproven:
            disproven = await self._prover.find_disproven(checked.unproven, self._decoding)
        if disproven is None:
            return checked.blocks, checked.error
        return checked.blocks[: disproven.number - number], disproven.error

    async def _node_has(self, node: ChainNode, height: int) -> bool:
        """Return whether a node has a block and its receipts.

        The receipts of the next block with transactions count if the block has none.
        """
        end = max(height, min(node.head or 0, height + _MAX_PROBED_BLOCKS - 1)) + 1
        while height < end:
            count = min(_PROBED_BLOCKS, end - height)
            try:
                blocks = await self._read_from(node, height, count)
            except NotHere:
                return await self._has_single_receipts(node, height)
            except (MalformedBlock, BlockContradiction):
                # The node has the block; a read of the block finds that it is wrong.
                return True
            if any(block.tx_count for block in blocks):
                return True
            height += len(blocks)
        return True

    async def _has_single_receipts(self, node: ChainNode, height: int) -> bool:
        """Return whether a node has a block, and each of its receipts if it is asked for it alone.

        Providers refuse the receipts of whole blocks in words of their own, which must not make an
        index begin later.
        """
        headers, _ = decode_headers(await node.call_batch([_block_call(height)]))
        raw = await read_single_receipts(node.call_batch, headers)
        try:
            is_missing = any(receipts.decode() is None for receipts in raw.values())
        except MalformedBlock:
            is_missing = False
        return bool(headers) and not is_missing

    async def _find_denial(self, node: ChainNode, block: EvmBlockFacts) -> str | None:
        """Return which nodes have another hash for a block; None if a second node has the same.

        node: the node that returned the block.
        """
        denials: list[str] = []
        for other in self._others(node, NodeResource.BLOCKS, block.number):
            block_hash = await self._hash_from(other, block.number)
            if block_hash == block.hash:
                return None
            if block_hash is not None:
                denials.append(f"node {other.position} has {block_hash.hex()}")
        if not denials:
            return None
        return f"node {node.position} has {block.hash.hex()}, {', '.join(denials)}"

    async def _find_other_events(
        self, node: ChainNode, blocks: Sequence[EvmBlockFacts]
    ) -> str | None:
        """Return which nodes have other events of blocks; None if a second node has the same.

        Only the span of the blocks with events whose headers do not commit to their receipts is
        compared.

        node: the node that returned the blocks.
        """
        places = [
            place
            for place, block in enumerate(blocks)
            if block.has_events and not self.rules.is_executed_first(block.time)
        ]
        if not places:
            return None
        ours = {block.number: block.events for block in blocks[places[0] : places[-1] + 1]}
        denials: list[str] = []
        for other in self._others(node, NodeResource.RECEIPTS, max(ours)):
            try:
                number = await self._find_other_block(other, ours)
            except (CallFailure, NotHere, MalformedBlock, BlockContradiction):
                continue
            if number is None:
                return None
            theirs = f"node {other.position} has other events of block {number}"
            denials.append(f"{theirs} than node {node.position}")
        return ", ".join(denials) or None

    async def _find_other_block(
        self, node: ChainNode, ours: Mapping[int, tuple[tuple[object, ...], ...]]
    ) -> int | None:
        """Return the first block of which a node has other events; None without one.

        ours: the events of consecutive blocks by height.
        Raises as `_read_from` does.
        """
        number, end = min(ours), max(ours) + 1
        while number < end:
            for block in await self._read_from(node, number, end - number):
                if block.events != ours[block.number]:
                    return block.number
                number = block.number + 1
        return None

    def _others(self, node: ChainNode, resource: NodeResource, height: int) -> list[ChainNode]:
        """Return the other usable nodes that may have a resource at a height."""
        return [
            other
            for other in self._nodes.nodes
            if other is not node
            and other.is_verified
            and other.failure is None
            and (other.head or 0) >= height
            and not other.lacks(resource, height)
        ]

    async def _hash_from(self, node: ChainNode, height: int) -> bytes | None:
        try:
            responses = await node.call_batch([_block_call(height)], timeout_s=5.0)
            headers, _ = decode_headers(responses)
            is_asked = bool(headers) and parse_quantity(headers[0].number) == height
            return parse_bytes(headers[0].hash, HASH_BYTES) if is_asked else None
        except (CallFailure, ValueError):
            return None

    def _learn(self, node: ChainNode, resource: NodeResource, height: int) -> None:
        """Note that a node lacks a resource, unless it may have it soon."""
        if height < (node.head or 0) - _HEAD_MARGIN:
            node.note_missing(resource, height)


def _block_call(height: int) -> RpcCall:
    return rpc_call(BLOCK, hex(height), False)


def stop_at(error: BlockContradiction) -> ChainStopped:
    """Return the stop of a chain at a block that is not accepted."""
    is_number = error.reason is BlockMismatch.NUMBER
    reason = StopReason.WRONG_HEIGHT if is_number else StopReason(error.reason.value)
    return ChainStopped(reason, error.number, error.detail)


def _are_many(blocks: Sequence[EvmBlockFacts]) -> bool:
    """Return whether the blocks have as many events as a span may have."""
    return sum(block.event_count for block in blocks) >= _MAX_EVENTS


class _CheckedBlocks(NamedTuple):
    """Blocks that agree with each other.

    unproven: the blocks that are accepted only if their receipts give their receiptsRoot.
    error: error of the first block behind them; None if there is none.
    """

    blocks: list[EvmBlockFacts]
    unproven: list[UnprovenBlock]
    error: Exception | None


def _check(
    headers: Sequence[EvmHeader],
    receipts: Mapping[int, RawReceipts],
    number: int,
    parent: ParentBlock | None,
    rules: BlockRules,
) -> _CheckedBlocks:
    """Check blocks up to the first that is wrong.

    The blocks end earlier, without an error, if they have many events.

    number: height of the first block.
    parent: the parent of the first block; None: any parent.
    """
    checked = _CheckedBlocks([], [], None)
    events = 0
    for place, header in enumerate(headers):
        raw = receipts.get(place, NO_RECEIPTS)
        try:
            decoded = raw.decode()
            if decoded is None:
                return checked._replace(error=raw.lack())
            block = block_facts(header, decoded, rules)
            check_parents((block,), number + place, parent)
            if rules.needs_proof(header, decoded, block):
                if len(headers) == 1:
                    # At the head of the chain. To decode the receipts again, for another process,
                    # costs more.
                    check_receipts_root(block.number, decoded, header.receipts_root)
                else:
                    checked.unproven.append(
                        UnprovenBlock(block.number, raw.to_json(), header.receipts_root)
                    )
        except (MalformedBlock, BlockContradiction) as error:
            return checked._replace(error=error)
        checked.blocks.append(block)
        events += block.event_count
        if events >= _MAX_EVENTS:
            break
        parent = ParentBlock(block.hash, block.time)
    return checked
