"""Addresses that are stored across restarts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from warpseal.peers.address_store import LEGACY_FILE_NAME, AddressPersister, load_legacy_file
from warpseal.peers.addresses import AddressBook, Endpoint, SignedAddress
from warpseal.store.addresses import Addresses
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID, node_id_text

NOW = 1_700_000_000.0
NODE, OTHER = NodeID(b"\1" * 20), NodeID(b"\2" * 20)
HERE, THERE = Endpoint.parse("203.0.113.1", 9651), Endpoint.parse("2001:db8::1", 9652)
ROWS = [
    AddressRow(OTHER, AddressKind.SIGNED, "203.0.113.1", 9651, 0.0, 300),
    AddressRow(NODE, AddressKind.WORKED, "203.0.113.1", 9651, 1_700_000_000.25, 100),
    AddressRow(NODE, AddressKind.SIGNED, "2001:db8::1", 9652, 0.0, 200),
]


def make_book(*rows: AddressRow) -> AddressBook:
    book = AddressBook((), allow_private=False, max_nodes=10)
    book.set_validators([NODE, OTHER])
    book.load(rows, NOW)
    return book


def write_legacy_file(folder: Path, **changes: Any) -> Path:
    """Write the file of an earlier version with both nodes of ROWS."""
    here = {
        "ip": "203.0.113.1",
        "port": 9651,
        "workedAt": 1_700_000_000.25,
        "signedAt": 100,
        **changes,
    }
    there = {"ip": "2001:db8::1", "port": 9652, "signedAt": 200}
    other = {
        "nodeId": node_id_text(OTHER),
        "signed": {"ip": "203.0.113.1", "port": 9651, "signedAt": 300},
    }
    node = {"nodeId": node_id_text(NODE), "worked": here, "signed": there}
    path = folder / LEGACY_FILE_NAME
    path.write_text(json.dumps({"format": 1, "nodes": [other, node]}))
    return path


class BrokenStorage(Addresses):
    """Storage that fails until `works` is set."""

    def __init__(self) -> None:
        self.works = False
        self.rows: list[AddressRow] = []

    async def load(self) -> list[AddressRow]:
        return []

    async def replace(self, rows: Iterable[AddressRow]) -> bool:
        self.rows = list(rows) if self.works else []
        return self.works


def persister(
    book: AddressBook, storage: Addresses, folder: Path | None = None
) -> AddressPersister:
    return AddressPersister(book, storage, folder, 60.0)


def test_loaded_rows_are_exported_unchanged() -> None:
    assert make_book(*ROWS).export_rows() == ROWS


@pytest.mark.parametrize("signed_at", [-1, int(NOW) + 61, 2**62])
def test_addresses_signed_in_the_future_are_ignored(tmp_path: Path, signed_at: int) -> None:
    assert make_book(replace(ROWS[1], signed_at=signed_at), ROWS[2]).export_rows() == [ROWS[2]]
    write_legacy_file(tmp_path, signedAt=signed_at)
    assert make_book(*load_legacy_file(tmp_path)).export_rows() == [ROWS[0], ROWS[2]]


@pytest.mark.parametrize(
    ("ip", "port"), [("example.org", 9651), ("203.0.113.1", 0), ("203.0.113.1", 65536), ("", 1)]
)
def test_a_damaged_row_is_left_out(ip: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    row = AddressRow(NODE, AddressKind.WORKED, ip, port, NOW, 0)
    assert make_book(row, ROWS[0]).export_rows() == ROWS[:1]
    assert "damaged" in caplog.text


async def test_a_restart_loads_the_saved_addresses(tmp_path: Path) -> None:
    async with open_store(StoreSettings(), tmp_path) as store:
        book = make_book()
        book.record_reached(NODE, HERE, 1_000.0)
        book.learn(OTHER, SignedAddress(HERE, 5))
        await persister(book, store.addresses).save()
        assert not book.changed
    async with open_store(StoreSettings(), tmp_path) as store:
        loaded = make_book()
        await persister(loaded, store.addresses).load()
    assert loaded.candidates(NODE) == (HERE,)
    assert loaded.newest_signed_at(OTHER) == 5


async def test_the_file_of_an_earlier_version_is_imported_once(tmp_path: Path) -> None:
    path = write_legacy_file(tmp_path)
    async with open_store(StoreSettings(), tmp_path) as store:
        book = make_book()
        await persister(book, store.addresses, tmp_path).load()
        assert book.export_rows() == ROWS
        assert not path.exists()
    async with open_store(StoreSettings(), tmp_path) as store:
        loaded = make_book()
        await persister(loaded, store.addresses, tmp_path).load()
        assert loaded.export_rows() == ROWS


async def test_addresses_are_saved_once_the_storage_works_loaded(tmp_path: Path) -> None:
    path, storage, book = write_legacy_file(tmp_path), BrokenStorage(), make_book()
    saving = persister(book, storage, tmp_path)
    await saving.load()
    assert path.exists()
    assert book.export_rows() == ROWS
    book.record_reached(NODE, THERE, 2_000.0)
    await saving.save()
    assert book.changed
    storage.works = True
    await saving.save()
    assert storage.rows == book.export_rows()
    assert not book.changed


async def test_nothing_is_saved_without_a_change() -> None:
    storage, book = BrokenStorage(), make_book(*ROWS)
    storage.works = True
    await persister(book, storage).save()
    assert storage.rows == []


def test_a_missing_file_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_legacy_file(tmp_path) == []
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
    (tmp_path / LEGACY_FILE_NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load_legacy_file(tmp_path) == []
    assert "set aside" in caplog.text
    assert (tmp_path / f"{LEGACY_FILE_NAME}.damaged").read_bytes() == content
    assert not (tmp_path / LEGACY_FILE_NAME).exists()
