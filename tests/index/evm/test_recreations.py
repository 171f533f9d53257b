"""A contract that is destroyed and created again at its address holds nothing of what the first one
held.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.index.evm.fixtures import open_engine, open_index, read_collectibles, read_collection
from tests.index.evm.histories import ZERO, History, address, hash_of, made_block, transfer
from tests.index.evm.test_holders import ALWAYS, IndexFiller, Model, read, read_nfts, replaced
from warpseal.chains.evm.facts import Creation, Erc20Transfer, EvmBlockFacts
from warpseal.index.evm import holders, ownership
from warpseal.index.evm.consistency import find_inconsistencies
from warpseal.index.evm.records import ContractFacts, FetchReason, TokenDocument, TracedBlock
from warpseal.index.evm.schema import create_derived_tables
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.resources.evm import (
    CollectibleQuery,
    ErcType,
    Holder,
    HolderQuery,
    MetadataStatus,
)
from warpseal.resources.text import account_text

CONTRACT, FACTORY, DEPLOYER = 1, address(7), address(8)
FIRST, SECOND = address(1_000), address(1_001)
TOKEN = address(70)
NOW = 2**31


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some rows fill many partitions and parts."""
    monkeypatch.setattr(ownership, "_PARTITION_ROWS", 7)
    monkeypatch.setattr(ownership, "_ENDED_HOLDERS", 2)
    monkeypatch.setattr(ownership, "_RENEWED_TRANSFERS", 3)
    monkeypatch.setattr(holders, "_PARTITION_ROWS", 9)


def creation(contract: int, tx_index: int = 0) -> Creation:
    return Creation(tx_index, contract, address(contract), DEPLOYER, FACTORY)


def traced(number: int, *creations: Creation) -> TracedBlock:
    return TracedBlock(
        number, creations, {item.tx_index: hash_of(number, item.tx_index) for item in creations}
    )


def derived_rows(url: str) -> dict[str, list[Any]]:
    """Return the rows that follow from lives of contracts; `index verify` finds nothing in them."""
    engine = open_engine(url)
    with engine.connect() as connection, connection.snapshot():
        assert list(find_inconsistencies(connection)) == []
        # Keys depend on the order of writing.
        asset = (
            "CASE WHEN asset > 0 THEN asset ELSE (SELECT contract FROM collections c"
            " WHERE c.number = -asset) END"
        )
        contract = "(SELECT contract FROM collections c WHERE c.number = token >> 36)"
        token = f"{contract}, 0, token & 1, short, t.id"
        tokens = "JOIN tokens t ON t.number = (token >> 1 & 34359738367)"
        collection = "(SELECT contract FROM collections c WHERE c.number = collection)"
        texts = (
            f"SELECT {asset}, holder, block, balance FROM balances",
            f"SELECT {asset}, holder, rank, maximum FROM holders",
            f"SELECT {asset}, holder, rank, maximum FROM ranks",
            f"SELECT {token}, holder * (token & 1) FROM owners {tokens}",
            f"SELECT {contract}, owner, token & 1, short, t.id, balance FROM holdings {tokens}",
            f"SELECT {collection}, 0, holders, tokens FROM nft_totals WHERE tokens > 0",
            f"SELECT {collection}, 0 FROM inconsistent",
        )
        ids = {
            0: ZERO,
            **{key: bytes(raw) for key, raw in connection.fetch("SELECT key, id FROM ids")},
        }
        rows = {}
        for text in texts:
            fetched = (list(map(_plain, row)) for row in connection.fetch(text))
            rows[text] = sorted(
                repr([ids[first], ids.get(second), *rest]) for first, second, *rest in fetched
            )
    engine.dispose()
    return rows


def _plain(field: Any) -> Any:
    return bytes(field) if isinstance(field, memoryview) else field


def rebuilt_rows(url: str) -> dict[str, list[Any]]:
    """Return the rows after they are derived again."""
    filler = IndexFiller(url)
    with filler.writer._engine.begin() as connection:
        create_derived_tables(connection)
    filler.writer.close()
    IndexFiller(url).writer.close()
    return derived_rows(url)


