"""Endpoints 10 to 14 over the index of an EVM chain, as the indexer writes it, and what each
response says about it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.api.data import evm_history as h
from tests.api.data import samples as s
from tests.api.data.evm_fixtures import ask, evm_setup
from tests.api.data.fixtures import DataApiSetup, client_of, get
from tests.api.openapi.sample_requests import example_requests
from tests.indexer.evm_node import EvmReplayNode
from warpseal.api.data import evm_context
from warpseal.api.data.contract_info import ContractInfoFolder
from warpseal.api.data.endpoints import ENDPOINTS, EVM, METRICS_API
from warpseal.api.data.settings import Compat
from warpseal.api.openapi.examples import load_examples
from warpseal.chains.evm.contract_calls import balance_of_batch_call
from warpseal.chains.evm.nft_document import NftFields
from warpseal.index.evm.records import FetchReason, TokenDocument
from warpseal.index.settings import IndexSettings
from warpseal.resources.aliases import ChainAliases

ALICE, BOB, CATS, ITEMS, DOGS = map(h.text, (h.ALICE, h.BOB, h.CATS, h.ITEMS, h.DOGS))
TRANSFERS = f"{h.PATH}/addresses/{{}}/transactions:listErc1155"
COLLECTIBLES = f"{h.PATH}/addresses/{{}}/balances:listCollectibles"
DEPLOYMENTS = f"{h.PATH}/contracts/{{}}/deployments"
TOKENS = f"{h.PATH}/nfts/collections/{{}}/tokens"
LISTS = {
    TRANSFERS: "transactions",
    COLLECTIBLES: "collectibleBalances",
    DEPLOYMENTS: "contracts",
    TOKENS: "tokens",
}
CAT_METADATA = {
    "indexStatus": "indexed",
    "metadataLastUpdatedTimestamp": h.FETCHED_AT,
    "name": "Cat 1",
    "symbol": "CAT1",
    "imageUri": "ipfs://image",
    "description": "The first cat.",
    "animationUri": "https://cats/1.mp4",
    "externalUrl": "https://cats/1",
    "background": "#ffffff",
}
ATTRIBUTES = {"attributes": '[{"trait_type":"Color","value":"red"}]'}
OF_ERC1155 = {"decimals": 3, "properties": '{"size":1}'}
FIRST_CAT = {
    "address": CATS,
    "name": "Cats",
    "symbol": "CAT",
    "ercType": "ERC-721",
    "tokenId": "1",
    "tokenUri": "ipfs://cats/1",
    "metadata": {**CAT_METADATA, **ATTRIBUTES},
    "ownerAddress": ALICE,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the chain's index; tests only read it."""
    path = tmp_path_factory.mktemp("evm")
    with h.open_writer(path) as writer:
        h.write_history(writer)
    return path


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No indexer runs here, so waiting for missing parts of a page never ends."""
    monkeypatch.setattr(evm_context, "WAIT_S", 0.01)


async def all_pages(
    setup: DataApiSetup, path: str, key: str, **params: Any
) -> list[list[dict[str, Any]]]:
    """Return the items of each page."""
    pages: list[list[dict[str, Any]]] = []
    token: str | None = None
    async with client_of(setup) as client:
        while token is not None or not pages:
            page = params if token is None else {**params, "pageToken": token}
            async with client.get(path, params=page) as response:
                body = await response.json()
                assert response.status == 200, body
            pages.append(body[key])
            token = body.get("nextPageToken")
    return pages


async def test_a_block_comes_from_the_index_and_counts_all_transactions(folder: Path) -> None:
    header = json.loads(h.CHAIN.headers[3])
    async with h.indexed_setup(folder, nodes=()) as setup:
        response = await ask(setup, f"{h.PATH}/blocks/3")
        by_hash = await get(setup, f"{h.PATH}/blocks/{h.CHAIN.hashes[3]}")
    assert response.body == by_hash
    assert response.body == {
        "chainId": str(h.CHAIN.evm_chain_id),
        "blockNumber": "3",
        "blockHash": h.CHAIN.hashes[3],
        "parentHash": h.CHAIN.hashes[2],
        "blockTimestamp": h.block_time(3),
        "txCount": 3,
        "gasUsed": str(3 * 80_000),
        "gasLimit": str(int(header["gasLimit"], 16)),
        "baseFee": str(int(header["baseFeePerGas"], 16)) if "baseFeePerGas" in header else "0",
        "gasCost": str(int(header["blockGasCost"], 16)) if "blockGasCost" in header else "0",
        "feesSpent": response.body["feesSpent"],
        "cumulativeTransactions": "9",
    }
    assert "x-warpseal-source" not in response.headers
    assert response.headers["cache-control"] == "public, max-age=86400"


async def test_every_response_has_the_freshness_of_its_chain_only(folder: Path) -> None:
    paths = ("", "/blocks/1", TRANSFERS.format(ALICE).removeprefix(h.PATH))
    async with h.indexed_setup(folder) as setup:
        values = [(await ask(setup, h.PATH + path)).headers["x-warpseal-index"] for path in paths]
    assert values == [f"{h.CHAIN.evm_chain_id};height=5;node=5;lag=0;internal=5"] * 3


async def test_freshness_tells_a_late_beginning_a_silent_indexer_and_missing_traces(
    tmp_path: Path,
) -> None:
    with h.open_writer(tmp_path, first=2) as writer:
        h.write_blocks(writer, first=2)
        writer.write_status(h.status_of(h.CHAIN, node_height=9, reported_at=s.NOW - 100))
    lag = s.NOW - h.block_time(5)
    async with h.indexed_setup(tmp_path) as setup:
        response = await ask(setup, TOKENS.format(CATS))
        refused = await ask(setup.with_data(max_index_lag_s=lag - 1), TOKENS.format(CATS))
    item = f"{h.CHAIN.evm_chain_id};height=5;node=9;lag={lag};first=2;stale;internal=none"
    assert (response.status, response.headers["x-warpseal-index"]) == (200, item)
    assert (refused.status, refused.body["code"], refused.headers["x-warpseal-index"]) == (
        503,
        "index_stale",
        item,
    )


async def test_freshness_names_the_first_block_that_no_node_traces(tmp_path: Path) -> None:
    with h.open_writer(tmp_path) as writer:
        h.write_blocks(writer)
        writer.traces.write(0, 5, [], [3, 4])
        writer.write_status(h.status_of(h.CHAIN, node_height=5, reported_at=s.NOW))
    async with h.indexed_setup(tmp_path) as setup:
        response = await ask(setup, TOKENS.format(CATS))
    item = f"{h.CHAIN.evm_chain_id};height=5;node=5;lag=0;internal=2;gap=3"
    assert response.headers["x-warpseal-index"] == item


async def test_freshness_names_the_first_block_whose_messages_are_known(tmp_path: Path) -> None:
    with h.open_writer(tmp_path) as writer:
        h.write_blocks(writer)
        writer.write_status(h.status_of(h.CHAIN, node_height=5, reported_at=s.NOW))
        with writer._engine.begin() as connection:
            connection.fetch("UPDATE chain SET icm_first = 3")
    async with h.indexed_setup(tmp_path) as setup:
        response = await ask(setup, TOKENS.format(CATS))
    assert response.headers["x-warpseal-index"].endswith(";internal=none;icm=3")


async def test_data_missing_in_the_index_comes_from_a_node(tmp_path: Path) -> None:
    with h.open_writer(tmp_path, first=2) as writer:
        h.write_blocks(writer, first=2)
    async with h.indexed_setup(tmp_path) as setup:
        older = await ask(setup, f"{h.PATH}/blocks/1")
        indexed = await ask(setup, f"{h.PATH}/blocks/2")
        for_sdk = await ask(setup.with_data(compat=Compat.SDK), f"{h.PATH}/blocks/2")
    with h.open_writer(tmp_path, first=2) as writer:
        writer.earlier_txs.add(2, 3)
    async with h.indexed_setup(tmp_path) as setup:
        counted = await ask(setup, f"{h.PATH}/blocks/2")
    assert (older.headers["x-warpseal-source"], older.body["txCount"]) == ("node", 3)
    assert "x-warpseal-source" not in indexed.headers
    assert [
        body.get("cumulativeTransactions")
        for body in (older.body, indexed.body, for_sdk.body, counted.body)
    ] == [
        None,
        None,
        "0",
        "6",
    ]
    assert indexed.headers["cache-control"] == "public, no-cache"


async def test_transfers_of_an_address_newest_first_one_per_token_and_once_to_oneself(
    folder: Path,
) -> None:
    async with h.indexed_setup(folder) as setup:
        body = await get(setup, TRANSFERS.format(ALICE.lower()))
        ascending = await get(setup, TRANSFERS.format(ALICE), sortOrder="asc")
        page = await get(setup, TRANSFERS.format(BOB))
    transfers = [
        (
            item["blockNumber"],
            item["logIndex"],
            item["erc1155Token"]["tokenId"],
            item["value"],
            item["to"]["address"],
        )
        for item in body["transactions"]
    ]
    assert transfers == [
        ("3", 2, "2", "5", ALICE),
        ("3", 1, "1", "4", BOB),
        ("2", 3, "2", "20", ALICE),
        ("2", 3, "1", "10", ALICE),
    ]
    assert ascending["transactions"] == body["transactions"][::-1]
    assert page["transactions"] == [body["transactions"][1]]
    assert body["transactions"][1] == {
        "blockNumber": "3",
        "blockTimestamp": h.block_time(3),
        "blockHash": h.CHAIN.hashes[3],
        "txHash": h.tx_hash(3, 1),
        "from": {"address": ALICE},
        "to": {"address": BOB},
        "logIndex": 1,
        "value": "4",
        "erc1155Token": {
            "address": ITEMS,
            "ercType": "ERC-1155",
            "tokenId": "1",
            "tokenUri": "https://items/1",
            "metadata": {**CAT_METADATA, **OF_ERC1155},
        },
    }


async def test_transfers_are_bounded_by_blocks(folder: Path) -> None:
    path = TRANSFERS.format(ALICE)
    async with h.indexed_setup(folder) as setup:
        block_numbers = [
            [item["blockNumber"] for item in (await get(setup, path, **bounds))["transactions"]]
            for bounds in (
                {"startBlock": 3},
                {"endBlock": 3},
                {"startBlock": 2, "endBlock": 2},
                {"startBlock": 2**63 - 1},
            )
        ]
        refused = await ask(setup, path, startBlock=3, endBlock=2)
    assert block_numbers == [["3", "3"], ["2", "2"], [], []]
    assert (refused.status, refused.body["detail"]["field"]) == (400, "endBlock")


async def test_nfts_of_an_address_by_first_appearance_with_metadata(folder: Path) -> None:
    async with h.indexed_setup(folder) as setup:
        body = await get(setup, COLLECTIBLES.format(ALICE))
        of_items = await get(setup, COLLECTIBLES.format(ALICE), contractAddress=ITEMS.lower())
        of_bob = await get(setup, COLLECTIBLES.format(BOB), pageSize=500)
    chain_id = str(h.CHAIN.evm_chain_id)
    assert body["collectibleBalances"] == [
        {**FIRST_CAT, "chainId": chain_id},
        {
            "address": ITEMS,
            "name": "",
            "symbol": "",
            "ercType": "ERC-1155",
            "tokenId": "1",
            "tokenUri": "https://items/1",
            "metadata": {**CAT_METADATA, **ATTRIBUTES, **OF_ERC1155},
            "ownerAddress": ALICE,
            "chainId": chain_id,
            "balance": "6",
        },
        {
            "address": ITEMS,
            "name": "",
            "symbol": "",
            "ercType": "ERC-1155",
            "tokenId": "2",
            "tokenUri": "https://items/2",
            "metadata": {
                "indexStatus": "indexed",
                "metadataLastUpdatedTimestamp": h.FETCHED_AT,
                "name": "Item 2",
            },
            "ownerAddress": ALICE,
            "chainId": chain_id,
            "balance": "20",
        },
    ]
    assert of_items["collectibleBalances"] == body["collectibleBalances"][1:]
    owned = [
        (item["address"], item["tokenId"], item.get("balance"))
        for item in of_bob["collectibleBalances"]
    ]
    assert owned == [
        (CATS, "2", None),
        (ITEMS, "1", "4"),
        *((DOGS, str(token), None) for token in range(len(h.STATUSES))),
    ]


async def test_tokens_of_a_collection_have_owners_if_they_are_erc_721(folder: Path) -> None:
    async with h.indexed_setup(folder) as setup:
        cats = await get(setup, TOKENS.format(CATS))
        items = await get(setup, TOKENS.format(ITEMS))
        one = await get(setup, TOKENS.format(CATS) + "/1")
        none = await get(setup, TOKENS.format(ALICE))
    assert [(item["tokenId"], item["ownerAddress"]) for item in cats["tokens"]] == [
        ("1", ALICE),
        ("2", BOB),
    ]
    assert [(item["tokenId"], "ownerAddress" in item) for item in items["tokens"]] == [
        ("1", False),
        ("2", False),
    ]
    assert cats["tokens"][0] == one
    assert one == FIRST_CAT
    assert none == {"tokens": []}


@pytest.mark.parametrize("compat", [Compat.SPEC, Compat.SDK])
async def test_index_status_is_lower_case_in_the_specification_and_upper_case_for_sdks(
    folder: Path, compat: Compat
) -> None:
    async with h.indexed_setup(folder) as setup:
        body = await get(setup.with_data(compat=compat), TOKENS.format(DOGS), pageSize=100)
        automatic = [
            (await ask(setup, TOKENS.format(DOGS) + "/1", **{"header_user-agent": agent})).body
            for agent in ("curl", "speakeasy-sdk/typescript 0.13.0")
        ]
    expected = [status.lower() if compat is Compat.SPEC else status.value for status in h.STATUSES]
    assert [item["metadata"]["indexStatus"] for item in body["tokens"]] == expected
    assert [item["metadata"]["indexStatus"] for item in automatic] == ["indexed", "INDEXED"]


async def test_contracts_that_an_account_or_a_contract_created_newest_first(folder: Path) -> None:
    async with h.indexed_setup(folder) as setup:
        of_alice = await get(setup, DEPLOYMENTS.format(ALICE))
        of_carol = await get(setup, DEPLOYMENTS.format(h.text(h.CAROL)))
        of_factory = await get(setup, DEPLOYMENTS.format(h.text(h.FACTORY)))
    assert of_alice["contracts"] == [
        {
            "address": h.text(h.PLAIN),
            "ercType": "UNKNOWN",
            "deploymentDetails": {"txHash": h.tx_hash(4, 1), "deployerAddress": ALICE},
        },
        {
            "name": "Coin",
            "symbol": "COIN",
            "address": h.text(h.COIN),
            "ercType": "ERC-20",
            "decimals": 6,
            "deploymentDetails": {"txHash": h.tx_hash(4, 0), "deployerAddress": ALICE},
        },
        {
            "address": ITEMS,
            "ercType": "ERC-1155",
            "deploymentDetails": {"txHash": h.tx_hash(1, 1), "deployerAddress": ALICE},
        },
        {
            "name": "Cats",
            "symbol": "CAT",
            "address": CATS,
            "ercType": "ERC-721",
            "deploymentDetails": {"txHash": h.tx_hash(1, 0), "deployerAddress": ALICE},
        },
    ]
    child = {
        "address": h.text(h.CHILD),
        "ercType": "UNKNOWN",
        "deploymentDetails": {
            "txHash": h.tx_hash(3, 2),
            "deployerAddress": h.text(h.CAROL),
            "deployerContractAddress": h.text(h.FACTORY),
        },
    }
    assert of_carol["contracts"] == of_factory["contracts"] == [child]


async def test_small_pages_hold_together_what_one_large_page_holds(folder: Path) -> None:
    paths = (
        TRANSFERS.format(ALICE),
        COLLECTIBLES.format(BOB),
        DEPLOYMENTS.format(ALICE),
        TOKENS.format(DOGS),
    )
    async with h.indexed_setup(folder) as setup:
        for path, key in zip(paths, LISTS.values(), strict=True):
            (whole,) = await all_pages(setup, path, key, pageSize=100)
            pages = await all_pages(setup, path, key, pageSize=2)
            assert [item for page in pages for item in page] == whole
            assert max(map(len, pages)) == 2


@pytest.mark.parametrize(
    ("path", "params", "field"),
    [
        (TRANSFERS.format("0x12"), {}, "address"),
        (COLLECTIBLES.format("x" * 42), {}, "address"),
        (DEPLOYMENTS.format(ALICE + "0"), {}, "address"),
        (TOKENS.format("0x" + "g" * 40), {}, "address"),
        (TOKENS.format(CATS) + "/-1", {}, "tokenId"),
        (TOKENS.format(CATS) + f"/{2**256}", {}, "tokenId"),
        (TOKENS.format(CATS) + "/0x1", {}, "tokenId"),
        (COLLECTIBLES.format(ALICE), {"contractAddress": "0x1"}, "contractAddress"),
        (COLLECTIBLES.format(ALICE), {"pageSize": 501}, "pageSize"),
        (TOKENS.format(CATS), {"pageSize": 101}, "pageSize"),
        (TRANSFERS.format(ALICE), {"startBlock": "x"}, "startBlock"),
        (TRANSFERS.format(ALICE), {"endBlock": "1.5"}, "endBlock"),
        (TRANSFERS.format(ALICE), {"endBlock": "-1"}, "endBlock"),
        (TRANSFERS.format(ALICE), {"sortOrder": "up"}, "sortOrder"),
    ],
)
async def test_malformed_values_are_refused_by_the_name_of_their_parameter(
    folder: Path, path: str, params: dict[str, Any], field: str
) -> None:
    async with h.indexed_setup(folder) as setup:
        response = await ask(setup, path, **params)
    assert (response.status, response.body["detail"]["field"]) == (400, field)


async def test_a_chain_without_an_index_says_so_and_one_without_blocks_is_not_ready(
    tmp_path: Path,
) -> None:
    paths = [path.format(ALICE) for path in LISTS]
    paths.append(TOKENS.format(CATS) + "/1")

    async def outcomes(setup: DataApiSetup) -> set[tuple[int, str]]:
        responses = [await ask(setup, path) for path in paths]
        responses.append(await ask(setup, TOKENS.format(CATS) + "/1:reindex", "POST"))
        return {(response.status, response.body["code"]) for response in responses}

    async with evm_setup(EvmReplayNode(h.CHAIN), chain_id=h.CHAIN.blockchain_id) as setup:
        assert await outcomes(setup) == {(404, "index_not_enabled")}
        body = (await ask(setup, paths[0])).body
    assert body["message"].endswith('set "index": true for the chain in evm-chains')
    assert body["detail"] == {
        "missing": f"EVM chain {h.CHAIN.evm_chain_id}",
        "setting": "evm-chains",
    }
    async with h.indexed_setup(tmp_path) as setup:
        assert await outcomes(setup) == {(503, "index_not_ready")}
        with h.open_writer(tmp_path):
            assert await outcomes(setup) == {(503, "index_not_ready")}
            block = await ask(setup, f"{h.PATH}/blocks/1")
    assert (block.status, block.headers["x-warpseal-source"]) == (200, "node")


async def test_descriptions_win_over_the_chain_and_hidden_contracts_are_left_out(
    folder: Path, tmp_path: Path
) -> None:
    infos = ContractInfoFolder(tmp_path)
    by_chain = tmp_path / str(h.CHAIN.evm_chain_id)
    by_chain.mkdir()
    description = {
        "name": "Better cats",
        "description": "Described.",
        "logoAsset": {"imageUri": "https://logo"},
        "resourceLinks": [{"type": "Website", "url": "https://cats"}],
        "tags": ["a"],
    }
    (by_chain / f"{CATS.lower()}.json").write_text(json.dumps(description))
    (by_chain / f"{ITEMS}.json").write_text('{"hidden": true}')
    (by_chain / f"{BOB}.json").write_text(
        '{"name": "Vault", "logoAsset": {"imageUri": "https://vault"}}'
    )
    infos.load()
    async with h.indexed_setup(folder, contract_infos=infos) as setup:
        deployed = await get(setup, DEPLOYMENTS.format(ALICE))
        collectibles = await get(setup, COLLECTIBLES.format(ALICE))
        transfers = await get(setup, TRANSFERS.format(ALICE))
        items = await get(setup, TOKENS.format(ITEMS))
        (by_chain / f"{ITEMS}.json").unlink()
        infos.load()
        transfer_page = await get(setup, TRANSFERS.format(ALICE))
    cats = deployed["contracts"][-1]
    assert {name: cats[name] for name in description} == description
    assert (cats["symbol"], cats["ercType"]) == ("CAT", "ERC-721")
    assert [(item["address"], item["name"]) for item in collectibles["collectibleBalances"]] == [
        (CATS, "Better cats")
    ]
    assert transfers == {"transactions": []}
    assert len(items["tokens"]) == 2
    assert transfer_page["transactions"][1]["to"] == {
        "address": BOB,
        "name": "Vault",
        "logoUri": "https://vault",
    }


async def test_amounts_of_an_index_that_begins_late_come_from_a_node(tmp_path: Path) -> None:
    with h.open_writer(tmp_path, first=3) as writer:
        h.write_blocks(writer, first=3)
        writer.contracts.write(h.CONTRACTS)
        writer.documents.write(h.DOCUMENTS)

    def call(to: bytes, data: bytes, block: Any) -> bytes | None:
        ids = [1, 2] if data == balance_of_batch_call([h.ALICE] * 2, [1, 2]) else [1]
        amounts = {1: 0, 2: 77}
        values = [amounts[number] for number in ids]
        words = [32, len(values), *values]
        return b"".join(word.to_bytes(32) for word in words)

    node = EvmReplayNode(h.CHAIN, call=call)
    async with h.indexed_setup(tmp_path, nodes=[node]) as setup:
        body = await get(setup, COLLECTIBLES.format(ALICE))
        node.call = lambda to, data, block: bytes(32) * 1_000
        hostile = await get(setup, COLLECTIBLES.format(ALICE))
        node.call = lambda to, data, block: None
        reverted = await get(setup, COLLECTIBLES.format(ALICE))
        node.is_down = True
        unreachable = await ask(setup, COLLECTIBLES.format(ALICE))
    assert [(item["tokenId"], item["balance"]) for item in reverted["collectibleBalances"]] == [
        ("2", "5")
    ]
    assert hostile == reverted
    assert [(item["tokenId"], item["balance"]) for item in body["collectibleBalances"]] == [
        ("2", "77")
    ]
    assert (unreachable.status, unreachable.body["code"]) == (502, "node_unavailable")


async def test_pages_end_early_at_4_mib(tmp_path: Path) -> None:
    long = NftFields(description="x" * 1_000_000)
    with h.open_writer(tmp_path) as writer:
        h.write_history(writer)
        for token, status in enumerate(h.STATUSES):
            writer.documents.write(
                [TokenDocument(h.DOGS, token, status, h.FETCHED_AT, "https://x", long)]
            )
    async with h.indexed_setup(tmp_path) as setup:
        pages = await all_pages(setup, TOKENS.format(DOGS), "tokens", pageSize=100)
    assert [item["tokenId"] for page in pages for item in page] == [
        str(token) for token in range(len(h.STATUSES))
    ]
    assert [len(page) for page in pages] == [4, 4, 3]


async def test_an_index_in_postgresql_answers_as_one_in_a_file(
    folder: Path, tmp_path: Path, postgres_url: str
) -> None:
    settings = IndexSettings(postgres_url)
    lists: list[tuple[str, dict[str, Any]]] = [
        *(
            (TRANSFERS.format(owner), {"startBlock": block})
            for owner in (ALICE, BOB)
            for block in (0, 3)
        ),
        *(
            (COLLECTIBLES.format(owner), {"contractAddress": kind})
            for owner in (ALICE, BOB)
            for kind in (CATS, ITEMS)
        ),
        *((COLLECTIBLES.format(owner), {}) for owner in (ALICE, BOB)),
        *(
            (DEPLOYMENTS.format(creator), {})
            for creator in (ALICE, h.text(h.CAROL), h.text(h.FACTORY))
        ),
        *((TOKENS.format(contract), {}) for contract in (CATS, ITEMS, DOGS, h.text(h.PLAIN))),
    ]
    singles = [f"{h.PATH}/blocks/{block}" for block in (0, 3, h.CHAIN.hashes[4], h.CHAIN.tip)]
    singles += [
        f"{TOKENS.format(contract)}/{token}" for contract in (CATS, ITEMS) for token in (1, 99)
    ]
    with h.open_writer(tmp_path, settings=settings) as writer:
        h.write_history(writer)
        async with (
            h.indexed_setup(folder) as of_file,
            h.indexed_setup(tmp_path, settings=settings) as of_server,
        ):
            entries = 0
            for path, params in lists:
                key = LISTS[
                    next(template for template in LISTS if template.partition("{}")[2] in path)
                ]
                for size in (1, 100):
                    pages = await all_pages(of_server, path, key, pageSize=size, **params)
                    assert pages == await all_pages(of_file, path, key, pageSize=size, **params)
                    entries += sum(map(len, pages))
            assert entries > 60
            for path in singles:
                from_file, from_server = await ask(of_file, path), await ask(of_server, path)
                assert (from_server.status, from_server.body) == (from_file.status, from_file.body)
                assert (
                    from_server.headers["x-warpseal-index"] == from_file.headers["x-warpseal-index"]
                )
            reindexed = [
                await ask(of_server, f"{TOKENS.format(CATS)}/1:reindex", "POST") for _ in range(2)
            ]
            assert [response.status for response in reindexed] == [201, 429]
            (token,) = writer.documents.to_fetch(FetchReason.REINDEX, 10, s.NOW)
            assert (token.contract, token.token_id) == (h.CATS, 1)


async def test_a_damaged_index_says_so_and_blocks_still_come_from_a_node(
    folder: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    (file,) = copied.rglob("*.db")
    file.write_bytes(b"no database" * 1_000)
    async with h.indexed_setup(copied) as setup:
        page = await ask(setup, TOKENS.format(CATS))
        block = await ask(setup, f"{h.PATH}/blocks/1")
        chain = await get(setup, h.PATH)
    assert (page.status, page.body["code"]) == (503, "index_damaged")
    assert (block.status, block.headers["x-warpseal-source"]) == (200, "node")
    assert chain["status"] == "UNAVAILABLE"


async def test_an_indexed_chain_has_the_feature_and_is_unavailable_once_indexing_stopped(
    tmp_path: Path,
) -> None:
    with h.open_writer(tmp_path) as writer:
        h.write_blocks(writer)
        async with h.indexed_setup(tmp_path) as setup:
            running = await get(setup, h.PATH)
            listed = await get(setup, "/v1/chains", feature="nftIndexing")
            writer.write_status(
                h.status_of(h.CHAIN, stopped="another hash at a known height", stopped_at=5)
            )
            stopped = await get(setup, h.PATH)
    assert (running["status"], running["enabledFeatures"]) == ("OK", ["nftIndexing"])
    assert [chain["chainId"] for chain in listed["chains"]] == [str(h.CHAIN.evm_chain_id)]
    assert stopped["status"] == "UNAVAILABLE"


async def test_an_indexed_chain_is_found_by_its_evm_chain_id_while_no_node_answers(
    folder: Path,
) -> None:
    async with h.indexed_setup(folder, nodes=[EvmReplayNode(h.CHAIN, is_down=True)]) as setup:
        chain = await get(setup, h.PATH)
        tokens = await get(setup, TOKENS.format(CATS))
    assert (chain["chainId"], chain["status"]) == (str(h.CHAIN.evm_chain_id), "UNAVAILABLE")
    assert len(tokens["tokens"]) == 2


async def test_the_examples_of_the_openapi_document_are_responses(folder: Path) -> None:
    pages = [operation for operation in ENDPOINTS if operation.method == "GET"]
    # That of the holders of an ERC-20 token is in test_holders.py.
    operation_names = {
        operation.name for operation in pages if operation.tag in (EVM, METRICS_API)
    } - {"getAddressesByBalanceOverTime"}
    aliases = ChainAliases()
    aliases.add_primary_chains(s.CHAINS.x, h.CHAIN.blockchain_id)
    async with h.indexed_setup(folder, aliases=aliases) as setup:
        for request in example_requests():
            if request.name in operation_names:
                response = await ask(setup, request.path, header_host="localhost:8080")
                assert (response.status, response.body) == (
                    200,
                    load_examples()[request.name].response,
                ), request.name
                operation_names.remove(request.name)
    assert operation_names == set()
