"""What following needs of others: blocks, a place to keep what they hold, and the right to follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from warpseal.node.info import Upgrades
from warpseal.store.values import BlockRange, L1Transaction, Origin
from warpseal.warp.ids import ChainID


class FollowerBlocks(Protocol):
    """Where accepted blocks come from; every method but `block_at_each` raises NodeUnavailable."""

    @property
    def at_once(self) -> int:
        """How many calls may be under way."""
        ...

    @property
    def per_s(self) -> int:
        """How many calls a second are made at most."""
        ...

    async def tip(self) -> int:
        """Return the height of the last accepted block."""
        ...

    async def block_at(self, height: int) -> bytes:
        """Return the bytes of the accepted block, from whichever node."""
        ...

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the different bytes that the nodes give for it."""
        ...

    async def upgrades(self) -> Upgrades:
        """Return when upgrades activate."""
        ...


class FollowerStore(Protocol):
    """Where what was found is kept; both methods raise StoreDown."""

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]:
        """Return what was read, disjoint, newest first."""
        ...

    async def append(
        self, chain_id: ChainID, read: BlockRange, transactions: Sequence[L1Transaction], origins: Sequence[Origin]
    ) -> None:
        """Keep rows and the range merged with its neighbours, or nothing of them."""
        ...


class Lead(Protocol):
    """The right to follow a chain, which one process has at a time."""

    @property
    def is_leader(self) -> bool:
        """Whether this process has it."""
        ...

    async def wait_until_held(self) -> None:
        """Return once this process has it."""
        ...

    async def wait_until_lost(self) -> None:
        """Return once this process does not have it any more."""
        ...


@dataclass(frozen=True, slots=True)
class FollowedBlock:
    """One block and what is kept of it. time: Unix seconds, None where the block carries none."""

    height: int
    id: bytes
    parent_id: bytes
    time: int | None
    transactions: tuple[L1Transaction, ...] = ()
    origins: tuple[Origin, ...] = ()


Decode = Callable[[bytes], FollowedBlock]
"""Returns what is kept of a block's bytes. Raises MalformedMessage; of it UnknownType for a type that is not known."""
