"""The integrity check: an intact store has no errors, and every damaged row is reported."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.signed import (
    add_origin,
    add_transaction,
    complete_writer,
    create_store,
    message,
    message_writer,
    share,
    signature,
    write_rows,
    wrong_share,
)
from warpseal.store.access import open_read_only
from warpseal.store.connection import Connection
from warpseal.store.errors import StoreUnusable
from warpseal.store.integrity import IntegrityCheck, IntegrityReport
from warpseal.store.schema import (
    BLOCK_RANGES,
    L1_TRANSACTIONS,
    MESSAGES,
    ORIGINS,
    SHARES,
    SIGNATURES,
)
from warpseal.store.tables import Table
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import id_text

FIRST, SECOND = message(1), message(2)


def create_filled_store(url: str) -> StoreUrl:
    return create_store(
        url,
        complete_writer(FIRST),
        message_writer(SECOND, [wrong_share(3)], [signature(SECOND, [2, 3, 4])]),
        add_origin,
        add_transaction,
    )


def check_store(place: StoreUrl) -> tuple[IntegrityReport, list[str]]:
    lines: list[str] = []
    with open_read_only(place) as connection:
        return IntegrityCheck(connection, lines.append).run(), lines


def test_an_intact_store_has_counts_and_no_errors(any_store_url: str) -> None:
    report, lines = check_store(create_filled_store(any_store_url))
    assert lines == []
    assert report == IntegrityReport(
        messages=2,
        signatures=2,
        shares=3,
        wrong_candidates=1,
        origins=1,
        l1_transactions=1,
        errors=0,
    )


def row_writer(table: Table, **values: object) -> Callable[[Connection], object]:
    """Return a function that changes the first row of a table."""

    def write(connection: Connection) -> None:
        key, order = table.key[0].name, "DESC" if table is SHARES else "ASC"
        first = f"SELECT {key} FROM {table.name} ORDER BY {key} {order} LIMIT 1"
        assignments = ", ".join(f"{name} = ?" for name in values)
        connection.run(
            f"UPDATE {table.name} SET {assignments} WHERE {key} = ({first})", *values.values()
        )

    return write


@pytest.mark.parametrize(
    ("table", "values", "words"),
    [
        (MESSAGES, {"message_id": b"\x01" * 32}, "its id is not the hash of its bytes"),
        (MESSAGES, {"raw": FIRST.raw + b"\x00"}, "no Warp message"),
        (MESSAGES, {"candidates": 5}, "the number of its unverified shares"),
        (
            SIGNATURES,
            {"signature": signature(FIRST, [0, 2]).signature},
            "a signature of 2 keys: it does not verify",
        ),
        (SIGNATURES, {"public_keys": b"\x01" * 48}, "a signature of 1 keys: publicKey"),
        (SHARES, {"verified": 1}, "the verified share of key 0x"),
        (ORIGINS, {"bootstrap_index": 4}, "it proves another validation"),
        (ORIGINS, {"registration": b"none"}, "it proves another validation"),
        (L1_TRANSACTIONS, {"raw": b"other"}, "its id is not the hash of its bytes"),
    ],
    ids=lambda value: value.name if isinstance(value, Table) else None,
)
def test_each_inconsistency_is_reported(
    table: Table, values: dict[str, object], words: str, any_store_url: str
) -> None:
    place = create_filled_store(any_store_url)
    write_rows(place, row_writer(table, **values))
    report, lines = check_store(place)
    assert report.errors == len(lines) >= 1
    assert any(words in line for line in lines), lines
    if table is SIGNATURES:
        assert lines[0].startswith(f"message {id_text(FIRST.id)}: ")


def test_ranges_of_blocks_that_overlap_are_named(any_store_url: str) -> None:
    def overlap(connection: Connection) -> None:
        for low, high in ((1, 10), (10, 20), (40, 30)):
            connection.run(BLOCK_RANGES.insert_text, bytes(32), low, high, b"", b"")

    place = create_store(any_store_url, overlap)
    _, lines = check_store(place)
    assert [line[:15] for line in lines] == ["blocks 10 to 20", "blocks 40 to 30"]


def test_messages_of_every_page_are_checked(any_store_url: str) -> None:
    messages = [message(number) for number in range(105)]
    report, lines = check_store(
        create_store(any_store_url, *(message_writer(item, [share(item, 0)]) for item in messages))
    )
    assert (report.messages, report.shares, lines) == (105, 105, [])


def test_rows_that_belong_to_no_message_are_named_in_a_file(tmp_path: Path) -> None:
    place = create_filled_store(f"sqlite:///{tmp_path}/store.db")
    statements = ("PRAGMA foreign_keys = OFF", "DELETE FROM messages")
    with sqlite3.connect(tmp_path / "store.db") as connection:
        for statement in statements:
            connection.execute(statement)
    _, lines = check_store(place)
    assert {
        "a row of shares belongs to no message",
        "a row of signatures belongs to no message",
    } == set(lines)


@pytest.mark.parametrize("page", [1, 8, 20, 30])
def test_damage_to_the_file_is_named(page: int, tmp_path: Path) -> None:
    messages = [message(number) for number in range(200)]
    place = create_store(
        f"sqlite:///{tmp_path}/store.db",
        *(message_writer(item, [share(item, 0)]) for item in messages),
    )
    file = tmp_path / "store.db"
    raw = bytearray(file.read_bytes())
    raw[page * 4096 : (page + 1) * 4096] = b"\xa5" * 4096
    file.write_bytes(raw)
    report, lines = check_store(place)
    assert report.errors == len(lines) >= 1
    assert all(
        line.startswith(("the file is damaged", "the database cannot be read"))
        for line in lines[:1]
    )


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreUnusable, match="file is not a database: restore a backup"):
        check_store(StoreUrl.parse(f"sqlite:///{tmp_path}/store.db"))
