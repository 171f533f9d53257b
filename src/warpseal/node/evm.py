"""Calls to the nodes of one EVM chain: its height, and the logs of the Warp precompile.

Source of truth: the Ethereum JSON-RPC specification; `graft/subnet-evm/precompile/contracts/warp` of avalanchego.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from warpseal.errors import NodeAttempt, NodeFailure, NodeUnavailable
from warpseal.node.failover import NodePool
from warpseal.node.limits import Origin
from warpseal.node.refusals import RpcRefusal
from warpseal.node.rpc import Call, CallFailure

T = TypeVar("T")

WARP_PRECOMPILE: Final = bytes.fromhex("0200000000000000000000000000000000000005")
SEND_WARP_MESSAGE: Final = bytes.fromhex("56600c567728a800c0aa927500f831cb451df66a7af570eb4df4dfbf4674887d")
# The endpoint of an EVM chain is the whole URL.
_PATHS: Final = ("",)
_U64_END: Final = 1 << 64


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

    async def block_number(self, origin: Origin = Origin.CALLER) -> int:
        """Return the number of the last accepted block."""
        call = Call("eth_blockNumber", [], _PATHS, _decode_block_number, origin)
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def logs(self, wanted: LogFilter, origin: Origin = Origin.CALLER) -> tuple[EvmLog, ...]:
        """Return the logs in the order of the node, which is that of the chain. Raises LogsRefused."""
        call = Call("eth_getLogs", [_filter(wanted)], _PATHS, _log_decoder(wanted), origin, large=True)
        attempts: list[NodeAttempt] = []
        is_refused = False
        for node in await self._pool.in_turn(origin):
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


def _decode_block_number(result: bytes) -> int:
    return _quantity(msgspec.json.decode(result, type=str))


def _log_decoder(wanted: LogFilter) -> Callable[[bytes], tuple[EvmLog, ...]]:
    def decode(result: bytes) -> tuple[EvmLog, ...]:
        return tuple(_checked(log, wanted) for log in msgspec.json.decode(result, type=list[_Log]))

    return decode


def _checked(log: _Log, wanted: LogFilter) -> EvmLog:
    """Return a log that matches the filter. Raises ValueError for another."""
    found = EvmLog(_quantity(log.block_number), _hex(log.data))
    topics = tuple(_hex(topic) for topic in log.topics[: len(wanted.topics)])
    if _hex(log.address) != wanted.address or topics != wanted.topics or not wanted.first <= found.block <= wanted.last:
        raise ValueError("a log that was not asked for")
    return found


def _filter(wanted: LogFilter) -> dict[str, object]:
    return {
        "fromBlock": hex(wanted.first),
        "toBlock": hex(wanted.last),
        "address": "0x" + wanted.address.hex(),
        "topics": ["0x" + topic.hex() for topic in wanted.topics],
    }


def _quantity(text: str) -> int:
    if text[:2] != "0x" or not 3 <= len(text) <= 18:
        raise ValueError("no quantity")
    number = int(text, 16)
    if not 0 <= number < _U64_END:
        raise ValueError("a quantity is out of range")
    return number


def _hex(text: str) -> bytes:
    if text[:2] != "0x":
        raise ValueError("hex starts with 0x")
    return bytes.fromhex(text[2:])
