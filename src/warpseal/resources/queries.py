"""Queries of the primary chains' history: filters, order and pages."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

from msgspec import Struct

from warpseal.chains.ids import Address
from warpseal.resources.base import SortOrder, ValidationStatusType
from warpseal.resources.chains import PrimaryChain
from warpseal.warp.ids import NodeID, ValidationID

# A page token has at most 16 KiB.
_MAX_TOKEN_HEIGHTS: Final = 256

T_co = TypeVar("T_co", covariant=True)

Position = tuple[int | bytes, ...]
"""The keyset position behind the last item of a page, opaque to callers.

It has a few dozen bytes at most.
"""


class PageRequest(Struct, frozen=True):
    """At most `size` items behind the position `after`; None: from the beginning."""

    size: int
    after: Position | None = None

    @property
    def after_key(self) -> int | None:
        """The number in a position that is a single number."""
        if self.after is None:
            return None
        (key,) = self.after
        assert isinstance(key, int)
        return key


class Page(Struct, Generic[T_co], frozen=True):
    """Items, and the position of the next page, None if there is none.

    A page may be shorter than requested.
    """

    items: tuple[T_co, ...]
    next: Position | None = None


Heights = Mapping[str, int]
"""Heights of indexed chains at one moment, by the name of the chain."""


class ClientHeights:
    """The heights that a client has seen, so that no page goes back.

    They come from the page token and from the request itself.
    """

    def __init__(self) -> None:
        self._from_token: Heights = {}
        self._least = -1.0
        self._read: dict[str, int] = {}

    def continue_from(self, heights: Heights | None) -> None:
        """Take the heights of a page token.

        heights: the heights of chains that were read from replicas; None if no chain was.
        """
        self._from_token, self._least = heights or {}, float("inf")

    def allows(self, heights: Heights) -> bool:
        """Return whether a replica at these heights may answer."""
        return all(
            height >= self._from_token.get(chain, self._least) for chain, height in heights.items()
        )

    def add(self, heights: Heights) -> None:
        """Add the heights of a snapshot that the request has read."""
        for chain, height in heights.items():
            self._read[chain] = max(height, self._read.get(chain, height))

    def for_token(self) -> dict[str, int] | None:
        """Return the heights for the token of the next page.

        Returns None if no index has replicas, or too many chains do.
        """
        heights = {**self._from_token, **self._read}
        return heights if 0 < len(heights) <= _MAX_TOKEN_HEIGHTS else None


CLIENT_HEIGHTS: Final[ContextVar[ClientHeights | None]] = ContextVar("client_heights", default=None)
"""The heights of the client whose request the current task serves; None outside of requests."""


class TimeRange(Struct, frozen=True):
    """Unix seconds, both included; None: open."""

    since: int | None = None
    until: int | None = None


class TransactionQuery(Struct, frozen=True):
    """Transactions of a chain that match all filters.

    addresses: sorted addresses, any of which a transaction touches; empty for all.
    evm_addresses: accounts of the C-Chain. A transaction matches if it touches any address or any
        account.
    validation_id: the L1 validation of a P-Chain transaction; None for all.
    kinds: names of types as in responses, "UNKNOWN" for types without a name; empty for all.
    """

    chain: PrimaryChain
    addresses: tuple[Address, ...] = ()
    evm_addresses: tuple[bytes, ...] = ()
    validation_id: ValidationID | None = None
    kinds: frozenset[str] = frozenset()
    times: TimeRange = TimeRange()
    order: SortOrder = SortOrder.DESC


class BlockQuery(Struct, frozen=True):
    """Blocks of one chain, newest first."""

    chain: PrimaryChain
    times: TimeRange = TimeRange()


class RewardQuery(Struct, frozen=True):
    """Rewards paid to any of the addresses, for any of the nodes' validations.

    An empty filter matches all. Rewards are sorted by the time of payment.
    """

    addresses: tuple[Address, ...] = ()
    node_ids: tuple[NodeID, ...] = ()
    order: SortOrder = SortOrder.DESC


class ValidationQuery(Struct, frozen=True):
    """Validations of one node, sorted by their start."""

    node_id: NodeID
    status: ValidationStatusType | None = None
    order: SortOrder = SortOrder.DESC
