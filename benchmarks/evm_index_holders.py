"""Holders of an EVM chain: the rate of writing ERC-20 transfers from first to last, the bytes, the
times of pages.

Facts are made up and written, without node and decoding.

2,000,000 ERC-20 transfers of 2,000 tokens in blocks of 20 are written 8,000 at a time, with caches
as in evm_index_store: most are of addresses that were active lately, and pools of each token are
one side of many. In another index one token and one collection have 1,000,000 holders each, and
100,000 transfers followed; the reader reads pages of 1,000 from it: 20 drawn windows with
thresholds, half of them before the last holders had anything, 240 reads, the first 40 do not count.
A process with the Metrics API answers the same pages over HTTP, 480 requests on one connection, the
first 80 do not count. `.venv/bin/python -m benchmarks.evm_index_holders --transfers 100000` is a
trial.

python -m benchmarks.evm_index_holders --transfers 100000 [--url postgresql://USER@HOST/NAME]
[--write]
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from benchmarks import page_cache
from benchmarks.evm_index_made_up import BEGIN_S, BLOCK_S, CHAIN_ID, EVM_CHAIN_ID
from benchmarks.evm_index_responses import measure_p99, serving_index
from benchmarks.report import Aim, Figure, Report, quantile, run_sized
from warpseal.chains.evm.facts import Erc20Transfer, EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import ContractFacts, EvmChainIdentity, HolderPage
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.indexer.worker import GC_THRESHOLDS, gc_disabled
from warpseal.resources.evm import ErcType, HolderQuery
from warpseal.resources.queries import PageRequest, Position, TimeRange
from warpseal.resources.text import account_text

T = TypeVar("T")

FULL, QUICK = 2_000_000, 20_000
# 8,000 transfers, about what the indexer writes at once when it is behind.
_BATCH_BLOCKS: Final = 400
_TRANSFERS_A_BLOCK: Final = 20
_TOKENS: Final = 2_000
_POOLS: Final = 3
_ACTIVE, _ACTIVE_HOLDERS = 0.6, 20_000
_MINTS, _NEW_HOLDER, _KNOWN_HOLDER, _POOL = 0.02, 0.08, 0.7, 0.4
# The limit of the page cache is set before the first write.
_EXPECTED_BYTES: Final = 130
_PAGES_OF_CACHED: Final = 2 / 3
_RATE: Final = Aim(8_000, at_least=True)
_LAST_OF_FIRST: Final = Aim(0.5, at_least=True)
_PER_TRANSFER: Final = Aim(150)
_LEAST_HOLDERS: Final = 10_000
_MINTS_A_BLOCK: Final = 500
_PAGE, _DEEP_PAGE = 1_000, 500
_DRAWN, _WARM_UP, _SAMPLES = 20, 40, 200
_P99: Final = Aim(50)
_DEPTH: Final = Aim(1.2)
_ZERO: Final = bytes(20)


class MadeUpErc20:
    """A chain of ERC-20 transfers: few tokens have most of them, and pools of each token are one
    side of many.
    """

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.tokens = [self.random.randbytes(20) for _ in range(_TOKENS)]
        self.accounts = [self.random.randbytes(20) for _ in range(100)]
        # By token: its holders, the pools first, and their balances.
        self.holders: list[list[bytes]] = [
            [self.random.randbytes(20) for _ in range(_POOLS)] for _ in range(_TOKENS)
        ]
        self.balances = [dict.fromkeys(pools, 10**27) for pools in self.holders]
        self._active: deque[tuple[int, bytes]] = deque(maxlen=_ACTIVE_HOLDERS)
        self.height = -1
        self.hash = bytes(32)
        self.transfers = 0

    def blocks(self, transfers: int) -> Iterator[EvmBlockFacts]:
        """Yield blocks until the chain has this number of transfers."""
        if self.height < 0:
            yield self._block(
                [
                    Erc20Transfer(self.tokens[n], _ZERO, p, 10**27)
                    for n in range(_TOKENS)
                    for p in self.holders[n]
                ]
            )
        while self.transfers < transfers:
            self.transfers += _TRANSFERS_A_BLOCK
            yield self._block([self._transfer() for _ in range(_TRANSFERS_A_BLOCK)])

    def _block(self, transfers: Sequence[Erc20Transfer]) -> EvmBlockFacts:
        self.height += 1
        parent, self.hash = self.hash, self.random.randbytes(32)
        return EvmBlockFacts(
            number=self.height,
            hash=self.hash,
            parent_hash=parent,
            time=BEGIN_S + BLOCK_S * self.height,
            tx_count=len(transfers),
            gas_used=60_000 * len(transfers),
            gas_limit=15_000_000,
            base_fee=25 * 10**9,
            gas_cost=0,
            fees_spent=60_000 * len(transfers) * 25 * 10**9,
            erc20_transfers=tuple(transfers),
        )

    def _transfer(self) -> Erc20Transfer:
        random = self.random
        number, sender = int(_TOKENS * random.random() ** 4), b""
        if self._active and random.random() < _ACTIVE:
            # Most transfers are of holders that were active lately.
            number, sender = self._active[random.randrange(len(self._active))]
        holders, balances = self.holders[number], self.balances[number]
        pool = holders[random.randrange(_POOLS)]
        recipient = random.choice(holders) if random.random() < _KNOWN_HOLDER else self._account()
        if random.random() < _MINTS:
            sender, amount = _ZERO, random.randrange(1, 10**22)
        else:
            sender = sender or (pool if random.random() < _POOL else random.choice(holders))
            if sender != pool and random.random() < _POOL:
                recipient = pool
            if recipient == sender:
                recipient = self._account()
            amount = max(1, min(balances[sender], int(balances[sender] * random.random())))
            if sender == pool:
                amount = max(1, amount // 10**5)
            balances[sender] = max(0, balances[sender] - amount)
        if recipient not in balances:
            balances[recipient] = 0
            holders.append(recipient)
        balances[recipient] += amount
        self._active.append((number, recipient))
        return Erc20Transfer(self.tokens[number], sender, recipient, amount)

    def _account(self) -> bytes:
        if self.random.random() < _NEW_HOLDER:
            self.accounts.append(self.random.randbytes(20))
            return self.accounts[-1]
        return self.accounts[int(len(self.accounts) * self.random.random() ** 3)]


@dataclass(slots=True)
class WriteRun:
    """The writing of a chain: (transfers so far, seconds so far, processor seconds so far) by
    batch.
    """

    points: list[tuple[int, float, float]] = field(default_factory=lambda: [(0, 0.0, 0.0)])
    size: int = 0
    holders: int = 0

    def rate(self, begin: float, end: float, clock: int = 1) -> float:
        """Return transfers a second between two parts of the chain, 0 to 1.

        clock: place of the seconds in a point: 1 for time that passed, 2 for processor time.
        """
        last = self.points[-1][0]
        chosen = [point for point in self.points if begin * last <= point[0] <= end * last]
        return (chosen[-1][0] - chosen[0][0]) / max(chosen[-1][clock] - chosen[0][clock], 1e-9)


def run(quick: bool) -> Report:
    """Write a chain and read pages."""
    size = QUICK if quick else FULL
    return measure(size)


def measure(transfers: int, url: str = "") -> Report:
    """Write transfers and read pages.

    url: URL of a server; empty for a new SQLite file.
    """
    folder = Path(tempfile.mkdtemp(prefix="warpseal-evm-holders-"))
    try:
        cache_bytes = max(4096, int(transfers * _EXPECTED_BYTES / 10 * _PAGES_OF_CACHED))
        write_run = _write(IndexSettings(url, cache_bytes=cache_bytes), transfers, folder)
        (folder / "pages").mkdir()
        chain = MadeUpHolders(Random(3), max(_LEAST_HOLDERS, transfers // 2))
        _write_holders(url, folder / "pages", chain)
        pages = asyncio.run(_measure_pages(url, folder / "pages", chain))
        pages += _measure_results(url, folder / "pages", chain)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    notes = (
        (
            f"{transfers} transfers of {_TOKENS} tokens, {write_run.holders} holders of a token;"
            f" the pages of the writer have {cache_bytes / 2**20:.0f} MiB, its log half as much"
        ),
    )
    return Report("evm_index_holders", transfers < FULL, (*_figures(write_run), *pages), notes)


def _write(settings: IndexSettings, transfers: int, folder: Path) -> WriteRun:
    url = evm_index_url(settings, folder, CHAIN_ID)
    writer = EvmIndexWriter(writing_evm_index(url, settings, CHAIN_ID), settings)
    chain, write_run, spent = MadeUpErc20(), WriteRun(), [0.0, 0.0]
    gc.set_threshold(*GC_THRESHOLDS)
    blocks = chain.blocks(transfers)
    first = next(blocks)
    writer.start(EvmChainIdentity(CHAIN_ID, EVM_CHAIN_ID, first.hash, has_holders=True))
    writer.begin(0, first.parent_hash)
    writer.write([first])
    for batch in _batches(blocks, min(_BATCH_BLOCKS, max(1, transfers // 5_000))):
        began, busy = time.perf_counter(), time.process_time()
        with gc_disabled():
            writer.write(batch)
        spent[0] += time.perf_counter() - began
        spent[1] += time.process_time() - busy
        write_run.points.append((chain.transfers, spent[0], spent[1]))
        page_cache.drop(_files(folder))
    writer.close()
    write_run.size = sum(file.stat().st_size for file in _files(folder))
    write_run.holders = sum(map(len, chain.holders))
    return write_run


def _write_holders(url: str, folder: Path, chain: MadeUpHolders) -> None:
    """Write the index of a chain."""
    settings = IndexSettings(url)
    writer = EvmIndexWriter(
        writing_evm_index(evm_index_url(settings, folder, CHAIN_ID), settings, CHAIN_ID), settings
    )
    blocks = chain.blocks()
    first = next(blocks)
    writer.start(EvmChainIdentity(CHAIN_ID, EVM_CHAIN_ID, first.hash, has_holders=True))
    writer.begin(0, first.parent_hash)
    writer.write([first])
    for batch in _batches(blocks, 10):
        writer.write(batch)
    writer.contracts.write(
        [ContractFacts(chain.collection, ErcType.ERC721, "Collection", "C", None, chain.height)]
    )
    writer.close()


def _measure_results(url: str, folder: Path, chain: MadeUpHolders) -> list[Figure]:
    """Read pages of both through the Metrics API."""
    contract = f"/v2/chains/{EVM_CHAIN_ID}/contracts/"
    token = f"{contract}{account_text(chain.token)}/balances?pageSize={_PAGE}"
    collection = f"{contract}{account_text(chain.collection)}/nfts:listHolders?pageSize={_PAGE}"
    windows = cycle(_windows(chain))

    def in_window() -> str:
        threshold, times = next(windows)
        return (
            f"{token}&threshold={threshold}&startTimestamp={times.since}&endTimestamp={times.until}"
        )

    with serving_index(IndexSettings(url), folder) as (client, _):
        return [
            measure_p99(client, f"18: any window, {_PAGE} a page", in_window, _P99),
            measure_p99(
                client, f"18: always, {_PAGE} a page", lambda: f"{token}&threshold=0", _P99
            ),
            measure_p99(
                client,
                f"18: no holder is above, {_PAGE} a page",
                lambda: f"{token}&threshold={10**30}",
                _P99,
            ),
            measure_p99(client, f"19, {_PAGE} a page", lambda: collection, _P99),
        ]


def _windows(chain: MadeUpHolders) -> list[tuple[int, TimeRange]]:
    """Return thresholds and windows; half of them end before the last holders had anything."""
    random = Random(4)
    end = BEGIN_S + 2 * BLOCK_S * (len(chain.holders) // _MINTS_A_BLOCK)
    queries = []
    for _ in range(_DRAWN):
        since, until = sorted(random.randint(BEGIN_S, end) for _ in range(2))
        queries.append((random.choice((0, 10**18, 5 * 10**20)), TimeRange(since, until)))
    return queries


async def _measure_pages(url: str, folder: Path, chain: MadeUpHolders) -> list[Figure]:
    """Read pages of a token and a collection through the reader."""
    settings = IndexSettings(url)
    index_url = evm_index_url(settings, folder, CHAIN_ID)
    figures = []
    async with EvmIndex(index_url, settings) as index:

        async def token_page(
            threshold: int, times: TimeRange, after: Position | None
        ) -> HolderPage:
            query = HolderQuery(chain.token, threshold, times)
            page = await index.holders_above(query, PageRequest(_PAGE, after), chain.height)
            assert page is not None
            return page

        async def nft_page(after: Position | None) -> HolderPage:
            page = await index.nft_holders(
                chain.collection, PageRequest(_PAGE, after), chain.height
            )
            assert page is not None
            return page

        always = TimeRange()
        queries = [
            partial(token_page, threshold, times, None) for threshold, times in _windows(chain)
        ]
        figures.append(await _p99("18: any window", queries))
        figures.append(await _p99("18: always", [partial(token_page, 0, always, None)]))
        figures.append(
            await _p99("18: no holder is above", [partial(token_page, 10**30, always, None)])
        )
        figures.append(await _p99("19", [partial(nft_page, None)]))
        figures.append(await _depth("18", partial(token_page, 0, always)))
        figures.append(await _depth("19", nft_page))
    return figures


class MadeUpHolders:
    """A token and a collection, minted to many holders, who then transfer the token."""

    def __init__(self, random: Random, holders: int) -> None:
        self._random = random
        self.token, self.collection = random.randbytes(20), random.randbytes(20)
        self.holders = [random.randbytes(20) for _ in range(holders)]
        self.height = -1
        self._hash = bytes(32)

    def blocks(self) -> Iterator[EvmBlockFacts]:
        """Yield all blocks."""
        random = self._random
        yield self._block([], [])
        for start in range(0, len(self.holders), _MINTS_A_BLOCK):
            minted = self.holders[start : start + _MINTS_A_BLOCK]
            coins = [
                Erc20Transfer(self.token, _ZERO, holder, random.randrange(1, 10**21))
                for holder in minted
            ]
            yield self._block(
                coins, [(start + place, _ZERO, holder) for place, holder in enumerate(minted)]
            )
        for _ in range(len(self.holders) // 10 // _TRANSFERS_A_BLOCK):
            pairs = [random.sample(self.holders, 2) for _ in range(_TRANSFERS_A_BLOCK)]
            moved = [
                Erc20Transfer(self.token, sender, to, random.randrange(1, 10**17))
                for sender, to in pairs
            ]
            yield self._block(moved, [])

    def _block(
        self, coins: Sequence[Erc20Transfer], nfts: Sequence[tuple[int, bytes, bytes]]
    ) -> EvmBlockFacts:
        self.height += 1
        parent, self._hash = self._hash, self._random.randbytes(32)
        moved = [
            NftTransfer(
                place,
                0,
                place,
                self.collection,
                TokenStandard.ERC721,
                token_id,
                sender,
                recipient,
                1,
            )
            for place, (token_id, sender, recipient) in enumerate(nfts)
        ]
        return EvmBlockFacts(
            number=self.height,
            hash=self._hash,
            parent_hash=parent,
            time=BEGIN_S + BLOCK_S * self.height,
            tx_count=1,
            gas_used=21_000,
            gas_limit=15_000_000,
            base_fee=None,
            gas_cost=None,
            fees_spent=21_000,
            transfers=tuple(moved),
            tx_hashes={0: self._random.randbytes(32)},
            erc20_transfers=tuple(coins),
        )


async def _p99(name: str, reads: Sequence[Callable[[], Awaitable[HolderPage]]]) -> Figure:
    times = []
    for number in range(_WARM_UP + _SAMPLES):
        began = time.perf_counter()
        await reads[number % len(reads)]()
        times.append(time.perf_counter() - began)
    return Figure(
        f"p99, {name}, {_PAGE} a page", quantile(times[_WARM_UP:], 0.99) * 1_000, "ms", _P99
    )


async def _depth(name: str, read: Callable[[Position | None], Awaitable[HolderPage]]) -> Figure:
    """Compare page 1 with page 500, or with the last full one of a small chain."""
    positions: list[Position | None] = [None]
    while len(positions) < _DEEP_PAGE and (after := (await read(positions[-1])).next) is not None:
        positions.append(after)
    deep = positions[-1] if len(positions) == _DEEP_PAGE else positions[-2]
    times: tuple[list[float], list[float]] = ([], [])
    # In turns, so that other load on the machine affects both.
    for _ in range(_WARM_UP + _SAMPLES):
        for position, spent in zip((None, deep), times, strict=True):
            began = time.perf_counter()
            await read(position)
            spent.append(time.perf_counter() - began)
    first_s, deep_s = (quantile(spent[_WARM_UP:], 0.5) for spent in times)
    return Figure(f"{name}: page {len(positions)} of page 1, median", deep_s / first_s, "x", _DEPTH)


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.db*") if file.is_file()]


def _figures(write_run: WriteRun) -> Iterator[Figure]:
    first, last = write_run.rate(0.0, 0.1), write_run.rate(0.9, 1.0)
    yield Figure(
        "ERC-20 transfers written, whole run", write_run.rate(0.0, 1.0), "transfers/s", _RATE
    )
    yield Figure("ERC-20 transfers written, first tenth", first, "transfers/s")
    yield Figure("ERC-20 transfers written, last tenth", last, "transfers/s")
    yield Figure("last tenth of the first", last / first, "x", _LAST_OF_FIRST)
    # More exact if the machine has other load, but without the time of waiting for the disk.
    yield Figure(
        "the same by processor time", write_run.rate(0.9, 1.0, 2) / write_run.rate(0.0, 0.1, 2), "x"
    )
    if write_run.size:
        yield Figure(
            "store, blocks included",
            write_run.size / write_run.points[-1][0],
            "bytes/transfer",
            _PER_TRANSFER,
        )


if __name__ == "__main__":
    os.nice(5)
    run_sized(__doc__, "--transfers", QUICK, measure)
