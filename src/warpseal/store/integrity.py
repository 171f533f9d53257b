"""Check of a store: its pages, each id against its bytes, each signature against its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from msgspec import Struct

from warpseal.bls import MalformedKey, PublicKey, parse_public_key, verify, verify_aggregate
from warpseal.runtime.process import Progress, ignore_progress
from warpseal.store.archive_rows import split_keys
from warpseal.store.connection import Connection, DriverError
from warpseal.store.export_import import MessageRows, count_messages, read_messages
from warpseal.store.schema import L1_TRANSACTIONS, ORIGINS, SHARES, SIGNATURES, TABLES
from warpseal.store.tables import Table
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ID_BYTES, SubnetID, id_text
from warpseal.warp.l1_messages import RegisterL1Validator, bootstrap_validation_id
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import PUBLIC_KEY_BYTES

_ROWS_PER_PAGE: Final = 1_000
_RANGES: Final = "SELECT chain_id, low, high FROM block_ranges ORDER BY chain_id, low"
_MAX_CACHED_KEYS: Final = 20_000


class IntegrityReport(Struct):
    """The numbers of checked rows.

    wrong_candidates: number of unverified shares that are not valid.
    """

    messages: int = 0
    signatures: int = 0
    shares: int = 0
    wrong_candidates: int = 0
    origins: int = 0
    l1_transactions: int = 0
    errors: int = 0


class IntegrityCheck:
    """Check all rows once; a daemon may run at the same time.

    on_error: called with the text of each error.
    progress: called with the rows of each step.
    on_wrong_candidate: called with a text for each unverified share that is not valid.
    """

    def __init__(
        self,
        connection: Connection,
        on_error: Callable[[str], None],
        progress: Progress = ignore_progress,
        on_wrong_candidate: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._on_error = on_error
        self._progress = progress
        self._on_wrong_candidate = on_wrong_candidate
        self._counts = IntegrityReport()

    def run(self) -> IntegrityReport:
        """Check everything; an error does not end the check."""
        for check in (
            self._check_database,
            self._check_messages,
            self._check_transactions,
            self._check_origins,
            self._check_ranges,
        ):
            try:
                check()
            except DriverError as error:
                self._report(f"the database cannot be read: {error.cause}")
        return self._counts

    def _report(self, error: str) -> None:
        self._counts.errors += 1
        self._on_error(error)

    def _check_database(self) -> None:
        """Report the damage that the database itself detects.

        A server checks each page when it reads it, so this reads all of them.
        """
        self._progress("checking the pages", 0, 0)
        connection = self._connection
        if not connection.is_postgresql:
            for (line,) in connection.fetch("PRAGMA integrity_check"):
                if line != "ok":
                    self._report(f"the file is damaged: {line}")
            for row in connection.fetch("PRAGMA foreign_key_check"):
                self._report(f"a row of {row[0]} belongs to no message")
            return
        for name in TABLES:
            connection.fetch(f"SELECT count(*) FROM {name}")
        for name in (SHARES.name, SIGNATURES.name):
            count = connection.value(f"""
SELECT count(*)
FROM {name}
WHERE message_key NOT IN (SELECT key FROM messages)
""")
            if count:
                self._report(f"{count} rows of {name} belong to no message")

    def _check_messages(self) -> None:
        total = count_messages(self._connection)
        for rows in read_messages(self._connection):
            self._check_message(rows)
            self._progress("checking messages", self._counts.messages, total)

    def _check_message(self, rows: MessageRows) -> None:
        row = rows.message
        name = f"message {id_text(row.message_id)}"
        self._counts.messages += 1
        if sha256(row.raw).digest() != row.message_id:
            self._report(f"{name}: its id is not the hash of its bytes")
        try:
            UnsignedMessage.parse(row.raw)
        except MalformedMessage as error:
            self._report(f"{name}: no Warp message: {error}")
        candidates = sum(share.verified == 0 for share in rows.shares)
        if candidates != row.candidates:
            self._report(f"{name}: the number of its unverified shares is not the counted one")
        for signature in rows.signatures:
            self._counts.signatures += 1
            reason = _explain_bad_signature(row.raw, signature)
            if reason is not None:
                keys = len(signature.public_keys) // PUBLIC_KEY_BYTES
                self._report(f"{name}: a signature of {keys} keys: {reason}")
        for share in rows.shares:
            self._counts.shares += 1
            if _is_valid_share(row.raw, share):
                continue
            key = f"key 0x{share.public_key.hex()}"
            if share.verified == 0:
                self._counts.wrong_candidates += 1
                self._on_wrong_candidate(f"{name}: the unverified share of {key} is invalid")
            else:
                self._report(f"{name}: the verified share of {key} does not verify")

    def _check_transactions(self) -> None:
        for row in self._rows(L1_TRANSACTIONS):
            self._counts.l1_transactions += 1
            self._progress("checking L1 transactions", self._counts.l1_transactions, 0)
            if sha256(row.raw).digest() != row.tx_id:
                self._report(
                    f"L1 transaction 0x{row.tx_id.hex()}: its id is not the hash of its bytes"
                )

    def _check_origins(self) -> None:
        for row in self._rows(ORIGINS):
            self._counts.origins += 1
            self._progress("checking origins", self._counts.origins, 0)
            if _origin_validation(row) != row.validation_id:
                name = f"origin of validation 0x{row.validation_id.hex()}"
                self._report(f"{name}: it proves another validation, or none")

    def _rows(self, table: Table) -> Iterator[Any]:
        """Yield the rows of a table, whose key has one column, in the order of the key."""
        key, after = table.key[0].name, b""
        query = f"""
SELECT {table.names}
FROM {table.name}
WHERE {key} > ?
ORDER BY {key}
LIMIT {_ROWS_PER_PAGE}
"""
        while page := self._connection.records(query, after):
            yield from page
            after = getattr(page[-1], key)

    def _check_ranges(self) -> None:
        before: Any = None
        for row in self._connection.records(_RANGES):
            follows = before is not None and before.chain_id == row.chain_id
            overlaps = follows and before.high >= row.low
            if overlaps or row.high < row.low:
                blocks = f"blocks {row.low} to {row.high}"
                self._report(f"{blocks} of a chain are stored twice, or not in order")
            before = row


def _explain_bad_signature(raw: bytes, row: Any) -> str | None:
    try:
        keys = [_parse_key(key) for key in split_keys(row.public_keys)]
    except MalformedKey as error:
        return f"publicKey: {error}"
    return None if verify_aggregate(keys, raw, row.signature) else "it does not verify"


def _is_valid_share(raw: bytes, row: Any) -> bool:
    try:
        return verify(_parse_key(row.public_key), raw, row.signature)
    except MalformedKey:
        return False


# The same validators sign many messages.
_parse_key: Callable[[bytes], PublicKey] = lru_cache(_MAX_CACHED_KEYS)(parse_public_key)


def _origin_validation(row: Any) -> bytes | None:
    """Return the validation that an origin's row proves; None if it proves none."""
    if row.registration is not None:
        try:
            return RegisterL1Validator.parse(row.registration).validation_id
        except MalformedMessage:
            return None
    index = row.bootstrap_index or 0
    if row.subnet_id is None or len(row.subnet_id) != ID_BYTES or not 0 <= index < 2**32:
        return None
    return bootstrap_validation_id(SubnetID(row.subnet_id), index)
