"""ICM messages over the indexes of two chains, against the plain model of the histories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.data import samples as s
from tests.api.data.fixtures import DataApiSetup, client_of
from tests.api.data.metrics_fixtures import MadeChain, file_urls, metrics_setup, request, walk
from tests.api.openapi.documented_responses import assert_documented
from tests.api.openapi.sample_requests import example_requests
from tests.chains.evm.icm_logs import MESSENGER, Message
from tests.index.evm.histories import made_block
from tests.index.evm.icm_histories import ABSENT, COIN, PEOPLE, RELAYERS, A, B, IcmHistory, block_of
from tests.index.evm.icm_rows import icm_writers, join
from tests.index.evm.test_icm_pages import QUERIES, STUCK_S, expected
from warpseal.api.data import icm_endpoints
from warpseal.api.data.endpoints import ENDPOINTS
from warpseal.api.data.endpoints import ICM as ICM_TAG
from warpseal.api.openapi.examples import load_examples
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.evm import icm_queries
from warpseal.index.evm.records import IcmQuery
from warpseal.resources.evm import IcmStatus
from warpseal.resources.text import account_text, hex_text
from warpseal.upstream.endpoint import EvmIndexing
from warpseal.warp.ids import ChainID, id_text

ICM, TELEPORTER = "/v1/icm", "/v1/teleporter"
ZERO = account_text(bytes(20))


def write_chains(
    folder: Path, blocks: dict[ChainID, list[EvmBlockFacts]], node_height: int | None = None
) -> None:
    """Write the indexes of A and B.

    node_height: height of the nodes that the indexer reports; by default both indexes are current.
    """
    with icm_writers(file_urls(folder)[0]) as writers:
        for chain_id, writer in writers.items():
            writer.write(blocks[chain_id])
            height = len(blocks[chain_id]) - 1 if node_height is None else node_height
            writer.write_status(
                ProgressRow(id_text(chain_id), height, False, reported_at=s.NOW, written_at=s.NOW)
            )
        join(writers)


@asynccontextmanager
async def icm_setup(folder: Path, *chains: MadeChain) -> AsyncIterator[DataApiSetup]:
    """Yield an API in front of the indexes of A and B."""
    chains = chains or tuple(MadeChain(chain_id[0], chain_id=chain_id) for chain_id in (A, B))
    async with metrics_setup(file_urls(folder)[0], None, *chains) as setup:
        yield setup.with_settings(rate_limit_per_minute=0, rate_limit_per_day=0)


def history_of(seed: int) -> IcmHistory:
    history = IcmHistory(seed)
    history.add_blocks(40)
    return history


@pytest.fixture(scope="module")
def history() -> IcmHistory:
    return history_of(41)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, history: IcmHistory) -> Path:
    """Return the folder of the indexes of a history; tests only read it."""
    folder = tmp_path_factory.mktemp("icm")
    write_chains(folder, {chain_id: chain.blocks for chain_id, chain in history.chains.items()})
    return folder


def parameters_of(query: IcmQuery) -> dict[str, str]:
    names = {
        "chain": "blockchainId",
        "source": "sourceBlockchainId",
        "destination": "destinationBlockchainId",
    }
    chains = {name: getattr(query, field) for field, name in names.items()}
    accounts = {"from": query.sender, "to": query.recipient}
    times = {"startTimestamp": query.times.since, "endTimestamp": query.times.until}
    return {
        **{name: id_text(raw) for name, raw in chains.items() if raw is not None},
        **{name: hex_text(raw) for name, raw in accounts.items() if raw is not None},
        **{name: str(time) for name, time in times.items() if time is not None},
    }


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_pages_of_all_chains_are_those_of_the_model(
    folder: Path, history: IcmHistory, size: int
) -> None:
    async with icm_setup(folder) as setup, client_of(setup) as client:
        for number, query in enumerate(QUERIES):
            path = (
                "/messages"
                if query.address is None
                else f"/addresses/{hex_text(query.address)}/messages"
            )
            pages = await walk(
                client,
                (TELEPORTER if number % 2 else ICM) + path,
                "messages",
                {**parameters_of(query), "pageSize": size},
                alone=bool(number % 3),
            )
            entries = sorted(
                (entry for id_ in (A, B) for entry in expected(history, id_, query)), reverse=True
            )
            assert [item["messageId"] for page in pages for item in page] == [
                hex_text(id_) for _, id_ in entries
            ]
            assert all(len(page) <= size for page in pages)


async def test_lists_by_status_and_by_being_stuck_are_those_of_the_model(
    folder: Path, history: IcmHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(icm_queries, "STUCK_S", STUCK_S)
    since = dict.fromkeys((A, B), made_block(0).time)
    queries = [
        IcmQuery(status=IcmStatus.DELIVERED),
        IcmQuery(is_stuck=True, destination=B),
        IcmQuery(is_stuck=False),
    ]
    async with icm_setup(folder) as setup, client_of(setup) as client:
        for query in queries:
            texts = {
                "status": query.status,
                "isStuck": str(query.is_stuck).lower(),
                **parameters_of(query),
            }
            texts.pop("isStuck" if query.is_stuck is None else "status")
            pages = await walk(
                client, f"{ICM}/messages", "messages", {**texts, "pageSize": 3}, alone=True
            )
            whole = replace(query, indexed_since=since)
            entries = sorted(
                (entry for id_ in (A, B) for entry in expected(history, id_, whole)), reverse=True
            )
            assert [item["messageId"] for page in pages for item in page] == [
                hex_text(id_) for _, id_ in entries
            ]
            assert entries


async def test_messages_say_whether_they_were_delivered_and_executed(
    folder: Path, history: IcmHistory
) -> None:
    statuses = set()
    async with icm_setup(folder) as setup, client_of(setup) as client:
        for chain_id, chain in history.chains.items():
            for id_, entry in chain.outgoing.items():
                reply = await request(client, f"{ICM}/messages/{hex_text(id_)}")
                assert_documented(
                    "GET", f"{ICM}/messages/{hex_text(id_)}", reply.status, reply.body
                )
                other = history.chains.get(entry.message.destination)
                receive = None if other is None else other.incoming.get(id_)
                assert reply.body["sourceBlockchainId"] == id_text(chain_id)
                assert reply.body["status"] == ("pending" if receive is None else "delivered")
                assert reply.body["messageExecuted"] == (
                    receive is not None and receive.outcome == "executed"
                )
                assert reply.body["receiptDelivered"] == ("receipt" in entry.changes)
                assert len(reply.body["receipts"]) == len(entry.message.receipts)
                statuses.add(
                    (
                        reply.body["status"],
                        reply.body["messageExecuted"],
                        reply.body["receiptDelivered"],
                    )
                )
    assert len(statuses) >= 5


MESSAGE = Message(
    A, B, 7, PEOPLE[0], PEOPLE[1], 50_000, [], [(3, RELAYERS[0])], b"\1\2", asset=COIN, fee=5
)
OF_ABSENT = Message(ABSENT, B, 1, PEOPLE[1], PEOPLE[2], body=b"body")
SOURCE_BLOCKS = [made_block(0), block_of(1, [MESSAGE.sent()]), block_of(2, [MESSAGE.fee_added(9)])]
DESTINATION_BLOCKS = [
    made_block(0),
    block_of(1, [OF_ABSENT.received(RELAYERS[0], RELAYERS[1], is_executed=True)]),
    block_of(2, [MESSAGE.received(RELAYERS[0], RELAYERS[1], is_executed=False)]),
    block_of(3, [MESSAGE.executed()]),
]


def transaction(block: EvmBlockFacts) -> dict[str, Any]:
    return {
        "txHash": hex_text(block.tx_hashes[0]),
        "timestamp": block.time,
        "gasSpent": str(block.tx_fees[0]),
    }


RECEIVED = {
    "rewardRedeemer": account_text(RELAYERS[1]),
    "delivererAddress": account_text(RELAYERS[0]),
}
DELIVERED = {
    "messageId": hex_text(MESSAGE.id),
    "icmContractAddress": account_text(MESSENGER),
    "sourceBlockchainId": id_text(A),
    "destinationBlockchainId": id_text(B),
    "sourceEvmChainId": "10",
    "destinationEvmChainId": "11",
    "messageNonce": "7",
    "from": account_text(PEOPLE[0]),
    "to": account_text(PEOPLE[1]),
    "data": "0x0102",
    "messageExecuted": True,
    "receipts": [{"receivedMessageNonce": "3", "relayerRewardAddress": account_text(RELAYERS[0])}],
    "receiptDelivered": False,
    "rewardDetails": {
        "address": account_text(COIN), "name": "", "symbol": "", "decimals": 0,
        "ercType": "ERC-20", "value": "9",
    },
    "sourceTransaction": transaction(SOURCE_BLOCKS[1]),
    "destinationTransaction": {**transaction(DESTINATION_BLOCKS[2]), **RECEIVED},
    "status": "delivered",
}  # fmt: skip
PENDING = {**DELIVERED, "messageExecuted": False, "status": "pending"}
del PENDING["destinationTransaction"]
NOT_INDEXED = {
    **DELIVERED,
    "messageId": hex_text(OF_ABSENT.id),
    "sourceBlockchainId": id_text(ABSENT),
    "sourceEvmChainId": "",
    "messageNonce": "1",
    "from": account_text(PEOPLE[1]),
    "to": account_text(PEOPLE[2]),
    "data": hex_text(b"body"),
    "receipts": [],
    "rewardDetails": {
        "address": ZERO,
        "name": "",
        "symbol": "",
        "decimals": 0,
        "ercType": "ERC-20",
        "value": "0",
    },
    "destinationTransaction": {**transaction(DESTINATION_BLOCKS[1]), **RECEIVED},
    "status": "delivered_source_not_indexed",
}
del NOT_INDEXED["sourceTransaction"]


def as_teleporter(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the deprecated paths have it."""
    contract = message["icmContractAddress"]
    is_kept = message["status"] == "delivered_source_not_indexed"
    fields = {
        name: value for name, value in message.items() if name != "icmContractAddress" or is_kept
    }
    return {**fields, "teleporterContractAddress": contract}


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    """Return the folder of indexes with one message from A to B, and one from elsewhere to B."""
    write_chains(tmp_path, {A: SOURCE_BLOCKS, B: DESTINATION_BLOCKS})
    return tmp_path


