"""Metadata documents of tokens: the next tokens to fetch, and the outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from warpseal.chains.evm.facts import MetadataUpdate
from warpseal.chains.evm.nft_document import NftFields
from warpseal.index import bulk
from warpseal.index.evm.keys import (
    COLLECTION_BITS,
    SQL_NUMBER,
    STATUSES,
    RequestKind,
    collection_of,
    encode_text,
    first_token,
    pack,
    standard_of,
    unpack,
)
from warpseal.index.evm.records import FetchReason, TokenDocument, TokenToFetch
from warpseal.index.evm.schema import DOCUMENTS, MINTED, REQUESTS, UPDATES
from warpseal.index.evm.tokens import find_tokens, id_of_row, read_ids
from warpseal.index.evm.write_session import EvmWriteSession
from warpseal.resources.evm import MetadataStatus
from warpseal.store.connection import Connection

RECENT_S: Final = 86_400
"""The age of a block whose new tokens are fetched before older ones."""
UPDATE_INTERVAL_S: Final = 600
"""Events about changed metadata count once per contract in it."""

MAX_TOKEN_ID: Final = 2**256 - 1
_MAX_MINTED: Final = 100_000
_SCANNED: Final = 5_000

_COLLECTIONS: Final = """
    SELECT i.id, c.number
    FROM ids i
    JOIN collections c ON c.contract = i.key
    WHERE i.prefix IN {keys}
"""
_ADDRESSES: Final = """
    SELECT c.number, i.id
    FROM collections c
    JOIN ids i ON i.key = c.contract
    WHERE c.number IN {keys}
"""
_OLD_DOCUMENTS: Final = """
    SELECT token, status, updated_at, uri, fields
    FROM documents
    WHERE token IN {keys}
"""
_ATTEMPTS: Final = "SELECT token, attempts FROM documents WHERE token IN {keys}"
_HELD: Final = "SELECT token FROM owners WHERE token IN {keys}"
_INCONSISTENT: Final = "SELECT collection FROM inconsistent WHERE collection IN {keys}"
_WAITING_REQUESTS: Final = """
    SELECT subject, requested_at
    FROM requests
    WHERE subject IN {keys} AND kind = ?
"""
# {keys}: numbers of contracts that are left out, even if their tokens would come first.
_REQUESTED: Final = f"""
    SELECT subject, requested_at
    FROM requests
    WHERE NOT subject >> {COLLECTION_BITS} IN {{keys}} AND kind = ?
    ORDER BY requested_at, subject
    LIMIT ?
"""
_DUE: Final = f"""
    SELECT token
    FROM documents
    WHERE NOT token >> {COLLECTION_BITS} IN {{keys}} AND next_attempt_at <= ?
    ORDER BY next_attempt_at
    LIMIT ?
"""
_MINTED: Final = f"""
    SELECT token
    FROM minted
    WHERE NOT token >> {COLLECTION_BITS} IN {{keys}}
    ORDER BY minted_at DESC, token DESC
    LIMIT ?
"""
_DUE_UPDATE: Final = """
    SELECT collection, first_id, last_id
    FROM updates
    WHERE NOT collection IN {keys} AND is_pending = 1 AND due_at <= ?
    ORDER BY due_at
    LIMIT 1
"""
_REST: Final = """
    SELECT o.token, EXISTS (SELECT 1 FROM documents d WHERE d.token = o.token)
    FROM owners o
    WHERE o.token > ?
    ORDER BY o.token
    LIMIT ?
"""
_OLDEST_MINTED: Final = """
    SELECT minted_at
    FROM minted
    ORDER BY minted_at DESC
    LIMIT 1 OFFSET ?
"""
_DELETE_MINTED: Final = "DELETE FROM minted WHERE minted_at <= ?"
_UPDATES: Final = """
    SELECT collection, first_id, last_id, due_at, is_pending
    FROM updates
    WHERE collection IN {keys}
