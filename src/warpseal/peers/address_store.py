"""Persists the address book, so that a restart connects to every node without gossip.

The source of truth is the store. The file that earlier versions wrote is imported once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from warpseal.peers.addresses import AddressBook, Endpoint
from warpseal.runtime.process import os_error_text
from warpseal.store.addresses import Addresses
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import parse_node_id

LEGACY_FILE_NAME: Final = "addresses.json"
_DAMAGED_SUFFIX: Final = ".damaged"
_FORMAT: Final = 1
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class AddressPersister:
    """Loads the address book from the store and saves it there.

    folder: folder in which earlier versions wrote their file.
    """

    def __init__(
        self, book: AddressBook, storage: Addresses, folder: Path | None, interval_s: float
    ) -> None:
        self._book = book
        self._storage = storage
        self._folder = folder
        self._interval_s = interval_s

    async def load(self) -> None:
        """Add the stored addresses to the address book."""
        self._book.load(await self._storage.load(), time.time())
        if self._folder is not None:
            await self._import_legacy_file(self._folder)

    async def run(self) -> None:
        """Save changes every `interval_s` until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.save()

    async def save(self) -> None:
        """Save changes now."""
        if self._book.changed:
            self._book.changed = False
            is_saved = await self._storage.replace(self._book.export_rows())
            self._book.changed = self._book.changed or not is_saved

    async def _import_legacy_file(self, folder: Path) -> None:
        """Move the addresses of the file to the store.

        If that fails, the file stays for the next start.
        """
        rows = await asyncio.to_thread(load_legacy_file, folder)
        if not rows:
            return
        self._book.load(rows, time.time())
        if await self._storage.replace(self._book.export_rows()):
            log.info(
                "imported addresses of an earlier version",
                extra={"nodes": len({row.node_id for row in rows})},
            )
            await asyncio.to_thread(_remove, folder / LEGACY_FILE_NAME)


def load_legacy_file(folder: Path) -> list[AddressRow]:
    """Return the addresses in the file of an earlier version.

    Returns none if the file does not exist or is damaged.
    """
    path = folder / LEGACY_FILE_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise ValueError(f"more than {_MAX_FILE_BYTES} bytes")
        return list(_decode(raw))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        _set_aside(path, error)
        return []


class _Address(msgspec.Struct, rename="camel"):
    ip: str
    port: int
    worked_at: float = 0.0
    signed_at: int = 0


class _Node(msgspec.Struct, rename="camel"):
    node_id: str
    worked: _Address | None = None
    signed: _Address | None = None


class _File(msgspec.Struct):
    format: int
    nodes: list[_Node]


def _decode(raw: bytes) -> Iterator[AddressRow]:
    """Yield the entries of a file.

    Raises ValueError, of which the errors of msgspec and of IDs are subclasses.
    """
    file = msgspec.json.decode(raw, type=_File)
    if file.format != _FORMAT:
        raise ValueError(f"format {file.format}, not {_FORMAT}")
    for node in file.nodes:
        node_id = parse_node_id(node.node_id)
        for kind, address in ((AddressKind.WORKED, node.worked), (AddressKind.SIGNED, node.signed)):
            if address is not None:
                endpoint = Endpoint.parse(address.ip, address.port)
                times = (address.worked_at, address.signed_at)
                yield AddressRow(node_id, kind, str(endpoint.ip), endpoint.port, *times)


def _set_aside(path: Path, error: Exception) -> None:
    log.warning(
        "unreadable file of addresses is set aside", extra={"path": path, "reason": str(error)}
    )
    try:
        path.replace(path.with_name(path.name + _DAMAGED_SUFFIX))
    except OSError as failure:
        log.warning(
            "the file of addresses cannot be set aside",
            extra={"path": path, "reason": os_error_text(failure)},
        )


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        log.warning(
            "the imported file of addresses cannot be removed",
            extra={"path": path, "reason": os_error_text(error)},
        )
