"""Export of messages with shares and signatures, and import of them; each signature is verified
before it is stored.

An L1 whose validators cannot be reached can sign elsewhere and import the shares. The format is in
`jsonl.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from cachetools import LRUCache
from msgspec import Struct, field

from warpseal.bls import MalformedKey, PublicKey, parse_public_key, verify, verify_aggregate
from warpseal.store import archive_rows
from warpseal.store.connection import Connection, Engine
from warpseal.store.errors import StoreNetworkMismatch
from warpseal.store.jsonl import (
    BadLine,
    MessageLine,
    NumberedLines,
    header_line,
    message_line,
    read_line,
    share_line,
    signature_line,
)
from warpseal.store.schema import MESSAGES, SHARES, SIGNATURES
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.store.write_queue import AddShares, AddSignature, WriteBatch
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage

_MESSAGES_PER_PAGE: Final = 50
_RECORDS_PER_WRITE: Final = 500
_MAX_CACHED_MESSAGES: Final = 64
_MAX_CACHED_KEYS: Final = 20_000


class Selection(Struct, frozen=True):
    """The messages to export.

    message_id: only this one; since_unix_s: used or changed since; for_ever: only those.
    """

    message_id: MessageID | None = None
    since_unix_s: float | None = None
    for_ever: bool = False

    def conditions(self, after_key: int = 0) -> tuple[str, list[Any]]:
        """Return the conditions on the rows of messages with a larger key, as SQL, and their
        values.
        """
        values = {
            "key > ?": after_key,
            "message_id = ?": self.message_id,
            "used_at >= ?": self.since_unix_s,
            "for_ever = ?": 1 if self.for_ever else None,
        }
        conditions = {text: value for text, value in values.items() if value is not None}
        return " AND ".join(conditions), list(conditions.values())


_ALL: Final = Selection()
_SIGNATURES: Final = (
    f"SELECT {SIGNATURES.names} FROM signatures WHERE message_key = ? ORDER BY created_at, key"
)
_SHARES: Final = f"SELECT {SHARES.names} FROM shares WHERE message_key = ? ORDER BY public_key"
_FIRST_RAW: Final = "SELECT raw FROM messages ORDER BY key LIMIT 1"


class TransferStats(Struct):
    """The numbers of exported or imported records; bad_lines: skipped."""

    messages: int = 0
    shares: int = 0
    signatures: int = 0
    bad_lines: int = 0

    def __str__(self) -> str:
        return f"{self.messages} messages, {self.signatures} signed messages, {self.shares} shares"


def export_lines(
    connection: Connection, schema_version: str, selection: Selection, stats: TransferStats
) -> Iterator[bytes]:
    """Yield the lines of an export; `stats` counts them."""
    yield header_line(schema_version, read_network_id(connection))
    for rows in read_messages(connection, selection):
        message = UnsignedMessage.parse(rows.message.raw)
        stats.messages += 1
        yield message_line(message, for_ever=rows.message.for_ever == 1)
        for row in rows.signatures:
            stats.signatures += 1
            yield signature_line(
                message.id, StoredSignature(archive_rows.split_keys(row.public_keys), row.signature)
            )
        for row in rows.shares:
            stats.shares += 1
            yield share_line(
                message.id, StoredShare(row.public_key, row.signature, row.verified == 1)
            )


def count_messages(connection: Connection, selection: Selection = _ALL) -> int:
    """Return the number of messages of a selection."""
    conditions, values = selection.conditions()
    return int(connection.value(f"SELECT count(*) FROM messages WHERE {conditions}", *values))


def read_network_id(connection: Connection) -> int | None:
    """Return the network of the messages in a store; None if it has none."""
    raw = connection.value(_FIRST_RAW)
    return None if raw is None else UnsignedMessage.parse(raw).network_id


class MessageRows(Struct, frozen=True):
    """The rows of a message, its signatures and its shares, read at one moment."""

    message: Any
    signatures: Sequence[Any]
    shares: Sequence[Any]


def read_messages(connection: Connection, selection: Selection = _ALL) -> Iterator[MessageRows]:
    """Yield the rows of messages, oldest first, with one page of messages in memory at a time."""
    after_key = 0
    while True:
        conditions, values = selection.conditions(after_key)
        query = f"SELECT {MESSAGES.names} FROM messages WHERE {conditions} ORDER BY key LIMIT {_MESSAGES_PER_PAGE}"
        with connection.snapshot():
            page = [
                MessageRows(
                    row,
                    connection.records(_SIGNATURES, row.key),
                    connection.records(_SHARES, row.key),
                )
                for row in connection.records(query, *values)
            ]
        yield from page
        if len(page) < _MESSAGES_PER_PAGE:
            return
        after_key = page[-1].message.key


@lru_cache(_MAX_CACHED_KEYS)
def parse_key(raw: bytes) -> PublicKey:
    """Return a public key (48 bytes). Raises BadLine."""
    try:
        return parse_public_key(raw)
    except MalformedKey as error:
        raise BadLine(f"publicKey: {error}") from None


class Importer(Struct):
    """Verifies each line and writes the valid records, some hundred in one transaction.

    on_bad_line: called with the number of a line and its error.
    for_ever: keep every message for ever.
    network_id: of the store; None: the first message's. Records that were written before an
        interruption stay; the same file may be imported again.
    """

    engine: Engine
    on_bad_line: Callable[[int, str], None]
    for_ever: bool = False
    network_id: int | None = None
    stats: TransferStats = field(default_factory=TransferStats)
    _messages: LRUCache[MessageID, MessageLine] = field(
        default_factory=lambda: LRUCache(_MAX_CACHED_MESSAGES)
    )
    _batch: WriteBatch = field(default_factory=WriteBatch)
    _last_message: MessageID | None = None

    def run(self, lines: NumberedLines, progress: Callable[[TransferStats], None]) -> TransferStats:
        """Import the lines after the first one; `progress` is called after each transaction.

        Raises StoreNetworkMismatch at the first message of another network.
        """
        for number, raw in lines:
            try:
                self._add(raw)
            except BadLine as error:
                self.stats.bad_lines += 1
                self.on_bad_line(number, str(error))
            if self._batch.writes >= _RECORDS_PER_WRITE:
                self._write()
                progress(self.stats)
        self._write()
        progress(self.stats)
        return self.stats

    def _add(self, raw: bytes | None) -> None:
        line = read_line(raw)
        if isinstance(line, MessageLine):
            self._check_network(line.message)
            self._messages[line.message.id] = line
            return
        message = self._find_message(line.message)
        if isinstance(line.signed, StoredShare):
            self._add_share(message, line.signed)
        else:
            self._add_signature(message, line.signed)
        self.stats.messages += message.message.id != self._last_message
        self._last_message = message.message.id
        if self.for_ever or message.for_ever:
            self._batch.pinned[message.message.id] = message.message

    def _find_message(self, subject: UnsignedMessage | MessageID) -> MessageLine:
        """Return the message that a line names: from the line, an earlier line, or the store.

        Raises BadLine.
        """
        message_id = subject.id if isinstance(subject, UnsignedMessage) else subject
        line = self._messages.get(MessageID(message_id))
        if line is None:
            line = MessageLine(
                subject if isinstance(subject, UnsignedMessage) else self._load_message(subject),
                False,
            )
            self._check_network(line.message)
            self._messages[line.message.id] = line
        return line

    def _check_network(self, message: UnsignedMessage) -> None:
        if self.network_id is None:
            self.network_id = message.network_id
        if message.network_id != self.network_id:
            raise StoreNetworkMismatch(message.network_id, self.network_id)

    def _load_message(self, message_id: MessageID) -> UnsignedMessage:
        with self.engine.connect() as connection:
            raw = connection.value(archive_rows.LOAD_RAW, message_id)
        if raw is None:
            raise BadLine("messageId: neither a line above nor the store has this message")
        try:
            return UnsignedMessage.parse(raw)
        except MalformedMessage:
            raise BadLine("messageId: the store holds damaged bytes of this message") from None

    def _add_share(self, line: MessageLine, share: StoredShare) -> None:
        if not verify(parse_key(share.public_key), line.message.raw, share.signature):
            raise BadLine("the signature is not the one of this key over this message")
        verified = StoredShare(share.public_key, share.signature, verified=True)
        self._batch.updates.append(AddShares(line.message, (verified,)))
        self.stats.shares += 1

    def _add_signature(self, line: MessageLine, signed: StoredSignature) -> None:
        keys = [parse_key(key) for key in signed.public_keys]
        if not verify_aggregate(keys, line.message.raw, signed.signature):
            raise BadLine("the signature is not the one of exactly these keys over this message")
        self._batch.signatures.append(AddSignature(line.message, signed, done=lambda: None))
        self.stats.signatures += 1

    def _write(self) -> None:
        batch, self._batch = self._batch, WriteBatch()
        if batch.has_rows:
            with self.engine.begin() as connection:
                archive_rows.write(connection, batch, time.time())
