"""Copies of an index file with changed bytes, and how each read of one ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from warpseal.errors import StartupError
from warpseal.store.errors import StoreDown

RESULT = "answer"
TYPED = (StoreDown, StartupError)


def merge_log(path: Path) -> None:
    """Write everything that is in the log of an index into its file."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def copy_file(path: Path, copy: Path) -> None:
    """Copy an index file."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())


def flip_bytes(path: Path, copy: Path, seed: int) -> None:
    """Write a copy of an index file with 1 to 30 changed bytes of content behind its first page."""
    random, content = Random(seed), bytearray(path.read_bytes())
    first = int.from_bytes(content[16:18], "big")
    places = [place for place in range(first, len(content)) if content[place]]
    for _ in range(random.choice((1, 2, 5, 10, 30))):
        content[random.choice(places)] ^= random.randrange(1, 256)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(content)


async def ends_of(reads: Iterable[Awaitable[Any]]) -> set[str]:
    """Return the ends of reads: a result, or the name of a typed error; raise other errors."""
    ends = set()
    for read in reads:
        try:
            msgspec.json.encode(await read)
            ends.add(RESULT)
        except TYPED as error:
            ends.add(type(error).__name__)
    return ends
