"""What is asked of the logs of an EVM chain, and what its nodes return."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SEND_WARP_MESSAGE: Final = bytes.fromhex(
    "56600c567728a800c0aa927500f831cb451df66a7af570eb4df4dfbf4674887d"
)
"""The topic of a message that the Warp precompile sends."""


class LogsRefused(Exception):
    """Nodes answered, but none returns the logs of this range; they may return those of a shorter
    one.
    """


class LogFilter(Struct, frozen=True):
    """The logs of one contract in blocks `first` to `last`, both included.

    topics: 32 bytes each, in their places.
    """

    first: int
    last: int
    address: bytes
    topics: tuple[bytes, ...]


class EvmLog(Struct, frozen=True):
    """One log.

    block: its number; data: what is not in the topics.
    """

    block: int
    data: bytes
