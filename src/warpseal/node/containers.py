"""Accepted blocks and transactions as the index API of nodes keeps them: in order, with the proposervm's wrapping.

Source of truth: avalanchego `indexer/service.go`. Few nodes have it: it must be switched on before they bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from warpseal.node.failover import NodePool
from warpseal.node.limits import Origin
from warpseal.node.numbers import u64
from warpseal.node.p_chain import checked_hex
from warpseal.node.refusals import RpcRefusal
from warpseal.node.rpc import Call

MAX_CONTAINERS: Final = 1024


class Stream(StrEnum):
    """What is kept in order; X_TXS: accepted before the X-Chain became a line of blocks."""

    P_BLOCKS = "P/block"
    X_BLOCKS = "X/block"
    X_TXS = "X/tx"


@dataclass(frozen=True, slots=True)
class Container:
    """One of them. accepted_at_s: unix seconds at which that node took it in, which may be years later."""

    index: int
    raw: bytes
    accepted_at_s: int


class ContainersClient:
    """index.* calls over a list of nodes. Every method raises NodeUnavailable when no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def last_index(self, stream: Stream) -> int | None:
        """Return the index of the last container; None where no node has the index API, or nothing in it."""
        call = Call("index.getLastAccepted", _HEX, _paths(stream), _decode_one, Origin.FOLLOWER, True, optional=True)
        try:
            return (await self._pool.call(call)).index
        except RpcRefusal:
            return None

    async def range(self, stream: Stream, first: int, count: int) -> tuple[Container, ...] | None:
        """Return at most `count` (up to 1,024) containers from index `first` on; None where no node has them."""
        params = {"startIndex": str(first), "numToFetch": str(count), **_HEX}
        call = Call(
            "index.getContainerRange", params, _paths(stream), _decode_range, Origin.FOLLOWER, True, optional=True
        )
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            return None


_HEX: Final = {"encoding": "hex"}


class _Container(msgspec.Struct):
    bytes: str
    timestamp: datetime
    index: int | str


class _Range(msgspec.Struct):
    containers: list[_Container] | None = None


_RANGE: Final = msgspec.json.Decoder(_Range)


def _paths(stream: Stream) -> tuple[str, ...]:
    return (f"/ext/index/{stream}",)


def _decode_one(result: bytes) -> Container:
    return _container(msgspec.json.decode(result, type=_Container))


def _decode_range(result: bytes) -> tuple[Container, ...]:
    return tuple(map(_container, _RANGE.decode(result).containers or ()))


def _container(told: _Container) -> Container:
    return Container(u64(told.index), checked_hex(told.bytes), int(told.timestamp.timestamp()))
