"""Endpoint 15, single tokens, and pages that wait for contracts and metadata which the indexer has
not fetched yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.data import evm_history as h
from tests.api.data import samples as s
from tests.api.data.evm_fixtures import ask
from tests.api.data.fixtures import Clock, DataApiSetup
from tests.eventually import finish, until
from warpseal.api.data import evm_context
from warpseal.chains.evm.nft_document import NftFields
from warpseal.index.evm import requests
from warpseal.index.evm.records import ContractFacts, FetchReason, TokenDocument
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.resources.evm import MetadataStatus
from warpseal.runtime.process import running
from warpseal.upstream.endpoint import EvmIndexing, MetadataMode

TOKENS = f"{h.PATH}/nfts/collections/{h.text(h.CATS)}/tokens"
DEPLOYMENTS = f"{h.PATH}/contracts/{h.text(h.ALICE)}/deployments"
REINDEX = f"{TOKENS}/1:reindex"


def fetched(writer: EvmIndexWriter, reason: FetchReason) -> list[tuple[bytes, int]]:
    """Return the tokens that the indexer would fetch now for a reason."""
    return [
        (token.contract, token.token_id) for token in writer.documents.to_fetch(reason, 100, s.NOW)
    ]


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    """Return the writer of an index that has the whole chain."""
    with h.open_writer(tmp_path) as index_writer:
        h.write_history(index_writer)
        yield index_writer


async def test_an_accepted_request_is_stored_and_answered_201_without_a_body(
    tmp_path: Path, writer: EvmIndexWriter
) -> None:
    async with h.indexed_setup(tmp_path) as setup:
        response = await ask(setup, REINDEX, "POST")
        assert fetched(writer, FetchReason.REINDEX) == [(h.CATS, 1)]
        writer.documents.write(
            [TokenDocument(h.CATS, 1, MetadataStatus.THROTTLED_TOKEN_URI, s.NOW + 3)]
        )
        token = await ask(setup, f"{TOKENS}/1")
    assert (response.status, response.body, response.headers["content-length"]) == (201, None, "0")
    assert response.headers["x-warpseal-index"].startswith(str(h.CHAIN.evm_chain_id))
    metadata = token.body["metadata"]
    assert (metadata["indexStatus"], metadata["metadataLastUpdatedTimestamp"]) == (
        "throttled_token_uri",
        s.NOW + 3,
    )
    assert metadata["name"] == "Cat 1"


async def test_a_token_is_reindexed_once_per_hour_over_all_daemons(
    tmp_path: Path, writer: EvmIndexWriter
) -> None:
    clock = Clock()
    async with (
        h.indexed_setup(tmp_path, clock=clock) as first,
        h.indexed_setup(tmp_path, clock=clock) as second,
    ):
        statuses = []
        for setup, now in (
            (first, 0),
            (second, 600),
            (first, 3_599),
            (second, 3_600),
            (first, 3_601),
        ):
            clock.now = s.NOW + now
            writer.write_status(
                h.status_of(h.CHAIN, written_at=int(clock.now), reported_at=int(clock.now))
            )
            response = await ask(setup, REINDEX, "POST")
            statuses.append(
                (
                    response.status,
                    response.headers.get("retry-after"),
                    (response.body or {}).get("code"),
                )
            )
    assert statuses == [
        (201, None, None),
        (429, "3000", "reindexed_recently"),
        (429, "1", "reindexed_recently"),
        (201, None, None),
        (429, "3599", "reindexed_recently"),
    ]


async def test_nothing_is_accepted_while_the_indexer_is_down_and_the_refusal_does_not_count(
    tmp_path: Path, writer: EvmIndexWriter
) -> None:
    async with h.indexed_setup(tmp_path) as setup:
        writer.write_status(h.status_of(h.CHAIN, written_at=s.NOW - 120))
        down = await ask(setup, REINDEX, "POST")
        writer.write_status(h.status_of(h.CHAIN))
        up = await ask(setup, REINDEX, "POST")
    assert (down.status, down.body["code"]) == (503, "reindex_unavailable")
    assert int(down.headers["retry-after"]) > 0
    assert up.status == 201


@pytest.mark.parametrize("on_server", [False, True])
async def test_nothing_is_accepted_from_the_moment_in_which_the_indexer_ends(
    request: pytest.FixtureRequest, tmp_path: Path, on_server: bool
) -> None:
    settings = IndexSettings(request.getfixturevalue("postgres_url")) if on_server else h.SETTINGS
    with h.open_writer(tmp_path, settings=settings) as writer:
        h.write_history(writer)
    # A server ends the session of a closed connection a moment later.
    await until(lambda: not h.has_indexer(tmp_path, settings))
    async with h.indexed_setup(tmp_path, settings=settings) as setup:
        down = await ask(setup, REINDEX, "POST")
        with h.open_writer(tmp_path, settings=settings) as writer:
            up = await ask(setup, REINDEX, "POST")
        await until(lambda: not h.has_indexer(tmp_path, settings))
        again = await ask(setup, f"{TOKENS}/2:reindex", "POST")
    assert (down.status, down.body["code"]) == (503, "reindex_unavailable")
    assert (up.status, again.status) == (201, 503)


async def test_an_unknown_token_is_not_found_or_not_yet_while_the_index_is_behind(
    tmp_path: Path, writer: EvmIndexWriter
) -> None:
    async with h.indexed_setup(tmp_path) as setup:
        unknown = [
            await ask(setup, f"{TOKENS}/99:reindex", "POST"),
            await ask(setup, f"{TOKENS}/99"),
        ]
        writer.write_status(h.status_of(h.CHAIN, node_height=h.CHAIN.tip + 1))
        behind = [
            await ask(setup, f"{TOKENS}/99:reindex", "POST"),
            await ask(setup, f"{TOKENS}/99"),
        ]
    assert [(response.status, response.body["code"]) for response in unknown] == [
        (404, "token_not_found")
    ] * 2
    assert [(response.status, response.body["code"]) for response in behind] == [
        (503, "index_behind")
    ] * 2


async def test_without_metadata_nothing_is_reindexed(
    tmp_path: Path, writer: EvmIndexWriter
) -> None:
    async with h.indexed_setup(tmp_path, indexing=EvmIndexing(metadata=MetadataMode.OFF)) as setup:
        response = await ask(setup, REINDEX, "POST")
        tokens = await ask(setup, TOKENS)
    assert (response.status, response.body["code"]) == (404, "index_not_enabled")
    assert response.body["message"].endswith(
        'set "index": {"metadata": "asked"} for the chain in evm-chains'
    )
    assert tokens.status == 200


async def test_too_many_waiting_requests_are_refused(tmp_path: Path) -> None:
    with h.open_writer(tmp_path) as writer, pytest.MonkeyPatch.context() as patch:
        h.write_history(writer)
        patch.setattr(requests, "MAX_WAITING_REINDEXES", 1)
        async with h.indexed_setup(tmp_path) as setup:
            responses = [await ask(setup, f"{TOKENS}/{token}:reindex", "POST") for token in (1, 2)]
            assert fetched(writer, FetchReason.REINDEX) == [(h.CATS, 1)]
            writer.documents.write(
                [TokenDocument(h.CATS, 1, MetadataStatus.INDEXED, s.NOW, "x", NftFields())]
            )
            responses.append(await ask(setup, f"{TOKENS}/2:reindex", "POST"))
    assert [response.status for response in responses] == [201, 503, 201]


@pytest.mark.parametrize("path", [f"{TOKENS}/x:reindex", f"{TOKENS}/{2**256}:reindex"])
async def test_a_malformed_token_id_is_named(
    tmp_path: Path, writer: EvmIndexWriter, path: str
) -> None:
    async with h.indexed_setup(tmp_path) as setup:
        response = await ask(setup, path, "POST")
    assert (response.status, response.body["detail"]["field"]) == (400, "tokenId")


# Pages that wait.


@asynccontextmanager
async def unresolved(
    folder: Path, **more: Any
) -> AsyncIterator[tuple[DataApiSetup, EvmIndexWriter]]:
    """Yield an API over an index without results of calls and without metadata."""
    with h.open_writer(folder) as writer:
        h.write_blocks(writer)
        async with h.indexed_setup(folder, **more) as setup:
            yield setup, writer


async def indexer(step: Callable[[], bool]) -> None:
    """Do what the indexer does until it is done."""
    await until(step)


async def test_a_page_has_what_the_indexer_fetches_while_it_waits(tmp_path: Path) -> None:
    async with unresolved(tmp_path) as (setup, writer):

        def fetch() -> bool:
            contracts = [
                entry.address for entry in writer.contracts.to_call(10) if entry.is_requested
            ]
            writer.contracts.write([ContractFacts(*contract) for contract in _facts_of(contracts)])
            tokens = fetched(writer, FetchReason.SHOWN)
            writer.documents.write([h.DOCUMENTS[0]] if (h.CATS, 1) in tokens else [])
            writer.documents.write([h.DOCUMENTS[1]] if (h.CATS, 2) in tokens else [])
            return bool(tokens)

        async with running(indexer(fetch)):
            response = await ask(setup, TOKENS)
    statuses = [(item["name"], item["metadata"]["indexStatus"]) for item in response.body["tokens"]]
    assert statuses == [("Cats", "indexed"), ("Cats", "unreachable_token_uri")]


def _facts_of(contracts: list[bytes]) -> list[Any]:
    return [
        (facts.address, facts.erc_type, facts.name, facts.symbol, facts.decimals, facts.height)
        for facts in h.CONTRACTS
        if facts.address in contracts
    ]


async def test_a_page_is_answered_as_it_is_once_the_wait_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evm_context.WAIT_S == 2.0
    monkeypatch.setattr(evm_context, "WAIT_S", 0.2)
    async with unresolved(tmp_path) as (setup, writer):
        started = asyncio.get_running_loop().time()
        response = await ask(setup, TOKENS)
        assert asyncio.get_running_loop().time() - started >= 0.2
        assert fetched(writer, FetchReason.SHOWN) == [(h.CATS, 1), (h.CATS, 2)]
    bare = [("", {"indexStatus": "unindexed"})] * 2
    assert [(item["name"], item["metadata"]) for item in response.body["tokens"]] == bare


async def test_nothing_is_waited_for_if_the_indexer_is_silent_or_metadata_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evm_context, "WAIT_S", 3_600.0)
    async with unresolved(tmp_path, indexing=EvmIndexing(metadata=MetadataMode.OFF)) as (
        setup,
        writer,
    ):
        writer.contracts.write(h.CONTRACTS)
        assert (await finish(ask(setup, TOKENS))).status == 200
        assert fetched(writer, FetchReason.SHOWN) == []
    async with unresolved(tmp_path / "silent") as (setup, writer):
        writer.write_status(h.status_of(h.CHAIN, reported_at=s.NOW - 3_600))
        assert (await finish(ask(setup, TOKENS))).status == 200
        assert fetched(writer, FetchReason.SHOWN) == [(h.CATS, 1), (h.CATS, 2)]


async def test_a_page_does_not_fail_if_the_indexer_holds_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evm_context, "WAIT_S", 0.2)
    async with unresolved(tmp_path) as (setup, writer):
        with writer._engine.begin() as connection:
            connection.fetch("UPDATE chain_status SET body = body")
            response = await ask(setup, TOKENS)
    assert (response.status, len(response.body["tokens"])) == (200, 2)


async def test_old_metadata_is_shown_at_once_and_asked_for(
    tmp_path: Path, writer: EvmIndexWriter
) -> None:
    old = TokenDocument(
        h.CATS, 1, MetadataStatus.INDEXED, s.NOW - 86_401, "ipfs://cats/1", NftFields(name="old")
    )
    writer.documents.write([old])
    async with h.indexed_setup(tmp_path) as setup:
        response = await ask(setup, f"{TOKENS}/1")
    assert response.body["metadata"]["name"] == "old"
    assert fetched(writer, FetchReason.SHOWN) == [(h.CATS, 1)]


async def test_contracts_of_deployments_are_asked_for(tmp_path: Path) -> None:
    async with unresolved(tmp_path) as (setup, writer):

        def resolve() -> bool:
            contracts = [
                entry.address for entry in writer.contracts.to_call(10) if entry.is_requested
            ]
            writer.contracts.write([ContractFacts(*contract) for contract in _facts_of(contracts)])
            return bool(contracts)

        async with running(indexer(resolve)):
            response = await ask(setup, DEPLOYMENTS)
    assert [item["ercType"] for item in response.body["contracts"]] == [
        "UNKNOWN",
        "ERC-20",
        "ERC-1155",
        "ERC-721",
    ]
