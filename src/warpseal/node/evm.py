"""Calls to the nodes of one EVM chain: its height, and the logs of the Warp precompile.

Source of truth: the Ethereum JSON-RPC specification; `graft/subnet-evm/precompile/contracts/warp` of avalanchego.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from warpseal.errors import NodeAttempt, NodeFailure, NodeUnavailable
from warpseal.node.errors import CallFailure, RpcRefusal
from warpseal.node.json_values import decode_hex, decode_quantity
from warpseal.node.limits import CallOrigin
from warpseal.node.p_blocks import require_values
from warpseal.node.pool import NodePool
from warpseal.node.rpc import NodeCall

T = TypeVar("T")

WARP_PRECOMPILE: Final = bytes.fromhex("0200000000000000000000000000000000000005")
SEND_WARP_MESSAGE: Final = bytes.fromhex("56600c567728a800c0aa927500f831cb451df66a7af570eb4df4dfbf4674887d")
# The endpoint of an EVM chain is the whole URL.
_PATHS: Final = ("",)


class LogsRefused(Exception):
    """Nodes answered, and none gives the logs of this range; a shorter one may be given."""


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
    """Calls over the nodes of one chain. Every method raises NodeUnavailable when no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def block_number(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the number of the last accepted block."""
        call = NodeCall("eth_blockNumber", [], _PATHS, _decode_number, origin)
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def logs(self, wanted: LogFilter, origin: CallOrigin = CallOrigin.CALLER) -> tuple[EvmLog, ...]:
        """Return the logs in the order of the node, which is that of the chain. Raises LogsRefused."""
        call = NodeCall("eth_getLogs", [_filter(wanted)], _PATHS, _log_decoder(wanted), origin, large=True)
        attempts: list[NodeAttempt] = []
        is_refused = False
        for node in await self._pool.candidates(origin):
            try:
                return await node.ask(call)
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


def _log_decoder(wanted: LogFilter) -> Callable[[bytes], tuple[EvmLog, ...]]:
    def decode(result: bytes) -> tuple[EvmLog, ...]:
        return tuple(_checked(log, wanted) for log in msgspec.json.decode(result, type=list[_Log]))

    return decode


def _checked(log: _Log, wanted: LogFilter) -> EvmLog:
    """Return a log that matches the filter. Raises ValueError for another."""
    found = EvmLog(decode_quantity(log.block_number), decode_hex(log.data))
    topics = tuple(decode_hex(topic) for topic in log.topics[: len(wanted.topics)])
    if (
        decode_hex(log.address) != wanted.address
        or topics != wanted.topics
        or not wanted.first <= found.block <= wanted.last
    ):
        raise ValueError("a log that was not asked for")
    return found


def _filter(wanted: LogFilter) -> dict[str, object]:
    return {
        "fromBlock": hex(wanted.first),
        "toBlock": hex(wanted.last),
        "address": "0x" + wanted.address.hex(),
        "topics": ["0x" + topic.hex() for topic in wanted.topics],
    }


C_CHAIN_PATHS: Final = ("/ext/bc/C/rpc",)
_HASH_BYTES: Final = 32


class BatchRefused(Exception):
    """Nodes answered, and none gives these blocks; fewer at a time may be given."""


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
    """eth_* calls to the C-Chain over a list of nodes. Every method raises NodeUnavailable when no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def tips(self) -> tuple[int, ...]:
        """Return the numbers of the last accepted blocks of all nodes that tell one."""
        call = NodeCall("eth_blockNumber", [], C_CHAIN_PATHS, _decode_number, CallOrigin.FOLLOWER, optional=True)
        return require_values(await self._pool.call_all(call), call.method)

    async def evm_chain_id(self) -> int:
        """Return the chain id of the C-Chain's EVM, of the first node that tells it."""
        call = NodeCall("eth_chainId", [], C_CHAIN_PATHS, _decode_number, CallOrigin.DAEMON, optional=True)
        return require_values(await self._pool.call_all(call), call.method)[0]

    async def blocks(self, first: int, count: int) -> tuple[EvmBlock | None, ...]:
        """Return `count` blocks from number `first` on, each None that the node does not have. Raises BatchRefused."""
        call = _blocks_call(first, count)
        try:
            found = await self._pool.call(call)
        except RpcRefusal as refusal:
            raise BatchRefused(refusal.text) from None
        for number, block in enumerate(found, first):
            if block is not None and block.number != number:
                raise NodeUnavailable(call.method)
        return found

    async def block_of_each(self, number: int) -> tuple[EvmBlock, ...]:
        """Return the different blocks that all nodes give for a number, in configured order."""
        answers = await self._pool.call_all(_blocks_call(number, 1))
        told = (answer.value[0] for answer in answers if answer.value is not None)
        return tuple(dict.fromkeys(block for block in told if block is not None and block.number == number))


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
    return tuple(None if told is None else _block(told) for told in _BLOCKS.decode(result))


def _block(told: _Block) -> EvmBlock:
    return EvmBlock(
        decode_quantity(told.number),
        _hash(told.hash),
        _hash(told.parent_hash),
        decode_quantity(told.timestamp),
        decode_quantity(told.size),
        len(told.transactions),
        decode_hex(told.block_extra_data),
    )


def _hash(text: str) -> bytes:
    raw = decode_hex(text)
    if len(raw) != _HASH_BYTES:
        raise ValueError("a hash has 32 bytes")
    return raw
