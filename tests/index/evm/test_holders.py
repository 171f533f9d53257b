"""Holders of ERC-20 tokens and NFTs against a plain model: any page size, window, threshold and cut
of the blocks.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.index.evm.fixtures import (
    CHAIN_ID,
    IDENTITY,
    index_url,
    open_engine,
    open_index,
    small_settings,
)
from tests.index.evm.histories import (
    GENESIS_PARENT,
    MAX,
    START,
    ZERO,
    History,
    address,
    made_block,
    transfer,
)
from warpseal.chains.evm.facts import Erc20Transfer, EvmBlockFacts
from warpseal.index import read_session
from warpseal.index.evm import export, holder_consistency, holder_queries, holders, ownership
from warpseal.index.evm.consistency import find_inconsistencies
from warpseal.index.evm.database import writing_evm_index
from warpseal.index.evm.export import ExportSubject
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import ContractFacts, EvmChainIdentity, HolderPage
from warpseal.index.evm.schema import create_derived_tables
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.read_session import ReadCache, ReadSession
from warpseal.resources.evm import ErcType, Holder, HolderQuery
from warpseal.resources.queries import PageRequest, TimeRange
from warpseal.resources.text import account_text
from warpseal.store.access import open_read_only

TOKENS = (address(70), address(71), address(72))
WITH_HOLDERS = EvmChainIdentity(
    CHAIN_ID, IDENTITY.evm_chain_id, IDENTITY.genesis_hash, has_holders=True
)
ALWAYS = TimeRange()


@pytest.fixture
def url(any_index_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an index with small partitions."""
    monkeypatch.setattr(ownership, "_PARTITION_ROWS", 7)
    monkeypatch.setattr(holders, "_PARTITION_ROWS", 9)
    return any_index_url


@dataclass
class Blocks:
    """Made-up blocks with ERC-20 and NFT transfers.

    step_s: seconds between blocks.
    """

    seed: int
    step_s: int = 2
    nfts: History = field(init=False)
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.nfts = History(self.seed)
        self.random = Random(self.seed)
        # Some addresses share their first 8 bytes, and some are in the upper half.
        upper = [b"\xff" * 8 + bytes(11) + bytes([number]) for number in range(3)]
        self.parties = [*(address(2_000 + number) for number in range(6)), *upper, ZERO, ZERO]

    def take(self, count: int) -> list[EvmBlockFacts]:
        """Return the next blocks."""
        return [self._next() for _ in range(count)]

    def _next(self) -> EvmBlockFacts:
        random, block = self.random, self.nfts.next_block()
        moves = []
        for _ in range(random.choice((0, 1, 2, 5))):
            sender, recipient = random.sample(self.parties, 2)
            if sender != recipient:
                amount = random.choice(
                    (1, 5, 5, 1_000, 2**64, 10**24, MAX if random.random() < 0.1 else 7)
                )
                moves.append(Erc20Transfer(random.choice(TOKENS), sender, recipient, amount))
        return replaced(block, START + self.step_s * block.number, moves)


def replaced(block: EvmBlockFacts, time: int, moves: Sequence[Erc20Transfer]) -> EvmBlockFacts:
    """Return a block with another time and with ERC-20 transfers."""
    fields = {name: getattr(block, name) for name in block.__struct_fields__}
    return EvmBlockFacts(**{**fields, "time": time, "erc20_transfers": tuple(moves)})