async def test_each_status_has_the_fields_that_the_sdks_require(small_folder: Path) -> None:
    async with icm_setup(small_folder) as setup, client_of(setup) as client:
        for root, word in ((ICM, dict), (TELEPORTER, as_teleporter)):
            page = await request(client, f"{root}/messages")
            assert_documented("GET", f"{root}/messages", page.status, page.body)
            # Blocks of both chains have the same times.
            assert page.body == {"messages": [word(NOT_INDEXED), word(DELIVERED)]}
            for message in (NOT_INDEXED, DELIVERED):
                id_ = bytes.fromhex(str(message["messageId"])[2:])
                for text in (id_.hex(), id_text(id_), message["messageId"]):
                    reply = await request(client, f"{root}/messages/{text}")
                    assert_documented("GET", f"{root}/messages/{text}", reply.status, reply.body)
                    assert reply.body == word(message)
        assert page.headers["x-warpseal-index"].count(";height=") == 2


async def test_the_examples_of_the_openapi_document_are_responses(small_folder: Path) -> None:
    names = {operation.name for operation in ENDPOINTS if operation.tag == ICM_TAG}
    async with icm_setup(small_folder) as setup, client_of(setup) as client:
        for example in example_requests():
            if example.name in names:
                reply = await request(client, example.path)
                assert (reply.status, reply.body) == (
                    200,
                    load_examples()[example.name].response,
                ), example.name
                names.remove(example.name)
    assert names == set()


