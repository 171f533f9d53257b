"""A P-Chain for tests: blocks by height, loopback nodes that serve them, a store in memory, a
leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from tests.chains.p_vectors import recorded, unchecked
from tests.node.recorded_node import RecordedNode, RefusedCall, open_upstream
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PBlock, parse_p_block
from warpseal.chains.p_txs import PSignedTx
from warpseal.follow.index_source import IndexedBlocks
from warpseal.l1.consumer import FollowerStore
from warpseal.l1.followed_block import DecodeBlock, parse_followed_block
from warpseal.l1.follower import PChainFollower
from warpseal.l1.settings import FollowerSettings
from warpseal.node.blocks import PBlocksClient
from warpseal.resources.progress import ChainProgress
from warpseal.store.errors import StoreDown
from warpseal.store.locks import Leadership
from warpseal.store.values import BlockRange, L1Transaction, Origin
from warpseal.warp.ids import ChainID

BANFF_S = 1_700_000_000
FAST = FollowerSettings(
    follow_poll_s=0.02, retry_first_s=0.02, retry_cap_s=0.05, retry_stopped_s=0.05
)


def recorded_blocks() -> list[bytes]:
    """Return the bytes of all blocks of the recorded network, by height."""
    blocks = [unchecked(result["block"]) for _, result in recorded("getBlock", "hex")]
    return sorted(blocks, key=lambda raw: parse_p_block(raw).height)


def recorded_l1_txs() -> list[PSignedTx]:
    """Return the recorded network's transactions about L1s, oldest first."""
    txs = [tx for raw in recorded_blocks() for tx in parse_p_block(raw).txs]
    return [tx for tx in txs if 35 <= tx.type_id <= 39]


class Chain:
    """A chain of linked blocks from block 0.

    apricot: number of first blocks, which have no time.
    """

    def __init__(self, blocks: int, apricot: int = 1, salt: bytes = b"") -> None:
        self.raw: list[bytes] = []
        self._apricot = apricot
        self._parent = BlockID(sha256(b"genesis" + salt).digest())
        self.grow(blocks)

    @property
    def tip(self) -> int:
        """The height of the newest block."""
        return len(self.raw) - 1

    def id_at(self, height: int) -> bytes:
        """Return the id of a block."""
        return sha256(self.raw[height]).digest()

    def grow(self, blocks: int = 1, *txs: PSignedTx) -> None:
        """Add blocks; each holds the transactions."""
        for _ in range(blocks):
            self.put(lambda parent, height: self._make(parent, height, txs))

    def put(self, make: Callable[[BlockID, int], bytes]) -> None:
        """Add a block with the given bytes."""
        self.raw.append(make(self._parent, len(self.raw)))
        self._parent = BlockID(sha256(self.raw[-1]).digest())

    def _make(self, parent: BlockID, height: int, txs: tuple[PSignedTx, ...]) -> bytes:
        if height < self._apricot:
            return PBlock.build("ApricotCommitBlock", parent, height).raw
        return PBlock.build("BanffStandardBlock", parent, height, BANFF_S + height, txs).raw

    def fork(self, height: int) -> Chain:
        """Return another chain that has the same blocks up to `height` and as many blocks as this
        chain.
        """
        other = Chain(0, self._apricot)
        other.raw = self.raw[: height + 1]
        other._parent = BlockID(other.id_at(height))
        while other.tip < self.tip:
            other.put(
                lambda parent, at: (
                    PBlock.build("BanffStandardBlock", parent, at, BANFF_S + at + 1).raw
                )
            )
        return other


def of_unknown_type(parent: BlockID, height: int) -> bytes:
    """Return a block of an unknown type."""
    return b"\x00\x00" + (99).to_bytes(4, "big") + parent + height.to_bytes(8, "big")


def cut_short(parent: BlockID, height: int) -> bytes:
    """Return a block whose last byte is missing."""
    return PBlock.build("BanffStandardBlock", parent, height, BANFF_S).raw[:-1]


def encoded(raw: bytes) -> dict[str, str]:
    """Return a block in a node's encoding."""
    return {"block": "0x" + (raw + sha256(raw).digest()[-4:]).hex(), "encoding": "hex"}


@dataclass
class ChainNode(RecordedNode):
    """A node with a chain up to `tip`, or all of it.

    lies: other bytes by height. asked: requested heights in order.
    """

    chain: Chain = field(default_factory=lambda: Chain(1))
    tip: int | None = None
    lies: dict[int, bytes] = field(default_factory=dict)
    etna_s: int | None = BANFF_S
    requested_heights: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replies.setdefault("platform.getHeight", lambda _: {"height": str(self.height)})
        self.replies.setdefault("platform.getBlockByHeight", self._block)
        self.replies.setdefault("info.upgrades", self._upgrades)

    @property
    def height(self) -> int:
        """The height that the node reports."""
        return self.chain.tip if self.tip is None else self.tip

    def _block(self, params: Any) -> Any:
        height = int(params["height"])
        self.requested_heights.append(height)
        if height > self.height:
            raise RefusedCall(f"couldn't get block at height {height}: not found")
        return encoded(self.lies.get(height, self.chain.raw[height]))

    def _upgrades(self, _: Any) -> Any:
        if self.etna_s is None:
            return {}
        return {
            "etnaTime": datetime.fromtimestamp(self.etna_s, UTC).isoformat().replace("+00:00", "Z")
        }


