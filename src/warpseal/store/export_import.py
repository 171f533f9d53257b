"""Export of messages with shares and signatures, and import of them.

An L1 whose validators cannot be reached can sign elsewhere and import the shares. The format is in
`jsonl.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from cachetools import LRUCache
from msgspec import Struct

from warpseal.store import archive_rows
from warpseal.store.archive_rows import ImportedMessage
from warpseal.store.connection import Connection, Engine
from warpseal.store.errors import StoreNetworkMismatch
from warpseal.store.jsonl import (
    BadLine,
    MessageLine,
    NumberedLines,
    SignedLine,
    header_line,
    message_line,
    read_line,
    share_line,
    signature_line,
)
from warpseal.store.schema import MESSAGES, SHARES, SIGNATURES
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import MessageID
from warpseal.warp.message import SIGNATURE_BYTES, UnsignedMessage
from warpseal.warp.validator_set import PUBLIC_KEY_BYTES

_MESSAGES_PER_PAGE: Final = 50
# A transaction of an import. A record may name 40,000 keys, so the bytes have a bound as well.
_MAX_BATCH_RECORDS: Final = 500
_MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_MAX_CACHED_MESSAGES: Final = 64


class Selection(Struct, frozen=True):
    """The messages to export: those that meet each condition that is set.

    message_id: id of the only message.
    since_unix_s: time since which the messages were used or changed.
    for_ever: whether only messages that are kept for ever are exported.
    """

    message_id: MessageID | None = None
    since_unix_s: float | None = None
    for_ever: bool = False

    def conditions(self, after_key: int = 0) -> tuple[str, list[Any]]:
        """Return the SQL conditions on rows with a key above `after_key`, and their values."""
        values = {
            "key > ?": after_key,
            "message_id = ?": self.message_id,
            "used_at >= ?": self.since_unix_s,
            "for_ever = ?": 1 if self.for_ever else None,
        }
        conditions = {text: value for text, value in values.items() if value is not None}
        return " AND ".join(conditions), list(conditions.values())


_ALL: Final = Selection()
_SIGNATURES: Final = f"""
SELECT {SIGNATURES.names}
FROM signatures
WHERE message_key = ?
ORDER BY created_at, key
"""
_SHARES: Final = f"""
SELECT {SHARES.names}
FROM shares
WHERE message_key = ?
ORDER BY public_key
"""
_FIRST_RAW: Final = "SELECT raw FROM messages ORDER BY key LIMIT 1"


class TransferStats(Struct):
    """The numbers of exported or imported records.

    bad_lines: number of damaged lines, which an import skips.
    """

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
            keys = archive_rows.split_keys(row.public_keys)
            stats.signatures += 1
            yield signature_line(message.id, StoredSignature(keys, row.signature))
        for row in rows.shares:
            share = StoredShare(row.public_key, row.signature, row.verified == 1)
            stats.shares += 1
            yield share_line(message.id, share)


def count_messages(connection: Connection, selection: Selection = _ALL) -> int:
    """Return the number of messages of a selection."""
    conditions, values = selection.conditions()
    return int(connection.value(f"SELECT count(*) FROM messages WHERE {conditions}", *values))


def read_network_id(connection: Connection) -> int | None:
    """Return the network of the messages in a store; None for a store without messages."""
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
        query = f"""
SELECT {MESSAGES.names}
FROM messages
WHERE {conditions}
ORDER BY key
LIMIT {_MESSAGES_PER_PAGE}
"""
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


class Importer:
    """Write the records of a file, some hundred in one transaction, without verifying signatures.

    The daemon verifies a stored share or signature before it uses it, and `store check` verifies
    all of them. Records that were written before an interruption stay, and the same file may be
    imported again.

    on_bad_line: called with the number of a damaged line and the reason.
    for_ever: whether every message is kept for ever, whatever the file says.
    network_id: network of the store; None stands for the network of the first message.
    """

    def __init__(
        self,
        engine: Engine,
        on_bad_line: Callable[[int, str], None],
        for_ever: bool = False,
        network_id: int | None = None,
    ) -> None:
        self._engine = engine
        self._on_bad_line = on_bad_line
        self._for_ever = for_ever
        self._network_id = network_id
        self._stats = TransferStats()
        self._messages: LRUCache[MessageID, MessageLine] = LRUCache(_MAX_CACHED_MESSAGES)
        self._last_id: MessageID | None = None
        self._batch: dict[MessageID, ImportedMessage] = {}
        self._batch_records = 0
        self._batch_bytes = 0

    def run(self, lines: NumberedLines, progress: Callable[[TransferStats], None]) -> TransferStats:
        """Import the lines after the first one; `progress` is called after each transaction.

        Raises StoreNetworkMismatch at the first message of another network.
        """
        for number, raw in lines:
            try:
                self._add(read_line(raw))
            except BadLine as error:
                self._stats.bad_lines += 1
                self._on_bad_line(number, str(error))
            if self._batch_records >= _MAX_BATCH_RECORDS or self._batch_bytes >= _MAX_BATCH_BYTES:
                self._write()
                progress(self._stats)
        self._write()
        progress(self._stats)
        return self._stats

    def _add(self, line: MessageLine | SignedLine) -> None:
        if isinstance(line, MessageLine):
            self._check_network(line.message)
            self._messages[line.message.id] = line
            return
        message_line = self._find_message(line.message)
        message = message_line.message
        imported = self._batch.get(message.id)
        if imported is None:
            imported = self._batch[message.id] = ImportedMessage(message)
            self._batch_bytes += len(message.raw)
        if self._for_ever or message_line.for_ever:
            imported.for_ever = True
        signed = line.signed
        if isinstance(signed, StoredShare):
            imported.shares[signed.public_key] = signed
            self._batch_bytes += PUBLIC_KEY_BYTES + SIGNATURE_BYTES
            self._stats.shares += 1
        else:
            imported.signatures.append(signed)
            self._batch_bytes += PUBLIC_KEY_BYTES * len(signed.public_keys) + SIGNATURE_BYTES
            self._stats.signatures += 1
        self._batch_records += 1
        self._stats.messages += message.id != self._last_id
        self._last_id = message.id

    def _find_message(self, subject: UnsignedMessage | MessageID) -> MessageLine:
        """Return the message that a line names: from the line, an earlier line, or the store.

        Raises BadLine.
        """
        message_id = subject.id if isinstance(subject, UnsignedMessage) else subject
        line = self._messages.get(MessageID(message_id))
        if line is None:
            if isinstance(subject, UnsignedMessage):
                message = subject
            elif subject in self._batch:
                message = self._batch[subject].message
            else:
                message = self._load_message(subject)
            self._check_network(message)
            line = self._messages[message.id] = MessageLine(message, for_ever=False)
        return line

    def _check_network(self, message: UnsignedMessage) -> None:
        if self._network_id is None:
            self._network_id = message.network_id
        if message.network_id != self._network_id:
            raise StoreNetworkMismatch(message.network_id, self._network_id)

    def _load_message(self, message_id: MessageID) -> UnsignedMessage:
        with self._engine.connect() as connection:
            raw = connection.value(archive_rows.LOAD_RAW, message_id)
        if raw is None:
            raise BadLine("messageId: neither a line above nor the store has this message")
        try:
            return UnsignedMessage.parse(raw)
        except MalformedMessage:
            raise BadLine("messageId: the store holds damaged bytes of this message") from None

    def _write(self) -> None:
        batch = list(self._batch.values())
        self._batch = {}
        self._batch_records = self._batch_bytes = 0
        if batch:
            with self._engine.begin() as connection:
                archive_rows.write_imported(connection, batch, time.time())