@dataclass
class Model:
    """ERC-20 balances after each block that changed them, and NFT holdings after the last one."""

    times: list[int] = field(default_factory=list)
    balances: dict[tuple[bytes, bytes], list[tuple[int, int]]] = field(default_factory=dict)
    inconsistent: set[bytes] = field(default_factory=set)

    def add(self, block: EvmBlockFacts) -> None:
        self.times.append(block.time)
        now: dict[tuple[bytes, bytes], int] = {}
        for move in block.erc20_transfers:
            for party, change in ((move.sender, -move.amount), (move.recipient, move.amount)):
                if party != ZERO:
                    pair = (move.contract, party)
                    balance = now.get(pair, self.at(pair, block.number)) + change
                    if not 0 <= balance <= MAX:
                        self.inconsistent.add(move.contract)
                    now[pair] = min(MAX, max(0, balance))
        for pair, balance in now.items():
            self.balances.setdefault(pair, []).append((block.number, balance))

    def at(self, pair: tuple[bytes, bytes], number: int) -> int:
        """Return a balance after a block."""
        return next(
            (
                balance
                for block, balance in reversed(self.balances.get(pair, ()))
                if block <= number
            ),
            0,
        )

    def above(self, query: HolderQuery, number: int) -> list[Holder]:
        """Return the holders of a query after a block, in order."""
        since, until = query.times.since, query.times.until
        inside = [
            block
            for block, time in enumerate(self.times[: number + 1])
            if (since is None or time >= since) and (until is None or time <= until)
        ]
        before = [
            block
            for block, time in enumerate(self.times[: number + 1])
            if since is not None and time < since
        ]
        examined = before[-1:] + inside
        holders = [
            Holder(pair[1], self.at(pair, number))
            for pair in self.balances
            if pair[0] == query.contract
            and any(self.at(pair, block) > query.threshold for block in examined)
        ]
        return sorted(holders, key=lambda holder: (-holder.balance, holder.address))


class IndexFiller:
    """An index that is written block by block."""

    def __init__(self, url: str, identity: EvmChainIdentity = WITH_HOLDERS, first: int = 0) -> None:
        settings = small_settings(url)
        self.now = 0.0
        self._engine = writing_evm_index(index_url(url), settings, CHAIN_ID)
        self.writer = EvmIndexWriter(self._engine, settings, lambda: self.now)
        while self.writer.rebuild(60.0) is not None:
            pass
        if self.writer.start(identity) is None and first == 0:
            self.writer.begin(0, GENESIS_PARENT)

    def write(self, blocks: Sequence[EvmBlockFacts]) -> None:
        contracts = self.writer.candidates(blocks)
        if contracts:
            self.writer.set_interfaces({contract: contract == address(2) for contract in contracts})
        self.writer.write(blocks)


async def read(
    index: EvmIndex, query: HolderQuery, size: int, at_block: int | None = None
) -> tuple[list[Holder], HolderPage]:
    """Return the holders of all pages, and the first page; later pages show its block."""
    return await _all_pages(
        lambda page, block: index.holders_above(query, page, block), size, at_block
    )


async def read_nfts(index: EvmIndex, contract: bytes, size: int) -> tuple[list[Holder], HolderPage]:
    """Return the NFT holders of all pages, and the first page."""
    return await _all_pages(
        lambda page, block: index.nft_holders(contract, page, block), size, None
    )


async def _all_pages(
    read: Callable[..., Any], size: int, at_block: int | None
) -> tuple[list[Holder], HolderPage]:
    holders: list[Holder] = []
    first: HolderPage | None = None
    after = None
    for _ in range(10_000):
        page = await read(PageRequest(size, after), at_block)
        assert page is not None
        assert len(page.items) <= size
        first = first or page
        at_block, after = page.block, page.next
        assert page.block == first.block
        holders += page.items
        if after is None:
            return holders, first
    raise AssertionError("the pages do not end")


def some_queries(random: Random, last_time: int) -> list[HolderQuery]:
    """Return queries of any threshold and time range, also of times before the first and after the
    last block.
    """
    thresholds = (0, 0, 4, 5, 1_000, 2**64, 10**24 - 1, MAX)
    queries = [HolderQuery(token, 0, ALWAYS) for token in TOKENS]
    for _ in range(40):
        bounds = sorted(random.randint(START - 5, last_time + 5) for _ in range(2))
        since, until = (bound if random.random() < 0.7 else None for bound in bounds)
        queries.append(
            HolderQuery(random.choice(TOKENS), random.choice(thresholds), TimeRange(since, until))
        )
    return queries


