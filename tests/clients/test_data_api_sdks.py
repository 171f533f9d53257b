"""The published SDKs read every page of a running daemon; what they refuse is refused with their
own errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.api.data import evm_history as h
from tests.api.data import samples as s
from tests.api.data.fixtures import client_of
from tests.api.data.metrics_fixtures import MadeChain, file_urls, metrics_setup
from tests.api.data.test_icm import icm_setup, write_chains
from tests.api.data.test_sdk_models import ALICE, SETUP
from tests.clients.past import LISTS, past_of, priced_daemon
from tests.clients.published import Call, Sdk, running_sdk
from tests.clients.recorded_network import RecordedDaemon
from tests.clients.subjects import CHAINS, NETWORK, SUBJECTS, ids_of
from tests.icm.fixtures import silent_obstacles
from tests.index.evm.fixtures import CHAIN_ID, IDENTITY
from tests.index.evm.histories import address
from tests.index.evm.icm_histories import PEOPLE, A, IcmHistory
from tests.index.evm.test_holders import TOKENS, Blocks, IndexFiller
from tests.integration.indexed_daemon import fetch_all
from tests.integration.l1_daemon import HEIGHT, attested_message, run_l1_network
from tests.integration.message_verifier import verify_signed_message
from warpseal.index.evm.records import ContractFacts
from warpseal.resources.evm import ErcType
from warpseal.resources.text import account_text, hex_text
from warpseal.upstream.endpoint import EvmIndexing
from warpseal.warp.ids import id_text, node_id_text
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

pytestmark = pytest.mark.asyncio(loop_scope="module")
OF_TELEPORTER = (
    "teleporter.listTeleporterMessages",
    "teleporter.listTeleporterMessagesByAddress",
    "teleporter.getTeleporterMessage",
)
PRIMARY = "data.primaryNetwork."
EVM = "data.evm."
METRICS = "metrics.chains."
AGGREGATOR = "data.signatureAggregator."
OWN_KEYS = {
    "p-chain": {"amountBurned"},
    "x-chain": {"chainFormat"},
    "c-chain": {"evmInputs", "evmOutputs"},
}
"""SDKs leave out unknown fields, so the remaining fields show the chain of a transaction."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["avacloud-sdk", "chainkit"])
async def sdk(request: pytest.FixtureRequest) -> AsyncIterator[Sdk]:
    """Run each SDK once for all tests."""
    async with running_sdk(request.param) as process:
        yield process


async def test_sdks_read_every_page_of_the_recorded_network(
    recorded: RecordedDaemon, sdk: Sdk
) -> None:
    """All pages together hold the items of one long page, in its order."""
    sized = [
        subject.with_page_size(2) if "list" in subject.function else subject for subject in SUBJECTS
    ]
    response = await sdk.outcomes(recorded.daemon.api_url, [subject.call for subject in sized])
    read = {str(subject): outcome for subject, outcome in zip(SUBJECTS, response, strict=True)}
    assert [(name, outcome) for name, outcome in read.items() if "error" in outcome] == []
    for subject in SUBJECTS:
        whole = subject.with_page_size(100) if "list" in subject.function else subject
        reply = await recorded.daemon.get(whole.url)
        assert ids_of(read[str(subject)]["pages"]) == ids_of([reply.body]), str(subject)
    for chain, sizes in zip(CHAINS, ((10, 20), (7, 14), (6, 11)), strict=True):
        pages = read[f"blockchains/{chain}/blocks"]["pages"]
        assert (len(pages), len(ids_of(pages))) == sizes
        pages = read[f"blockchains/{chain}/transactions"]["pages"]
        assert all(set(tx) & OWN_KEYS[chain] for page in pages for tx in page["transactions"])


