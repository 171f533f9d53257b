"""Persists the address book, so that a restart connects to every node without gossip.

The source of truth is the store. The file that earlier versions wrote is imported once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from warpseal.peers.addresses import AddressBook, Endpoint, ReachedAddress, SignedAddress, StoredAddresses
from warpseal.protocol.addresses import MAX_CLOCK_SKEW_S
from warpseal.store.addresses import Addresses
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID, parse_node_id

LEGACY_FILE_NAME: Final = "addresses.json"
_DAMAGED_SUFFIX: Final = ".damaged"
_FORMAT: Final = 1
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class AddressPersister:
    """Loads the address book from the store and saves it there. folder: where earlier versions wrote their file."""

    def __init__(self, book: AddressBook, storage: Addresses, folder: Path | None, interval_s: float) -> None:
        self._book = book
        self._storage = storage
        self._folder = folder
        self._interval_s = interval_s

    async def load(self) -> None:
        """Add the stored addresses to the address book."""
        now = time.time()
        self._book.load(addresses_from_rows(await self._storage.load(), now))
        if self._folder is not None:
            await self._import_legacy_file(self._folder, now)

    async def run(self) -> None:
        """Save changes every `interval_s` until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.save()

    async def save(self) -> None:
        """Save changes now."""
        if self._book.changed:
            self._book.changed = False
            is_saved = await self._storage.keep(list(rows_of(self._book.export_addresses())))
            self._book.changed = self._book.changed or not is_saved

    async def _import_legacy_file(self, folder: Path, now: float) -> None:
        """Move the addresses of the file to the store; if that fails, the file stays for the next start."""
        found = await asyncio.to_thread(load_legacy_file, folder, now)
        if not found:
            return
        self._book.load(found)
        if await self._storage.keep(list(rows_of(self._book.export_addresses()))):
            log.info("imported addresses of an earlier version", extra={"nodes": len(found)})
            await asyncio.to_thread(_remove, folder / LEGACY_FILE_NAME)


def rows_of(stored: Iterable[StoredAddresses]) -> Iterator[AddressRow]:
    """Yield one row per address."""
    for node in stored:
        if node.reached is not None:
            reached = node.reached
            yield _row(node.node_id, AddressKind.WORKED, reached.endpoint, reached.reached_at, reached.signed_at)
        if node.signed is not None:
            yield _row(node.node_id, AddressKind.SIGNED, node.signed.endpoint, 0.0, node.signed.signed_at)


def addresses_from_rows(rows: Iterable[AddressRow], unix_s: float) -> list[StoredAddresses]:
    """Return the addresses of each node, the most recently reached nodes last; damaged rows are left out.

    Addresses signed after `unix_s` are left out too: they would suppress all addresses that the node signs until then.
    """
    latest_s = unix_s + MAX_CLOCK_SKEW_S
    nodes: dict[NodeID, StoredAddresses] = {}
    for row in rows:
        known = nodes.pop(row.node_id, StoredAddresses(row.node_id, None, None))
        nodes[row.node_id] = _with_row(known, row) if 0 <= row.signed_at <= latest_s else known
    return [node for node in nodes.values() if node.reached is not None or node.signed is not None]


def load_legacy_file(folder: Path, unix_s: float) -> list[StoredAddresses]:
    """Return the addresses in the file of an earlier version; nothing if it does not exist or is damaged.

    Addresses signed after `unix_s` are left out, as in `addresses_from_rows`.
    """
    path = folder / LEGACY_FILE_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise ValueError(f"more than {_MAX_FILE_BYTES} bytes")
        return _decode(raw, unix_s + MAX_CLOCK_SKEW_S)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        _set_aside(path, error)
        return []


class _Address(msgspec.Struct, omit_defaults=True, rename="camel"):
    ip: str
    port: int
    worked_at: float = 0.0
    signed_at: int = 0


class _Node(msgspec.Struct, omit_defaults=True, rename="camel"):
    node_id: str
    worked: _Address | None = None
    signed: _Address | None = None


class _File(msgspec.Struct):
    format: int
    nodes: list[_Node]


def _row(node_id: NodeID, kind: AddressKind, endpoint: Endpoint, reached_at: float, signed_at: int) -> AddressRow:
    return AddressRow(node_id, kind, str(endpoint.ip), endpoint.port, round(reached_at, 3), signed_at)


def _with_row(known: StoredAddresses, row: AddressRow) -> StoredAddresses:
    try:
        endpoint = Endpoint.parse(row.ip, row.port)
    except ValueError as error:
        log.warning("ignoring a damaged stored address", extra={"reason": str(error)})
        return known
    if row.kind is AddressKind.WORKED:
        return StoredAddresses(known.node_id, ReachedAddress(endpoint, row.worked_at, row.signed_at), known.signed)
    return StoredAddresses(known.node_id, known.reached, SignedAddress(endpoint, row.signed_at))


def _decode(raw: bytes, latest_s: float) -> list[StoredAddresses]:
    """Return the entries of a file. Raises ValueError, of which the errors of msgspec and of IDs are subclasses."""
    file = msgspec.json.decode(raw, type=_File)
    if file.format != _FORMAT:
        raise ValueError(f"format {file.format}, not {_FORMAT}")
    return [_stored_addresses(node, latest_s) for node in file.nodes]


def _stored_addresses(node: _Node, latest_s: float) -> StoredAddresses:
    worked, signed = ((a if a and 0 <= a.signed_at <= latest_s else None) for a in (node.worked, node.signed))
    return StoredAddresses(
        parse_node_id(node.node_id),
        ReachedAddress(Endpoint.parse(worked.ip, worked.port), worked.worked_at, worked.signed_at) if worked else None,
        SignedAddress(Endpoint.parse(signed.ip, signed.port), signed.signed_at) if signed else None,
    )


def _set_aside(path: Path, error: Exception) -> None:
    log.warning("the file of addresses cannot be read and is set aside: path=%s error=%s", path, error)
    try:
        path.replace(path.with_name(path.name + _DAMAGED_SUFFIX))
    except OSError as failure:
        log.warning("the file of addresses cannot be set aside: path=%s error=%s", path, failure)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        log.warning("the imported file of addresses cannot be removed: path=%s error=%s", path, error)
