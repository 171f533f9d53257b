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
        """The one number that `after` is."""
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
    """The heights that a client has seen, by the page token and by the request itself, so that no
    page goes back.
    """

    def __init__(self) -> None:
        self._from_token: Heights = {}
        self._least = -1.0
        self._read: dict[str, int] = {}

    def continue_from(self, heights: Heights | None) -> None:
        """Take the heights that a page token carries; None, or a chain without one, was read
        without replicas.
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
        """Return the heights for the token of the next page; None if no index has replicas, or too
        many chains do.
        """
        heights = {**self._from_token, **self._read}
        return heights if 0 < len(heights) <= _MAX_TOKEN_HEIGHTS else None


CLIENT_HEIGHTS: Final[ContextVar[ClientHeights | None]] = ContextVar("client_heights", default=None)
"""Those of the client whose request the current task serves; None outside of requests."""


class TimeRange(Struct, frozen=True):
    """Unix seconds, both included; None: open."""

    since: int | None = None
    until: int | None = None


class TransactionQuery(Struct, frozen=True):
    """Transactions of one chain that touch any of the addresses, are of any of the kinds, and of
    the validation.

    addresses: sorted; empty: any.
    evm_addresses: accounts of the C-Chain; a transaction matches if it touches one of either.
    kinds: names of types as in responses, "UNKNOWN" for types without a name; empty: any.
    validation_id: of the P-Chain only.
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
    """Rewards paid to any of the addresses, or for any of the nodes' validations; with both, both
    filters apply.

    Sorted by the time of payment.
    """

    addresses: tuple[Address, ...] = ()
    node_ids: tuple[NodeID, ...] = ()
    order: SortOrder = SortOrder.DESC


class ValidationQuery(Struct, frozen=True):
    """Validations of one node, sorted by their start."""

    node_id: NodeID
    status: ValidationStatusType | None = None
    order: SortOrder = SortOrder.DESC
