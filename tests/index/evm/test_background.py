"""What the background parts read and write: traces, calls of contracts, metadata, and the requests
of daemons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace as changed

from tests.index.evm.fixtures import index_url, open_index, open_writer
from tests.index.evm.histories import MAX, START, address, made_block, transfer
from warpseal.chains.evm.facts import Creation, MetadataUpdate, TokenStandard
from warpseal.chains.evm.nft_document import NftFields
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.evm import requests
from warpseal.index.evm.documents import UPDATE_INTERVAL_S
from warpseal.index.evm.records import (
    ContractFacts,
    ContractToCall,
    FetchReason,
    MissingResults,
    ReindexOutcome,
    ReindexResult,
    TokenDocument,
)
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.resources.base import UNSET
from warpseal.resources.evm import CollectibleQuery, Erc1155Query, ErcType, MetadataStatus
from warpseal.resources.queries import PageRequest
from warpseal.store.errors import StoreDown

ZERO, ALICE = address(0), address(1_000)
PAGE = PageRequest(10)
NFT, MULTI, OTHER = address(2), address(3), address(9)
ERC721_ONLY, ERC1155_ONLY = frozenset({TokenStandard.ERC721}), frozenset({TokenStandard.ERC1155})


@pytest.fixture
def writer(file_url: str) -> Iterator[EvmIndexWriter]:
    """Hold an index with three tokens of two contracts, and a created contract."""
    with open_writer(file_url, now=lambda: START) as opened:
        write_tokens(opened)
        yield opened


def write_tokens(writer: EvmIndexWriter) -> None:
    """Write a block with three tokens of two contracts, and a created contract."""
    moves = [
        transfer(0, 2, 1, ZERO, ALICE),
        transfer(1, 2, 2**200, ZERO, ALICE),
        transfer(2, 3, 1, ZERO, ALICE, amount=5),
    ]
    writer.write([made_block(0, moves, [Creation(0, 0, OTHER, ALICE)])])


def to_fetch(
    writer: EvmIndexWriter, reason: FetchReason, now: int = START, limit: int = 10
) -> list[tuple[bytes, int]]:
    """Return contract and id of the tokens to fetch."""
    return [
        (token.contract, token.token_id) for token in writer.documents.to_fetch(reason, limit, now)
    ]


def document(
    contract: bytes, token_id: int, status: MetadataStatus = MetadataStatus.INDEXED, **more: object
) -> TokenDocument:
    """Return the outcome of an attempt."""
    values = {"updated_at": START, "uri": "ipfs://x", "fields": NftFields(name="n"), **more}
    return TokenDocument(contract, token_id, status, **values)  # type: ignore[arg-type]


# Traces


def test_blocks_are_traced_in_order_and_gaps_later(writer: EvmIndexWriter) -> None:
    writer.write([made_block(number, needs_trace=number % 2 == 0) for number in range(1, 7)])
    assert writer.traces.height() == -1
    assert writer.traces.next_blocks(4) == [(0, False), (1, False), (2, True), (3, False)]
    writer.traces.write(0, 3, [], [2])
    assert (writer.traces.height(), writer.traces.gaps(9)) == (1, [(2, 2)])
    assert writer.traces.next_blocks(9) == [(4, True), (5, False), (6, True)]
    with pytest.raises(OutOfOrder):
        writer.traces.write(5, 6, [])
    writer.traces.write(4, 6, [], [4, 5])
    assert writer.traces.gaps(9) == [(2, 2), (4, 5)]
    writer.traces.write(5, 5, [])
    assert writer.traces.gaps(9) == [(2, 2), (4, 4)]
    writer.traces.write(2, 2, [])
    assert writer.traces.height() == 3
    writer.traces.write(4, 4, [])
    assert (writer.traces.height(), writer.traces.gaps(9)) == (6, [])


async def test_freshness_names_the_first_block_that_no_node_could_trace(
    file_url: str, writer: EvmIndexWriter
) -> None:
    writer.write([made_block(number, needs_trace=True) for number in range(1, 7)])
    gaps = []
    async with open_index(file_url) as index:
        for untraced in ([], [3, 4]):
            writer.traces.write(writer.traces.height() + 1, 6 if untraced else 1, [], untraced)
            freshness = await index.progress()
            assert freshness is not None
            gaps.append((freshness.traced_height, freshness.trace_gap))
        writer.traces.write(3, 4, [])
        freshness = await index.progress()
    assert gaps == [(1, None), (2, 3)]
    assert freshness is not None
    assert (freshness.traced_height, freshness.trace_gap) == (6, None)


def test_neighbouring_gaps_are_one_range(writer: EvmIndexWriter) -> None:
    writer.write([made_block(number) for number in range(1, 10)])
    for height in range(10):
        writer.traces.write(height, height, [], [height])
    assert writer.traces.gaps(9) == [(0, 9)]
    writer.traces.write(3, 6, [], [4])
    assert writer.traces.gaps(9) == [(0, 2), (4, 4), (7, 9)]
    writer.traces.write(3, 3, [], [3])
    assert writer.traces.gaps(9) == [(0, 4), (7, 9)]


# Contracts


async def test_contracts_are_called_once_and_again_after_an_upgrade(
    file_url: str, writer: EvmIndexWriter
) -> None:
    due = [
        ContractToCall(NFT, ERC721_ONLY),
        ContractToCall(MULTI, ERC1155_ONLY),
        ContractToCall(OTHER, frozenset()),
    ]
    assert sorted(writer.contracts.to_call(9), key=lambda item: item.address) == due
    writer.contracts.write(
        [
            ContractFacts(NFT, ErcType.ERC721, "Apes\0\ud800", "", None, 0),
            ContractFacts(OTHER, ErcType.ERC20, "Coin", "C", 18, 0),
            ContractFacts(address(77), ErcType.ERC20, "not here", "", 6, 0),
        ]
    )
    assert writer.contracts.to_call(9) == [due[1]]
    async with open_index(file_url, lambda: START) as index:
        page = await index.tokens(NFT, PAGE)
        assert {(item.name, item.symbol) for item in page.items} == {("Apes\0?", "")}
        assert not page.missing.contracts
        (deployed,) = (await index.deployments(ALICE, PAGE)).items
        assert (deployed.erc_type, deployed.name, deployed.symbol, deployed.decimals) == (
            "ERC-20",
            "Coin",
            "C",
            18,
        )
    writer.write([changed(made_block(1), upgraded=(NFT, address(55)))])
    assert due[0] in writer.contracts.to_call(9)
    # Results from before the upgrade do not count.
    writer.contracts.write([ContractFacts(NFT, ErcType.ERC721, "Old", "", None, 0)])
    assert due[0] in writer.contracts.to_call(9)
    writer.contracts.write([ContractFacts(NFT, ErcType.ERC721, "New", "", None, 1)])
    assert writer.contracts.to_call(9) == [due[1]]


def test_a_call_that_began_before_the_first_nft_event_leaves_its_contract_due(
    writer: EvmIndexWriter,
) -> None:
    # The contract is called at block 0, and emits its first event while the call lasts.
    assert ContractToCall(OTHER, frozenset()) in writer.contracts.to_call(9)
    writer.write([made_block(1, [transfer(0, 9, 5, ZERO, ALICE)])])
    writer.contracts.write([ContractFacts(OTHER, ErcType.UNKNOWN, None, None, None, 0)])
    assert ContractToCall(OTHER, ERC721_ONLY) in writer.contracts.to_call(9)
    writer.contracts.write([ContractFacts(OTHER, ErcType.ERC721, None, None, None, 1)])
    assert OTHER not in {contract.address for contract in writer.contracts.to_call(9)}


def test_contracts_that_cannot_be_called_do_not_hold_up_others(writer: EvmIndexWriter) -> None:
    contracts = [writer.contracts.to_call(1)[0].address for _ in range(6)]
    assert sorted(contracts[:3]) == [NFT, MULTI, OTHER]
    assert contracts[3:] == contracts[:3]


async def test_a_contract_that_a_page_shows_is_called_first(
    file_url: str, writer: EvmIndexWriter
) -> None:
    async with open_index(file_url, lambda: START) as index:
        page = await index.collectibles(CollectibleQuery(ALICE, MULTI), PAGE)
        assert len(page.missing.contracts) == 1
        await index.request(page.missing)
        assert writer.contracts.to_call(1) == [
            ContractToCall(MULTI, ERC1155_ONLY, is_requested=True)
        ]
        writer.contracts.write([ContractFacts(MULTI, ErcType.ERC1155, None, None, None, 0)])
        assert not any(contract.is_requested for contract in writer.contracts.to_call(9))
        assert not (
            await index.collectibles(CollectibleQuery(ALICE, MULTI), PAGE)
        ).missing.contracts


def test_the_first_event_of_a_standard_has_the_contract_called_again(
    writer: EvmIndexWriter,
) -> None:
    writer.contracts.write([ContractFacts(OTHER, ErcType.UNKNOWN, None, None, None, 0)])
    assert OTHER not in {contract.address for contract in writer.contracts.to_call(9)}
    writer.write([made_block(1, [transfer(0, 9, 1, ZERO, ALICE)])])
    assert ContractToCall(OTHER, ERC721_ONLY) in writer.contracts.to_call(9)


# Metadata


async def test_documents_are_shown_and_the_last_good_fields_stay(
    file_url: str, writer: EvmIndexWriter
) -> None:
    fields = NftFields(name="n\ud800", attributes="[]", properties="{}", decimals=2)
    writer.documents.write(
        [document(NFT, 2**200, fields=fields), document(MULTI, 1, fields=fields)]
    )
    writer.documents.write([document(NFT, 4, fields=fields), document(address(66), 1)])
    failed = document(
        NFT, 2**200, MetadataStatus.UNREACHABLE_TOKEN_URI, updated_at=START + 5, uri="", fields=None
    )
    writer.documents.write([failed])
    postponed = document(
        MULTI, 1, MetadataStatus.UNINDEXED, updated_at=START + 9, uri="", fields=None
    )
    writer.documents.write([postponed])
    async with open_index(file_url, lambda: START + 100_000) as index:
        page = await index.collectibles(CollectibleQuery(ALICE), PAGE)
        first, second, third = page.items
        assert (first.metadata.index_status, first.token_uri, first.metadata.name) == (
            "UNINDEXED",
            "",
            UNSET,
        )
        assert (second.metadata.index_status, second.token_uri) == (
            "UNREACHABLE_TOKEN_URI",
            "ipfs://x",
        )
        assert second.metadata.metadata_last_updated_timestamp == START + 5
        assert (second.metadata.name, second.metadata.attributes) == ("n?", "[]")
        assert (second.metadata.decimals, second.metadata.properties) == (UNSET, UNSET)
        assert third.metadata.metadata_last_updated_timestamp == START
        assert (third.metadata.attributes, third.metadata.decimals, third.metadata.properties) == (
            "[]",
            2,
            "{}",
        )
        (moved,) = (await index.erc1155_transfers(Erc1155Query(ALICE), PAGE)).items
        metadata = moved.erc1155_token.metadata
        assert (metadata.attributes, metadata.decimals, metadata.properties) == (UNSET, 2, "{}")
        # Old metadata is fetched again, without a page that waits for it.
        assert (len(page.missing.tokens), len(page.missing.old_tokens)) == (1, 2)
        await index.request(page.missing)
    assert len(to_fetch(writer, FetchReason.SHOWN)) == 3


def test_tokens_are_fetched_once_for_each_reason(writer: EvmIndexWriter) -> None:
    tokens = [(NFT, 1), (NFT, 2**200), (MULTI, 1)]
    assert sorted(to_fetch(writer, FetchReason.MINTED)) == sorted(tokens)
    assert to_fetch(writer, FetchReason.MINTED) == []
    assert to_fetch(writer, FetchReason.REST) == []
    retried = document(
        NFT,
        1,
        MetadataStatus.THROTTLED_TOKEN_URI,
        fields=None,
        next_attempt_at=START + 60,
        attempts=3,
    )
    writer.documents.write([document(MULTI, 1), document(NFT, 2**200), retried])
    assert to_fetch(writer, FetchReason.DUE, START + 59) == []
    (due,) = writer.documents.to_fetch(FetchReason.DUE, 9, START + 60)
    assert (due.contract, due.token_id, due.standard, due.attempts) == (
        NFT,
        1,
        TokenStandard.ERC721,
        3,
    )
    writer.documents.write([document(NFT, 1)])
    assert to_fetch(writer, FetchReason.DUE, START + 10**6) == []


def test_tokens_without_documents_are_found_in_turn(writer: EvmIndexWriter) -> None:
    assert to_fetch(writer, FetchReason.REST, limit=2) == [(NFT, 1), (NFT, 2**200)]
    assert to_fetch(writer, FetchReason.REST, limit=2) == [(MULTI, 1)]
    writer.documents.write([document(NFT, 1), document(NFT, 2**200), document(MULTI, 1)])
    # The next round begins.
    assert [to_fetch(writer, FetchReason.REST) for _ in range(2)] == [[], []]
    writer.write([made_block(1, [transfer(0, 2, 7, ZERO, ALICE)])])
    assert [(NFT, 7)] in [to_fetch(writer, FetchReason.REST) for _ in range(2)]


def test_tokens_of_crowded_contracts_are_skipped(writer: EvmIndexWriter) -> None:
    tokens = writer.documents.to_fetch(FetchReason.MINTED, 9, START, frozenset({NFT}))
    assert [(token.contract, token.token_id) for token in tokens] == [(MULTI, 1)]
    assert len(to_fetch(writer, FetchReason.MINTED)) == 2


def test_any_number_of_tokens_of_a_skipped_contract_hides_no_others(any_index_url: str) -> None:
    with open_writer(any_index_url, now=lambda: START) as writer:
        write_tokens(writer)
        moves = [transfer(number, 2, 10 + number, ZERO, ALICE) for number in range(5_500)]
        writer.write([made_block(1, moves)])
        skipped = frozenset({NFT})
        (token,) = writer.documents.to_fetch(FetchReason.MINTED, 9, START, skipped)
        assert token.contract == MULTI
        failure = MetadataStatus.UNREACHABLE_TOKEN_URI
        writer.documents.write(
            [
                document(NFT, 10 + number, failure, next_attempt_at=START, attempts=1)
                for number in range(5_500)
            ]
        )
        writer.documents.write([document(MULTI, 1, failure, next_attempt_at=START + 5, attempts=1)])
        (token,) = writer.documents.to_fetch(FetchReason.DUE, 9, START + 9, skipped)
        assert token.contract == MULTI


def test_a_large_update_of_one_contract_does_not_delay_other_contracts(
    writer: EvmIndexWriter,
) -> None:
    count = 5_500
    writer.write(
        [made_block(1, [transfer(number, 2, 10 + number, ZERO, ALICE) for number in range(count)])]
    )
    writer.documents.write([document(NFT, 10 + number) for number in range(count)])
    writer.documents.write([document(MULTI, 1)])
    updates = (MetadataUpdate(NFT, 0, MAX), MetadataUpdate(MULTI, 1, 1))
    writer.write([changed(made_block(2, time=START + 2), updates=updates)])
    contracts: list[bytes] = []
    while MULTI not in contracts:
        contracts += [
            contract for contract, _ in to_fetch(writer, FetchReason.DUE, START + 3, limit=1_000)
        ]
    assert len(contracts) < count
    while len(contracts) < count + 1:
        contracts += [
            contract for contract, _ in to_fetch(writer, FetchReason.DUE, START + 3, limit=1_000)
        ]
    assert to_fetch(writer, FetchReason.DUE, START + 3) == []


def test_a_new_writer_returns_what_was_not_fetched_again(
    file_url: str, writer: EvmIndexWriter
) -> None:
    assert len(to_fetch(writer, FetchReason.MINTED)) == 3
    with open_writer(file_url) as other:
        assert len(to_fetch(other, FetchReason.MINTED)) == 3


def test_changed_metadata_is_fetched_again_once_in_ten_minutes(writer: EvmIndexWriter) -> None:
    documents = [document(NFT, 1), document(NFT, 2**200), document(MULTI, 1)]
    writer.documents.write(documents)

    def write_update(
        number: int, *updates: tuple[bytes, int, int], upgraded: Sequence[bytes] = ()
    ) -> None:
        block = made_block(number, time=START + number)
        changes = tuple(MetadataUpdate(*update) for update in updates)
        writer.write([changed(block, updates=changes, upgraded=tuple(upgraded))])

    write_update(1, (NFT, 0, 1), (address(88), 0, MAX))
    assert to_fetch(writer, FetchReason.DUE, START + 1) == [(NFT, 1)]
    writer.documents.write(documents)
    write_update(2, (NFT, 2, MAX), (MULTI, 1, 1))
    write_update(3, (NFT, 1, 1))
    assert to_fetch(writer, FetchReason.DUE, START + 3) == [(MULTI, 1)]
    writer.documents.write(documents)
    later = START + 1 + UPDATE_INTERVAL_S
    assert sorted(to_fetch(writer, FetchReason.DUE, later)) == [(NFT, 1), (NFT, 2**200)]
    writer.documents.write(documents)
    write_update(4, upgraded=[MULTI])
    assert to_fetch(writer, FetchReason.DUE, START + 10 * UPDATE_INTERVAL_S) == [(MULTI, 1)]


# Requests


async def test_a_token_is_reindexed_once_an_hour_over_all_daemons(any_index_url: str) -> None:
    now = START
    with open_writer(any_index_url) as writer:
        write_tokens(writer)
        async with (
            open_index(any_index_url, lambda: now) as one,
            open_index(any_index_url, lambda: now) as other,
        ):
            assert await one.reindex(NFT, 9) == ReindexResult(ReindexOutcome.UNKNOWN_TOKEN)
            assert await one.reindex(address(99), 1) == ReindexResult(ReindexOutcome.UNKNOWN_TOKEN)
            results = await asyncio.gather(
                *(index.reindex(NFT, 2**200) for index in (one, other, one, other))
            )
            too_early = ReindexResult(ReindexOutcome.TOO_EARLY, 3_600)
            assert sorted(results, key=lambda result: result.retry_after_s) == [
                ReindexResult(ReindexOutcome.ACCEPTED),
                *3 * [too_early],
            ]
            # It is stored before the result, and returned until its outcome is written.
            (token,) = writer.documents.to_fetch(FetchReason.REINDEX, 9, now)
            assert (token.token_id, token.requested_at) == (2**200, START)
            assert writer.documents.to_fetch(FetchReason.REINDEX, 9, now) == ()
            now += 3_599
            assert await other.reindex(NFT, 2**200) == ReindexResult(ReindexOutcome.TOO_EARLY, 1)
            now += 1
            assert (await other.reindex(NFT, 2**200)).outcome is ReindexOutcome.ACCEPTED
            # The outcome of the attempt before does not answer the new request.
            writer.documents.write([document(NFT, 2**200, updated_at=START)])
            assert to_fetch(writer, FetchReason.REINDEX) == [(NFT, 2**200)]
            writer.documents.write([document(NFT, 2**200, updated_at=now)])
            assert to_fetch(writer, FetchReason.REINDEX) == []


async def test_a_token_that_waits_for_another_reason_is_reindexed_at_once(
    file_url: str, writer: EvmIndexWriter
) -> None:
    assert (NFT, 1) in to_fetch(writer, FetchReason.MINTED)
    async with open_index(file_url, lambda: START) as index:
        await index.reindex(NFT, 1)
    assert to_fetch(writer, FetchReason.REINDEX) == [(NFT, 1)]


async def test_too_many_waiting_reindex_requests_are_not_counted(
    file_url: str, writer: EvmIndexWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_WAITING_REINDEXES", 1)
    async with open_index(file_url, lambda: START) as index:
        assert (await index.reindex(NFT, 1)).outcome is ReindexOutcome.ACCEPTED
        assert (await index.reindex(MULTI, 1)).outcome is ReindexOutcome.BUSY
        writer.documents.write([document(NFT, 1)])
        assert (await index.reindex(MULTI, 1)).outcome is ReindexOutcome.ACCEPTED


async def test_requests_wait_for_the_indexers_transaction(
    file_url: str, writer: EvmIndexWriter
) -> None:
    async with open_index(file_url, lambda: START) as index:
        with writer._engine.begin():
            reindex = asyncio.create_task(index.reindex(NFT, 1))
            await asyncio.sleep(0.7)
            assert not reindex.done()
        assert (await reindex).outcome is ReindexOutcome.ACCEPTED


async def test_requests_are_bounded(
    file_url: str, writer: EvmIndexWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_WAITING", 2)
    async with open_index(file_url, lambda: START) as index:
        page = await index.collectibles(CollectibleQuery(ALICE), PAGE)
        for token in sorted(page.missing.tokens):
            await index.request(MissingResults(tokens=frozenset({token})))
    assert len(to_fetch(writer, FetchReason.SHOWN)) == 2


async def test_without_an_index_requests_fail_and_make_no_file(file_url: str) -> None:
    async with open_index(file_url) as index:
        assert await index.progress() is None
        with pytest.raises(StoreDown):
            await index.request(MissingResults(tokens=frozenset({1})))
        with pytest.raises(StoreDown):
            await index.reindex(NFT, 1)
    path = index_url(file_url).path
    assert path is not None
    assert not path.exists()
