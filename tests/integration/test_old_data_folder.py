"""A data folder of an earlier version, kept in `tests/vectors`, is opened with every signature in
it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard

from tests.api.data import evm_history
from tests.api.data.test_events import read_events
from tests.eventually import until
from tests.index.fixtures import rebuild_rows
from tests.indexer.replay import ReplayNode, serving
from tests.integration import indexed_daemon
from tests.integration.daemon import build_config, count_signature_requests, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from tests.integration.process import start_command
from tests.integration.test_events import listening
from tests.ledger.recorded import params
from tests.paths import VECTORS
from warpseal.bls import parse_public_key, verify, verify_aggregate
from warpseal.store.api_key import digest_key
from warpseal.store.connection import Connection
from warpseal.store.migrate import HEAD
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.settings import UsageSettings
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, MessageID
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet.build import seeded_id
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import ChainKind, SimChain

OLD = VECTORS / "data-folder-443d240"
# A later folder, with usage: some of it is merged into buckets, some is not merged yet.
NEWER = VECTORS / "data-folder-f9fa7396"
# The folder of the last version whose follower stored ranges of blocks with gaps, with rows in
# every kind of database.
LAST = VECTORS / "data-folder-61d32438"
LAST_PLAN = Plan(
    validators=4, l1s=(L1Plan(validators=4),), messages=3, rules=(parse_rule("all:silent"),)
)
NETWORK_ID = "88888"
# The network whose messages the folder has, except that no validator signs any more.
SILENT = Plan(
    validators=4,
    l1s=(L1Plan(validators=4, spare=1),),
    messages=3,
    epoch_blocks=40,
    rules=(parse_rule("all:silent"),),
)
# A signed message ends with the BLS signature.
SIGNATURE_BYTES = 96


def unpack(folder: Path, *names: str, source: Path = OLD) -> Path:
    """Copy files of an old folder to where a daemon with the data folder `folder` finds them;
    return that place.
    """
    place = folder / NETWORK_ID
    place.mkdir(parents=True)
    for name in names:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(zstandard.decompress((source / f"{name}.zst").read_bytes()))
    return place


def rows_of(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table of a database by column, without its schema version.

    Recent rows are moved to the table of older ones at any time, so that both count as one table.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    with closing(sqlite3.connect(file)) as connection:
        connection.row_factory = sqlite3.Row
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            rows = [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
            tables.setdefault(re.sub("^(recent|older)_", "", name), []).extend(rows)
    del tables["alembic_version"]
    return tables


def missing_rows(
    before: Mapping[str, list[dict[str, Any]]], after: Mapping[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of `before` that have no row with the same values in `after`, by table.

    A column that a later version added has no value before.
    """
    missing: dict[str, list[dict[str, Any]]] = {}
    for name, rows in before.items():
        columns = list(rows[0]) if rows else []
        new_rows = [{column: row.get(column) for column in columns} for row in after.get(name, [])]
        missing[name] = [row for row in rows if row not in new_rows]
    return {name: rows for name, rows in missing.items() if rows}


@pytest.fixture
def old() -> dict[str, Any]:
    """What the daemon answered that wrote the folder."""
    signed_messages: dict[str, Any] = json.loads((OLD / "signed.json").read_text())
    return signed_messages


async def test_every_signature_and_share_of_an_old_store_is_found_and_verifies(
    tmp_path: Path, old: dict[str, Any]
) -> None:
    async with open_store(StoreSettings(), unpack(tmp_path, "store.db")) as store:
        rows = await store.database.records("SELECT message_id, raw FROM messages", wait_s=10.0)
        entries = {
            MessageID(row.message_id): await store.archive.load(MessageID(row.message_id))
            for row in rows
        }
        raws = {MessageID(row.message_id): row.raw for row in rows}
    for message_id, entry in entries.items():
        for signed in entry.signatures:
            assert verify_aggregate(
                list(map(parse_public_key, signed.public_keys)), raws[message_id], signed.signature
            )
        for share in entry.shares:
            assert verify(parse_public_key(share.public_key), raws[message_id], share.signature)
    for response in old["signed"]:
        entry = entries[UnsignedMessage.parse(bytes.fromhex(response["unsigned"])).id]
        signature = bytes.fromhex(response["signed"])[-SIGNATURE_BYTES:]
        assert signature in [signed.signature for signed in entry.signatures]
    assert len(entries[UnsignedMessage.parse(bytes.fromhex(old["sharesOf"])).id].shares) == 3
    assert sum(len(entry.signatures) for entry in entries.values()) == 8
    assert sum(len(entry.shares) for entry in entries.values()) == 25


