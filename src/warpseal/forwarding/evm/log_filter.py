"""Filters of the logs of an EVM chain, and the logs that its nodes return."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SEND_WARP_MESSAGE: Final = bytes.fromhex(
    "56600c567728a800c0aa927500f831cb451df66a7af570eb4df4dfbf4674887d"
)
"""The topic of a message that the Warp precompile sends."""


class LogsRefused(Exception):
    """Nodes refuse the logs of this range of blocks; they may return those of a shorter range."""


class LogFilter(Struct, frozen=True):
    """The logs of one contract in blocks `first` to `last`, both included.

    topics: first topics of the logs in their order, 32 bytes each.
    """

    first: int
    last: int
    address: bytes
    topics: tuple[bytes, ...]


class EvmLog(Struct, frozen=True):
    """One log.

    block: number of its block.
    data: bytes that are not in the topics.
    """

    block: int
    data: bytes
