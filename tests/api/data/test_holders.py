"""Endpoints 18 and 19: the holders of plain models, at the block of the first page, and what is
refused.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from tests.api.data import evm_history as h
from tests.api.data import samples as s
from tests.api.data.fixtures import client_of
from tests.api.data.metrics_fixtures import (
    MadeChain,
    block_at,
    file_urls,
    metrics_setup,
    request,
    walk,
    write_chain,
)
from tests.api.openapi.sample_requests import example_requests
from tests.index.evm.fixtures import CHAIN_ID, IDENTITY
from tests.index.evm.histories import START, ZERO, address, made_block, transfer
from tests.index.evm.model import EvmModel
from tests.index.evm.test_holders import TOKENS, WITH_HOLDERS, Blocks, IndexFiller, Model, replaced
from warpseal.api.data import evm_context
from warpseal.api.data.contract_info import ContractInfoFolder
from warpseal.api.data.settings import Compat
from warpseal.api.openapi.examples import load_examples
from warpseal.chains.evm.facts import Erc20Transfer
from warpseal.index.evm.records import ContractFacts
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.evm import ErcType, HolderQuery
from warpseal.resources.queries import TimeRange
from warpseal.resources.text import account_text
from warpseal.upstream.endpoint import EvmIndexing
from warpseal.warp.ids import id_text

TOKEN_HOLDERS = "getAddressesByBalanceOverTime"
CHAIN = MadeChain(0, indexing=EvmIndexing(has_holders=True), chain_id=CHAIN_ID)
BASE = f"/v2/chains/{IDENTITY.evm_chain_id}/contracts"
MAX = 2**256 - 1
COUNT = 110
NFTS = tuple(address(number) for number in (1, 2, 3, 5, 6))


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No indexer runs here, so waiting for names never ends."""
    monkeypatch.setattr(evm_context, "WAIT_S", 0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an index with ERC-20 balances; tests only read it."""
    path = tmp_path_factory.mktemp("holders")
    filler = IndexFiller(file_urls(path)[0])
    filler.write(Blocks(4).take(COUNT))
    filler.writer.contracts.write(
        [ContractFacts(address(1), ErcType.ERC721, "Cats", "CAT", None, COUNT)]
    )
    filler.writer.close()
    return path


@pytest.fixture(scope="module")
def models() -> tuple[Model, EvmModel]:
    """Return the models of the ERC-20 tokens and of the NFTs of that index."""
    model, nfts = Model(), EvmModel({address(2): True, address(4): False})
    for block in Blocks(4).take(COUNT):
        model.add(block)
        nfts.add(block)
    return model, nfts


def balances_path(token: bytes) -> str:
    return f"{BASE}/0x{token.hex()}/balances"


def nfts_path(contract: bytes) -> str:
    return f"{BASE}/{account_text(contract)}/nfts:listHolders"


def entries_above(
    model: Model, token: bytes, threshold: int, since: int | None, until: int | None
) -> list[Any]:
    """Return the entries of all pages, sorted by balance and address."""
    holders = model.above(
        HolderQuery(token, threshold, TimeRange(since, until)), len(model.times) - 1
    )
    return in_order(
        [{"address": account_text(item.address), "sortKey": item.balance} for item in holders]
    )


def in_order(entries: list[Any]) -> list[Any]:
    return sorted(entries, key=lambda entry: (-int(entry["sortKey"]), entry["address"].lower()))


@pytest.mark.parametrize("alone", [True, False])
async def test_holders_above_a_threshold_are_those_of_the_model(
    folder: Path, models: tuple[Model, EvmModel], alone: bool
) -> None:
    random, longest = Random(9), 0
    async with metrics_setup(*file_urls(folder), CHAIN) as setup, client_of(setup) as client:
        for token in TOKENS:
            for threshold in (0, 4, 5, 10**24 - 1, MAX):
                since, until = sorted(
                    random.randint(START - 5, START + 2 * COUNT + 5) for _ in range(2)
                )
                time_range = {"startTimestamp": since, "endTimestamp": until}
                chosen = {name: time_range[name] for name in time_range if random.random() < 0.5}
                params = {
                    **chosen,
                    "threshold": str(threshold),
                    "pageSize": random.choice((1, 2, 3, 1000)),
                }
                pages = await walk(client, balances_path(token), "addresses", params, alone=alone)
                expected = entries_above(models[0], token, threshold, *map(chosen.get, time_range))
                assert in_order([entry for page in pages for entry in page]) == expected, params
                assert [entry["sortKey"] for page in pages for entry in page] == [
                    e["sortKey"] for e in expected
                ]
                longest = max(longest, len(pages))
    assert longest > 5


async def test_large_balances_are_whole_integers(
    folder: Path, models: tuple[Model, EvmModel]
) -> None:
    async with (
        metrics_setup(*file_urls(folder), CHAIN) as setup,
        client_of(setup) as client,
        client.get(balances_path(TOKENS[0]), params={"threshold": "0"}) as response,
    ):
        text = await response.text()
    first = entries_above(models[0], TOKENS[0], 0, None, None)[0]
    assert first["sortKey"] > 2**64
    assert f'"sortKey":{first["sortKey"]}}}' in text


def nft_counts(nfts: EvmModel, contract: bytes) -> tuple[list[Any], int]:
    """Return the entries of the holders of a collection, and the number of held token ids."""
    held: dict[bytes, set[int]] = {}
    for (_, _, token_id), holders in (
        (token, nfts.holders[token]) for token in nfts.tokens.get(contract, ())
    ):
        for holder, amount in holders.items():
            if amount:
                held.setdefault(holder, set()).add(token_id)
    entries = [
        {"address": account_text(holder), "sortKey": len(ids)} for holder, ids in held.items()
    ]
    return in_order(entries), len(set().union(*held.values()))


@pytest.mark.parametrize("contract", NFTS)
async def test_nft_holders_and_totals_are_those_of_the_model(
    folder: Path, models: tuple[Model, EvmModel], contract: bytes
) -> None:
    entries, tokens = nft_counts(models[1], contract)
    path = nfts_path(contract)
    async with metrics_setup(*file_urls(folder), CHAIN) as setup, client_of(setup) as client:
        whole = (await request(client, path)).body
        pages = await walk(client, path, "addresses", {"pageSize": 2}, alone=True)
        token = (await request(client, path, pageSize=1)).body["nextPageToken"]
        later = (await request(client, path, pageToken=token)).body
    assert whole["addresses"] == [entry for page in pages for entry in page] == entries
    assert (whole["totalHolders"], whole["totalTokens"]) == (len(entries), tokens)
    assert (later["totalHolders"], later["totalTokens"]) == (len(entries), tokens)
    names = ("Cats", "CAT") if contract == address(1) else ("", "")
    assert (whole["nftCollectionName"], whole["nftSymbol"]) == names
    assert whole.get("eventsInconsistent", False) == (contract in models[1].inconsistent)
    assert len(entries) > 3


async def test_contracts_of_other_kinds_have_no_holders(folder: Path) -> None:
    async with metrics_setup(*file_urls(folder), CHAIN) as setup, client_of(setup) as client:
        nft = await request(client, balances_path(address(1)), threshold=0)
        token = await request(client, nfts_path(TOKENS[0]))
        unknown = await request(client, balances_path(address(99_999)), threshold=0)
    assert [response.body for response in (nft, unknown)] == [{"addresses": []}] * 2
    assert token.body == {
        "addresses": [],
        "nftCollectionName": "",
        "nftSymbol": "",
        "totalHolders": 0,
        "totalTokens": 0,
    }


@pytest.mark.parametrize("kind", [ErcType.ERC721, ErcType.ERC1155, ErcType.UNKNOWN])
async def test_a_contract_of_several_kinds_says_why_it_lists_no_erc20_holders(
    tmp_path: Path, kind: ErcType
) -> None:
    filler = IndexFiller(file_urls(tmp_path)[0])
    nft = transfer(0, 1, 4, ZERO, address(9))
    filler.write(
        [replaced(made_block(0, [nft]), START, [Erc20Transfer(address(1), ZERO, address(9), 4)])]
    )
    filler.writer.contracts.write([ContractFacts(address(1), kind, "Both", "B", None, 0)])
    filler.writer.close()
    async with metrics_setup(*file_urls(tmp_path), CHAIN) as setup, client_of(setup) as client:
        response = await request(client, balances_path(address(1)), threshold=0)
    assert (response.status, response.body["code"]) == (404, "not_an_erc20_token")
    reason = f"its calls say that its kind is {kind}"
    assert response.body["detail"] == {"address": account_text(address(1)), "reason": reason}
    assert reason in str(response.body["message"])


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({}, "threshold: required"),
        ({"threshold": "-1"}, "threshold: '-1' is not a decimal number of 0..2^256-1"),
        (
            {"threshold": str(2**256)},
            f"threshold: '{str(2**256)[:64]}'… is not a decimal number of 0..2^256-1",
        ),
        (
            {"threshold": "0", "startTimestamp": 5, "endTimestamp": 4},
            "endTimestamp: 4 is before startTimestamp, 5",
        ),
        ({"threshold": "0", "pageSize": 5001}, "pageSize: '5001' is not an integer of 1..5000"),
    ],
)
async def test_a_bad_request_names_the_parameter(
    folder: Path, params: dict[str, Any], reason: str
) -> None:
    async with metrics_setup(*file_urls(folder), CHAIN) as setup, client_of(setup) as client:
        response = await request(client, balances_path(TOKENS[0]), **params)
    assert (response.status, response.body["message"]) == (400, [reason])


async def first_pages(client: aiohttp.ClientSession) -> list[tuple[str, str, list[Any]]]:
    """Return the path, the token of the second page, and the entries from it on, of each kind of
    page.
    """
    page_tokens = []
    for path, params in (
        (balances_path(TOKENS[0]), {"threshold": "0"}),
        (nfts_path(address(3)), {}),
    ):
        whole = await walk(client, path, "addresses", {**params, "pageSize": 2}, alone=False)
        first = await request(client, path, pageSize=2, **params)
        page_tokens.append(
            (path, first.body["nextPageToken"], [entry for page in whole[1:] for entry in page])
        )
    return page_tokens


@pytest.mark.parametrize("server", [False, True])
async def test_later_pages_show_the_block_of_the_first_one(
    request: pytest.FixtureRequest, tmp_path: Path, server: bool
) -> None:
    url = request.getfixturevalue("postgres_url") if server else file_urls(tmp_path)[0]
    blocks = Blocks(6)
    filler = IndexFiller(url)
    filler.write(blocks.take(60))
    metrics_url = url if server else file_urls(tmp_path)[1]
    async with metrics_setup(url, metrics_url, CHAIN) as setup, client_of(setup) as client:
        first_results = await first_pages(client)
        filler.write(blocks.take(60))
        for path, token, rest in first_results:
            later = await _rest(client, path, token)
            assert later == rest
            now = await walk(
                client,
                path,
                "addresses",
                {"threshold": "0"} if "balances" in path else {},
                alone=True,
            )
            assert [entry for page in now for entry in page][2:] != rest
    filler.writer.close()


async def _rest(client: aiohttp.ClientSession, path: str, token: str | None) -> list[Any]:
    entries: list[Any] = []
    while token is not None:
        async with client.get(path, params={"pageToken": token, "pageSize": "3"}) as response:
            body = await response.json()
        entries += body["addresses"]
        token = body.get("nextPageToken")
    return entries


async def test_a_page_of_a_block_that_the_index_has_no_more_is_refused(tmp_path: Path) -> None:
    index_url, metrics_url = file_urls(tmp_path)
    IndexFiller(index_url).write(Blocks(6).take(60))
    async with metrics_setup(index_url, metrics_url, CHAIN) as setup, client_of(setup) as client:
        first_results = await first_pages(client)
    # The chain is indexed again, and has not come as far.
    IndexFiller(index_url, replace(WITH_HOLDERS, genesis_hash=b"h" * 32)).write(Blocks(6).take(30))
    async with metrics_setup(index_url, metrics_url, CHAIN) as setup, client_of(setup) as client:
        refused = [await request(client, path, pageToken=token) for path, token, _ in first_results]
    assert [(response.status, response.body["code"]) for response in refused] == [
        (400, "expired_page_token")
    ] * 2


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "threshold"),
        ({"threshold": ""}, "threshold"),
        ({"threshold": "-1"}, "threshold"),
        ({"threshold": "1.5"}, "threshold"),
        ({"threshold": "0x10"}, "threshold"),
        ({"threshold": str(2**256)}, "threshold"),
        ({"threshold": "9" * 10_000}, "threshold"),
        ({"threshold": "0", "startTimestamp": "-1"}, "startTimestamp"),
        ({"threshold": "0", "startTimestamp": "2", "endTimestamp": "1"}, "endTimestamp"),
        ({"threshold": "0", "pageSize": "0"}, "pageSize"),
        ({"threshold": "0", "pageSize": "5001"}, "pageSize"),
        ({"threshold": "0", "treshold": "1"}, "treshold"),
    ],
)
async def test_a_malformed_parameter_is_named(
    folder: Path, params: dict[str, str], field: str
) -> None:
    async with metrics_setup(*file_urls(folder), CHAIN) as setup, client_of(setup) as client:
        response = await request(client, balances_path(TOKENS[0]), **params)
    assert (response.status, response.body["detail"]["field"]) == (400, field)
    assert [type(text) for text in response.body["message"]] == [str]


async def test_data_missing_in_the_index_is_named(folder: Path, tmp_path: Path) -> None:
    plain = dataclasses.replace(CHAIN, indexing=EvmIndexing())
    later = MadeChain(4, [block_at(5, START, 1)], EvmIndexing(5, has_holders=True))
    off = MadeChain(5, indexing=None)
    write_chain(file_urls(tmp_path)[0], later, START)
    async with metrics_setup(*file_urls(folder), plain, off) as setup, client_of(setup) as client:
        paths = (
            f"{balances_path(TOKENS[0])}?threshold=0",
            f"/v2/chains/{id_text(off.blockchain_id)}/contracts/0x{TOKENS[0].hex()}/nfts:listHolders",
            f"/v2/chains/5/contracts/0x{TOKENS[0].hex()}/nfts:listHolders",
            f"{BASE}/0x12/nfts:listHolders",
            f"{BASE}/0x12/nothing",
        )
        responses = [await request(client, path) for path in paths]
        served = await request(client, nfts_path(address(1)))
    assert [(response.status, response.body["code"]) for response in responses] == [
        (404, "index_not_enabled"),
        (404, "index_not_enabled"),
        (404, "unknown_chain"),
        (400, "invalid_request"),
        (404, "not_found"),
    ]
    assert {type(response.body["message"]) for response in responses} == {list}
    assert served.status == 200
    async with metrics_setup(*file_urls(tmp_path), later) as setup, client_of(setup) as client:
        path = f"/v2/chains/{later.evm_chain_id}/contracts/0x{TOKENS[0].hex()}"
        balances = await request(client, f"{path}/balances", threshold=0)
        holders = await request(client, f"{path}/nfts:listHolders")
    assert (balances.status, balances.body["code"]) == (404, "index_not_enabled")
    assert (holders.status, holders.body["addresses"]) == (200, [])


async def test_balances_that_are_yet_to_be_indexed_are_not_ready(tmp_path: Path) -> None:
    IndexFiller(file_urls(tmp_path)[0], IDENTITY).write(Blocks(6).take(30))
    async with metrics_setup(*file_urls(tmp_path), CHAIN) as setup, client_of(setup) as client:
        response = await request(client, balances_path(TOKENS[0]), threshold=0)
    assert (response.status, response.body["code"]) == (503, "index_not_ready")


async def test_sdks_get_texts_and_lists(folder: Path) -> None:
    agent = {"header_user-agent": "speakeasy-sdk/typescript 0.13.0"}
    async with metrics_setup(*file_urls(folder), CHAIN) as setup:
        async with client_of(setup) as client:
            paths: list[tuple[str, dict[str, str]]] = [
                (balances_path(TOKENS[0]), {"threshold": "0"}),
                (nfts_path(address(1)), {}),
                (nfts_path(NFTS[1]), {}),
            ]
            plain = [
                (await request(client, path, pageSize=2, **params)).body for path, params in paths
            ]
            for_sdk = [
                (await request(client, path, pageSize=2, **params, **agent)).body
                for path, params in paths
            ]
        async with client_of(setup.with_data(compat=Compat.SPEC)) as client:
            spec = (await request(client, nfts_path(address(1)), pageSize=2, **agent)).body
    for body, translated in zip(plain, for_sdk, strict=True):
        texts = [{**entry, "sortKey": str(entry["sortKey"])} for entry in body["addresses"]]
        assert translated["addresses"] == texts
        assert body.keys() == translated.keys()
    assert (for_sdk[1]["nftCollectionName"], for_sdk[1]["nftSymbol"]) == (["Cats"], ["CAT"])
    assert (for_sdk[2]["nftCollectionName"], for_sdk[2]["nftSymbol"]) == ([], [])
    assert spec["nftCollectionName"] == "Cats"


async def test_the_example_of_the_openapi_document_is_a_response(tmp_path: Path) -> None:
    moves = [
        Erc20Transfer(h.COIN, ZERO, h.ALICE, 25 * 10**17),
        Erc20Transfer(h.COIN, ZERO, h.CAROL, 10**18 + 1),
        Erc20Transfer(h.COIN, ZERO, h.BOB, 10**18),
    ]
    spent = [Erc20Transfer(h.COIN, h.CAROL, h.ALICE, 10**18 + 1)]
    filler = IndexFiller(file_urls(tmp_path)[0])
    filler.write([replaced(made_block(0), START, moves), replaced(made_block(1), START + 2, spent)])
    aliases = ChainAliases()
    aliases.add_primary_chains(s.CHAINS.x, CHAIN_ID)
    (example,) = (example for example in example_requests() if example.name == TOKEN_HOLDERS)
    async with (
        metrics_setup(*file_urls(tmp_path), CHAIN, aliases=aliases) as setup,
        client_of(setup) as client,
    ):
        response = await request(client, example.path)
    assert (response.status, response.body) == (200, load_examples()[TOKEN_HOLDERS].response)


async def test_names_of_the_operator_win(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "infos" / id_text(CHAIN_ID) / f"{account_text(address(1))}.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"name": "Described"}))
    infos = ContractInfoFolder(tmp_path / "infos")
    infos.load()
    async with (
        metrics_setup(*file_urls(folder), CHAIN, contract_infos=infos) as setup,
        client_of(setup) as client,
    ):
        body = (await request(client, nfts_path(address(1)))).body
    assert (body["nftCollectionName"], body["nftSymbol"]) == ("Described", "CAT")


async def test_each_endpoint_costs_its_units(folder: Path) -> None:
    async with metrics_setup(*file_urls(folder), CHAIN) as setup:
        setup = setup.with_settings(rate_limit_loopback=True)
        async with client_of(setup) as client:
            responses = [
                await request(client, f"/v1/avg_tps/{IDENTITY.evm_chain_id}"),
                await request(client, balances_path(TOKENS[0]), threshold=0),
                await request(client, nfts_path(address(1))),
            ]
    assert [response.headers["ratelimit-policy"] for response in responses] == ["8000;w=60"] * 3
    assert [int(response.headers["ratelimit-remaining"]) for response in responses] == [
        7_980,
        6_980,
        6_480,
    ]
