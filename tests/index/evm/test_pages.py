"""Pages: filters, bounds of blocks, hidden contracts, and pages that end early."""

from __future__ import annotations

import pytest

from tests.index.evm.fixtures import (
    all_items,
    open_index,
    open_writer,
    read_collectibles,
    read_transfers,
    token_fields,
)
from tests.index.evm.histories import MAX, START, History, address, made_block, transfer
from tests.index.evm.model import EvmModel
from warpseal.chains.evm.facts import TokenStandard
from warpseal.chains.evm.nft_document import NftFields
from warpseal.index.evm.records import MAX_PAGE_BYTES, ContractFacts, TokenDocument
from warpseal.resources.base import UNSET, SortOrder
from warpseal.resources.evm import CollectibleQuery, Erc1155Query, ErcType, MetadataStatus
from warpseal.resources.queries import PageRequest

ZERO, ALICE = address(0), address(1_000)
BLOCKS = 80


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, EvmModel]:
    """Return the URL of an index with a history, and its model."""
    url = f"sqlite:///{tmp_path_factory.mktemp('history')}/index.db"
    model = EvmModel({address(2): True, address(4): True})
    with open_writer(url) as writer:
        blocks = History(9).blocks(BLOCKS)
        writer.set_interfaces(model.is_erc721)
        writer.write(blocks)
    for block in blocks:
        model.add(block)
    return url, model


async def test_transfers_are_bounded_by_blocks(history: tuple[str, EvmModel]) -> None:
    url, model = history
    async with open_index(url) as index:
        for start, end in (
            (0, 10),
            (20, 40),
            (39, 40),
            (40, 40),
            (70, MAX),
            (BLOCKS, MAX),
            (-5, 3),
        ):
            for order in SortOrder:
                transfers = await read_transfers(index, Erc1155Query(ALICE, start, end, order), 4)
                expected = model.transfers(ALICE, start, end)
                assert transfers == (expected if order is SortOrder.ASC else expected[::-1])


async def test_collectibles_of_one_contract(history: tuple[str, EvmModel]) -> None:
    url, model = history
    async with open_index(url) as index:
        for contract in map(address, range(9)):
            for holder in map(address, range(1_000, 1_006)):
                query = CollectibleQuery(holder, contract)
                assert await read_collectibles(index, query, 2) == model.collectibles(
                    holder, contract
                )


async def test_hidden_contracts_are_left_out(history: tuple[str, EvmModel]) -> None:
    url, model = history
    hidden = frozenset(map(address, (1, 2, 6, 12_345)))
    texts = {f"0x{contract.hex()}" for contract in hidden}
    async with open_index(url) as index:
        for holder in map(address, range(1_000, 1_012)):
            visible = [item for item in model.collectibles(holder) if item[0] not in texts]
            assert (
                await read_collectibles(index, CollectibleQuery(holder, hidden=hidden), 2)
                == visible
            )
            moved = [item for item in model.transfers(holder) if item[8] not in texts]
            query = Erc1155Query(holder, order=SortOrder.ASC, hidden=hidden)
            assert await read_transfers(index, query, 2) == moved