@pytest.mark.parametrize("seed", range(2))
async def test_holders_above_a_threshold_are_those_of_the_model(
    url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, model, random = Blocks(seed), Model(), Random(seed)
    history = blocks.take(120)
    filler, place = IndexFiller(url), 0
    while place < len(history):
        count = random.randint(1, 9)
        filler.write(history[place : place + count])
        place += count
    for block in history:
        model.add(block)
    async with open_index(url) as index:
        for number, query in enumerate(some_queries(random, history[-1].time)):
            if number == 20:
                monkeypatch.setattr(holder_queries, "MAX_HOLDERS", 3)
                monkeypatch.setattr(holder_queries, "MAX_HISTORIES", 1)
                monkeypatch.setattr(holder_queries, "MAX_BALANCES", 2)
                monkeypatch.setattr(holder_queries, "_FIRST_BALANCE_ROWS", 1)
                monkeypatch.setattr(holder_queries, "_MORE_BALANCE_ROWS", 2)
            holders, page = await read(index, query, random.choice((1, 2, 3, 100)))
            assert holders == model.above(query, len(history) - 1), query
            assert page.events_inconsistent == (query.contract in model.inconsistent)
        unknown = await read(index, HolderQuery(address(9), 0, ALWAYS), 5)
        assert unknown == ([], HolderPage((), block=len(history) - 1))


async def test_more_equal_holders_than_can_be_sorted_are_on_one_page_each(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipients = [address(2_000 + number) for number in (5, 3, 9, 1, 7, 8, 2, 6)]
    moves = [Erc20Transfer(TOKENS[0], ZERO, recipient, 5) for recipient in recipients]
    others = [
        Erc20Transfer(TOKENS[0], ZERO, recipient, 4) for recipient in (address(31), address(30))
    ]
    filler = IndexFiller(url)
    filler.write([replaced(Blocks(1).take(1)[0], START, [*moves, *others])])
    query = HolderQuery(TOKENS[0], 0, ALWAYS)
    expected = {limit: [Holder(recipient, 5) for recipient in recipients] for limit in (3, 7)}
    expected[8] = sorted(expected[7], key=lambda holder: holder.address)
    async with open_index(url) as index:
        for limit, equal in expected.items():
            monkeypatch.setattr(holder_queries, "MAX_EQUAL", limit)
            for size in range(1, 12):
                holders, _ = await read(index, query, size)
                assert (
                    holders[:8] == equal
                    if limit == 8
                    else sorted(holders[:8], key=repr) == sorted(equal, key=repr)
                )
                assert holders[8:] == [Holder(address(30), 4), Holder(address(31), 4)]


def rows_of(url: str) -> dict[str, list[Any]]:
    """Return the rows of balances and holders by addresses, since keys depend on the batches."""
    engine = open_engine(url)
    with engine.connect() as connection, connection.snapshot():
        assert list(find_inconsistencies(connection)) == []
        ids = {
            0: ZERO,
            **{key: bytes(raw) for key, raw in connection.fetch("SELECT key, id FROM ids")},
        }
        text = "SELECT -number, contract FROM collections"
        collections: dict[int, int] = dict(connection.fetch(text))
        texts = {
            "balances": "SELECT asset, holder, block, balance, previous IS NULL FROM balances",
            "holders": (
                "SELECT asset, holder, rank, maximum, CASE WHEN asset > 0 THEN changed END"
                " FROM holders"
            ),
            "ranks": "SELECT asset, holder, rank, position, maximum FROM ranks",
            "totals": "SELECT -collection, 0, holders, tokens FROM nft_totals",
        }
        contents = {
            name: sorted(
                repr((ids[collections.get(asset, asset)], ids[holder], *map(_plain, rest)))
                for asset, holder, *rest in connection.fetch(text)
            )
            for name, text in texts.items()
        }
    engine.dispose()
    return contents


def _plain(field: Any) -> Any:
    return bytes(field) if isinstance(field, memoryview) else field


def test_the_rows_of_holders_do_not_depend_on_the_cut_of_the_blocks(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = Blocks(5).take(60)
    contents = []
    for cut in (1, 7, 60):
        filler = IndexFiller(url)
        filler.writer.start(WITH_HOLDERS)
        for place in range(0, len(history), cut):
            filler.write(history[place : place + cut])
        contents.append(rows_of(url))
        # Another identity drops the index.
        IndexFiller(url, IDENTITY).writer.close()
        filler.writer.close()
    assert contents[0] == contents[1] == contents[2]
    assert len(contents[0]["balances"]) > 100


async def test_later_pages_show_the_block_of_the_first_page_while_the_index_grows(url: str) -> None:
    blocks, random = Blocks(8), Random(8)
    filler, model = IndexFiller(url), Model()
    walks: list[tuple[HolderQuery, int, list[Holder], Any]] = []
    nft_walks: list[tuple[bytes, list[Holder], HolderPage, list[Holder], Any]] = []
    async with open_index(url) as index:
        for _ in range(40):
            history = blocks.take(random.randint(1, 4))
            filler.write(history)
            for block in history:
                model.add(block)
            query = random.choice(some_queries(random, history[-1].time))
            walks.append((query, history[-1].number, [], None))
            contract = address(random.choice((1, 3, 5, 6)))
            expected, first = await read_nfts(index, contract, 100)
            nft_walks.append((contract, expected, first, [], None))
            for place, (query, number, holders, after) in enumerate(walks):
                if after is not None or not holders:
                    page = await index.holders_above(query, PageRequest(2, after), number)
                    assert page is not None
                    assert page.block == number
                    holders += page.items
                    walks[place] = (query, number, holders, page.next)
            for place, (contract, expected, first, holders, after) in enumerate(nft_walks):
                if after is not None or not holders:
                    page = await index.nft_holders(contract, PageRequest(1, after), first.block)
                    assert page is not None
                    assert (page.total_holders, page.total_tokens) == (
                        first.total_holders,
                        first.total_tokens,
                    )
                    holders += page.items
                    nft_walks[place] = (contract, expected, first, holders, page.next)
        for query, number, _, _ in walks:
            holders, _ = await read(index, query, 3, number)
            assert holders == model.above(query, number)
        for query, number, holders, after in walks:
            if after is None:
                assert holders == model.above(query, number)
        for _, expected, _, holders, after in nft_walks:
            assert holders == expected if after is None else holders == expected[: len(holders)]
        assert sum(after is None and len(holders) > 4 for _, _, holders, after in walks) > 3


async def test_nft_holders_and_totals_are_those_of_all_held_tokens(url: str) -> None:
    filler, history = IndexFiller(url, IDENTITY), Blocks(3).take(150)
    filler.write(history[:70])
    filler.write(history[70:])
    async with open_index(url) as index:
        for contract in map(address, (1, 2, 3, 4, 5, 6)):
            held: dict[bytes, int] = {}
            tokens = await held_tokens(index, contract, filler)
            for owner, _ in tokens:
                held[owner] = held.get(owner, 0) + 1
            expected = sorted(
                (Holder(owner, count) for owner, count in held.items()),
                key=lambda h: (-h.balance, h.address),
            )
            holders, page = await read_nfts(index, contract, 2)
            assert holders == expected
            assert (page.total_holders, page.total_tokens) == (
                len(held),
                len({token for _, token in tokens}),
            )
            assert page.name == ""
            assert bool(page.missing) == bool(tokens)
        assert (
            await index.holders_above(HolderQuery(TOKENS[0], 0, ALWAYS), PageRequest(5))
        ) is None
        filler.writer.contracts.write(
            [ContractFacts(address(1), ErcType.ERC1155, "Nägel", None, None, 149)]
        )
        holder_page = await index.nft_holders(address(1), PageRequest(1))
        assert holder_page is not None
        assert (holder_page.name, holder_page.symbol, bool(holder_page.missing)) == (
            "Nägel",
            "",
            False,
        )
        empty = await index.nft_holders(TOKENS[0], PageRequest(1))
        assert empty == HolderPage((), block=149)


async def held_tokens(
    index: EvmIndex, contract: bytes, filler: IndexFiller
) -> list[tuple[bytes, int]]:
    """Return the owner and the key of every held token of a contract, from the rows of holdings."""
    with filler.writer._engine.begin() as connection:
        text = (
            "SELECT i.id, h.token FROM holdings h JOIN ids i ON i.key = h.owner JOIN collections c"
            " ON c.number = (h.token >> 36) JOIN ids n ON n.key = c.contract"
        )
        rows = connection.fetch(f"{text} WHERE n.prefix = 0 AND n.id = ?", contract)
        return [(bytes(owner), token) for owner, token in rows]


async def test_states_of_more_than_a_day_ago_are_dropped(url: str) -> None:
    filler = IndexFiller(url)
    blocks = Blocks(4, step_s=3_600)
    filler.write(blocks.take(10))
    query = HolderQuery(TOKENS[0], 0, ALWAYS)
    async with open_index(url) as index:
        for block in blocks.take(60):
            filler.now = block.time
            filler.write([block])
            now = block.number
            for number in range(max(9, now - 24), now + 1, 6):
                assert await index.holders_above(query, PageRequest(5), number) is not None
        assert await index.holders_above(query, PageRequest(5), 10) is None
        assert await index.nft_holders(address(1), PageRequest(5), 10) is None
        assert await index.holders_above(query, PageRequest(5), 70) is None
    with filler.writer._engine.begin() as connection:
        ((first, last),) = connection.fetch("SELECT min(until), max(until) FROM past_ranks")
    assert 30 < first < 69 - 24 < last


async def test_states_of_a_backfill_are_kept_for_a_day_of_the_clock_up_to_a_number(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "KEPT_OF_BACKFILL", 1_000)
    filler, history = IndexFiller(url), Blocks(4, step_s=3_600).take(100)
    for block in history[:70]:
        filler.write([block])
        filler.now += 60
    query = HolderQuery(TOKENS[0], 0, ALWAYS)
    async with open_index(url) as index:
        # 70 hours of blocks were written within 70 minutes.
        assert await index.holders_above(query, PageRequest(5), 10) is not None
        monkeypatch.setattr(holders, "KEPT_OF_BACKFILL", 2)
        filler.write(history[70:71])
        assert await index.holders_above(query, PageRequest(5), 10) is None
        assert await index.holders_above(query, PageRequest(5), 60) is not None
        monkeypatch.setattr(holders, "KEPT_OF_BACKFILL", 1_000)
        for block in history[71:]:
            filler.write([block])
        assert await index.holders_above(query, PageRequest(5), 71) is not None
        filler.now += holders.KEPT_S + 1
        filler.write(Blocks(4, step_s=3_600).take(101)[100:])
        assert await index.holders_above(query, PageRequest(5), 71) is None
        assert await index.holders_above(query, PageRequest(5), 90) is not None


async def test_derived_rows_are_made_again_from_the_stored_balances(url: str) -> None:
    filler, history = IndexFiller(url), Blocks(6).take(80)
    for place in range(0, 80, 8):
        filler.write(history[place : place + 8])
    before = rows_of(url)
    with filler.writer._engine.begin() as connection:
        create_derived_tables(connection)
    filler.writer.close()
    again = IndexFiller(url)
    assert rows_of(url) == before
    query = HolderQuery(TOKENS[1], 4, ALWAYS)
    model = Model()
    async with open_index(url) as index:
        # The blocks at which the states were derived again are others.
        assert await index.holders_above(query, PageRequest(5), 39) is None
        more = Blocks(6).take(90)[80:]
        again.write(more)
        for block in history + more:
            model.add(block)
        for number in (79, 89):
            holders, _ = await read(index, query, 2, number)
            assert holders == model.above(query, number)


async def test_a_deposit_without_an_event_leads_to_a_marked_contract_and_no_balance_below_zero(
    file_url: str,
) -> None:
    filler = IndexFiller(file_url)
    rich, poor = address(1), address(2)
    moves = [
        [Erc20Transfer(TOKENS[0], ZERO, rich, 10), Erc20Transfer(TOKENS[1], ZERO, rich, MAX)],
        # The deposit of `poor` emitted no Transfer.
        [Erc20Transfer(TOKENS[0], poor, rich, 5)],
        [Erc20Transfer(TOKENS[2], ZERO, rich, MAX), Erc20Transfer(TOKENS[2], ZERO, rich, 1)],
        [Erc20Transfer(TOKENS[0], rich, ZERO, 15)],
    ]
    filler.write(
        [
            replaced(made_block(number), START + number, listed)
            for number, listed in enumerate(moves)
        ]
    )
    async with open_index(file_url) as index:
        pages = [
            await index.holders_above(HolderQuery(token, 0, ALWAYS), PageRequest(5))
            for token in TOKENS
        ]
    assert [page and (page.items, page.events_inconsistent) for page in pages] == [
        ((Holder(rich, 0),), True),
        ((Holder(rich, MAX),), False),
        ((Holder(rich, MAX),), True),
    ]


@pytest.mark.parametrize("kind", [ErcType.ERC721, ErcType.ERC1155, ErcType.UNKNOWN])
async def test_a_contract_of_another_kind_has_no_erc20_holders(
    file_url: str, kind: ErcType
) -> None:
    filler = IndexFiller(file_url)
    moves = [Erc20Transfer(address(1), ZERO, address(9), 4)]
    nft = transfer(0, 1, 4, ZERO, address(9))
    filler.write([replaced(made_block(0, [nft]), START, moves)])
    query = HolderQuery(address(1), 0, ALWAYS)
    async with open_index(file_url) as index:
        page = await index.holders_above(query, PageRequest(5))
        assert page is not None
        assert page.items == (Holder(address(9), 4),)
        filler.writer.contracts.write([ContractFacts(address(1), kind, "Kitties", "K", None, 0)])
        assert await index.holders_above(query, PageRequest(5)) == HolderPage((), block=0)


async def test_an_index_that_begins_later_has_no_erc20_holders(file_url: str) -> None:
    history = Blocks(1).take(6)
    filler = IndexFiller(
        file_url, EvmChainIdentity(CHAIN_ID, 43_112, b"g" * 32, 3, has_holders=True), first=3
    )
    filler.writer.begin(3, history[2].hash)
    filler.write(history[3:])
    async with open_index(file_url) as index:
        assert await index.holders_above(HolderQuery(TOKENS[0], 0, ALWAYS), PageRequest(5)) is None
        assert await index.nft_holders(address(1), PageRequest(5)) is not None


def test_sampled_balances_are_those_of_the_model(url: str) -> None:
    filler, history, model = IndexFiller(url), Blocks(2).take(50), Model()
    filler.write(history)
    for block in history:
        model.add(block)
    engine = open_engine(url)
    with engine.connect() as connection, connection.snapshot():
        sampled = holder_consistency.sample_balances(connection, 20, Random(1))
        assert len(sampled) > 5
        for balance in sampled:
            pair = (balance.contract, balance.holder)
            current = holder_consistency.current_balance(connection, balance)
            assert (current.balance, current.is_inconsistent) == (
                model.at(pair, 49),
                pair[0] in model.inconsistent,
            )
            changes = holder_consistency.changes_of_balance(connection, balance, 100)
            assert sum(changes.values()) == current.balance
            assert list(changes) == sorted(changes, reverse=True)
            newest = holder_consistency.changes_of_balance(connection, balance, 2)
            assert list(newest.items()) == list(changes.items())[:2]
    engine.dispose()


def test_an_export_has_every_change_of_a_balance_and_holds_few_addresses(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_ROWS_PER_READ", 2)
    monkeypatch.setattr(read_session, "MAX_CACHED", 2)
    filler, history, model = IndexFiller(url), Blocks(2).take(50), Model()
    for place in range(0, 50, 10):
        filler.write(history[place : place + 10])
    for block in history:
        model.add(block)
    changes = [
        (
            str(number),
            model.times[number],
            account_text(contract),
            account_text(holder),
            str(balance),
        )
        for (contract, holder), balances_after in model.balances.items()
        for (_, before), (number, balance) in pairwise([(-1, 0), *balances_after])
        if balance != before
    ]
    cache = ReadCache()
    with open_read_only(index_url(url)) as connection, connection.snapshot():
        session, rows = ReadSession(connection, cache), []
        for row in export.export_rows(session, ExportSubject.BALANCES):
            rows.append(tuple(row.values()))
            # Two that are cached, and those of two rows; there are twelve.
            assert max(len(cache.ids), len(session._ids)) <= 2 + 2 * 2
        (firsts,) = zip(
            *connection.fetch("SELECT first FROM balance_partitions ORDER BY number"), strict=True
        )
    assert sorted(rows) == sorted(changes)
    partitions = [bisect(firsts, int(row[0])) for row in rows]
    assert (partitions == sorted(partitions), len(set(partitions)) > 5) == (True, True)