@pytest.mark.parametrize("is_late", [True, False], ids=["by a trace", "by a receipt"])
async def test_tokens_of_a_destroyed_contract_are_held_no_more(
    any_index_url: str, is_late: bool
) -> None:
    again = creation(CONTRACT, 3)
    blocks = [
        made_block(0),
        made_block(
            1, [transfer(0, CONTRACT, 7, ZERO, FIRST), transfer(1, CONTRACT, 8, ZERO, SECOND)]
        ),
        made_block(2, [transfer(0, CONTRACT, 9, ZERO, FIRST, amount=5)]),
        # A transfer of the first contract, and one of the second contract, in the block of its
        # creation.
        made_block(
            3,
            [
                transfer(0, CONTRACT, 8, SECOND, FIRST, tx_index=2),
                transfer(1, CONTRACT, 9, ZERO, SECOND, amount=2, tx_index=3),
            ],
            () if is_late else (again,),
        ),
        made_block(
            4,
            [
                transfer(0, CONTRACT, 7, ZERO, SECOND),
                transfer(1, CONTRACT, 9, SECOND, FIRST, amount=1),
            ],
        ),
    ]
    filler = IndexFiller(any_index_url)
    filler.write(blocks[:1])
    filler.writer.traces.write(0, 0, [traced(0, creation(CONTRACT))])
    filler.write(blocks[1:])
    if is_late:
        filler.writer.traces.write(1, 3, [traced(3, again)])
    filler.writer.close()
    contract = account_text(address(CONTRACT))
    async with open_index(any_index_url) as index:
        assert await read_collectibles(index, CollectibleQuery(FIRST), 10) == [
            (contract, "ERC-1155", "9", "1", False)
        ]
        assert sorted(await read_collectibles(index, CollectibleQuery(SECOND), 10)) == [
            (contract, "ERC-1155", "9", "1", False),
            (contract, "ERC-721", "7", None, False),
        ]
        assert len(await read_collection(index, address(CONTRACT), 10)) == 2
        nft_holders, page = await read_nfts(index, address(CONTRACT), 10)
        assert nft_holders == [Holder(SECOND, 2), Holder(FIRST, 1)]
        assert (page.total_holders, page.total_tokens) == (2, 2)
    rows = derived_rows(any_index_url)
    assert rebuilt_rows(any_index_url) == rows


@pytest.mark.parametrize("is_late", [True, False], ids=["by a trace", "by a receipt"])
def test_a_contract_that_is_created_again_is_called_again_for_its_name_and_documents(
    any_index_url: str, is_late: bool
) -> None:
    again = creation(CONTRACT, 3)
    filler = IndexFiller(any_index_url)
    writer = filler.writer
    filler.write([made_block(0), made_block(1, [transfer(0, CONTRACT, 7, ZERO, FIRST)])])
    writer.traces.write(0, 0, [traced(0, creation(CONTRACT))])
    result = ContractFacts(address(CONTRACT), ErcType.ERC721, "Old", "OLD", None, 1)
    writer.contracts.write([result])
    writer.documents.write([TokenDocument(address(CONTRACT), 7, MetadataStatus.INDEXED, 1)])
    assert writer.contracts.to_call(10) == []
    assert writer.documents.to_fetch(FetchReason.DUE, 10, NOW) == ()
    # The new contract has tokens of the same kind, which alone would be no reason for a call.
    mint = transfer(0, CONTRACT, 7, ZERO, SECOND, tx_index=3)
    filler.write([made_block(2), made_block(3, [mint], () if is_late else (again,))])
    if is_late:
        writer.traces.write(1, 3, [traced(3, again)])
    assert [contract.address for contract in writer.contracts.to_call(10)] == [address(CONTRACT)]
    due = writer.documents.to_fetch(FetchReason.DUE, 10, NOW)
    assert [(token.contract, token.token_id) for token in due] == [(address(CONTRACT), 7)]
    # Results of a call at an earlier block are those of the former contract.
    writer.contracts.write([result])
    assert len(writer.contracts.to_call(10)) == 1
    writer.contracts.write([ContractFacts(address(CONTRACT), ErcType.ERC721, "New", "N", None, 3)])
    assert writer.contracts.to_call(10) == []
    writer.close()


async def test_balances_of_a_destroyed_erc20_contract_end(any_index_url: str) -> None:
    def block(number: int, *moves: tuple[bytes, bytes, int]) -> EvmBlockFacts:
        transfers = [Erc20Transfer(TOKEN, *move) for move in moves]
        return replaced(made_block(number, needs_trace=True), 1_700_000_000 + 2 * number, transfers)

    token = creation(70)
    filler = IndexFiller(any_index_url)
    filler.write(
        [block(0, (ZERO, FIRST, 100), (ZERO, SECOND, 50)), block(1, (FIRST, SECOND, 10)), block(2)]
    )
    filler.writer.traces.write(0, 0, [traced(0, token)])
    filler.write([block(3, (ZERO, FIRST, 7)), block(4, (FIRST, address(1_002), 3))])
    filler.writer.traces.write(1, 4, [traced(2, token)])
    # The same trace once more changes nothing.
    with filler.writer._engine.begin() as connection:
        connection.run("INSERT INTO trace_gaps VALUES (2, 2)")
    filler.writer.traces.write(2, 2, [traced(2, token)])
    filler.writer.close()
    async with open_index(any_index_url) as index:
        listed, _ = await read(index, HolderQuery(TOKEN, 0, ALWAYS), 10)
        # In all of the time, SECOND had 60.
        assert listed == [Holder(FIRST, 4), Holder(address(1_002), 3), Holder(SECOND, 0)]
    rows = derived_rows(any_index_url)
    assert rebuilt_rows(any_index_url) == rows