async def test_many_hidden_transfers_give_short_pages_that_continue(
    history: tuple[str, EvmModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, model = history
    monkeypatch.setattr("warpseal.index.evm.queries.MAX_SCANNED", 3)
    visible = [item for item in model.transfers(ALICE) if item[8] == "0x" + address(6).hex()]
    query = Erc1155Query(ALICE, order=SortOrder.ASC, hidden=frozenset(map(address, (1, 3, 5))))
    async with open_index(url) as index:
        assert await read_transfers(index, query, 2) == visible


async def test_single_tokens_are_found_held_or_not(history: tuple[str, EvmModel]) -> None:
    url, model = history
    async with open_index(url) as index:
        unheld = 0
        for contract in map(address, (1, 2, 3)):
            for token in model.tokens[contract]:
                (item,) = (await index.token(contract, token[2])).items
                assert token_fields(item) == model.token(token)
                unheld += not model.holders[token]
        assert unheld
        assert (await index.token(address(2), 7_777)).items == ()
        assert (await index.token(address(7_777), 1)).items == ()


async def test_a_contract_of_both_standards_has_two_tokens_with_one_id(file_url: str) -> None:
    moves = [transfer(0, 6, 1, ZERO, ALICE, amount=3), transfer(1, 6, 1, ZERO, address(1_001))]
    moves += [transfer(2, 6, 1, ALICE, ZERO, amount=3)]
    with open_writer(file_url) as writer:
        writer.write([made_block(0, moves)])
        writer.documents.write(
            [
                TokenDocument(
                    address(6), 1, MetadataStatus.INDEXED, START, standard=TokenStandard.ERC721
                )
            ]
        )
    async with open_index(file_url) as index:
        # The one that is held.
        (item,) = (await index.token(address(6), 1)).items
        assert (item.erc_type, item.metadata.index_status) == ("ERC-721", "INDEXED")
        (moved,) = (await index.erc1155_transfers(Erc1155Query(ALICE, end=1), PageRequest(1))).items
        assert moved.erc1155_token.metadata.index_status == "UNINDEXED"


async def test_pages_end_early_at_4_mib(file_url: str) -> None:
    moves = [transfer(number, 3, number, ZERO, ALICE, amount=1) for number in range(7)]
    large = TokenDocument(
        address(3),
        0,
        MetadataStatus.INDEXED,
        START,
        "u",
        NftFields(description="d" * (MAX_PAGE_BYTES // 3)),
    )
    with open_writer(file_url) as writer:
        writer.write([made_block(0, moves)])
        writer.documents.write(
            [
                TokenDocument(large.contract, number, large.status, START, "u", large.fields)
                for number in range(7)
            ]
        )
    async with open_index(file_url) as index:
        for read in (
            lambda page: index.collectibles(CollectibleQuery(ALICE), page),
            lambda page: index.tokens(address(3), page),
            lambda page: index.erc1155_transfers(Erc1155Query(ALICE, order=SortOrder.ASC), page),
        ):
            first = await read(PageRequest(100))
            assert len(first.items) == 2
            ids = [
                getattr(item, "erc1155_token", item).token_id for item in await all_items(read, 100)
            ]
            assert ids == list("0123456")


async def test_an_item_larger_than_a_page_is_a_page(file_url: str) -> None:
    moves = [transfer(number, 2, number, ZERO, ALICE) for number in range(2)]
    fields = NftFields(description="d" * (MAX_PAGE_BYTES + 1))
    with open_writer(file_url) as writer:
        writer.write([made_block(0, moves)])
        documents = [
            TokenDocument(address(2), number, MetadataStatus.INDEXED, START, "", fields)
            for number in range(2)
        ]
        writer.documents.write(documents)
    async with open_index(file_url) as index:
        assert len((await index.tokens(address(2), PageRequest(10))).items) == 1
        assert len(await all_items(lambda page: index.tokens(address(2), page), 10)) == 2


async def test_holders_that_are_known_contracts_have_their_names(file_url: str) -> None:
    moves = [
        transfer(0, 3, 1, ZERO, address(3), amount=1),
        transfer(1, 3, 1, address(3), ALICE, amount=1),
    ]
    with open_writer(file_url) as writer:
        writer.write([made_block(0, moves)])
        writer.contracts.write([ContractFacts(address(3), ErcType.ERC1155, "Vault", None, None, 0)])
    async with open_index(file_url) as index:
        newest, oldest = (
            await index.erc1155_transfers(Erc1155Query(address(3)), PageRequest(10))
        ).items
    assert (newest.sender.name, newest.sender.symbol, newest.to.name) == ("Vault", UNSET, UNSET)
    assert (oldest.sender.address, oldest.sender.name) == ("0x" + "00" * 20, UNSET)


async def test_blocks_beyond_the_index_are_unknown(history: tuple[str, EvmModel]) -> None:
    url, _ = history
    async with open_index(url) as index:
        for unknown in (BLOCKS, 2**80, -1, bytes(32)):
            assert await index.block(unknown) is None
