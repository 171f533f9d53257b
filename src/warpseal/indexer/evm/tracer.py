"""Reads creations inside of transactions from traces of blocks, behind the index.

Few nodes trace, and most of them only their last blocks. Blocks that no node traces now stay gaps,
which are tried again. Source of truth: go-ethereum `eth/tracers/api.go`; coreth serves it with
`debug-tracer` in `eth-apis`.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Final

from msgspec import Struct, field

from warpseal.chains.evm.blocks import HASH_BYTES, MalformedBlock, decode_block, parse_bytes
from warpseal.chains.evm.traces import allow_nested_traces, decode_block_trace
from warpseal.index.evm.records import TracedBlock
from warpseal.indexer.evm.chain import EvmChainContext, wait_for
from warpseal.indexer.evm.nodes import HAS_NO_STATE
from warpseal.runtime.retry import Backoff, RetryDelays
from warpseal.upstream.batch import ChainNode, NodeResource
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.evm_blocks import BLOCK
from warpseal.upstream.jsonrpc import RpcCall, RpcResponse, is_unknown_method, rpc_call

TRACE_METHOD: Final = "debug_traceBlockByNumber"
TRACE_OPTIONS: Final = {"tracer": "callTracer", "timeout": "20s"}
_TIMEOUT_S: Final = 30.0
# Heights of one transaction of the index.
_RANGE: Final = 256
# Traces in memory at once.
_BATCH: Final = 16
_MAX_GAPS: Final = 10_000
_GAP_RETRY_S: Final = 600.0
_RETRY: Final = Backoff(first_s=0.5, cap_s=60.0)
# Nodes do not have the last blocks at the same moment.
_HEAD_MARGIN: Final = 8
_HAS_NO_BLOCK: Final = re.compile(r"not found|unfinalized|out of range", re.IGNORECASE)


class _Missing(Enum):
    """Why a node returned no trace."""

    LACKING = 1
    """The node has the block, but not the state before it."""
    LATER = 2
    """The node may have the trace later."""


class _TraceResults(Struct):
    """Results of heights, in order.

    traced: the blocks with creations.
    gaps: the heights that no node can trace.
    end: the first height that a node may trace later; None without one.
    """

    traced: list[TracedBlock] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    end: int | None = None


class Tracer:
    """Traces the blocks of one chain that may hold creations inside of transactions.

    gap_retry_s: interval at which blocks that no node could trace are tried again.
    """

    def __init__(self, chain: EvmChainContext, gap_retry_s: float = _GAP_RETRY_S) -> None:
        self._chain = chain
        self._gap_retry_s = gap_retry_s
        self._delays = RetryDelays(_RETRY)
        self._blocks_written = chain.subscribe()

    async def run(self) -> None:
        """Trace blocks until cancelled. Nothing is written before a node has the method."""
        allow_nested_traces()
        clock = asyncio.get_running_loop().time
        gaps_due_at, has_tracing_node = clock(), False
        while True:
            # Before the read, so that no block is missed.
            self._blocks_written.clear()
            has_tracing_node = has_tracing_node or await self._has_tracing_node()
            is_done = has_tracing_node and await self._trace_new()
            if is_done and clock() >= gaps_due_at and (is_done := await self._fill_gaps()):
                gaps_due_at = clock() + self._gap_retry_s
            if is_done:
                self._delays.reset()
                await wait_for(self._blocks_written, max(0.0, gaps_due_at - clock()))
            else:
                has_tracing_node = False
                await asyncio.sleep(self._delays.next())

    async def _has_tracing_node(self) -> bool:
        """Return whether a node has the method.

        A node without it says so of a trace of block 0; any other response shows the method.
        """
        for node in await self._tracing_nodes():
            with suppress(CallFailure):
                (response,) = await node.call_batch(
                    [_trace_call(0)], timeout_s=_TIMEOUT_S, is_background=True
                )
                if not _has_no_tracer(node, response):
                    return True
        return False

    async def _tracing_nodes(self) -> list[ChainNode]:
        """Return the nodes that are not known to lack the method, best first."""
        with suppress(NodeUnavailable):
            nodes = await self._chain.nodes.require_candidates()
            return [node for node in nodes if TRACE_METHOD not in node.lacks_methods]
        return []

    async def _trace_new(self) -> bool:
        """Trace the blocks behind the last traced one.

        Return False if a node may trace the next block later.
        """
        while blocks := await self._chain.write(lambda writer: writer.traces.next_blocks(_RANGE)):
            results = await self._trace([height for height, needs_trace in blocks if needs_trace])
            blocks = [block for block in blocks if results.end is None or block[0] < results.end]
            if blocks:
                first, last = blocks[0][0], blocks[-1][0]
                await self._write(first, last, results.traced, _widen(results.gaps, blocks))
                self._delays.reset()
            if results.end is not None:
                return False
        return True

    async def _fill_gaps(self) -> bool:
        """Trace the blocks in gaps that a node can trace now.

        Return False if a node may trace one of them later.
        """
        for first, last in await self._chain.write(lambda writer: writer.traces.gaps(_MAX_GAPS)):
            while first <= last:
                nodes = await self._tracing_nodes()
                if not nodes:
                    return False
                # What a node lacks at a height it lacks below as well.
                first += bisect_left(
                    range(first, last + 1), True, key=partial(_can_any_trace, nodes)
                )
                heights = range(first, min(first + _RANGE, last + 1))
                results = await self._trace(heights)
                end = heights.stop if results.end is None else results.end
                if len(results.gaps) < end - first:
                    await self._write(first, end - 1, results.traced, results.gaps)
                if results.end is not None:
                    return False
                first = end
        return True

    async def _write(
        self, first: int, last: int, traced: Sequence[TracedBlock], gaps: Sequence[int]
    ) -> None:
        """Write traces, and have the contracts that they show called."""
        await self._chain.write(lambda writer: writer.traces.write(first, last, traced, gaps))
        if traced:
            self._chain.contracts_requested.set()

    async def _trace(self, heights: Sequence[int]) -> _TraceResults:
        """Trace blocks at any node, up to the first that a node may trace later."""
        traces = _TraceResults()
        for start in range(0, len(heights), _BATCH):
            batch = heights[start : start + _BATCH]
            nodes = await self._tracing_nodes()
            results: _Results = dict.fromkeys(batch, _Missing.LACKING if nodes else _Missing.LATER)
            for node in nodes:
                open_heights = [height for height in batch if isinstance(results[height], _Missing)]
                for height, result in (await self._trace_at(node, open_heights)).items():
                    if result is not _Missing.LACKING:
                        results[height] = result
            for height, result in results.items():
                if result is _Missing.LATER:
                    traces.end = height
                    return traces
                if isinstance(result, _Missing):
                    traces.gaps.append(height)
                elif result.creations:
                    traces.traced.append(result)
        return traces

    async def _trace_at(self, node: ChainNode, heights: Sequence[int]) -> _Results:
        """Return the traces of one node by height, or why it returns none."""
        results: _Results = {}
        while rest := heights[len(results) :]:
            # As many as come in one reply: traces may be large.
            part = rest[: node.batch_size(TRACE_METHOD)]
            callable_heights = [
                height for height in part if not node.lacks(NodeResource.TRACES, height)
            ]
            results |= dict.fromkeys(part, _Missing.LACKING)
            if callable_heights:
                results |= await self._call_node(node, callable_heights)
        return results

    async def _call_node(self, node: ChainNode, heights: Sequence[int]) -> _Results:
        """Return the traces of one node by height, or why it returns none; note missing states."""
        try:
            responses = await node.call_batch(
                list(map(_trace_call, heights)),
                timeout_s=_TIMEOUT_S,
                is_background=True,
                spoils_others=False,
            )
        except CallFailure:
            return dict.fromkeys(heights, _Missing.LATER)
        results: _Results = {}
        untraceable: list[int] = []
        for height, response in zip(heights, responses, strict=True):
            results[height] = await self._read(node, height, response)
            if _lacks(node, height, response):
                untraceable.append(height)
        if untraceable:
            node.note_missing(NodeResource.TRACES, await self._find_lacking(node, untraceable[-1]))
        return results | await self._confirm(node, results)

    async def _find_lacking(self, node: ChainNode, height: int) -> int:
        """Return the highest height that a node cannot trace, by bisection.

        height: a height that the node cannot trace. It lacks the state of all blocks below.
        """
        high = max(height, self._chain.height or 0)
        with suppress(CallFailure):
            while height < high:
                middle = (height + high + 1) // 2
                (response,) = await node.call_batch(
                    [_trace_call(middle)], timeout_s=_TIMEOUT_S, is_background=True
                )
                if _lacks(node, middle, response):
                    height = middle
                else:
                    high = middle - 1
        return height

    async def _read(
        self, node: ChainNode, height: int, response: RpcResponse
    ) -> TracedBlock | _Missing:
        """Return the traced block in a response, or why there is none."""
        if _has_no_tracer(node, response):
            return _Missing.LATER
        if response.result is not None:
            with suppress(MalformedBlock):
                # Traces are decoded on the thread of the chain: they may be large.
                result = bytes(response.result)
                traces = await self._chain.write(lambda _: decode_block_trace(result))
                if traces is not None:
                    creations = tuple(creation for trace in traces for creation in trace.creations)
                    hashes = {
                        index: trace.tx_hash or b""
                        for index, trace in enumerate(traces)
                        if trace.creations
                    }
                    return TracedBlock(height, creations, hashes)
        is_later = _has_nothing(response) and _is_behind(node, height)
        return _Missing.LATER if is_later else _Missing.LACKING

    async def _confirm(self, node: ChainNode, results: _Results) -> _Results:
        """Return the traced blocks with the hashes of their transactions, or that they are missing.

        The hashes come from the block: several nodes may stand behind one URL, and old versions
        leave the hashes out of traces.
        """
        creating = [
            block
            for block in results.values()
            if isinstance(block, TracedBlock) and block.creations
        ]
        if not creating:
            return {}
        try:
            responses = await node.call_batch(
                [rpc_call(BLOCK, hex(block.number), False) for block in creating]
            )
        except CallFailure:
            return {block.number: _Missing.LATER for block in creating}
        return {
            block.number: _confirmed(block, response)
            for block, response in zip(creating, responses, strict=True)
        }


_Results = dict[int, TracedBlock | _Missing]


def _trace_call(height: int) -> RpcCall:
    return rpc_call(TRACE_METHOD, hex(height), TRACE_OPTIONS)


def _has_no_tracer(node: ChainNode, response: RpcResponse) -> bool:
    """Return whether a node has no tracer, and note that."""
    if not is_unknown_method(response, TRACE_METHOD):
        return False
    node.lacks_methods[TRACE_METHOD] = True
    return True


def _lacks(node: ChainNode, height: int, response: RpcResponse) -> bool:
    """Return whether a node lacks the state that the trace of a block needs.

    Then it lacks the state of all blocks below as well.
    """
    return _has_nothing(response) and not _is_behind(node, height)


def _has_nothing(response: RpcResponse) -> bool:
    """Return whether a response says that the node lacks the block, or the state before it."""
    if response.error is None:
        return response.result is None or bytes(response.result) == b"null"
    message = response.error.message
    return HAS_NO_STATE.search(message) is not None or _HAS_NO_BLOCK.search(message) is not None


def _is_behind(node: ChainNode, height: int) -> bool:
    """Return whether a node may not have a block yet."""
    return height > (node.head or 0) - _HEAD_MARGIN


def _confirmed(block: TracedBlock, response: RpcResponse) -> TracedBlock | _Missing:
    """Return a traced block with the hashes that its block has; LACKING if they contradict it."""
    try:
        header = None if response.result is None else decode_block(bytes(response.result))
        if header is None:
            return _Missing.LACKING
        hashes = {
            index: parse_bytes(header.transactions[index], HASH_BYTES) for index in block.tx_hashes
        }
    except (MalformedBlock, IndexError):
        return _Missing.LACKING
    is_same = all(traced in (b"", hashes[index]) for index, traced in block.tx_hashes.items())
    return TracedBlock(block.number, block.creations, hashes) if is_same else _Missing.LACKING


def _can_any_trace(nodes: Sequence[ChainNode], height: int) -> bool:
    return any(not node.lacks(NodeResource.TRACES, height) for node in nodes)


def _widen(gaps: Sequence[int], blocks: Sequence[tuple[int, bool]]) -> list[int]:
    """Return the gaps with the blocks behind them that need no trace.

    One range of heights takes less room than many.
    """
    widened: list[int] = []
    gap_heights = set(gaps)
    is_gap = False
    for height, needs_trace in blocks:
        is_gap = height in gap_heights if needs_trace else is_gap
        if is_gap:
            widened.append(height)
    return widened