async def test_one_daemon_gives_sdks_in_browsers_and_plain_clients_their_own_shapes(
    recorded: RecordedDaemon, sdk: Sdk
) -> None:
    """A browser lets no page set its user agent: the header X-App-Component identifies the SDK."""
    calls: list[Call] = [
        (PRIMARY + "transactions.listLatest", {"network": NETWORK, "blockchainId": "x-chain"})
    ]
    async with running_sdk(sdk.name, "browser") as browser:
        (read,) = await browser.outcomes(recorded.daemon.api_url, calls)
    plain = await recorded.daemon.get(f"/v1/networks/{NETWORK}/blockchains/x-chain/transactions")
    assert kinds_of_output_index(read["pages"][0]) == {str}
    assert kinds_of_output_index(plain.body) == {int}


def kinds_of_output_index(page: dict[str, Any]) -> set[type]:
    return {type(utxo["outputIndex"]) for tx in page["transactions"] for utxo in tx["emittedUtxos"]}


async def test_sdks_read_rewards_and_past_validations(tmp_path: Path, sdk: Sdk) -> None:
    """Prices, delegations and removals included; all pages together hold the items of pages of
    another size.
    """
    async with priced_daemon(tmp_path) as daemon:
        validators = await past_of(daemon)
        reply = await sdk.outcomes(
            daemon.api_url, [subject.with_page_size(5).call for subject in validators]
        )
        assert [item.get("error") for item in reply] == [None] * len(validators)
        for subject, match in zip(validators, reply, strict=True):
            path, key = subject.url, LISTS[subject.model]
            assert ids_of(match["pages"]) == ids_of([{key: await fetch_all(daemon, path, key, 50)}])
    rewards, validations = items(reply[:1], "historicalRewards"), items(reply[1:-1], "validators")
    assert {reward["rewardType"] for reward in rewards} == {
        "VALIDATOR",
        "DELEGATOR",
        "VALIDATOR_FEE",
    }
    assert {"currencyCode": "usd", "value": 5.25} in [
        reward["reward"].get("historicalPrice") for reward in rewards
    ]
    assert {validation["validationStatus"] for validation in validations} == {
        "active",
        "completed",
        "removed",
    }
    assert (len(rewards), len(items(reply[-1:], "transactions"))) == (38, 397)


