"""Typed calls to EVM nodes: heights and logs of the Warp precompile of any chain, and blocks of the C-Chain by batch.

Source of truth: the Ethereum JSON-RPC specification; avalanchego `graft/subnet-evm/precompile/contracts/warp`,
`graft/coreth/internal/ethapi`, `graft/coreth/plugin/evm/customtypes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from warpseal.errors import NodeAttempt, NodeFailure, NodeUnavailable
from warpseal.node.errors import CallFailure, RpcRefusal
from warpseal.node.json_values import decode_hex, decode_quantity
from warpseal.node.limits import CallOrigin
from warpseal.node.pool import NodePool, require_values
from warpseal.node.rpc import NodeCall

T = TypeVar("T")

WARP_PRECOMPILE: Final = bytes.fromhex("0200000000000000000000000000000000000005")
SEND_WARP_MESSAGE: Final = bytes.fromhex("56600c567728a800c0aa927500f831cb451df66a7af570eb4df4dfbf4674887d")
# The endpoint of an EVM chain is a complete URL.
_PATHS: Final = ("",)


class LogsRefused(Exception):
    """Nodes answered, but none returns the logs of this range; they may return those of a shorter one."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """The logs of one contract in blocks `first` to `last`, both included. topics: 32 bytes each, in their places."""

    first: int
    last: int
    address: bytes
    topics: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class EvmLog:
    """One log. block: its number; data: what is not in the topics."""

    block: int
    data: bytes


class EvmClient:
    """Calls to the nodes of one chain. Every method raises NodeUnavailable if no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def block_number(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the number of the last accepted block."""
        call = NodeCall("eth_blockNumber", [], _PATHS, _decode_number, origin)
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def logs(self, log_filter: LogFilter, origin: CallOrigin = CallOrigin.CALLER) -> tuple[EvmLog, ...]:
        """Return the logs in the order of the node, which is that of the chain. Raises LogsRefused."""
        call = NodeCall(
            "eth_getLogs", [_encode_filter(log_filter)], _PATHS, partial(_decode_logs, log_filter), origin, large=True
        )
        attempts: list[NodeAttempt] = []
        is_refused = False
        for node in await self._pool.candidates(origin):
            try:
                return await node.call(call)
            except CallFailure as error:
                attempts.append(NodeAttempt(node.position, error.failure))
                is_refused = is_refused or error.failure in (NodeFailure.TIMEOUT, NodeFailure.BAD_ANSWER)
            except RpcRefusal:
                is_refused = True
        raise LogsRefused if is_refused else NodeUnavailable(call.method, attempts)


class _Log(msgspec.Struct):
    address: str
    topics: list[str]
    data: str
    block_number: str = msgspec.field(name="blockNumber")


def _decode_number(result: bytes) -> int:
    return decode_quantity(msgspec.json.decode(result, type=str))


def _decode_logs(log_filter: LogFilter, result: bytes) -> tuple[EvmLog, ...]:
    return tuple(_matching_log(log, log_filter) for log in msgspec.json.decode(result, type=list[_Log]))


def _matching_log(log: _Log, log_filter: LogFilter) -> EvmLog:
    """Return a log that matches the filter. Raises ValueError for another."""
    found = EvmLog(decode_quantity(log.block_number), decode_hex(log.data))
    topics = tuple(decode_hex(topic) for topic in log.topics[: len(log_filter.topics)])
    is_match = decode_hex(log.address) == log_filter.address and topics == log_filter.topics
    if not is_match or not log_filter.first <= found.block <= log_filter.last:
        raise ValueError("a log that does not match the filter")
    return found


def _encode_filter(log_filter: LogFilter) -> dict[str, object]:
    return {
        "fromBlock": hex(log_filter.first),
        "toBlock": hex(log_filter.last),
        "address": "0x" + log_filter.address.hex(),
        "topics": ["0x" + topic.hex() for topic in log_filter.topics],
    }


C_CHAIN_PATHS: Final = ("/ext/bc/C/rpc",)
_HASH_BYTES: Final = 32


class BatchRefused(Exception):
    """Nodes answered, but none returns these blocks; they may return fewer at a time."""


@dataclass(frozen=True, slots=True)
class EvmBlock:
    """One block. hash, parent_hash: 32 bytes; extra_data: the atomic transactions' bytes; tx_count: all others."""

    number: int
    hash: bytes
    parent_hash: bytes
    time_s: int
    size_bytes: int
    tx_count: int
    extra_data: bytes


class CBlocksClient:
    """eth_* calls for the C-Chain to a list of nodes. Every method raises NodeUnavailable if no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def tips(self) -> tuple[int, ...]:
        """Return the numbers of the last accepted blocks of all nodes that answer."""
        call = NodeCall("eth_blockNumber", [], C_CHAIN_PATHS, _decode_number, CallOrigin.FOLLOWER, optional=True)
        return require_values(await self._pool.call_all(call), call.method)

    async def evm_chain_id(self) -> int:
        """Return the chain id of the C-Chain's EVM, from the first node that answers."""
        call = NodeCall("eth_chainId", [], C_CHAIN_PATHS, _decode_number, CallOrigin.DAEMON, optional=True)
        return require_values(await self._pool.call_all(call), call.method)[0]

    async def blocks(self, first: int, count: int) -> tuple[EvmBlock | None, ...]:
        """Return `count` blocks from number `first` on, None for each that the node lacks. Raises BatchRefused."""
        call = _blocks_call(first, count)
        try:
            blocks = await self._pool.call(call)
        except RpcRefusal as refusal:
            raise BatchRefused(refusal.text) from None
        for number, block in enumerate(blocks, first):
            if block is not None and block.number != number:
                raise NodeUnavailable(call.method)
        return blocks

    async def block_of_each(self, number: int) -> tuple[EvmBlock, ...]:
        """Return the distinct blocks that the nodes return for a number, in configured order."""
        results = await self._pool.call_all(_blocks_call(number, 1))
        blocks = (result.value[0] for result in results if result.value is not None)
        return tuple(dict.fromkeys(block for block in blocks if block is not None and block.number == number))


def _blocks_call(first: int, count: int) -> NodeCall[tuple[EvmBlock | None, ...]]:
    numbers: tuple[list[Any], ...] = tuple([hex(number), False] for number in range(first, first + count))
    paths, method = C_CHAIN_PATHS, "eth_getBlockByNumber"
    return NodeCall(method, [], paths, _decode_blocks, CallOrigin.FOLLOWER, large=True, batch=numbers)


class _Block(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    size: str
    transactions: list[msgspec.Raw]
    block_extra_data: str = "0x"


_BLOCKS: Final = msgspec.json.Decoder(list[_Block | None])


def _decode_blocks(result: bytes) -> tuple[EvmBlock | None, ...]:
    return tuple(None if block is None else _evm_block(block) for block in _BLOCKS.decode(result))


def _evm_block(block: _Block) -> EvmBlock:
    return EvmBlock(
        decode_quantity(block.number),
        _hash(block.hash),
        _hash(block.parent_hash),
        decode_quantity(block.timestamp),
        decode_quantity(block.size),
        len(block.transactions),
        decode_hex(block.block_extra_data),
    )


def _hash(text: str) -> bytes:
    raw = decode_hex(text)
    if len(raw) != _HASH_BYTES:
        raise ValueError("a hash has 32 bytes")
    return raw