class Lives:
    """Blocks of contracts that are created again and again; what each holds is reckoned from its
    newest creation.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nfts = History(seed)
        self.balances: dict[bytes, int] = {}
        self.traces: dict[int, TracedBlock] = {}
        self.model = Model()

    def next_block(self) -> EvmBlockFacts:
        """Return the next block, and note its trace."""
        random, block = self.random, self.nfts.next_block()
        contracts = [
            contract
            for contract in (1, 2, 3, 4, 5, 6)
            if not block.number or random.random() < 0.05
        ]
        creations = [creation(contract, random.randrange(4)) for contract in contracts]
        if not block.number or random.random() < 0.1:
            creations.append(creation(70, 0))
            self.balances.clear()
            for pair in self.model.balances:
                if self.model.at(pair, block.number):
                    self.model.balances[pair].append((block.number, 0))
        moves = [self._move() for _ in range(random.choice((0, 1, 3)))]
        block = replaced(block, block.time, [move for move in moves if move is not None])
        self.model.add(block)
        if creations:
            self.traces[block.number] = traced(block.number, *creations)
        return block

    def _move(self) -> Erc20Transfer | None:
        random = self.random
        parties = [address(2_000 + number) for number in range(6)]
        sender, recipient = random.choice((ZERO, *self.balances)), random.choice((ZERO, *parties))
        held = self.balances.get(sender, 0)
        amount = (
            random.choice((1, 5, 2**64)) if sender == ZERO else random.choice((held, held // 2))
        )
        if sender == recipient or not amount:
            return None
        self.balances[sender] = held - amount
        self.balances[recipient] = self.balances.get(recipient, 0) + amount
        self.balances.pop(ZERO, None)
        return Erc20Transfer(TOKEN, sender, recipient, amount)


@pytest.mark.parametrize("seed", range(4))
async def test_traces_in_any_order_and_a_rebuild_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    lives = Lives(seed)
    blocks = [lives.next_block() for _ in range(80)]
    recreated = [item for block in lives.traces.values() for item in block.creations]
    assert len(recreated) > 15
    everything = []
    for order in range(3):
        url = f"sqlite:///{tmp_path_factory.mktemp('lives')}/index.db"
        write_in_order(url, blocks, lives.traces, Random(order), is_early=order == 0)
        everything.append(derived_rows(url))
        async with open_index(url) as index:
            listed, _ = await read(index, HolderQuery(TOKEN, 0, ALWAYS), 10)
            held = [
                holder
                for holder in lives.model.above(HolderQuery(TOKEN, 0, ALWAYS), 79)
                if holder.balance
            ]
            assert [holder for holder in listed if holder.balance] == held
        rebuilt = rebuilt_rows(url)
        assert rebuilt == everything[-1]
    assert everything[0] == everything[1] == everything[2]


def write_in_order(
    url: str,
    blocks: Sequence[EvmBlockFacts],
    traces: dict[int, TracedBlock],
    random: Random,
    *,
    is_early: bool,
) -> None:
    """Write blocks and traces: each trace behind its block, or all in any order behind the last
    block.
    """
    filler = IndexFiller(url)
    at = 0
    while at < len(blocks):
        count = 1 if is_early else random.choice((1, 3, 17))
        filler.write(blocks[at : at + count])
        if is_early:
            filler.writer.traces.write(at, at, [traces[at]] if at in traces else [])
        at += count
    if not is_early:
        last = len(blocks) - 1
        filler.writer.traces.write(0, last, [], range(last + 1))
        heights = list(range(last + 1))
        random.shuffle(heights)
        for height in heights:
            filler.writer.traces.write(height, height, [traces[height]] if height in traces else [])
    filler.writer.close()


def test_an_index_of_the_version_before_is_corrected(
    any_index_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(EvmIndexWriter, "_end_destroyed", lambda *_: None)
        filler = IndexFiller(any_index_url)
        filler.write(
            [
                made_block(0),
                made_block(1, [transfer(0, CONTRACT, 7, ZERO, FIRST)], needs_trace=True),
            ]
        )
        filler.write([made_block(2, needs_trace=True)])
        traces = [traced(0, creation(CONTRACT)), traced(2, creation(CONTRACT))]
        filler.writer.traces.write(0, 2, traces)
        with filler.writer._engine.begin() as connection:
            connection.run("DROP INDEX creations_by_contract")
            connection.run("UPDATE alembic_version SET version_num = '0004'")
        filler.writer.close()
    engine = open_engine(any_index_url)
    with engine.connect() as connection, connection.snapshot():
        assert [item.subject for item in find_inconsistencies(connection)][:1] == [
            "owners, token 68719476736"
        ]
    engine.dispose()
    IndexFiller(any_index_url).writer.close()
    holdings = [
        rows for text, rows in derived_rows(any_index_url).items() if "FROM holdings" in text
    ]
    assert holdings == [[]]
