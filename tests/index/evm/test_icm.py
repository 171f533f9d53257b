"""Seeded histories of ICM go into the indexes of two chains and into a plain model, however they
are cut and joined.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from tests.chains.evm.icm_logs import MESSENGER, NETWORK_ID, Message, warp_log
from tests.index.evm.fixtures import small_settings
from tests.index.evm.histories import made_block
from tests.index.evm.icm_histories import (
    ABSENT,
    LIAR,
    PEOPLE,
    A,
    B,
    IcmHistory,
    block_of,
    expected_sends,
)
from tests.index.evm.icm_rows import (
    OPTIONS,
    assert_as_the_model,
    assert_consistent,
    icm_writer,
    icm_writers,
    join,
    reading,
    stored_receives,
    stored_sends,
)
from tests.index.test_batches import failing_statements
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.chains.evm.icm_events import IcmReceive, IcmSend, MessageFields, Outcome, PayloadKind
from warpseal.index.evm import consistency
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.icm_consistency import compare_messages
from warpseal.index.evm.icm_queries import icm_messages
from warpseal.index.evm.records import SentMessage
from warpseal.index.evm.schema import ICM_DERIVED, ICM_FACTS, create_derived_tables
from warpseal.index.read_session import ReadSession
from warpseal.index.settings import IndexSettings
from warpseal.store.errors import StoreDown
from warpseal.warp.ids import ChainID
from warpseal.warp.message import AddressedCall

TABLES = [table.name for table in (*ICM_FACTS, *ICM_DERIVED)]


def rows_of(url: str, chain_id: ChainID) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of messages, with both layers as one."""
    names = {name.removeprefix("recent_").removeprefix("older_") for name in TABLES} - {
        "icm_cursors"
    }
    with reading(url, chain_id) as connection:
        return {
            name: sorted(
                (tuple(row) for row in connection.fetch(f"SELECT * FROM {name}")), key=repr
            )
            for name in names
        }


@pytest.mark.parametrize(("seed", "server"), [(1, False), (2, False), (3, False), (4, True)])
def test_rows_are_those_of_the_model_however_blocks_are_cut_and_joined(
    request: pytest.FixtureRequest, seed: int, server: bool
) -> None:
    url = request.getfixturevalue("postgres_url" if server else "file_url")
    random, history = Random(seed), IcmHistory(seed)
    history.add_blocks(60)
    at = dict.fromkeys((A, B), 0)
    while any(at[chain_id] < len(chain.blocks) for chain_id, chain in history.chains.items()):
        with icm_writers(url) as writers:
            for _ in range(random.randrange(1, 8)):
                # One chain may be far behind the other.
                chain_id = random.choice((A, A, B)) if seed % 2 else random.choice((A, B, B))
                batch = history.chains[chain_id].blocks[at[chain_id] :][
                    : random.choice((1, 2, 5, 17))
                ]
                if not batch:
                    continue
                writer = writers[chain_id]
                if random.random() < 0.3:
                    with failing_statements(random.randrange(0, 25)), pytest.raises(StoreDown):
                        writer.write(batch)
                writer.write(batch)
                at[chain_id] += len(batch)
                if random.random() < 0.3:
                    with failing_statements(random.randrange(0, 8)), suppress(StoreDown):
                        join(writers, 4)
                join(writers, random.choice((1, 3, 100)), random)
    with icm_writers(url) as writers:
        join(writers)
    assert_as_the_model(url, history)
    for chain_id, chain in history.chains.items():
        with reading(url, chain_id) as connection:
            assert {compare_messages(connection, block) for block in chain.blocks} == {""}
            assert any(
                compare_messages(connection, replace(block, icm=())) for block in chain.blocks
            )
    kinds = {
        kind
        for chain in history.chains.values()
        for entry in chain.outgoing.values()
        for kind in entry.changes
    }
    assert kinds == {"fee", "resent", "receipt"}


def write_all(url: str, history: IcmHistory, size: int = 1_000) -> None:
    """Write all blocks, some at a time, and join them."""
    with icm_writers(url) as writers:
        for chain_id, chain in history.chains.items():
            for start in range(0, len(chain.blocks), size):
                writers[chain_id].write(chain.blocks[start : start + size])
        join(writers)


