"""Addresses that outlive the process: which node answered where, and when, so that a restart reaches everybody at once.

The source of truth is the shelf, which the store provides. What an earlier program left in a file is moved there once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from warpseal.peers.addresses import AddressBook, Endpoint, Remembered, Signed, Worked
from warpseal.protocol.addresses import MAX_CLOCK_SKEW_S
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID, parse_node_id

ADDRESSES_NAME: Final = "addresses.json"
_DAMAGED_SUFFIX: Final = ".damaged"
_FORMAT: Final = 1
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class Shelf(Protocol):
    """Where addresses are kept; it raises nothing."""

    async def load(self) -> list[AddressRow]:
        """Return what is kept, the nodes reached last at the end."""
        ...

    async def keep(self, rows: Iterable[AddressRow]) -> bool:
        """Keep exactly these; tell whether that worked."""
        ...


class Nowhere:
    """The shelf of a process that leaves nothing behind."""

    async def load(self) -> list[AddressRow]:
        """Return nothing."""
        return []

    async def keep(self, rows: Iterable[AddressRow]) -> bool:
        """Tell that nothing is kept."""
        return False


class AddressKeeper:
    """Keeps the address book on a shelf. folder: where an earlier program may have left a file that can be moved."""

    def __init__(self, book: AddressBook, shelf: Shelf, folder: Path | None, interval_s: float) -> None:
        self._book = book
        self._shelf = shelf
        self._folder = folder
        self._interval_s = interval_s

    async def recall(self) -> None:
        """Take what an earlier process kept."""
        now = time.time()
        self._book.recall(remembered_of(await self._shelf.load(), now))
        if self._folder is not None:
            await self._take_over(self._folder, now)

    async def run(self) -> None:
        """Keep what has changed, every `interval_s`, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.save()

    async def save(self) -> None:
        """Keep what has changed at once."""
        if self._book.changed:
            self._book.changed = False
            kept = await self._shelf.keep(list(rows_of(self._book.remembered())))
            self._book.changed = self._book.changed or not kept

    async def _take_over(self, folder: Path, now: float) -> None:
        """Move what is in an earlier program's file to the shelf; where that fails the file stays for the next time."""
        left = await asyncio.to_thread(load_addresses, folder, now)
        if not left:
            return
        self._book.recall(left)
        if await self._shelf.keep(list(rows_of(self._book.remembered()))):
            log.info("remembered addresses are in the store now", extra={"nodes": len(left)})
            await asyncio.to_thread(_remove, folder / ADDRESSES_NAME)


def rows_of(remembered: Iterable[Remembered]) -> Iterator[AddressRow]:
    """Yield what is kept of nodes, a row for each address."""
    for memory in remembered:
        if memory.worked is not None:
            worked = memory.worked
            yield _row(memory.node_id, AddressKind.WORKED, worked.endpoint, worked.worked_at, worked.signed_at)
        if memory.signed is not None:
            yield _row(memory.node_id, AddressKind.SIGNED, memory.signed.endpoint, 0.0, memory.signed.signed_at)


def remembered_of(rows: Iterable[AddressRow], unix_s: float) -> list[Remembered]:
    """Return what rows say of nodes, those reached last at the end; what is damaged is left out.

    What was signed after `unix_s` too: believed, it would keep out all that the node signs until then.
    """
    latest_s = unix_s + MAX_CLOCK_SKEW_S
    nodes: dict[NodeID, Remembered] = {}
    for row in rows:
        known = nodes.pop(row.node_id, Remembered(row.node_id, None, None))
        nodes[row.node_id] = _with(known, row) if 0 <= row.signed_at <= latest_s else known
    return [memory for memory in nodes.values() if memory.worked is not None or memory.signed is not None]


def load_addresses(folder: Path, unix_s: float) -> list[Remembered]:
    """Return what an earlier program wrote; nothing when there is no file, or one that cannot be read.

    What was signed after `unix_s` is left out, as in `remembered_of`.
    """
    path = folder / ADDRESSES_NAME
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


def _row(node_id: NodeID, kind: AddressKind, endpoint: Endpoint, worked_at: float, signed_at: int) -> AddressRow:
    return AddressRow(node_id, kind, str(endpoint.ip), endpoint.port, round(worked_at, 3), signed_at)


def _with(known: Remembered, row: AddressRow) -> Remembered:
    try:
        endpoint = Endpoint.parse(row.ip, row.port)
    except ValueError as error:
        log.warning("a remembered address is damaged and left out", extra={"reason": str(error)})
        return known
    if row.kind is AddressKind.WORKED:
        return Remembered(known.node_id, Worked(endpoint, row.worked_at, row.signed_at), known.signed)
    return Remembered(known.node_id, known.worked, Signed(endpoint, row.signed_at))


def _decode(raw: bytes, latest_s: float) -> list[Remembered]:
    """Return the entries of a file. Raises ValueError, of which all errors of msgspec and of ids are kinds."""
    file = msgspec.json.decode(raw, type=_File)
    if file.format != _FORMAT:
        raise ValueError(f"format {file.format}, not {_FORMAT}")
    return [_remembered(node, latest_s) for node in file.nodes]


def _remembered(node: _Node, latest_s: float) -> Remembered:
    worked, signed = ((a if a and 0 <= a.signed_at <= latest_s else None) for a in (node.worked, node.signed))
    return Remembered(
        parse_node_id(node.node_id),
        Worked(Endpoint.parse(worked.ip, worked.port), worked.worked_at, worked.signed_at) if worked else None,
        Signed(Endpoint.parse(signed.ip, signed.port), signed.signed_at) if signed else None,
    )


def _set_aside(path: Path, error: Exception) -> None:
    log.warning("the remembered addresses cannot be read and are set aside: path=%s error=%s", path, error)
    try:
        path.replace(path.with_name(path.name + _DAMAGED_SUFFIX))
    except OSError as failure:
        log.warning("setting them aside failed: %s", failure)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        log.warning("the old file of addresses cannot be removed: path=%s error=%s", path, error)
