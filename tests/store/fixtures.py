"""Messages, shares and stores with short delays, for the tests of the store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from tests.eventually import TIMEOUT_S, until
from warpseal.store.access import open_read_only
from warpseal.store.archive_rows import load_message
from warpseal.store.errors import StoreUnusable
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.store.url import StoreUrl
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import ChainID
from warpseal.warp.message import UnsignedMessage

T = TypeVar("T")

PATIENCE_S = TIMEOUT_S
CHAIN = ChainID(b"\x07" * 32)
# Waits that a slow machine may need are generous; what only delays a test is short.
HASTY = StoreSettings(
    commit_timeout_s=PATIENCE_S,
    load_timeout_s=PATIENCE_S,
    gather_s=0.02,
    retry_first_s=0.02,
    retry_cap_s=0.1,
    first_prune_s=0.02,
    prune_interval_s=0.05,
)


def hasty_settings(url: str, **changes: object) -> StoreSettings:
    """Return settings with short delays for a store at `url`."""
    return replace(HASTY, url=url, **changes)


def store_at(url: str, **changes: object) -> Store:
    """Return a store with short delays."""
    return open_store(hasty_settings(url, **changes), None)


def message(number: int, size: int = 40) -> UnsignedMessage:
    """Return a message by its number; size: bytes of the payload."""
    return UnsignedMessage.build(5, CHAIN, number.to_bytes(size, "big"))


def key(number: int) -> bytes:
    """Return 48 bytes in place of a public key."""
    return (sha256(b"key %d" % number).digest() * 2)[:48]


def share(number: int, *, verified: bool = False, variant: int = 0) -> StoredShare:
    """Return the share of key `number`."""
    return StoredShare(
        key(number), sha256(b"share %d %d" % (number, variant)).digest() * 3, verified
    )


def signature(number: int, *signers: int) -> StoredSignature:
    """Return an aggregate by these keys."""
    return StoredSignature(
        tuple(map(key, signers or (1, 2))), sha256(b"sum %d" % number).digest() * 3
    )


async def wait_for_entry(
    store: Store, of: UnsignedMessage, is_wanted: Callable[[ArchiveEntry], bool]
) -> ArchiveEntry:
    """Return the entry of a message as soon as it is the wanted one."""

    async def is_found() -> bool:
        return is_wanted(await store.archive.load(of.id))

    await until(is_found)
    return await store.archive.load(of.id)


def finish_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, which must not wait for anything."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("the coroutine waits")


def sqlite_url(folder: Path) -> str:
    """Return the URL of a store file in a folder."""
    return f"sqlite:///{folder / 'store.db'}"


def load_beside(url: str, of: UnsignedMessage) -> ArchiveEntry:
    """Return the entry of a message as a command reads it, with or without a daemon."""
    with open_read_only(StoreUrl.parse(url)) as connection:
        return load_message(connection, of.id)[0]


async def exit_code_of(program: str, *words: str) -> int:
    """Run a Python program; return its exit code, or the negated number of the signal that ended
    it.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *words)
    return await asyncio.wait_for(process.wait(), PATIENCE_S)


def shares_in(store_url: str) -> int:
    """Return how many shares a store holds; none while there is no store."""
    with suppress(StoreUnusable), open_read_only(StoreUrl.parse(store_url)) as connection:
        return int(connection.value("SELECT count(*) FROM shares"))
    return 0
