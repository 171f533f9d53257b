"""Metadata documents of tokens: what is fetched next, and the outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

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

_COLLECTIONS: Final = "SELECT i.id, c.number FROM ids i JOIN collections c ON c.contract = i.key WHERE i.prefix IN {keys}"
_UPDATES: Final = "SELECT collection, first_id, last_id, due_at, is_pending FROM updates WHERE collection IN {keys}"
_ADDRESSES: Final = "SELECT c.number, i.id FROM collections c JOIN ids i ON i.key = c.contract WHERE c.number IN {keys}"
_OLD_DOCUMENTS: Final = (
    "SELECT token, status, updated_at, uri, fields FROM documents WHERE token IN {keys}"
)
# {keys}: numbers of contracts that are left out, even if their tokens would come first.
_REQUESTED: Final = (
    f"SELECT subject, requested_at FROM requests WHERE NOT subject >> {COLLECTION_BITS} IN {{keys}} AND kind = ?"
    " ORDER BY requested_at, subject LIMIT ?"
)
_DUE: Final = (
    f"SELECT token FROM documents WHERE NOT token >> {COLLECTION_BITS} IN {{keys}} AND next_attempt_at <= ?"
    " ORDER BY next_attempt_at LIMIT ?"
)
_MINTED: Final = (
    f"SELECT token FROM minted WHERE NOT token >> {COLLECTION_BITS} IN {{keys}}"
    " ORDER BY minted_at DESC, token DESC LIMIT ?"
)
_REST: Final = (
    "SELECT o.token, EXISTS (SELECT 1 FROM documents d WHERE d.token = o.token)"
    " FROM owners o WHERE o.token > ? ORDER BY o.token LIMIT ?"
)
_OLDEST_MINTED: Final = "SELECT minted_at FROM minted ORDER BY minted_at DESC LIMIT 1 OFFSET ?"
_DUE_UPDATE: Final = (
    "SELECT collection, first_id, last_id FROM updates WHERE NOT collection IN {keys} AND is_pending = 1"
    " AND due_at <= ? ORDER BY due_at LIMIT 1"
)
_RENEW: Final = (
    "UPDATE documents SET attempts = 0, next_attempt_at ="
    f" (SELECT due_at FROM updates WHERE collection = token >> {COLLECTION_BITS}) WHERE token IN {{keys}}"
)
_UPDATED: Final = (
    f"SELECT d.token, t.short, t.id FROM documents d JOIN tokens t ON t.number = {SQL_NUMBER.format('d.token')}"
    " WHERE d.token >= ? AND d.token < ? ORDER BY d.token LIMIT ?"
)

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
        """Return tokens again that were returned before: the task that fetches them has begun
        again.
        """
        for tokens in (self._reasons, self._reindexes, self._update_last):
            tokens.clear()
        self._last = 0

    def to_fetch(
        self, reason: FetchReason, limit: int, now: int, skipped: frozenset[bytes] = frozenset()
    ) -> Sequence[TokenToFetch]:
        """Return tokens to fetch for a reason. A token is returned once until `write` has it.

        skipped: contracts of which no token is returned, since many of them wait already. A reindex
            request is returned even if the token waits for another reason, and so is a token that a
            page shows.
        A new writer, as after a crash, returns those that have no document yet again.
        """
        reasons = self._reindexes if reason is FetchReason.REINDEX else self._reasons
        # Tokens that were returned before are still first in every order, so they are read again
        # and left out below.
        most = limit + len(reasons)
        requested_at: Mapping[int, int] = {}
        with self._session.reading() as connection:
            hidden = {number for _, number in bulk.fetch_by_id(connection, _COLLECTIONS, skipped)}

            def fetch(text: str, *values: int) -> list[int]:
                return [row[0] for row in bulk.run(connection, text, hidden, *values)]

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
            is_shown = reason is FetchReason.SHOWN
            free = (
                token
                for token in tokens
                if token not in reasons or (is_shown and reasons[token] is not reason)
            )
            chosen = list(islice(free, limit))
            reasons.update(dict.fromkeys(chosen, reason))
            return _tokens_to_fetch(connection, chosen, requested_at)

    def write(self, documents: Sequence[TokenDocument]) -> None:
        """Write the outcomes of attempts, after which their requests and retries are done; skip
        unknown tokens.
        """
        with self._session.adding() as connection:
            by_key = _by_key(connection, documents)
            before = {row[0]: row for row in bulk.run(connection, _OLD_DOCUMENTS, by_key)}
            rows = []
            for key, document in sorted(by_key.items()):
                nothing = (key, STATUSES.index(document.status), document.updated_at, b"", None)
                _, status, updated_at, uri, fields = before.get(key, nothing)
                if document.status is not MetadataStatus.UNINDEXED:
                    status, updated_at = STATUSES.index(document.status), document.updated_at
                uri = encode_text(document.uri) or bytes(uri)
                if document.fields is not None:
                    # Lone surrogates have no encoding.
                    texts = {
                        name: text
                        for name, text in asdict(document.fields).items()
                        if isinstance(text, str)
                    }
                    encodable = {
                        name: text.encode("utf-8", "replace").decode()
                        for name, text in texts.items()
                    }
                    fields = encode_fields(replace(document.fields, **encodable))
                size = len(uri) + (0 if fields is None else len(fields))
                rows.append(
                    (
                        key,
                        status,
                        updated_at,
                        document.attempts,
                        document.next_attempt_at,
                        size,
                        uri,
                        fields,
                    )
                )
            bulk.upsert(connection, DOCUMENTS, rows)
            bulk.delete(connection, MINTED, list(by_key))
            bulk.delete_pairs(
                connection, REQUESTS, [(int(RequestKind.SHOWN_TOKEN), key) for key in by_key]
            )
            # A request that came after the attempt began is for a later outcome.
            text = "SELECT subject, requested_at FROM requests WHERE subject IN {keys} AND kind = ?"
            waiting = bulk.run(connection, text, by_key, int(RequestKind.REINDEX))
            done = [
                (int(RequestKind.REINDEX), key)
                for key, at in waiting
                if at <= by_key[key].updated_at
            ]
            bulk.delete_pairs(connection, REQUESTS, done)
        for token in by_key:
            self._reasons.pop(token, None)
            self._reindexes.pop(token, None)
        outcomes = (document.status for document in documents)
        self.outcomes.update(
            str(status) for status in outcomes if status is not MetadataStatus.UNINDEXED
        )

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
        """Mark some documents as due for the update that has waited longest; the rest of it waits
        behind others.
        """
        for number, first_id, last_id in bulk.run(connection, _DUE_UPDATE, hidden, now):
            first, last = unpack(first_id), unpack(last_id)
            low, end = (
                self._update_last.pop(number, first_token(number) - 1) + 1,
                first_token(number + 1),
            )
            rows = connection.fetch(_UPDATED, low, end, _SCANNED)
            tokens = [token for token, short, raw in rows if first <= id_of_row(short, raw) <= last]
            if tokens:
                bulk.run(connection, _RENEW, tokens)
            if len(rows) < _SCANNED:
                text = "UPDATE updates SET is_pending = 0, due_at = ? WHERE collection = ?"
                connection.run(text, now + UPDATE_INTERVAL_S, number)
            else:
                self._update_last[number] = rows[-1][0]
                connection.run("UPDATE updates SET due_at = ? WHERE collection = ?", now, number)


def add_minted(connection: Connection, tokens: Sequence[int], now: int) -> None:
    """Add tokens of recent blocks; the oldest beyond a bound are dropped."""
    if tokens:
        bulk.insert_new(connection, MINTED, [(token, now) for token in tokens[-_MAX_MINTED:]])
        for row in connection.fetch(_OLDEST_MINTED, _MAX_MINTED):
            connection.run("DELETE FROM minted WHERE minted_at <= ?", row[0])


def add_updates(connection: Connection, updates: Sequence[tuple[MetadataUpdate, int]]) -> None:
    """Add ranges of tokens whose metadata changed, each with the time of its block; unknown
    contracts are skipped.
    """
    ranges: dict[bytes, tuple[int, int, int]] = {}
    for update, time in updates:
        first, last, at = ranges.get(update.contract, (MAX_TOKEN_ID, 0, time))
        ranges[update.contract] = (min(first, update.first_id), max(last, update.last_id), at)
    numbers = {
        number: ranges[raw] for raw, number in bulk.fetch_by_id(connection, _COLLECTIONS, ranges)
    }
    rows = []
    before = {row[0]: tuple(row[1:]) for row in bulk.run(connection, _UPDATES, numbers)}
    for number, (first, last, time) in numbers.items():
        due_at = time
        if number in before:
            first_id, last_id, next_at, is_pending = before[number]
            due_at = max(time, next_at)
            if is_pending:
                first, last, due_at = (
                    min(first, unpack(first_id)),
                    max(last, unpack(last_id)),
                    next_at,
                )
        rows.append((number, pack(first), pack(last), due_at, 1))
    bulk.upsert(connection, UPDATES, sorted(rows))


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
    text = "SELECT token, attempts FROM documents WHERE token IN {keys}"
    attempts = dict(bulk.run(connection, text, tokens))
    held = {
        token
        for (token,) in bulk.run(
            connection, "SELECT token FROM owners WHERE token IN {keys}", tokens
        )
    }
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