async def test_other_rows_of_an_old_store_are_kept(tmp_path: Path, old: dict[str, Any]) -> None:
    async with open_store(StoreSettings(), unpack(tmp_path, "store.db")) as store:
        digest = digest_key(old["apiKey"])
        assert digest is not None
        key = await store.api_keys.find_key(digest)
        assert key is not None
        assert (key.name, key.units_per_minute) == ("alice", 100)

        def count(connection: Connection) -> dict[str, int]:
            tables = ("addresses", "origins", "l1_transactions", "block_ranges")
            return {name: connection.value(f"SELECT count(*) FROM {name}") for name in tables}

        assert await store.database.read(count, 10.0) == {
            "addresses": 18,
            "origins": 5,
            "l1_transactions": 5,
            "block_ranges": 1,
        }


async def test_a_daemon_answers_from_an_old_store_though_no_validator_signs_any_more(
    tmp_path: Path, old: dict[str, Any]
) -> None:
    place = unpack(tmp_path / "data", "store.db")
    copy = place / f"store.db.before-{HEAD}"
    async with (
        run_network(SILENT) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        # The folder is of the previous schema version.
        await until(copy.exists)
        # The C-Chain of the network that wrote the folder has another id than that of this one.
        c_chain = ChainID(seeded_id(SILENT, "chain C"))
        network.state.chains[c_chain] = SimChain(
            c_chain, PRIMARY_NETWORK, ChainKind.EVM, "old C-Chain"
        )
        subnets = {
            chain.chain_id: chain.subnet_id
            for chain in network.state.chains.values()
            if any(chain.chain_id)
        }
        chains = {
            response["unsigned"]: UnsignedMessage.parse(
                bytes.fromhex(response["unsigned"])
            ).source_chain_id
            for response in old["signed"]
        }
        signers = {
            unsigned: subnets[chain_id]
            for unsigned, chain_id in chains.items()
            if chain_id in subnets
        }
        responses = [response for response in old["signed"] if response["unsigned"] in signers]
        assert len(responses) == 4
        for response in responses:
            unsigned = response["unsigned"]
            reply = await daemon.post("/aggregate-signatures", {"message": unsigned})
            assert reply.signed == response["signed"]
            verify_signed_message(
                network, reply.signed, bytes.fromhex(unsigned), signers[unsigned], 67
            )
        assert count_signature_requests(network) == 0
    assert copy.exists()
    async with (
        run_network(SILENT) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_open()
        assert not copy.exists()


@asynccontextmanager
async def run_index(folder: Path) -> AsyncIterator[tuple[ReplayNode, aiohttp.ClientSession, str]]:
    """Run a daemon that indexes the P-Chain, and stop it; yield its node, a session and its URL."""
    async with serving(ReplayNode()) as node:
        file = indexed_daemon.write_config_file(folder, node, index_chains=["p"])
        async with (
            start_command("serve", "--config", file) as daemon,
            aiohttp.ClientSession() as session,
        ):
            api_url, _ = await daemon.listening()
            yield node, session, api_url
            daemon.terminate()
            assert await daemon.ended() == 0


async def test_an_old_index_is_read_on_and_the_file_of_waiting_blocks_is_deleted(
    tmp_path: Path,
) -> None:
    place = unpack(tmp_path / "data", "index.db", "waiting-blocks.db")
    async with run_index(tmp_path) as (node, session, api_url):
        await until(lambda: indexed_daemon.is_indexed(session, api_url, node))
        assert not list(place.glob("waiting-blocks*"))


async def test_a_daemon_serves_every_signature_key_and_usage_row_of_the_folder(
    tmp_path: Path,
) -> None:
    replies = json.loads((NEWER / "replies.json").read_text())
    place = unpack(tmp_path / "data", "store.db", "metrics.db", source=NEWER)
    plan = Plan(
        validators=4, l1s=(L1Plan(validators=4),), messages=3, rules=(parse_rule("all:silent"),)
    )
    async with run_network(plan) as network:
        # The blocks of this network are not those of the network that wrote the folder, so none are
        # followed.
        keys = {"gateway-nodes": {"base-url": network.node_uri}, "follow-p-chain": False}
        config = build_config(network, tmp_path, keys)
        async with run_daemon(config) as daemon:
            for signed in replies["signed"]:
                body = {"message": signed["unsigned"]}
                body |= (
                    {"justification": signed["justification"]} if "justification" in signed else {}
                )
                reply = await daemon.post("/aggregate-signatures", body)
                assert reply.signed == signed["signed"]
            assert count_signature_requests(network) == 0
            for path, buckets in replies["usage"].items():
                reply = await daemon.get(path)
                assert reply.status == 200
                for bucket in reply.body["metrics"]:
                    for value in bucket["values"]:
                        # A rate over the seconds of the bucket that are over.
                        del value["requestsPerSecond"]
                assert reply.body["metrics"] == buckets
    async with open_store(StoreSettings(), place) as store:
        digest = digest_key(replies["apiKey"])
        assert digest is not None
        key = await store.api_keys.find_key(digest)
        assert key is not None
        assert (key.name, key.units_per_minute) == ("alice", 100)


async def test_the_upgrade_of_a_folder_keeps_every_row_by_its_values(tmp_path: Path) -> None:
    (evm_file,) = (LAST / "evm").glob("*.zst")
    evm_name = f"evm/{evm_file.stem}"
    names = ("store.db", "index.db", "metrics.db", evm_name)
    place = unpack(tmp_path, *names, source=LAST)
    before = {name: rows_of(place / name) for name in names}
    async with open_store(StoreSettings(), place):
        pass
    # A later version of the index has other derived rows, which its indexer derives at its start.
    rebuild_rows(f"sqlite:///{place}/index.db", params())
    with evm_history.open_writer(place) as evm_writer:
        assert evm_writer.identity() is not None
    async with MetricsDatabase(StoreUrl.for_file(place / "metrics.db"), UsageSettings()):
        pass
    after = {name: rows_of(place / name) for name in names}
    # Both cursors of the follower rise from the lowest range: the blocks above are read again.
    lowest, *others = sorted(before["store.db"]["block_ranges"], key=lambda row: row["low"])
    assert [(row["low"], row["high"]) for row in (lowest, *others)] == [
        (100, 111),
        (150, 161),
        (200, 263),
    ]
    assert after["store.db"]["block_ranges"] == [lowest]
    before["store.db"]["block_ranges"] = [lowest]
    # The indexer writes it again every 15 seconds.
    del before["index.db"]["chain_status"]
    assert {name: missing_rows(before[name], after[name]) for name in names} == {
        name: {} for name in names
    }
    counts = {name: sum(map(len, before[name].values())) for name in names}
    assert min(counts.values()) > 40


async def test_a_daemon_serves_the_signatures_and_events_of_the_folder_and_keeps_its_rows(
    tmp_path: Path,
) -> None:
    replies = json.loads((LAST / "replies.json").read_text())
    place = unpack(tmp_path / "data", "store.db", "metrics.db", source=LAST)
    before = rows_of(place / "store.db")
    async with run_network(LAST_PLAN) as network:
        # The blocks of this network are not those that the folder has, so none are followed.
        keys = {"gateway-nodes": {"base-url": network.node_uri}, "follow-p-chain": False}
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            for signed in replies["signed"]:
                body = {
                    "message": signed["unsigned"],
                    "justification": signed.get("justification", ""),
                }
                reply = await daemon.post("/aggregate-signatures", body)
                assert reply.signed == signed["signed"]
            assert count_signature_requests(network) == 0
            beginning = {"last-event-id": f"{replies['cursorPrefix']}0"}
            async with listening(daemon, **beginning) as stream:
                events = await read_events(stream, len(replies["events"]))
    for event, (number, body) in zip(events, replies["events"], strict=True):
        assert event.pop("cursor") == f"{replies['cursorPrefix']}{number}"
        assert event == json.loads(body)
    after = rows_of(place / "store.db")
    # The daemon notes when it used a message, and where validators are.
    unchanged = before.keys() - {"messages", "addresses", "block_ranges", "observed_validations"}
    assert missing_rows({name: before[name] for name in unchanged}, after) == {}
    assert {row["message_id"]: row["raw"] for row in before["messages"]} == {
        row["message_id"]: row["raw"] for row in after["messages"]
    }


async def test_a_daemon_reads_on_the_index_of_the_folder(tmp_path: Path) -> None:
    place = unpack(tmp_path / "data", "index.db", source=LAST)
    before = rows_of(place / "index.db")
    async with run_index(tmp_path) as (node, session, api_url):
        blocks_url = f"{api_url}/v1/networks/fuji/blockchains/p-chain/blocks?pageSize=1"

        async def is_indexed() -> bool:
            async with session.get(blocks_url) as reply:
                freshness = reply.headers.get("x-warpseal-index", "")
            return freshness == "p-chain;height=19;node=19;lag=0"

        await until(is_indexed)
    # The blocks of the folder were not read again, but for the genesis.
    heights = {height for chain, height in node.heights if chain == "P"}
    assert not heights & set(range(1, 10))
    assert missing_rows({"blocks": before["blocks"]}, rows_of(place / "index.db")) == {}