async def test_without_the_index_of_the_destination_a_message_is_pending(
    small_folder: Path,
) -> None:
    """While the destination is indexed again, a delivery may name a row of another message."""
    only_source = MadeChain(A[0], chain_id=A), MadeChain(B[0], chain_id=B, indexing=None)
    async with icm_setup(small_folder, *only_source) as setup, client_of(setup) as client:
        page = await request(client, f"{ICM}/messages")
    assert page.body["messages"] == [{**PENDING, "destinationEvmChainId": ""}]
    with (
        icm_writers(file_urls(small_folder)[0]) as writers,
        writers[A]._engine.begin() as connection,
    ):
        connection.fetch(
            "UPDATE icm_deliveries SET receive = (SELECT receive - 1048576 FROM icm_deliveries)"
        )
    async with icm_setup(small_folder) as setup, client_of(setup) as client:
        page = await request(client, f"{ICM}/messages")
    assert page.body["messages"] == [NOT_INDEXED, PENDING]


async def test_a_source_without_an_index_is_known_by_what_it_delivered(small_folder: Path) -> None:
    """As after its removal: the destination keeps no data of messages whose source is indexed."""
    async with (
        icm_setup(small_folder, MadeChain(B[0], chain_id=B)) as setup,
        client_of(setup) as client,
    ):
        page = await request(client, f"{ICM}/messages", sourceBlockchainId=id_text(A))
    (message,) = page.body["messages"]
    assert (message["status"], message["messageId"]) == (
        "delivered_source_not_indexed",
        hex_text(MESSAGE.id),
    )
    assert "data" not in message


