"""The queries of the ICM messages of one chain: keys of a page, newest first, and messages by key or id.

The work for a page is bounded: if messages are left out by a filter, some thousand candidates are read, and the page
says how far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from warpseal.chains.evm.icm_events import ChangeKind, Outcome, message_id
from warpseal.index.evm.keys import block_key, height_of, tx_key_of, unpack
from warpseal.index.evm.queries import MAX_SCANNED, read_state
from warpseal.index.evm.records import (
    IcmBatch,
    IcmKey,
    IcmKeys,
    IcmOccurrence,
    IcmPosition,
    IcmQuery,
    ReceivedMessage,
    SentMessage,
)
from warpseal.index.evm.resources import read_addresses, read_contracts
from warpseal.index.evm.rows import IcmReceiveRow, IcmSendRow
from warpseal.index.keys import prefix_of
from warpseal.index.read_session import ReadSession
from warpseal.store.values import EventType
from warpseal.warp.ids import ChainID

MAX_CHANGES: Final = 100
"""The newest changes of a message that are read: any account may add to its fee."""
_MAX_EQUAL_PREFIXES: Final = 16
_NO_ADDRESS: Final = bytes(20)
_NO_KEY: Final = -1

# The first block at a time or after it, by bisection: times rise with the numbers, and no index has them.
_FIRST_BLOCK: Final = (
    "WITH RECURSIVE s(low, high) AS (SELECT CAST(? AS BIGINT), CAST(? AS BIGINT) UNION ALL"
    " SELECT CASE WHEN b.time < ? THEN b.number + 1 ELSE s.low END, CASE WHEN b.time < ? THEN s.high ELSE b.number END"
    " FROM s JOIN blocks b ON b.number = (s.low + s.high) / 2 WHERE s.low < s.high) SELECT max(low) FROM s"
)
_CANDIDATES: Final = "SELECT {0} FROM {1} WHERE {0} >= ? AND {0} < ? ORDER BY {0} DESC LIMIT ?"
_CANDIDATES_OF: Final = "SELECT {0} FROM {1} WHERE {2} = ? AND {0} >= ? AND {0} < ? ORDER BY {0} DESC LIMIT ?"
_NEWEST_RECEIVES: Final = "SELECT key, source FROM icm_receives WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"
_SENDS: Final = (
    "SELECT key, destination, sender, recipient, length(body) + coalesce(length(tail), 0) FROM icm_sends"
    " WHERE key IN {keys}"
)
_RECEIVES: Final = (
    "SELECT key, source, sender, recipient, coalesce(length(body), 0) + coalesce(length(tail), 0) FROM icm_receives"
    " WHERE key IN {keys}"
)
_NEWEST_CHANGE: Final = (
    "(SELECT max(c.key) FROM (SELECT change FROM icm_message_changes WHERE message = s.key ORDER BY change DESC"
    f" LIMIT {MAX_CHANGES}) m JOIN icm_changes c ON c.key = m.change WHERE c.kind = {{}})"
)
# The row of a send, its delivery, and its last changes.
_SENT: Final = (
    f"SELECT s.*, d.receive, {_NEWEST_CHANGE.format(int(ChangeKind.FEE))},"
    f" {_NEWEST_CHANGE.format(int(ChangeKind.RECEIPT))}"
    " FROM icm_sends s LEFT JOIN icm_deliveries d ON d.send = s.key WHERE s.key IN {keys}"
)
_RECEIVED: Final = (
    f"SELECT r.*, r.outcome = {int(Outcome.EXECUTED)} OR EXISTS"
    " (SELECT 1 FROM icm_message_changes m WHERE m.message = r.key) FROM icm_receives r WHERE r.key IN {keys}"
)
# What happened behind a key, in order: each kind is read in the order of its rows.
_OCCURRENCES: Final = (
    "SELECT e.key, e.message, e.step, b.time, t.hash FROM ("
    "SELECT * FROM (SELECT key, key AS message, tx_index, -1 AS step FROM icm_sends"
    " WHERE key > ? ORDER BY key LIMIT ?) s UNION ALL "
    "SELECT * FROM (SELECT key, key, tx_index, outcome FROM icm_receives"
    " WHERE key > ? ORDER BY key LIMIT ?) r UNION ALL "
    "SELECT * FROM (SELECT key, message, tx_index, -2 FROM icm_changes"
    f" WHERE key > ? AND kind = {int(ChangeKind.EXECUTED)} ORDER BY key LIMIT ?) c"
    ") e JOIN blocks b ON b.number = e.key >> 20 JOIN txs t ON t.key = (e.key >> 20 << 20) + e.tx_index"
    " ORDER BY e.key LIMIT ?"
)
_STEPS: Final[dict[int, tuple[EventType, ...]]] = {
    -1: (EventType.ICM_SENT,),
    -2: (EventType.ICM_EXECUTED,),
    Outcome.NONE: (EventType.ICM_RECEIVED,),
    Outcome.EXECUTED: (EventType.ICM_RECEIVED, EventType.ICM_EXECUTED),
    Outcome.FAILED: (EventType.ICM_RECEIVED, EventType.ICM_FAILED),
}


def icm_page(session: ReadSession, _: float, query: IcmQuery, before: IcmPosition | None, limit: int) -> IcmKeys:
    """Return the first `limit` messages behind a position, or fewer if there are too many candidates."""
    state = read_state(session)
    if state is None or state.chain.icm_first < 0:
        return IcmKeys()
    chain = ChainID(bytes(state.chain.chain_id))

    def first_key(time: int) -> int:
        ((first,),) = session.rows(_FIRST_BLOCK, state.chain.first_height, state.height + 1, time, time)
        return block_key(first)

    end = block_key(state.height + 1)
    if before is not None and before.chain == chain:
        end = min(end, before.key)
    elif before is not None:
        # Of messages with one time, those of the chain with the larger id come first.
        end = first_key(before.time + (chain < before.chain))
    if query.times.until is not None:
        end = min(end, first_key(query.times.until + 1))
    start = 0 if query.times.since is None else first_key(query.times.since)
    sizes, read_to = _PageReader(session, query, chain, (start, end), limit).read()
    keys = sorted((key for key in sizes if key >= read_to), reverse=True)
    if len(keys) > limit:
        keys, read_to = keys[:limit], keys[limit - 1]
    times = _times(session, [*keys, read_to])

    def position(key: int) -> IcmPosition:
        return IcmPosition(times[height_of(key)], chain, key)

    return IcmKeys([IcmKey(position(key), sizes[key]) for key in keys], position(read_to) if read_to else None)


def icm_messages(session: ReadSession, _: float, keys: Iterable[int]) -> Mapping[int, SentMessage | ReceivedMessage]:
    """Return messages by their keys; those that are not there are left out."""
    sent = [(IcmSendRow._make(row[:-3]), *row[-3:]) for row in session.by_keys(_SENT, keys)]
    received = [(IcmReceiveRow._make(row[:-1]), bool(row[-1])) for row in session.by_keys(_RECEIVED, keys)]
    rows = [row[0] for row in (*sent, *received)]
    id_keys = {key for row in rows for key in (row.messenger, row.sender, row.recipient)}
    id_keys |= {key for row, *_ in sent for key in (row.destination, row.fee_asset, row.warp_sender or 0)}
    id_keys |= {key for row, _ in received for key in (row.source, row.deliverer, row.redeemer)}
    ids = read_addresses(session, id_keys)
    txs = {tx_key_of(row.key, row.tx_index) for row in rows}
    hashes = dict(session.by_keys("SELECT key, hash FROM txs WHERE key IN {keys}", txs))
    times = _times(session, [row.key for row in rows])
    own = ChainID(next((bytes(row[0]) for row in session.rows("SELECT chain_id FROM chain")), b""))
    changes = [fee_change for _, _, fee_change, _ in sent if fee_change is not None]
    fees = dict(session.by_keys("SELECT key, amount FROM icm_changes WHERE key IN {keys}", changes))
    contracts = read_contracts(session, {send.fee_asset for send, *_ in sent})

    def fields(row: IcmSendRow | IcmReceiveRow, source: ChainID, destination: ChainID) -> dict[str, Any]:
        messenger = ids[row.messenger]
        return {
            "message_id": message_id(messenger, source, destination, row.nonce),
            "messenger": messenger,
            "source": source,
            "destination": destination,
            "nonce": row.nonce,
            "sender": ids[row.sender],
            "recipient": ids[row.recipient],
            "tail": b"" if row.tail is None else bytes(row.tail),
            "body": None if row.body is None else bytes(row.body),
            "tx_hash": bytes(hashes[tx_key_of(row.key, row.tx_index)]),
            "time": times[height_of(row.key)],
            "tx_fee": unpack(bytes(row.tx_fee)),
        }

    messages: dict[int, SentMessage | ReceivedMessage] = {}
    for send, delivery, fee_change, receipt in sent:
        asset = contracts.get(send.fee_asset)
        messages[send.key] = SentMessage(
            **fields(send, own, ChainID(ids[send.destination])),
            gas_limit=unpack(bytes(send.gas_limit)),
            adapter=None if send.warp_sender is None else ids[send.warp_sender],
            asset=ids[send.fee_asset],
            asset_name=(asset and asset.name) or "",
            asset_symbol=(asset and asset.symbol) or "",
            asset_decimals=(asset and asset.decimals) or 0,
            reward=unpack(bytes(send.fee if fee_change is None else fees[fee_change])),
            has_receipt=receipt is not None,
            receive=delivery,
        )
    for receive, is_executed in received:
        messages[receive.key] = ReceivedMessage(
            **fields(receive, ChainID(ids[receive.source]), own),
            deliverer=ids[receive.deliverer],
            redeemer=ids[receive.redeemer],
            is_executed=is_executed,
        )
    return messages


def find_icm_message(session: ReadSession, now: float, searched: bytes) -> SentMessage | ReceivedMessage | None:
    """Return the message with an id: sent here, or else received here of a source that was not indexed then."""
    keys = {
        row[0]
        for layer in ("recent", "older")
        for row in session.rows(
            f"SELECT message FROM {layer}_icm_ids WHERE prefix = ? LIMIT {_MAX_EQUAL_PREFIXES}", prefix_of(searched)
        )
    }
    messages = [entry for entry in icm_messages(session, now, sorted(keys)).values() if entry.message_id == searched]
    return min(messages, key=lambda entry: isinstance(entry, ReceivedMessage), default=None)


def icm_after(session: ReadSession, now: float, position: int, limit: int) -> IcmBatch:
    """Return what happened to messages behind a key; nothing if they are not kept. limit: of the rows."""
    height = next((row[0] for row in session.rows("SELECT height FROM chain WHERE icm_first >= 0")), -1)
    rows = session.rows(_OCCURRENCES, *(position, limit) * 3, limit)
    messages = icm_messages(session, now, {row[1] for row in rows})
    occurrences = [
        IcmOccurrence(kind, key, time, bytes(tx_hash), messages[message])
        for key, message, step, time, tx_hash in rows
        for kind in _STEPS[step]
    ]
    return IcmBatch(rows[-1][0] if len(rows) == limit else max(position, block_key(height + 1) - 1), occurrences)


class _PageReader:
    """Reads the keys of one page of one chain. bounds: the first key, and the one behind the last."""

    def __init__(
        self, session: ReadSession, query: IcmQuery, chain: ChainID, bounds: tuple[int, int], limit: int
    ) -> None:
        self._session = session
        self._query = query
        self._chain = chain
        self._bounds = bounds
        self._limit = limit
        names = (*query.indexed, query.chain, query.source, query.destination)
        accounts = (query.sender, query.recipient, query.address)
        self._keys = session.keys_of({raw for raw in (*names, *accounts) if raw is not None}) | {_NO_ADDRESS: 0}

    def read(self) -> tuple[dict[int, int], int]:
        """Return the sizes of messages by key, and the key down to which all are there; 0: there are no more."""
        query, sizes = self._query, dict[int, int]()
        destinations = self._other_sides(query.source, query.destination)
        sources = self._other_sides(query.destination, query.source)
        excluded = {self._key(raw) for raw in query.indexed}
        if sources and sources <= excluded:
            sources = None
        parties = [self._key(raw) for raw in (query.address, query.sender, query.recipient) if raw is not None]
        ends = [0]
        if parties:
            sends = receives = self._read_candidates(
                ends, MAX_SCANNED, "message", ("recent_icm_addresses", "older_icm_addresses"), "address", parties[0]
            )
        else:
            sends = self._read_sends(ends, destinations)
            receives = self._read_receives(ends, sources, excluded)
        for text, others, keys, hidden in (
            (_SENDS, destinations, sends, set[int]()),
            (_RECEIVES, sources, receives, excluded),
        ):
            if others is None:
                continue
            for key, other, sender, recipient, size in self._session.by_keys(text, keys):
                is_wanted = (not others or others == {other}) and other not in hidden
                if is_wanted and self._is_of_parties(sender, recipient):
                    sizes[key] = size
        return sizes, max(ends)

    def _other_sides(self, own: ChainID | None, other: ChainID | None) -> set[int] | None:
        """Return the keys of which that of the chain on the other side must be, none: any; None: no message matches.

        own, other: the chains that the query names for this side, and for the other one.
        """
        if own not in (None, self._chain):
            return None
        either = None if self._query.chain == self._chain else self._query.chain
        others = {self._key(raw) for raw in (either, other) if raw is not None}
        return others if len(others) < 2 else None

    def _is_of_parties(self, sender: int, recipient: int) -> bool:
        query = self._query
        return (
            (query.sender is None or sender == self._key(query.sender))
            and (query.recipient is None or recipient == self._key(query.recipient))
            and (query.address is None or self._key(query.address) in (sender, recipient))
        )

    def _read_sends(self, ends: list[int], destinations: set[int] | None) -> Sequence[int]:
        if destinations is None:
            return ()
        count = self._limit + 1
        if destinations:
            return self._read_candidates(ends, count, "send", ("icm_routes",), "destination", next(iter(destinations)))
        return self._read_candidates(ends, count, "key", ("icm_sends",))

    def _read_receives(self, ends: list[int], sources: set[int] | None, excluded: set[int]) -> Sequence[int]:
        if sources is None:
            return ()
        if sources:
            table, count, source = "icm_arrivals", self._limit + 1, next(iter(sources))
            return self._read_candidates(ends, count, "receive", (table,), "source", source)
        # Nearly all may be of indexed sources, so that their rows are not looked up.
        rows = self._session.rows(_NEWEST_RECEIVES, *self._bounds, MAX_SCANNED)
        if len(rows) == MAX_SCANNED:
            ends.append(rows[-1][0])
        return [key for key, source in rows if source not in excluded]

    def _read_candidates(
        self, ends: list[int], count: int, name: str, tables: Sequence[str], column: str = "", value: int = 0
    ) -> Sequence[int]:
        """Return the first keys; if there are more, add the last of them to `ends`."""
        template, values = (_CANDIDATES_OF, (value, *self._bounds)) if column else (_CANDIDATES, self._bounds)
        candidates: set[int] = set()
        for table in tables:
            candidates.update(
                row[0] for row in self._session.rows(template.format(name, table, column), *values, count)
            )
        keys = sorted(candidates, reverse=True)[:count]
        if len(keys) == count:
            ends.append(keys[-1])
        return keys

    def _key(self, raw: bytes) -> int:
        return self._keys.get(raw, _NO_KEY)


def _times(session: ReadSession, keys: Iterable[int]) -> dict[int, int]:
    """Return the times of the blocks of these keys."""
    heights = {height_of(key) for key in keys}
    return dict(session.by_keys("SELECT number, time FROM blocks WHERE number IN {keys}", heights))
