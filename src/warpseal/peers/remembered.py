"""Addresses on disk: which node answered where, and when, so that a restart reaches everybody at once.

The source of truth is the file itself, JSON; whatever in it is damaged or foreign is set aside, never fatal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from warpseal.peers.addresses import AddressBook, Endpoint, Remembered, Signed, Worked
from warpseal.peers.folder import write_atomically
from warpseal.protocol.addresses import MAX_CLOCK_SKEW_S
from warpseal.warp.ids import node_id_text, parse_node_id

ADDRESSES_NAME: Final = "addresses.json"
_DAMAGED_SUFFIX: Final = ".damaged"
_FORMAT: Final = 1
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class AddressKeeper:
    """Keeps the address book on disk, where there is a folder to write to."""

    def __init__(self, book: AddressBook, folder: Path | None, interval_s: float) -> None:
        self._book = book
        self._folder = folder
        self._interval_s = interval_s

    async def recall(self) -> None:
        """Take what an earlier process wrote."""
        if self._folder is not None:
            self._book.recall(await asyncio.to_thread(load_addresses, self._folder, time.time()))

    async def run(self) -> None:
        """Write what has changed, every `interval_s`, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._folder is not None and self._book.changed:
                self._book.changed = False
                await asyncio.to_thread(_try_to_save, self._folder, self._book.remembered())

    def save(self) -> None:
        """Write what has changed at once, on the caller's thread."""
        if self._folder is not None and self._book.changed:
            self._book.changed = False
            _try_to_save(self._folder, self._book.remembered())


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


def load_addresses(folder: Path, unix_s: float) -> list[Remembered]:
    """Return what an earlier process wrote; nothing when there is no file, or one that cannot be read.

    What was signed after `unix_s` is left out: believed, it would keep out all that the node signs until then.
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


def save_addresses(folder: Path, remembered: Iterable[Remembered]) -> None:
    """Replace the file, complete or not at all. Raises OSError."""
    nodes = [
        _Node(
            node_id_text(memory.node_id),
            _written(memory.worked.endpoint, memory.worked.worked_at, memory.worked.signed_at)
            if memory.worked is not None
            else None,
            _written(memory.signed.endpoint, 0.0, memory.signed.signed_at) if memory.signed is not None else None,
        )
        for memory in remembered
    ]
    write_atomically(folder / ADDRESSES_NAME, msgspec.json.format(msgspec.json.encode(_File(_FORMAT, nodes)), indent=1))


def _try_to_save(folder: Path, remembered: list[Remembered]) -> None:
    try:
        save_addresses(folder, remembered)
    except OSError as error:
        log.warning("addresses cannot be written: folder=%s error=%s", folder, error)


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


def _written(endpoint: Endpoint, worked_at: float, signed_at: int) -> _Address:
    return _Address(str(endpoint.ip), endpoint.port, round(worked_at, 3), signed_at)


def _set_aside(path: Path, error: Exception) -> None:
    log.warning("the remembered addresses cannot be read and are set aside: path=%s error=%s", path, error)
    try:
        path.replace(path.with_name(path.name + _DAMAGED_SUFFIX))
    except OSError as failure:
        log.warning("setting them aside failed: %s", failure)