def test_derived_rows_are_made_again_without_a_node(
    any_index_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpseal.index.evm.derived._REBUILT_TRANSFERS", 3)
    history = IcmHistory(5)
    history.add_blocks(40)
    write_all(any_index_url, history)
    before = {chain_id: rows_of(any_index_url, chain_id) for chain_id in (A, B)}
    with icm_writers(any_index_url) as writers:
        for writer in writers.values():
            with writer._engine.begin() as connection:
                create_derived_tables(connection)
    with icm_writers(any_index_url) as writers:
        assert all(not writer.icm.cursors() for writer in writers.values())
        join(writers, 2)
    assert before == {chain_id: rows_of(any_index_url, chain_id) for chain_id in (A, B)}
    assert_as_the_model(any_index_url, history)


def test_a_new_index_of_the_destination_is_read_from_its_start(file_url: str) -> None:
    history = IcmHistory(6)
    history.add_blocks(40)
    write_all(file_url, history)
    path = evm_index_url(small_settings(file_url), None, B).path
    assert path is not None
    path.unlink()
    with icm_writers(file_url) as writers:
        # Until it has the blocks again, its deliveries have no receive.
        join(writers)
        writers[B].write(history.chains[B].blocks)
        join(writers)
    assert_as_the_model(file_url, history)


def test_deliveries_of_a_removed_destination_are_pending_again(any_index_url: str) -> None:
    history = IcmHistory(7)
    history.add_blocks(40)
    write_all(any_index_url, history)
    with icm_writers(any_index_url) as writers:
        writers[A].icm.keep_destinations({A, B})
        assert set(writers[A].icm.cursors()) == {A, B}
        writers[A].icm.keep_destinations({A})
        assert set(writers[A].icm.cursors()) == {A}
    assert_consistent(any_index_url)
    incoming, history.chains[B].incoming = history.chains[B].incoming, {}
    with reading(any_index_url, A) as connection:
        assert stored_sends(connection, A) == expected_sends(history, history.chains[A])
    history.chains[B].incoming = incoming
    with icm_writers(any_index_url) as writers:
        join(writers)
    assert_as_the_model(any_index_url, history)


def without_icm(url: str, blocks: Sequence[EvmBlockFacts]) -> None:
    """Write an index as one before this version: without the tables and the column of ICM."""
    with icm_writer(url, A, None) as writer:
        writer.write(blocks)
        with writer._engine.begin() as connection:
            for view in ("icm_ids", "icm_addresses"):
                connection.fetch(f"DROP VIEW {view}")
            for name in TABLES:
                connection.fetch(f"DROP TABLE {name}")
            connection.fetch("ALTER TABLE chain DROP COLUMN icm_first")
            connection.fetch("UPDATE alembic_version SET version_num = '0003'")


def test_an_old_index_knows_messages_from_its_next_block_on(any_index_url: str) -> None:
    history = IcmHistory(8)
    history.add_blocks(40)
    blocks = history.chains[A].blocks
    without_icm(any_index_url, blocks[:15])
    with icm_writer(any_index_url, A) as writer:
        assert writer._session.started_row().icm_first == 15
        writer.write(blocks[15:])
    assert_consistent(any_index_url, [A])
    # The second messenger was named before.
    events = (
        event
        for block in blocks[15:]
        for event in block.icm
        if isinstance(event, IcmSend | IcmReceive)
    )
    later = {event.message_id for event in events if event.messenger == MESSENGER}
    with reading(any_index_url, A) as connection:
        ids = [row[0] for row in stored_sends(connection, A)]
        assert ids
        assert set(ids) <= later & history.chains[A].outgoing.keys()
        assert {row[0] for row in stored_receives(connection, A)} == later & history.chains[
            A
        ].incoming.keys()


def test_an_index_from_before_inner_events_keeps_its_rows(any_index_url: str) -> None:
    history = IcmHistory(11)
    history.add_blocks(40)
    blocks = history.chains[A].blocks
    with icm_writer(any_index_url, A) as writer:
        writer.write(blocks[:20])
        with writer._engine.begin() as connection:
            connection.fetch("ALTER TABLE icm_receives DROP COLUMN inner_events")
            connection.fetch("UPDATE alembic_version SET version_num = '0004'")
    with icm_writer(any_index_url, A) as writer:
        writer.write(blocks[20:])
    with reading(any_index_url, A) as connection:
        counts = [
            (key >> 20, inner)
            for key, inner in connection.fetch("SELECT key, inner_events FROM icm_receives")
        ]
        assert {compare_messages(connection, block) for block in blocks} == {""}
    assert {inner for number, inner in counts if number < 20} == {None}
    assert {inner for number, inner in counts if number >= 20} == {0}


def test_messages_are_read_only_while_the_setting_says_so(file_url: str) -> None:
    history = IcmHistory(9)
    history.add_blocks(30)
    blocks = history.chains[A].blocks
    firsts = []
    for start, options in ((0, None), (10, OPTIONS), (20, None)):
        with icm_writer(file_url, A, options) as writer:
            writer.write(blocks[start : start + 10])
            firsts.append(writer._session.started_row().icm_first)
    assert firsts == [-1, 10, -1]
    with reading(file_url, A) as connection:
        heights = connection.fetch("SELECT DISTINCT key / 1048576 FROM icm_sends")
    assert {row[0] for row in heights} <= set(range(10, 20))


def test_an_index_that_begins_later_takes_a_message_that_is_sent_again_as_sent_then(
    file_url: str,
) -> None:
    old, new = (Message(A, B, nonce, PEOPLE[0], PEOPLE[1]) for nonce in (3, 9))
    blocks = [
        block_of(5, [old.fee_added(7), old.sent(), new.sent()]),
        block_of(6, [old.sent(), new.sent()]),
    ]
    with icm_writer(file_url, A, first=5, parent=blocks[0].parent_hash) as writer:
        assert writer._session.started_row().icm_first == 5
        writer.write(blocks)
    with reading(file_url, A) as connection:
        assert [(row[0], row[-3]) for row in stored_sends(connection, A)] == [
            (old.id, ["resent"]),
            (new.id, ["resent"]),
        ]
    assert_consistent(file_url, [A])


def test_a_warp_message_of_a_look_alike_is_a_raw_one_and_one_of_another_network_is_kept(
    any_index_url: str,
) -> None:
    lie = Message(A, B, 1, LIAR, LIAR, messenger=LIAR)
    messages = [Message(A, B, nonce, PEOPLE[0], PEOPLE[1]) for nonce in (1, 2, 3)]
    names = [(NETWORK_ID, A), (1, A), (NETWORK_ID, ABSENT)]
    logs = [
        (
            message.sent()[0],
            warp_log(AddressedCall(message.messenger, message.payload), chain_id, network_id),
        )
        for message, (network_id, chain_id) in zip(messages, names, strict=True)
    ]
    with icm_writer(any_index_url, A) as writer:
        writer.write([block_of(0, [lie.sent(), [*logs[0], *logs[1]], logs[2]])])
    with reading(any_index_url, A) as connection:
        kinds = [row[0] for row in connection.fetch("SELECT kind FROM warp_sends ORDER BY key")]
        assert kinds == [PayloadKind.ADDRESSED_CALL, PayloadKind.TELEPORTER, PayloadKind.TELEPORTER]
        assert [row[0] for row in stored_sends(connection, A)] == [
            message.id for message in messages
        ]
        keys = [row[0] for row in connection.fetch("SELECT key FROM icm_sends ORDER BY key")]
        stored = icm_messages(ReadSession(connection), keys)
    assert_consistent(any_index_url, [A])
    # Each has the Warp message of its own log, and validators sign only those of their network and
    # chain.
    for key, (network_id, chain_id), (_, log) in zip(keys, names, logs, strict=True):
        message = stored[key]
        assert isinstance(message, SentMessage)
        unsigned = message.warp_message(NETWORK_ID)
        assert unsigned is not None
        assert (unsigned.network_id, unsigned.source_chain_id, unsigned.id) == (
            network_id,
            chain_id,
            log.topics[2],
        )
        assert (message.foreign_warp is None) == ((network_id, chain_id) == (NETWORK_ID, A))


MESSAGES, MESSAGES_OF_A_BLOCK = 20_000, 5


def message_blocks(sends: bool, *, has_messages: bool) -> list[EvmBlockFacts]:
    """Return blocks in which A sends messages with bodies of 32 bytes, or B receives them."""
    random = Random(3)
    people = [random.randbytes(20) for _ in range(500)]
    blocks = []
    for number in range(MESSAGES // MESSAGES_OF_A_BLOCK):
        events: list[IcmSend | IcmReceive] = []
        for index in range(MESSAGES_OF_A_BLOCK):
            sender, recipient = random.choice(people), random.choice(people)
            nonce = number * MESSAGES_OF_A_BLOCK + index + 1
            message_id, body = random.randbytes(32), random.randbytes(32)
            fields = MessageFields(nonce, sender, None, B, recipient, 200_000, b"", body)
            if sends:
                events.append(
                    IcmSend(index, index, MESSENGER, message_id, fields, bytes(20), 0, MESSENGER)
                )
            else:
                events.append(
                    IcmReceive(
                        index,
                        index,
                        MESSENGER,
                        message_id,
                        A,
                        fields,
                        people[0],
                        people[1],
                        Outcome.EXECUTED,
                    )
                )
        block = made_block(number, tx_count=MESSAGES_OF_A_BLOCK)
        if has_messages:
            hashes = {index: random.randbytes(32) for index in range(MESSAGES_OF_A_BLOCK)}
            fees = dict.fromkeys(range(MESSAGES_OF_A_BLOCK), 25 * 10**9 * 120_000)
            block = replace(block, icm=tuple(events), tx_hashes=hashes, tx_fees=fees)
        blocks.append(block)
    return blocks


def test_a_message_takes_at_most_350_bytes(tmp_path: Path) -> None:
    """Both sides together, their transactions included and their blocks not."""
    sizes = []
    for has_messages in (False, True):
        url = f"sqlite:///{tmp_path / str(has_messages)}/index.db"
        with icm_writers(url, settings=IndexSettings(url)) as writers:
            for chain_id, writer in writers.items():
                blocks = message_blocks(chain_id == A, has_messages=has_messages)
                for start in range(0, len(blocks), 100):
                    writer.write(blocks[start : start + 100])
            join(writers, 20_000)
        files = (tmp_path / str(has_messages)).rglob("*.db")
        sizes.append(sum(file.stat().st_size for file in files))
    assert (sizes[1] - sizes[0]) / MESSAGES < 350


A_SEND = "key = (SELECT max(key) FROM icm_sends)"
DAMAGES = {
    "a nonce": f"UPDATE icm_sends SET nonce = nonce + 1000 WHERE {A_SEND}",
    "a messenger": f"UPDATE icm_sends SET messenger = sender WHERE {A_SEND}",
    "a lost send": f"DELETE FROM icm_sends WHERE {A_SEND}",
    "a lost id": (
        "DELETE FROM recent_icm_ids WHERE message = (SELECT max(message) FROM recent_icm_ids)"
    ),
    "the id of a receive": (
        "UPDATE icm_receives SET prefix = 5 WHERE key = (SELECT max(key) FROM icm_receives)"
    ),
    "a Warp message": (
        "UPDATE warp_sends SET message = x'00' WHERE key = (SELECT max(key) FROM warp_sends)"
    ),
    "a route": "DELETE FROM icm_routes WHERE send = (SELECT max(send) FROM icm_routes)",
    "an arrival": (
        "UPDATE icm_arrivals"
        " SET source = 77"
        " WHERE receive = (SELECT max(receive) FROM icm_arrivals)"
    ),
    "an address": (
        "DELETE FROM recent_icm_addresses"
        " WHERE message = (SELECT max(message) FROM recent_icm_addresses)"
    ),
    "a change": (
        "DELETE FROM icm_message_changes"
        " WHERE change = (SELECT max(change) FROM icm_message_changes)"
    ),
    "a change of nothing": (
        "UPDATE icm_changes SET message = 5 WHERE key = (SELECT max(key) FROM icm_changes)"
    ),
    "a failure": "INSERT INTO icm_failures VALUES (1, 2)",
    "an open message": "DELETE FROM icm_open WHERE send = (SELECT max(send) FROM icm_open)",
    "the state of an open message": "UPDATE icm_open SET state = 2 WHERE state = 0",
    "a delivery of nothing": "INSERT INTO icm_deliveries VALUES (1, 2, 3, 1)",
    "a delivery elsewhere": "UPDATE icm_deliveries SET destination = 77",
    "a waiting delivery": (
        "INSERT INTO icm_unmatched SELECT i.prefix, s.destination, 1, 1 FROM icm_sends s"
        " JOIN icm_ids i ON i.message = s.key LIMIT 1"
    ),
    "a lost transaction": "DELETE FROM txs",
}


@pytest.fixture(scope="module")
def right_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the index of A, which tests copy."""
    folder, history = tmp_path_factory.mktemp("icm"), IcmHistory(10)
    history.add_blocks(40)
    url = f"sqlite:///{folder}/index.db"
    write_all(url, history)
    path = evm_index_url(small_settings(url), None, A).path
    assert path is not None
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_wrong_row_is_found(tmp_path: Path, right_index: Path, damage: str) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    path = evm_index_url(small_settings(url), None, A).path
    assert path is not None
    path.parent.mkdir()
    shutil.copy(right_index, path)
    assert_consistent(url, [A])
    with sqlite3.connect(path) as database:
        assert database.execute(damage).rowcount > 0
    with reading(url, A) as connection:
        assert list(consistency.find_inconsistencies(connection))