"""
_UPDATED: Final = f"""
    SELECT d.token, t.short, t.id
    FROM documents d
    JOIN tokens t ON t.number = {SQL_NUMBER.format("d.token")}
    WHERE d.token >= ? AND d.token < ?
    ORDER BY d.token
    LIMIT ?
"""
_RENEW: Final = f"""
    UPDATE documents
    SET
        attempts = 0,
        next_attempt_at = (
            SELECT due_at
            FROM updates
            WHERE collection = token >> {COLLECTION_BITS}
        )
    WHERE token IN {{keys}}
"""
_END_UPDATE: Final = "UPDATE updates SET is_pending = 0, due_at = ? WHERE collection = ?"
_DELAY_UPDATE: Final = "UPDATE updates SET due_at = ? WHERE collection = ?"

encode_fields: Final = msgspec.msgpack.Encoder().encode
decode_fields: Final = msgspec.msgpack.Decoder(NftFields).decode


class DocumentWriter:
    """Returns the tokens that are fetched next, for each reason, and writes the documents.

    outcomes: number of attempts by status since the start.
    """

    def __init__(self, session: EvmWriteSession) -> None:
        self._session = session
        self.outcomes: Counter[str] = Counter()
        # Why a token was returned. It is not returned again before its document is written.
        self._reasons: dict[int, FetchReason] = {}
        self._reindexes: dict[int, FetchReason] = {}
        # The last token that was read for REST.
        self._last = 0
        # The last token that was read for the update of a contract.
        self._update_last: dict[int, int] = {}

    def forget(self) -> None:
        """Return all tokens again: the task that fetches them has begun again."""
        for tokens in (self._reasons, self._reindexes, self._update_last):
            tokens.clear()
        self._last = 0

    def to_fetch(
        self, reason: FetchReason, limit: int, now: int, skipped: frozenset[bytes] = frozenset()
    ) -> Sequence[TokenToFetch]:
        """Return tokens to fetch for a reason. A token is returned once until `write` has it.

        A reindex request is returned even if the token waits for another reason, and so is a token
        that a page shows. A new writer, as after a crash, returns tokens without a document again.

        skipped: contracts of which no token is returned, since many of their tokens wait already.
        """
        reasons = self._reindexes if reason is FetchReason.REINDEX else self._reasons
        # Tokens that were returned before are still first in every order: they are read again, and
        # left out below.
        most = limit + len(reasons)
        requested_at: Mapping[int, int] = {}
        with self._session.reading() as connection:
            hidden = {number for _, number in bulk.fetch_by_id(connection, _COLLECTIONS, skipped)}

            def fetch(text: str, *values: int) -> list[int]:
                return [token for token, *_ in bulk.run(connection, text, hidden, *values)]

            match reason:
                case FetchReason.REINDEX:
                    waiting = bulk.run(
                        connection, _REQUESTED, hidden, int(RequestKind.REINDEX), most
                    )
                    requested_at = dict(waiting)
                    tokens: Iterable[int] = requested_at
                case FetchReason.SHOWN:
                    tokens = fetch(_REQUESTED, int(RequestKind.SHOWN_TOKEN), most)
                case FetchReason.DUE:
                    tokens = due = fetch(_DUE, now, most)
                    if len(due) < most:
                        self._expand_update(connection, now, hidden)
                        tokens = fetch(_DUE, now, most)
                case FetchReason.MINTED:
                    tokens = fetch(_MINTED, most)
                case FetchReason.REST:
                    tokens = self._rest(connection, limit, hidden)
            # A page that shows a token makes it more urgent than its former reason.
            is_shown = reason is FetchReason.SHOWN
            free = (
                token
                for token in tokens
                if token not in reasons or (is_shown and reasons[token] is not reason)
            )
            selected = list(islice(free, limit))
            reasons.update(dict.fromkeys(selected, reason))
            return _tokens_to_fetch(connection, selected, requested_at)

    def write(self, documents: Sequence[TokenDocument]) -> None:
        """Write the outcomes of attempts, which end their requests and retries.

        Tokens without a key are skipped.
        """
        reindex = int(RequestKind.REINDEX)
        token_request = int(RequestKind.SHOWN_TOKEN)
        with self._session.adding() as connection:
            by_key = _by_key(connection, documents)
            before = {
                token: _StoredDocument(*columns)
                for token, *columns in bulk.run(connection, _OLD_DOCUMENTS, by_key)
            }
            rows = [
                (key, *_document_columns(document, before.get(key)))
                for key, document in sorted(by_key.items())
            ]
            bulk.upsert(connection, DOCUMENTS, rows)
            bulk.delete(connection, MINTED, list(by_key))
            bulk.delete_pairs(connection, REQUESTS, [(token_request, key) for key in by_key])
            # A request that came after the attempt began is for a later outcome.
            waiting = bulk.run(connection, _WAITING_REQUESTS, by_key, reindex)
            done = [
                (reindex, key)
                for key, requested_at in waiting
                if requested_at <= by_key[key].updated_at
            ]
            bulk.delete_pairs(connection, REQUESTS, done)
        for token in by_key:
            self._reasons.pop(token, None)
            self._reindexes.pop(token, None)
        for document in documents:
            if document.status is not MetadataStatus.UNINDEXED:
                self.outcomes[str(document.status)] += 1

    def _rest(self, connection: Connection, limit: int, hidden: set[int]) -> Sequence[int]:
        """Return tokens without a document among the next few thousand that are held."""
        rows = connection.fetch(_REST, self._last, _SCANNED)
        if not rows:
            self._last = 0
            return ()
        tokens: list[int] = []
        for token, is_fetched in rows:
            if len(tokens) == limit:
                break
            self._last = token
            if not is_fetched and token not in self._reasons and collection_of(token) not in hidden:
                tokens.append(token)
        return tokens

    def _expand_update(self, connection: Connection, now: int, hidden: set[int]) -> None:
        """Mark some documents as due for the update that has waited longest.

        The rest of the update waits behind the other updates.
        """
        for number, first_id, last_id in bulk.run(connection, _DUE_UPDATE, hidden, now):
            first, last = unpack(first_id), unpack(last_id)
            before = self._update_last.pop(number, first_token(number) - 1)
            rows = connection.fetch(_UPDATED, before + 1, first_token(number + 1), _SCANNED)
            tokens = [token for token, short, raw in rows if first <= id_of_row(short, raw) <= last]
            if tokens:
                bulk.run(connection, _RENEW, tokens)
            if len(rows) < _SCANNED:
                connection.run(_END_UPDATE, now + UPDATE_INTERVAL_S, number)
            else:
                self._update_last[number] = rows[-1][0]
                connection.run(_DELAY_UPDATE, now, number)


class _StoredDocument(NamedTuple):
    """The columns of a document that an outcome may keep."""

    status: int
    updated_at: int
    uri: bytes
    fields: bytes | None


def _document_columns(document: TokenDocument, before: _StoredDocument | None) -> bulk.Row:
    """Return the columns of a document's row behind the token.

    before: the columns that the row had; None without a row.
    """
    status, updated_at = STATUSES.index(document.status), document.updated_at
    uri, fields = encode_text(document.uri), None
    if before is not None:
        if document.status is MetadataStatus.UNINDEXED:
            status, updated_at = before.status, before.updated_at
        uri = uri or bytes(before.uri)
        fields = before.fields
    if document.fields is not None:
        fields = _encode_document(document.fields)
    size = len(uri) + (0 if fields is None else len(fields))
    return status, updated_at, document.attempts, document.next_attempt_at, size, uri, fields


def _encode_document(fields: NftFields) -> bytes:
    """Return the bytes of a document's fields.

    Lone surrogates have no encoding, and become `?`.
    """
    encodable = {
        name: value.encode("utf-8", "replace").decode()
        for name, value in asdict(fields).items()
        if isinstance(value, str)
    }
    return encode_fields(replace(fields, **encodable))


def add_minted(connection: Connection, tokens: Sequence[int], now: int) -> None:
    """Add tokens of recent blocks; the oldest beyond a bound are dropped."""
    if tokens:
        bulk.insert_new(connection, MINTED, [(token, now) for token in tokens[-_MAX_MINTED:]])
        for (minted_at,) in connection.fetch(_OLDEST_MINTED, _MAX_MINTED):
            connection.run(_DELETE_MINTED, minted_at)


def all_tokens(contract: bytes) -> MetadataUpdate:
    """Return the update of all tokens of a contract."""
    return MetadataUpdate(contract, 0, MAX_TOKEN_ID)


def add_updates(connection: Connection, updates: Sequence[tuple[MetadataUpdate, int]]) -> None:
    """Add ranges of tokens whose metadata changed, each with the time of its block.

    Contracts without NFTs are skipped.
    """
    ranges: dict[bytes, tuple[int, int, int]] = {}
    for update, time in updates:
        first, last, at = ranges.get(update.contract, (MAX_TOKEN_ID, 0, time))
        ranges[update.contract] = (min(first, update.first_id), max(last, update.last_id), at)
    numbers = {
        number: ranges[raw] for raw, number in bulk.fetch_by_id(connection, _COLLECTIONS, ranges)
    }
    rows = {
        number: (number, pack(first), pack(last), time, 1)
        for number, (first, last, time) in numbers.items()
    }
    for number, *columns in bulk.run(connection, _UPDATES, numbers):
        first_id, last_id, next_at, is_pending = columns
        first, last, time = numbers[number]
        due_at = max(time, next_at)
        if is_pending:
            # One row for each contract: a range that covers both, due when the first one was.
            first = min(first, unpack(first_id))
            last = max(last, unpack(last_id))
            due_at = next_at
        rows[number] = (number, pack(first), pack(last), due_at, 1)
    bulk.upsert(connection, UPDATES, sorted(rows.values()))


def _by_key(connection: Connection, documents: Sequence[TokenDocument]) -> dict[int, TokenDocument]:
    contracts = {document.contract for document in documents}
    numbers: dict[bytes, int] = dict(bulk.fetch_by_id(connection, _COLLECTIONS, contracts))
    numbered = [
        (document, numbers[document.contract])
        for document in documents
        if document.contract in numbers
    ]
    keys = find_tokens(connection, {(number, document.token_id) for document, number in numbered})
    return {
        key: document
        for document, number in numbered
        for key in keys.get((number, document.token_id), ())
        if document.standard in (None, standard_of(key))
    }


def _tokens_to_fetch(
    connection: Connection, tokens: Sequence[int], requested_at: Mapping[int, int]
) -> Sequence[TokenToFetch]:
    if not tokens:
        return ()
    ids = read_ids(connection, tokens)
    numbers = {collection_of(token) for token in tokens}
    addresses = {number: bytes(raw) for number, raw in bulk.run(connection, _ADDRESSES, numbers)}
    attempts = dict(bulk.run(connection, _ATTEMPTS, tokens))
    # Balances that contradicting events give may be too low.
    inconsistent = {number for (number,) in bulk.run(connection, _INCONSISTENT, numbers)}
    held = {token for (token,) in bulk.run(connection, _HELD, tokens)}
    held.update(token for token in tokens if collection_of(token) in inconsistent)
    return [
        TokenToFetch(
            addresses[collection_of(token)],
            ids[token],
            standard_of(token),
            attempts.get(token, 0),
            requested_at.get(token),
            token,
            token in held,
        )
        for token in tokens
        if token in ids
    ]
