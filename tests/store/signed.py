"""Validators with real keys, and stores with their shares and signatures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from warpseal.bls import (
    decode_share,
    derive_public_key,
    generate_secret,
    public_key_bytes,
    sign,
    sum_shares,
)
from warpseal.store import archive_rows, l1_records
from warpseal.store.access import open_exclusive, open_read_only
from warpseal.store.connection import Connection
from warpseal.store.engine import create_private
from warpseal.store.migrate import upgrade_all
from warpseal.store.url import StoreUrl
from warpseal.store.values import BootstrapOrigin, L1Transaction, StoredShare, StoredSignature
from warpseal.store.write_queue import AddShares, AddSignature, WriteBatch
from warpseal.warp.ids import ChainID, SubnetID
from warpseal.warp.message import UnsignedMessage

SECRETS = [generate_secret(sha256(b"validator %d" % index).digest()) for index in range(5)]
KEYS = [public_key_bytes(derive_public_key(secret)) for secret in SECRETS]
CHAIN = ChainID(sha256(b"chain").digest())
ORIGIN = BootstrapOrigin(SubnetID(sha256(b"subnet").digest()), 3)
TRANSACTION = L1Transaction(
    sha256(b"raw").digest(),
    7,
    0,
    bytes(32),
    1_700_000_000,
    "RegisterL1ValidatorTx",
    b"raw",
    ORIGIN.subnet_id,
)


def message(number: int) -> UnsignedMessage:
    return UnsignedMessage.build(12345, CHAIN, b"payload %d" % number)


def share(of: UnsignedMessage, index: int, *, verified: bool = True) -> StoredShare:
    return StoredShare(KEYS[index], sign(SECRETS[index], of.raw), verified)


def wrong_share(index: int, *, verified: bool = False) -> StoredShare:
    return StoredShare(KEYS[index], sign(SECRETS[index], b"something else"), verified)


def signature(of: UnsignedMessage, indices: Sequence[int]) -> StoredSignature:
    shares = [decode_share(sign(SECRETS[index], of.raw)) for index in indices]
    return StoredSignature(tuple(KEYS[index] for index in indices), sum_shares(shares))


FIRST_SIGNED = (message(1), signature(message(1), [0, 1]))


def create_store(url: str, *writes: Callable[[Connection], object]) -> StoreUrl:
    """Create a store of the newest schema in an empty database, and write to it."""
    place = StoreUrl.parse(url)
    if place.path is not None:
        create_private(place.path)
    with open_exclusive(place) as engine:
        upgrade_all(engine, place.redacted, lambda version, done: None)
        for write in writes:
            with engine.begin() as connection:
                write(connection)
    return place


def write_rows(place: StoreUrl, *writes: Callable[[Connection], object]) -> None:
    """Write to a store."""
    with open_exclusive(place) as engine, engine.begin() as connection:
        for write in writes:
            write(connection)


def message_writer(
    of: UnsignedMessage,
    shares: Iterable[StoredShare] = (),
    signatures: Iterable[StoredSignature] = (),
    *,
    for_ever: bool = False,
    at_unix_s: float | None = None,
) -> Callable[[Connection], object]:
    """Return a function that writes shares and signatures of a message."""
    batch = WriteBatch(
        pinned={of.id: of} if for_ever else {},
        signatures=[AddSignature(of, signature, lambda: None) for signature in signatures],
        updates=[AddShares(of, tuple(shares))],
    )
    now_unix_s = time.time() if at_unix_s is None else at_unix_s
    return lambda connection: archive_rows.write(connection, batch, now_unix_s)


def complete_writer(of: UnsignedMessage) -> Callable[[Connection], object]:
    """Return a function that writes a permanent message with a signature and its shares, one of
    which is not verified.
    """
    shares = [share(of, 0), share(of, 1, verified=False)]
    return message_writer(of, shares, [signature(of, [0, 1])], for_ever=True)


def add_origin(connection: Connection) -> None:
    connection.run(l1_records.ADD_ORIGINS, *l1_records.origin_row(ORIGIN, "bootstrap", 0.0))


def add_transaction(connection: Connection) -> None:
    connection.run(l1_records.ADD_TRANSACTIONS, *l1_records.transaction_row(TRANSACTION))


@contextmanager
def read_connection(place: StoreUrl) -> Iterator[Connection]:
    with open_read_only(place) as connection:
        yield connection


def read_messages(place: StoreUrl) -> dict[bytes, Any]:
    """Return all messages by id: (is permanent, shares, signatures)."""
    messages: dict[bytes, Any] = {}
    with read_connection(place) as connection:
        for row in connection.records("SELECT key, message_id, for_ever FROM messages"):
            shares = connection.records("SELECT * FROM shares WHERE message_key = ?", row.key)
            signatures = connection.records(
                "SELECT * FROM signatures WHERE message_key = ?", row.key
            )
            messages[row.message_id] = (
                row.for_ever == 1,
                {(share.public_key, share.signature, share.verified == 1) for share in shares},
                {(signature.public_keys, signature.signature) for signature in signatures},
            )
    return messages