def items(result: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [entry for item in result for page in item["pages"] for entry in page[key]]


async def test_sdks_read_every_shape(sdk: Sdk) -> None:
    """An index in memory has what the recorded network lacks: rewards with prices, validators of
    every state.
    """
    whose, size = {"network": NETWORK, "addresses": ALICE}, {"pageSize": 1}
    chain_ids = [id_text(item.chain_id) for item in (s.EVM_CHAIN, s.OTHER_CHAIN)]
    calls: list[Call] = [
        *[
            (PRIMARY + "transactions.listLatest", {**whose, **size, "blockchainId": chain})
            for chain in CHAINS
        ],
        (PRIMARY + "getChainIdsForAddresses", whose),
        (PRIMARY + "rewards.listHistoricalRewards", {**whose, **size, "currency": "usd"}),
        (
            PRIMARY + "getValidatorDetails",
            {"network": NETWORK, **size, "nodeId": node_id_text(s.NODE)},
        ),
        *[
            (PRIMARY + "getBlockchainById", {"network": NETWORK, "blockchainId": item})
            for item in chain_ids
        ],
    ]
    async with client_of(SETUP) as client:
        reply = await sdk.outcomes(str(client._base_url).rstrip("/"), calls)
    assert [item.get("error") for item in reply] == [None] * len(calls)
    p, x, c, touched, rewards, validations, evm, other = (item["pages"] for item in reply)
    for chain, pages in zip(CHAINS, (p, x, c), strict=True):
        assert all(set(tx) & OWN_KEYS[chain] for page in pages for tx in page["transactions"])
    assert len(ids_of(p)) == len(p) == 3
    assert touched[0]["addresses"][0]["blockchainIds"]
    assert [
        page["historicalRewards"][0]["reward"]["historicalPrice"]["value"] for page in rewards
    ] == [42.42] * 2
    states = [page["validators"][0]["validationStatus"] for page in validations]
    assert set(states) == {"active", "completed", "pending", "removed"}
    assert [item[0]["evmChainId"] for item in (evm, other)] == [99999, 0]


async def test_sdks_raise_their_own_errors_for_refusals(recorded: RecordedDaemon, sdk: Sdk) -> None:
    unknown = {"network": NETWORK, "blockchainId": id_text(bytes([9]) * 32)}
    calls: list[Call] = [
        (PRIMARY + "getBlockchainById", unknown),
        (PRIMARY + "getBlockchainById", {**unknown, "blockchainId": "x"}),
        (
            PRIMARY + "blocks.listLatest",
            {"network": NETWORK, "blockchainId": "p-chain", "pageToken": "x"},
        ),
        (
            PRIMARY + "transactions.listLatest",
            {"network": NETWORK, "blockchainId": "p-chain", "startTimestamp": 1},
        ),
    ]
    errors = [request["error"] for request in await sdk.outcomes(recorded.daemon.api_url, calls)]
    assert [(error["kind"].removesuffix("Error"), error["statusCode"]) for error in errors] == [
        ("NotFound", 404),
        ("BadRequest", 400),
        ("BadRequest", 400),
        ("BadRequest", 400),
    ]
    assert errors[0]["message"].startswith("no blockchain with id")
    assert "startTimestamp" in errors[3]["message"]


async def test_sdks_read_signed_messages(tmp_path: Path, sdk: Sdk) -> None:
    """By a P-Chain transaction, and of a message that is sent along; and why there is none."""
    async with run_l1_network(
        tmp_path, Plan(validators=4, l1s=(L1Plan(validators=3),), messages=1)
    ) as recorded:
        conversion = recorded.network.p_chain.conversion_of(recorded.l1)
        message = recorded.network.messages[0]
        base = recorded.network.p_chain.base()
        calls: list[Call] = [
            (AGGREGATOR + "get", {"network": NETWORK, "txHash": conversion.text}),
            (AGGREGATOR + "get", {"network": NETWORK, "txHash": base.text}),
            (AGGREGATOR + "get", {"network": NETWORK, "txHash": id_text(bytes([9]) * 32)}),
            (
                AGGREGATOR + "aggregate",
                {"network": NETWORK, "signatureAggregatorRequest": request_of(message)},
            ),
        ]
        await recorded.daemon.until_ready()
        response = await sdk.outcomes(recorded.daemon.api_url, calls)
        (reply,) = response[0]["pages"]
        attested = attested_message(conversion)
        height = int((await recorded.daemon.l1_message(conversion)).headers[HEIGHT])
        verify_signed_message(
            recorded.network,
            reply["signedMessage"],
            attested.unsigned.raw,
            attested.signing_subnet_id,
            67,
            height,
        )
        assert [
            (item["error"]["kind"].removesuffix("Error"), item["error"]["statusCode"])
            for item in response[1:3]
        ] == [
            ("BadRequest", 400),
            ("NotFound", 404),
        ]
        (reply,) = response[3]["pages"]
        verify_signed_message(
            recorded.network,
            reply["signedMessage"],
            message.unsigned.raw,
            message.signing_subnet_id,
            67,
        )


async def test_sdks_read_every_page_about_evm_chains(tmp_path: Path, sdk: Sdk) -> None:
    """With default settings: every kind of contract, every status of metadata, pages of one and of
    many items.
    """
    with h.open_writer(tmp_path) as writer:
        h.write_history(writer)
        writer.write_status(h.status_of(h.CHAIN, reported_at=s.NOW - 3_600))
        chain = {"chainId": str(h.CHAIN.evm_chain_id)}
        alice, bob, cats, items, dogs = map(h.text, (h.ALICE, h.BOB, h.CATS, h.ITEMS, h.DOGS))
        collectibles = EVM + "address.balances.listCollectibles"
        calls: list[Call] = [
            (EVM + "chains.get", chain),
            (EVM + "chains.list", {}),
            (EVM + "blocks.get", {**chain, "blockId": "3"}),
            (EVM + "blocks.get", {**chain, "blockId": h.CHAIN.hashes[0]}),
            (EVM + "address.transactions.listErc1155", {**chain, "address": alice, "pageSize": 1}),
            (collectibles, {**chain, "address": alice, "pageSize": 1}),
            (collectibles, {**chain, "address": bob, "pageSize": 500}),
            (EVM + "address.contracts.listDeployments", {**chain, "address": alice, "pageSize": 3}),
            ("data.nfts.list", {**chain, "address": cats}),
            ("data.nfts.list", {**chain, "address": items, "pageSize": 1}),
            ("data.nfts.list", {**chain, "address": dogs, "pageSize": 4}),
            ("data.nfts.get", {**chain, "address": cats, "tokenId": "1"}),
            ("data.nfts.reindex", {**chain, "address": cats, "tokenId": "1"}),
            ("data.nfts.reindex", {**chain, "address": cats, "tokenId": "1"}),
            ("data.nfts.list", {"chainId": "99", "address": cats}),
        ]
        async with h.indexed_setup(tmp_path) as setup, client_of(setup) as client:
            *read, again, unknown = await sdk.outcomes(str(client._base_url).rstrip("/"), calls)
    assert [item.get("error") for item in read] == [None] * len(read)
    (
        chain_info,
        chains,
        block,
        genesis,
        moved,
        held,
        of_bob,
        deployed,
        _,
        of_items,
        of_dogs,
        token,
        _,
    ) = (item["pages"] for item in read)
    assert chain_info[0]["enabledFeatures"] == ["nftIndexing"]
    assert [entry["chainId"] for entry in chains[0]["chains"]] == [str(h.CHAIN.evm_chain_id)]
    assert (block[0]["cumulativeTransactions"], genesis[0]["blockNumber"]) == ("9", "0")
    assert [len(page["transactions"]) for page in moved] == [1] * 4
    assert [page["collectibleBalances"][0].get("balance") for page in held] == [None, "6", "20"]
    assert len(of_bob[0]["collectibleBalances"]) == 2 + len(h.STATUSES)
    kinds = [contract["ercType"] for page in deployed for contract in page["contracts"]]
    assert kinds == ["UNKNOWN", "ERC-20", "ERC-1155", "ERC-721"]
    assert [len(page["tokens"]) for page in of_items] == [1, 1]
    statuses = [item["metadata"]["indexStatus"] for page in of_dogs for item in page["tokens"]]
    assert statuses == [status.value for status in h.STATUSES]
    assert token[0]["metadata"]["attributes"] == h.FIELDS.attributes
    kinds = [item["error"]["kind"].removesuffix("Error") for item in (again, unknown)]
    assert kinds == ["TooManyRequests", "NotFound"]


async def test_sdks_read_every_page_of_messages(tmp_path: Path, sdk: Sdk) -> None:
    """Of every status, by both kinds of paths, also with what hinders them."""
    history = IcmHistory(43)
    history.add_blocks(40)
    write_chains(tmp_path, {chain_id: chain.blocks for chain_id, chain in history.chains.items()})
    whole = {"pageSize": 100}
    person, chain = hex_text(PEOPLE[1]), id_text(A)
    async with (
        icm_setup(tmp_path) as setup,
        client_of(replace(setup, icm=silent_obstacles())) as client,
    ):
        async with client.get("/v1/icm/messages", params=whole) as response:
            messages = (await response.json())["messages"]
        states = {
            message["warpseal"]["state"] for message in messages if not message["messageExecuted"]
        }
        assert states == {"sent", "received", "failed"}
        by_status = {message["status"]: message["messageId"] for message in messages}
        for names in (("icm.list", "icm.listByAddress", "icm.get"), OF_TELEPORTER):
            listed, by_address, one = (f"data.{name}" for name in names)
            filters = {
                "sourceBlockchainId": chain,
                "from": person,
                "to": person,
                "network": NETWORK,
            }
            calls: list[Call] = [
                *((listed, size) for size in (whole, {"pageSize": 1}, {"pageSize": 7})),
                (listed, {**filters, "pageSize": 1}),
                (listed, {"blockchainId": chain, "destinationBlockchainId": "11", **whole}),
                (by_address, {"address": person, "network": NETWORK, "pageSize": 3}),
                *((one, {"messageId": message_id}) for message_id in by_status.values()),
                (one, {"messageId": "0x" + "00" * 32}),
                (listed, {"blockchainId": "nowhere"}),
            ]
            *read, unknown, wrong = await sdk.outcomes(str(client._base_url).rstrip("/"), calls)
            assert [item.get("error") for item in read] == [None] * len(read)
            ids = [
                [message["messageId"] for page in item["pages"] for message in page["messages"]]
                for item in read[:6]
            ]
            assert ids[:3] == [[message["messageId"] for message in messages]] * 3
            assert ids[3] == [
                message["messageId"]
                for message in messages
                if (message["sourceBlockchainId"], message["from"], message["to"])
                == (chain, *[account_text(PEOPLE[1])] * 2)
            ]
            assert len(ids[4]) > 2
            assert len(ids[5]) > 2
            statuses = [item["pages"][0]["status"] for item in read[6:]]
            assert statuses == list(by_status)
            assert set(statuses) == {"pending", "delivered", "delivered_source_not_indexed"}
            kinds = [item["error"]["kind"].removesuffix("Error") for item in (unknown, wrong)]
            assert kinds == ["NotFound", "BadRequest"]


async def test_an_sdk_reads_every_page_of_holders(tmp_path: Path) -> None:
    """chainkit has no functions for them."""
    index_url, metrics_url = file_urls(tmp_path)
    filler = IndexFiller(index_url)
    filler.write(Blocks(4).take(60))
    filler.writer.contracts.write(
        [ContractFacts(address(1), ErcType.ERC721, "Cats", "CAT", None, 60)]
    )
    filler.writer.close()
    chain = {"chainId": str(IDENTITY.evm_chain_id)}
    coin, cats = account_text(TOKENS[0]), account_text(address(1))
    above, nfts = METRICS + "listTokenHoldersAboveThreshold", METRICS + "listNftHolders"
    calls: list[Call] = [
        (above, {**chain, "address": coin, "threshold": "0"}),
        (above, {**chain, "address": coin, "threshold": "0", "pageSize": 2, "startTimestamp": 0}),
        (nfts, {**chain, "address": cats}),
        (nfts, {**chain, "address": cats, "pageSize": 2}),
        (above, {**chain, "address": coin, "threshold": "1.5"}),
        (nfts, {"chainId": "99", "address": cats}),
    ]
    holders = MadeChain(0, indexing=EvmIndexing(has_holders=True), chain_id=CHAIN_ID)
    async with metrics_setup(index_url, metrics_url, holders) as setup, client_of(setup) as client:
        async with client.get(
            f"/v2/chains/{IDENTITY.evm_chain_id}/contracts/{coin}/balances?threshold=0"
        ) as response:
            plain = (await response.json())["addresses"]
        async with running_sdk("avacloud-sdk") as sdk:
            *read, malformed, unknown = await sdk.outcomes(str(client._base_url).rstrip("/"), calls)
    assert [item.get("error") for item in read] == [None] * len(read)
    entries = [[entry for page in item["pages"] for entry in page["addresses"]] for item in read]
    whole, paged, of_cats, paged_cats = entries
    assert whole == paged == [{**entry, "sortKey": str(entry["sortKey"])} for entry in plain]
    assert len(read[1]["pages"]) == ceil(len(whole) / 2) > 2
    assert of_cats == paged_cats
    assert (read[2]["pages"][0]["nftCollectionName"], read[2]["pages"][0]["nftSymbol"]) == (
        ["Cats"],
        ["CAT"],
    )
    assert read[3]["pages"][0]["totalHolders"] == len(of_cats) > 2
    assert [item["error"]["kind"] for item in (malformed, unknown)] == ["BadRequest", "NotFound"]
    assert "threshold" in malformed["error"]["message"]


def request_of(message: SimMessage) -> dict[str, str]:
    return {
        "message": message.unsigned.raw.hex(),
        "signingSubnetId": id_text(message.signing_subnet_id),
    }