async def test_a_page_ends_early_if_its_messages_are_large(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with icm_setup(folder) as setup, client_of(setup) as client:
        (whole,) = await walk(client, f"{ICM}/messages", "messages", {"pageSize": 100}, alone=True)
        monkeypatch.setattr(icm_endpoints, "MAX_PAGE_BYTES", 200)
        pages = await walk(client, f"{ICM}/messages", "messages", {"pageSize": 100}, alone=True)
    assert len(pages) > 3
    assert [message for page in pages for message in page] == whole


async def test_an_unknown_message_may_be_in_a_block_that_an_index_lacks(tmp_path: Path) -> None:
    blocks = {A: SOURCE_BLOCKS, B: DESTINATION_BLOCKS}
    unknown = f"{ICM}/messages/{bytes(32).hex()}"
    replies = []
    for node_height in (None, 99):
        path = tmp_path / str(node_height)
        path.mkdir()
        write_chains(path, blocks, node_height)
        async with icm_setup(path) as setup, client_of(setup) as client:
            replies.append(await request(client, unknown))
            assert_documented("GET", unknown, replies[-1].status, replies[-1].body)
    assert [(reply.status, reply.body["code"]) for reply in replies] == [
        (404, "message_not_found"),
        (503, "index_behind"),
    ]


async def test_without_an_index_of_messages_there_is_none(small_folder: Path) -> None:
    without = MadeChain(A[0], chain_id=A, indexing=EvmIndexing(has_icm=False))
    for chains in ((without,), (MadeChain(A[0], chain_id=A, indexing=None),)):
        async with icm_setup(small_folder, *chains) as setup, client_of(setup) as client:
            for path in (
                "/messages",
                f"/messages/{MESSAGE.id.hex()}",
                f"/addresses/{ZERO}/messages",
            ):
                reply = await request(client, ICM + path)
                assert (reply.status, reply.body["code"]) == (404, "index_not_enabled")


async def test_values_that_name_nothing_are_refused_and_other_networks_have_no_message(
    small_folder: Path,
) -> None:
    wrong: list[tuple[str, str]] = [
        *((name, text) for name in ("blockchainId", "sourceBlockchainId", "destinationBlockchainId")
          for text in ("unknown", "9" * 400, "0x12", "\0", "12")),
        *(("status", text) for text in ("stuck", "PENDING")),
        *(("isStuck", text) for text in ("1", "yes")),
        *((name, text) for name in ("from", "to") for text in ("0x12", id_text(A), "é" * 40)),
        ("pageSize", "101"),
        ("pageToken", "x"),
        ("statuss", "delivered"),
    ]  # fmt: skip
    async with icm_setup(small_folder) as setup, client_of(setup) as client:
        for name, text in wrong:
            reply = await request(client, f"{ICM}/messages", **{name: text})
            assert (reply.status, reply.body["detail"]["field"]) == (400, name), text
        for path in ("/messages/0x12", f"/messages/{'z' * 500}", "/addresses/0x12/messages"):
            assert (await request(client, ICM + path)).status == 400
        for network, count in (("fuji", 2), ("mainnet", 0), ("nowhere", 0)):
            assert (
                len((await request(client, f"{ICM}/messages", network=network)).body["messages"])
                == count
            )
        by_evm_id = await request(client, f"{ICM}/messages", sourceBlockchainId="10", pageSize=1)
        assert [message["status"] for message in by_evm_id.body["messages"]] == ["delivered"]
        token = (await request(client, f"{ICM}/messages", pageSize=1)).body["nextPageToken"]
        other = await request(client, f"{TELEPORTER}/messages", pageToken=token)
        assert other.body["code"] == "invalid_page_token"
        assert other.headers["deprecation"] == "@1795219200"
        assert "deprecation" not in by_evm_id.headers
