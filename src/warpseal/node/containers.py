"""Accepted blocks and transactions from the index API of nodes: in order, with the proposervm's wrapping.

Source of truth: avalanchego `indexer/service.go`. Few nodes have it: it must be enabled before they bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from warpseal.errors import NodeAttempt, NodeUnavailable
from warpseal.node.errors import CallFailure, RpcRefusal
from warpseal.node.json_values import decode_checked_hex, u64
from warpseal.node.limits import CallOrigin
from warpseal.node.pool import NodePool
from warpseal.node.rpc import NodeCall

T = TypeVar("T")

MAX_CONTAINERS: Final = 1024
_NOT_SERVED: Final = (403, 404, 405)


class Stream(StrEnum):
    """An indexed sequence. X_TXS: the transactions accepted before the X-Chain was linearized."""

    P_BLOCKS = "P/block"
    X_BLOCKS = "X/block"
    X_TXS = "X/tx"


@dataclass(frozen=True, slots=True)
class Container:
    """An accepted block or transaction. accepted_at_s: unix seconds when that node accepted it, maybe years later."""

    index: int
    raw: bytes
    accepted_at_s: int


class ContainersClient:
    """index.* calls to a list of nodes. Every method raises NodeUnavailable if no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def range(self, stream: Stream, first: int, count: int) -> tuple[Container, ...] | None:
        """Return at most `count` (up to 1,024) containers from index `first` on; None if no node has them."""
        params = {"startIndex": str(first), "numToFetch": str(count), **_HEX}
        call = NodeCall(
            "index.getContainerRange", params, _paths(stream), _decode_range, CallOrigin.FOLLOWER, True, optional=True
        )
        return await self._call(call)

    async def _call(self, call: NodeCall[T]) -> T | None:
        """Return the first answer of a node; None if a node refuses, or does not have the API."""
        attempts: list[NodeAttempt] = []
        is_refused = False
        for node in await self._pool.candidates(call.origin):
            try:
                return await node.call(call)
            except RpcRefusal:
                is_refused = True
            except CallFailure as error:
                attempts.append(NodeAttempt(node.position, error.failure))
                is_refused = is_refused or error.status in _NOT_SERVED
        if is_refused:
            return None
        raise NodeUnavailable(call.method, attempts)


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


def _decode_range(result: bytes) -> tuple[Container, ...]:
    return tuple(map(_container, _RANGE.decode(result).containers or ()))


def _container(entry: _Container) -> Container:
    return Container(u64(entry.index), decode_checked_hex(entry.bytes), int(entry.timestamp.timestamp()))
