"""What the follower needs: a source of blocks, and a store for the L1 transactions in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from warpseal.node.info import Upgrades
from warpseal.store.values import BlockRange, L1Transaction, Origin
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class FollowedBlock:
    """A decoded block with its L1 transactions. time: Unix seconds, None if the block carries none."""

    height: int
    id: bytes
    parent_id: bytes
    time: int | None
    transactions: tuple[L1Transaction, ...] = ()
    origins: tuple[Origin, ...] = ()


DecodeBlock = Callable[[bytes], FollowedBlock]
"""Decodes the bytes of a block. Raises MalformedMessage; for an unknown type its subclass UnknownType."""


class FollowerBlocks(Protocol):
    """Accepted blocks of one chain. Methods raise NodeUnavailable, except `block_at_each`."""

    @property
    def at_once(self) -> int:
        """The maximum number of concurrent calls."""
        ...

    @property
    def per_s(self) -> int:
        """The maximum number of calls per second."""
        ...

    async def tip(self) -> int:
        """Return the height of the last accepted block."""
        ...

    async def block_at(self, height: int) -> bytes:
        """Return the bytes of the accepted block, from any node."""
        ...

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the distinct bytes that the nodes return for it."""
        ...

    async def upgrades(self) -> Upgrades:
        """Return the activation times of upgrades."""
        ...


class FollowerStore(Protocol):
    """The store of L1 transactions and of the ranges of blocks that were read. Methods raise StoreDown."""

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]:
        """Return the ranges that were read, disjoint, newest first."""
        ...

    async def append(
        self, chain_id: ChainID, read: BlockRange, transactions: Sequence[L1Transaction], origins: Sequence[Origin]
    ) -> None:
        """Store rows, and the range merged with its neighbours, in one transaction."""
        ...
