"""Addresses that outlive the process."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from warpseal.peers.address_store import (
    ADDRESSES_NAME,
    AddressKeeper,
    Nowhere,
    Shelf,
    load_addresses,
    remembered_of,
    rows_of,
)
from warpseal.peers.addresses import AddressBook, Endpoint, Remembered, Signed, Worked
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID, node_id_text

NOW = 1_700_000_000.0
NODE, OTHER = NodeID(b"\1" * 20), NodeID(b"\2" * 20)
HERE, THERE = Endpoint.parse("203.0.113.1", 9651), Endpoint.parse("2001:db8::1", 9652)
MEMORIES = [
    Remembered(OTHER, None, Signed(HERE, 300)),
    Remembered(NODE, Worked(HERE, 1_700_000_000.25, 100), Signed(THERE, 200)),
]


def book_of(*memories: Remembered) -> AddressBook:
    made = AddressBook((), allow_private=False, max_nodes=10)
    made.set_known_validators([NODE, OTHER])
    made.recall(memories)
    return made


def old_file(folder: Path, **changes: Any) -> Path:
    """What an earlier program left behind: both of MEMORIES."""
    here = {"ip": "203.0.113.1", "port": 9651, "workedAt": 1_700_000_000.25, "signedAt": 100, **changes}
    there = {"ip": "2001:db8::1", "port": 9652, "signedAt": 200}
    other = {"nodeId": node_id_text(OTHER), "signed": {"ip": "203.0.113.1", "port": 9651, "signedAt": 300}}
    node = {"nodeId": node_id_text(NODE), "worked": here, "signed": there}
    path = folder / ADDRESSES_NAME
    path.write_text(json.dumps({"format": 1, "nodes": [other, node]}))
    return path


class Broken:
    """A shelf that does not work for now."""

    def __init__(self) -> None:
        self.works = False
        self.rows: list[AddressRow] = []

    async def load(self) -> list[AddressRow]:
        return []

    async def keep(self, rows: Iterable[AddressRow]) -> bool:
        self.rows = list(rows) if self.works else []
        return self.works


def keeper(book: AddressBook, shelf: Shelf, folder: Path | None = None) -> AddressKeeper:
    return AddressKeeper(book, shelf, folder, 60.0)


def test_what_is_told_to_the_shelf_is_what_comes_back() -> None:
    assert remembered_of(rows_of(MEMORIES), NOW) == MEMORIES


@pytest.mark.parametrize("signed_at", [-1, int(NOW) + 61, 2**62])
def test_what_was_signed_in_the_future_is_forgotten(tmp_path: Path, signed_at: int) -> None:
    moved = Remembered(NODE, Worked(HERE, NOW, signed_at), Signed(THERE, 200))
    assert remembered_of(rows_of([moved]), NOW) == [Remembered(NODE, None, Signed(THERE, 200))]
    old_file(tmp_path, signedAt=signed_at)
    assert load_addresses(tmp_path, NOW)[1] == Remembered(NODE, None, Signed(THERE, 200))


@pytest.mark.parametrize(("ip", "port"), [("example.org", 9651), ("203.0.113.1", 0), ("203.0.113.1", 65536), ("", 1)])
def test_a_damaged_row_is_left_out(ip: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    row = AddressRow(NODE, AddressKind.WORKED, ip, port, NOW, 0)
    assert remembered_of([row, *rows_of(MEMORIES[:1])], NOW) == MEMORIES[:1]
    assert "damaged" in caplog.text


async def test_a_restart_finds_in_the_store_what_was_kept(tmp_path: Path) -> None:
    async with open_store(StoreSettings(), tmp_path) as store:
        book = book_of()
        book.reached(NODE, HERE, 1_000.0)
        book.learn(OTHER, Signed(HERE, 5))
        await keeper(book, store.addresses).save()
        assert not book.changed
    async with open_store(StoreSettings(), tmp_path) as store:
        again = book_of()
        await keeper(again, store.addresses).recall()
    assert again.candidates(NODE) == (HERE,)
    assert again.newest_signed_at(OTHER) == 5


async def test_what_an_earlier_program_left_is_moved_once(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    async with open_store(StoreSettings(), tmp_path) as store:
        book = book_of()
        await keeper(book, store.addresses, tmp_path).recall()
        assert book.remembered() == MEMORIES
        assert not path.exists()
    async with open_store(StoreSettings(), tmp_path) as store:
        again = book_of()
        await keeper(again, store.addresses, tmp_path).recall()
        assert again.remembered() == MEMORIES


async def test_a_shelf_that_does_not_work_loses_nothing(tmp_path: Path) -> None:
    path, shelf, book = old_file(tmp_path), Broken(), book_of()
    keeps = keeper(book, shelf, tmp_path)
    await keeps.recall()
    assert path.exists()
    assert book.remembered() == MEMORIES
    book.reached(NODE, THERE, 2_000.0)
    await keeps.save()
    assert book.changed
    shelf.works = True
    await keeps.save()
    assert remembered_of(shelf.rows, NOW) == book.remembered()
    assert not book.changed


async def test_only_what_changed_is_kept() -> None:
    shelf, book = Broken(), book_of(*MEMORIES)
    shelf.works = True
    await keeper(book, shelf).save()
    assert shelf.rows == []


async def test_without_a_shelf_nothing_is_left_behind(tmp_path: Path) -> None:
    book = book_of()
    book.reached(NODE, HERE, 1_000.0)
    await keeper(book, Nowhere(), tmp_path).save()
    assert book.changed
    assert os.listdir(tmp_path) == []


def test_no_file_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_addresses(tmp_path, NOW) == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 2, "nodes": []}',
        b'{"format": 1, "nodes": [{"nodeId": "NodeID-x"}]}',
        b'{"format": 1, "nodes": [{"nodeId": 7}]}',
        b'{"format": 1, "nodes": [{"nodeId": "NodeID-111111111111111111116DBWJs",'
        b' "signed": {"ip": "example.org", "port": 1}}]}',
    ],
)
def test_a_damaged_file_is_set_aside_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ADDRESSES_NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load_addresses(tmp_path, NOW) == []
    assert "set aside" in caplog.text
    assert (tmp_path / f"{ADDRESSES_NAME}.damaged").read_bytes() == content
    assert not (tmp_path / ADDRESSES_NAME).exists()