class KnownRanges:
    """Disjoint ranges of one chain that do not touch each other, newest first."""

    def __init__(self, ranges: Iterable[BlockRange] = ()) -> None:
        self._ranges: list[BlockRange] = []
        for item in ranges:
            self.add(item)

    def __iter__(self) -> Iterator[BlockRange]:
        return iter(self._ranges)

    @property
    def newest(self) -> BlockRange | None:
        """The highest range."""
        return self._ranges[0] if self._ranges else None

    @property
    def oldest(self) -> BlockRange | None:
        """The lowest range."""
        return self._ranges[-1] if self._ranges else None

    def add(self, read: BlockRange) -> None:
        """Add a range, merged with the ranges that it touches."""
        low, high = read, read
        ranges = []
        for item in self._ranges:
            if item.high + 1 < read.low or item.low > read.high + 1:
                ranges.append(item)
                continue
            low = item if item.low < low.low else low
            high = item if item.high > high.high else high
        ranges.append(BlockRange(low.low, high.high, low.low_parent_id, high.high_block_id))
        self._ranges = sorted(ranges, key=lambda item: -item.high)

    def count(self, low: int, high: int) -> int:
        """Return the number of known blocks in low..high."""
        return sum(max(0, min(high, item.high) - max(low, item.low) + 1) for item in self._ranges)


class MemoryStore:
    """Keeps rows and ranges.

    is_down: every call fails, as without a database.
    down_after: number of commits after which the store is down.
    on_commit: function that is called after each commit.
    """

    def __init__(self) -> None:
        self.read_ranges = KnownRanges()
        self.transactions: dict[bytes, L1Transaction] = {}
        self.origins: list[Origin] = []
        self.appended: list[BlockRange] = []
        self.is_down = False
        self.down_after: int | None = None
        self.on_commit: Callable[[], None] = lambda: None

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]:
        await asyncio.sleep(0)
        if self.is_down:
            raise StoreDown("set by the test")
        return tuple(self.read_ranges)

    async def append(
        self,
        chain_id: ChainID,
        read: BlockRange,
        transactions: Sequence[L1Transaction],
        origins: Sequence[Origin],
    ) -> None:
        await asyncio.sleep(0)
        if self.is_down:
            raise StoreDown("set by the test")
        for known_range in self.read_ranges:
            assert (
                known_range.high + 1 != read.low or read.low_parent_id == known_range.high_block_id
            )
            assert (
                read.high + 1 != known_range.low or known_range.low_parent_id == read.high_block_id
            )
        self.read_ranges.add(read)
        self.appended.append(read)
        self.transactions.update({tx.tx_id: tx for tx in transactions})
        self.origins += origins
        self.is_down = len(self.appended) == self.down_after
        self.on_commit()

    def up(self, down_after: int | None = None) -> None:
        """Let the store work again.

        down_after: commits until it fails again.
        """
        self.is_down = False
        self.down_after = None if down_after is None else len(self.appended) + down_after

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Lowest and highest height of each range, newest first."""
        return [(known_range.low, known_range.high) for known_range in self.read_ranges]


class SettableLeadership(Leadership):
    """A leadership that a test sets."""

    def set(self, is_leader: bool) -> None:
        if is_leader:
            self._acquire()
        else:
            self._lose()


@asynccontextmanager
async def nodes_of(
    *nodes: RecordedNode, per_s: int = 1_000, quorum: int = 1
) -> AsyncIterator[PBlocksClient]:
    """Serve nodes and yield the client of their blocks.

    quorum: number of nodes that must agree.
    """
    limits: dict[str, Any] = {
        "calls_per_s": 8 * per_s,
        "calls_in_flight": 64,
        "retry_failed_after_s": 0.05,
    }
    async with open_upstream(*nodes, p_chain_quorum=quorum, **limits) as upstream:
        yield upstream.blocks


@asynccontextmanager
async def following(
    blocks: PBlocksClient,
    store: FollowerStore,
    settings: FollowerSettings = FAST,
    leadership: Leadership | None = None,
    decode: DecodeBlock = parse_followed_block,
    indexed: IndexedBlocks | None = None,
) -> AsyncIterator[PChainFollower]:
    """Run a follower within the `async with` block and cancel it at the end."""
    follower = PChainFollower(
        blocks, store, leadership or SettableLeadership(), settings, indexed=indexed, decode=decode
    )
    task = asyncio.create_task(follower.run())
    try:
        yield follower
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


def is_done(progress: ChainProgress) -> bool:
    """Return whether everything up to the tip was read."""
    return progress.lag_blocks == 0 and remaining_blocks(progress) == 0


def remaining_blocks(progress: ChainProgress) -> int | None:
    """Return how many blocks the backfill has to read; None if that is not known."""
    return None if progress.backfill is None else progress.backfill.remaining_blocks


def fraction(progress: ChainProgress) -> float:
    """Return which share of the backfill was read."""
    return 0.0 if progress.backfill is None else progress.backfill.fraction


def target_height(progress: ChainProgress) -> int | None:
    """Return the first block of the backfill."""
    return None if progress.backfill is None else progress.backfill.target_height
