"""Addresses that are stored across restarts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from warpseal.peers.address_store import (
    LEGACY_FILE_NAME,
    AddressPersister,
    addresses_from_rows,
    load_legacy_file,
    rows_of,
)
from warpseal.peers.addresses import AddressBook, Endpoint, ReachedAddress, SignedAddress, StoredAddresses
from warpseal.store.addresses import Addresses
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID, node_id_text

NOW = 1_700_000_000.0
NODE, OTHER = NodeID(b"\1" * 20), NodeID(b"\2" * 20)
HERE, THERE = Endpoint.parse("203.0.113.1", 9651), Endpoint.parse("2001:db8::1", 9652)
STORED = [
    StoredAddresses(OTHER, None, SignedAddress(HERE, 300)),
    StoredAddresses(NODE, ReachedAddress(HERE, 1_700_000_000.25, 100), SignedAddress(THERE, 200)),
]


def make_book(*stored: StoredAddresses) -> AddressBook:
    book = AddressBook((), allow_private=False, max_nodes=10)
    book.set_known_validators([NODE, OTHER])
    book.load(stored)
    return book


def write_legacy_file(folder: Path, **changes: Any) -> Path:
    """Write the file of an earlier version with both nodes of STORED."""
    here = {"ip": "203.0.113.1", "port": 9651, "workedAt": 1_700_000_000.25, "signedAt": 100, **changes}
    there = {"ip": "2001:db8::1", "port": 9652, "signedAt": 200}
    other = {"nodeId": node_id_text(OTHER), "signed": {"ip": "203.0.113.1", "port": 9651, "signedAt": 300}}
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

    async def keep(self, rows: Iterable[AddressRow]) -> bool:
        self.rows = list(rows) if self.works else []
        return self.works


def persister(book: AddressBook, storage: Addresses, folder: Path | None = None) -> AddressPersister:
    return AddressPersister(book, storage, folder, 60.0)


def test_stored_addresses_survive_the_conversion_to_rows() -> None:
    assert addresses_from_rows(rows_of(STORED), NOW) == STORED


@pytest.mark.parametrize("signed_at", [-1, int(NOW) + 61, 2**62])
def test_addresses_signed_in_the_future_are_ignored(tmp_path: Path, signed_at: int) -> None:
    moved = StoredAddresses(NODE, ReachedAddress(HERE, NOW, signed_at), SignedAddress(THERE, 200))
    assert addresses_from_rows(rows_of([moved]), NOW) == [StoredAddresses(NODE, None, SignedAddress(THERE, 200))]
    write_legacy_file(tmp_path, signedAt=signed_at)
    assert load_legacy_file(tmp_path, NOW)[1] == StoredAddresses(NODE, None, SignedAddress(THERE, 200))


@pytest.mark.parametrize(("ip", "port"), [("example.org", 9651), ("203.0.113.1", 0), ("203.0.113.1", 65536), ("", 1)])
def test_a_damaged_row_is_left_out(ip: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    row = AddressRow(NODE, AddressKind.WORKED, ip, port, NOW, 0)
    assert addresses_from_rows([row, *rows_of(STORED[:1])], NOW) == STORED[:1]
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
        assert book.export_addresses() == STORED
        assert not path.exists()
    async with open_store(StoreSettings(), tmp_path) as store:
        loaded = make_book()
        await persister(loaded, store.addresses, tmp_path).load()
        assert loaded.export_addresses() == STORED


async def test_addresses_are_saved_once_the_storage_works_loaded(tmp_path: Path) -> None:
    path, storage, book = write_legacy_file(tmp_path), BrokenStorage(), make_book()
    saving = persister(book, storage, tmp_path)
    await saving.load()
    assert path.exists()
    assert book.export_addresses() == STORED
    book.record_reached(NODE, THERE, 2_000.0)
    await saving.save()
    assert book.changed
    storage.works = True
    await saving.save()
    assert addresses_from_rows(storage.rows, NOW) == book.export_addresses()
    assert not book.changed


async def test_nothing_is_saved_without_a_change() -> None:
    storage, book = BrokenStorage(), make_book(*STORED)
    storage.works = True
    await persister(book, storage).save()
    assert storage.rows == []


def test_a_missing_file_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_legacy_file(tmp_path, NOW) == []
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
        assert load_legacy_file(tmp_path, NOW) == []
    assert "set aside" in caplog.text
    assert (tmp_path / f"{LEGACY_FILE_NAME}.damaged").read_bytes() == content
    assert not (tmp_path / LEGACY_FILE_NAME).exists()
