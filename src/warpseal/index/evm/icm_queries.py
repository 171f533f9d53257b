"""The queries of the ICM messages of one chain: keys of a page, newest first, and messages by key
or id.

The work for a page is bounded: if messages are left out by a filter, some thousand candidates are
read, and the page says how far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import Any, Final

from msgspec import Struct

from warpseal.chains.evm.icm_events import ChangeKind, Outcome, PayloadKind, message_id
from warpseal.index.evm.keys import IcmState, block_key, height_of, tx_key_of, unpack
from warpseal.index.evm.queries import MAX_SCANNED, ChainState, first_block, read_state
from warpseal.index.evm.records import (
    IcmBatch,
    IcmKey,
    IcmKeys,
    IcmOccurrence,
    IcmPosition,
    IcmQuery,
    MessageChange,
    ReceivedMessage,
    SentMessage,
)
from warpseal.index.evm.resources import read_addresses, read_contracts
from warpseal.index.evm.rows import IcmReceiveRow, IcmSendRow
from warpseal.index.keys import prefix_of
from warpseal.index.read_session import ReadSession
from warpseal.resources.evm import IcmStatus
from warpseal.store.values import EventType
from warpseal.warp.ids import ChainID
from warpseal.warp.message import UnsignedMessage

MAX_CHANGES: Final = 100
"""The newest changes of a message that are read: any account may add to its fee."""
STUCK_S: Final = 300
"""A message is stuck if its destination went on for longer than this without it."""
_MAX_STUCK: Final = 10_000
_MAX_EQUAL_PREFIXES: Final = 16
_NO_ADDRESS: Final = bytes(20)
_NO_KEY: Final = -1

_CANDIDATES: Final = "SELECT {0} FROM {1} WHERE {0} >= ? AND {0} < ? ORDER BY {0} DESC LIMIT ?"
_CANDIDATES_OF: Final = (
    "SELECT {0} FROM {1} WHERE {2} = ? AND {0} >= ? AND {0} < ? ORDER BY {0} DESC LIMIT ?"
)
_NEWEST_RECEIVES: Final = (
    "SELECT key, source FROM icm_receives WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"
)
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
# The row of a send, its delivery, its last changes, and its Warp message if it names another
# network or chain: the next log.
_SENT: Final = (
    f"SELECT s.*, d.receive, {_NEWEST_CHANGE.format(int(ChangeKind.FEE))},"
    f" {_NEWEST_CHANGE.format(int(ChangeKind.RECEIPT))}, w.message"
    " FROM icm_sends s LEFT JOIN icm_deliveries d ON d.send = s.key"
    f" LEFT JOIN warp_sends w ON w.key = s.key + 1 AND w.kind = {int(PayloadKind.TELEPORTER)} WHERE s.key IN {{keys}}"
)
_CHANGES: Final = (
    "SELECT c.key, c.kind, c.amount FROM (SELECT change FROM icm_message_changes WHERE message = ? ORDER BY change DESC"
    f" LIMIT {MAX_CHANGES}) m JOIN icm_changes c ON c.key = m.change"
    f" UNION ALL SELECT key, {int(ChangeKind.FEE)}, fee FROM icm_sends WHERE key = ? ORDER BY 1"
)
_STATES: Final = (
    "SELECT s.key, s.destination, o.state, d.receive FROM icm_sends s"
    " LEFT JOIN icm_open o ON o.destination = s.destination AND o.send = s.key"
    " LEFT JOIN icm_deliveries d ON d.send = s.key WHERE s.key IN {keys}"
)
_OPEN: Final = "SELECT send FROM icm_open WHERE destination = ? AND send >= ? AND send < ? ORDER BY send DESC LIMIT ?"
_RECEIVED: Final = (
    f"SELECT r.*, r.outcome = {int(Outcome.EXECUTED)} OR EXISTS"
    " (SELECT 1 FROM icm_message_changes m WHERE m.message = r.key) FROM icm_receives r WHERE r.key IN {keys}"
)
# Destinations without an open message are left out: there may be a hundred, and each one is asked
# about in its turn.
_OPEN_DESTINATIONS: Final = (
    "SELECT i.id, c.destination, c.time FROM icm_cursors c JOIN ids i ON i.key = c.destination"
    " WHERE EXISTS (SELECT 1 FROM icm_open o WHERE o.destination = c.destination)"
)
# The newest ones are looked at, also of those that have only a receipt: a hostile chain may send
# any number of those.
_STUCK: Final = (
    "SELECT count(*) FROM (SELECT state FROM icm_open WHERE destination = ? AND send >= ? AND send < ?"
    f" ORDER BY send DESC LIMIT ?) o WHERE state <> {int(IcmState.RECEIPT)}"
)
# What happened behind a key, in order: each kind is read in the order of its rows.
_OCCURRENCES: Final = (
    "SELECT e.key, e.message, e.step, b.time, t.hash FROM ("
    "SELECT * FROM (SELECT key, key AS message, tx_index, -1 AS step FROM icm_sends"
    " WHERE key > ? ORDER BY key LIMIT ?) s UNION ALL "
    "SELECT * FROM (SELECT key, key, tx_index, CASE WHEN inner_events > 0 THEN 0 ELSE outcome END FROM icm_receives"
    " WHERE key > ? ORDER BY key LIMIT ?) r UNION ALL "
    "SELECT * FROM (SELECT key, message, tx_index, -2 FROM icm_changes"
    f" WHERE key > ? AND kind = {int(ChangeKind.EXECUTED)} ORDER BY key LIMIT ?) c"
    ") e JOIN blocks b ON b.number = e.key >> 20 JOIN txs t ON t.key = (e.key >> 20 << 20) + e.tx_index"
    " ORDER BY e.key LIMIT ?"
)
# The outcomes that follow other events of the transaction that received the message. They have the
# key of the last one of these, which is in the same block. Of messages that were received during
# each other, the last one ends first.
_LATE_OUTCOMES: Final = (
    "SELECT r.key + r.inner_events, r.key, -1 - r.outcome, b.time, t.hash FROM icm_receives r"
    " JOIN blocks b ON b.number = r.key >> 20 JOIN txs t ON t.key = (r.key >> 20 << 20) + r.tx_index"
    " WHERE r.key >= ? AND r.key < ? AND r.inner_events > 0 AND r.outcome > 0"
    " AND r.key + r.inner_events > ? AND r.key + r.inner_events <= ? ORDER BY r.key DESC"
)
_STEPS: Final[dict[int, tuple[EventType, ...]]] = {
    -1: (EventType.ICM_SENT,),
    -1 - Outcome.EXECUTED: (EventType.ICM_EXECUTED,),
    -1 - Outcome.FAILED: (EventType.ICM_FAILED,),
    Outcome.NONE: (EventType.ICM_RECEIVED,),
    Outcome.EXECUTED: (EventType.ICM_RECEIVED, EventType.ICM_EXECUTED),
    Outcome.FAILED: (EventType.ICM_RECEIVED, EventType.ICM_FAILED),
}


def icm_page(
    session: ReadSession, _: float, query: IcmQuery, before: IcmPosition | None, limit: int
) -> IcmKeys:
    """Return keys of messages behind a position, newest first; none if they are not kept.

    A page may be short.

    before: of a message of any chain; None: from the newest one on.
    """
    state = read_state(session)
    if state is None or state.chain.icm_first < 0:
        return IcmKeys()
    chain = ChainID(bytes(state.chain.chain_id))

    first_key = partial(_first_key, session, state)
    end = block_key(state.height + 1)
    if before is not None and before.chain == chain:
        end = min(end, before.key)
    elif before is not None:
        # Of messages with one time, those of the chain with the larger id come first.
        end = first_key(before.time + (chain < before.chain))
    if query.times.until is not None:
        end = min(end, first_key(query.times.until + 1))
    start = 0 if query.times.since is None else first_key(query.times.since)
    routes = [] if query.is_stuck is None else _stuck_routes(session, state, query.known_since)
    stuck = {destination: bounds for _, destination, bounds in routes}
    sizes, read_to = _PageReader(session, query, chain, (start, end), limit, stuck).read()
    keys = sorted((key for key in sizes if key >= read_to), reverse=True)
    if len(keys) > limit:
        keys, read_to = keys[:limit], keys[limit - 1]
    times = _times(session, [*keys, read_to])

    def position(key: int) -> IcmPosition:
        return IcmPosition(times[height_of(key)], chain, key)

    return IcmKeys(
        [IcmKey(position(key), sizes[key]) for key in keys], position(read_to) if read_to else None
    )


def icm_messages(
    session: ReadSession, _: float, keys: Iterable[int]
) -> Mapping[int, SentMessage | ReceivedMessage]:
    """Return messages by their keys; those that are not there are left out."""
    sent = [(IcmSendRow._make(row[:-4]), *row[-4:]) for row in session.by_keys(_SENT, keys)]
    received = [
        (IcmReceiveRow._make(row[:-1]), bool(row[-1])) for row in session.by_keys(_RECEIVED, keys)
    ]
    rows = [row[0] for row in (*sent, *received)]
    id_keys = {key for row in rows for key in (row.messenger, row.sender, row.recipient)}
    id_keys |= {
        key for row, *_ in sent for key in (row.destination, row.fee_asset, row.warp_sender or 0)
    }
    id_keys |= {key for row, _ in received for key in (row.source, row.deliverer, row.redeemer)}
    ids = read_addresses(session, id_keys)
    txs = {tx_key_of(row.key, row.tx_index) for row in rows}
    hashes = dict(session.by_keys("SELECT key, hash FROM txs WHERE key IN {keys}", txs))
    times = _times(session, [row.key for row in rows])
    own = ChainID(next((bytes(row[0]) for row in session.rows("SELECT chain_id FROM chain")), b""))
    changes = [fee_change for _, _, fee_change, *_ in sent if fee_change is not None]
    fees = dict(session.by_keys("SELECT key, amount FROM icm_changes WHERE key IN {keys}", changes))
    contracts = read_contracts(session, {send.fee_asset for send, *_ in sent})

    def fields(
        row: IcmSendRow | IcmReceiveRow, source: ChainID, destination: ChainID
    ) -> dict[str, Any]:
        messenger = ids[row.messenger]
        return {
            "message_id": message_id(messenger, source, destination, row.nonce),
            "messenger": messenger,
            "source": source,
            "destination": destination,
            "nonce": row.nonce,
            "sender": ids[row.sender],
            "recipient": ids[row.recipient],
            "gas_limit": None if row.gas_limit is None else unpack(bytes(row.gas_limit)),
            "tail": b"" if row.tail is None else bytes(row.tail),
            "body": None if row.body is None else bytes(row.body),
            "tx_hash": bytes(hashes[tx_key_of(row.key, row.tx_index)]),
            "height": height_of(row.key),
            "time": times[height_of(row.key)],
            "tx_fee": unpack(bytes(row.tx_fee)),
        }

    messages: dict[int, SentMessage | ReceivedMessage] = {}
    for send, delivery, fee_change, receipt, foreign_warp in sent:
        asset = contracts.get(send.fee_asset)
        messages[send.key] = SentMessage(
            **fields(send, own, ChainID(ids[send.destination])),
            key=send.key,
            warp_sender=b"" if send.warp_sender == 0 else ids[send.warp_sender or send.messenger],
            is_v2=bool(send.warp_sender),
            asset=ids[send.fee_asset],
            asset_name=(asset and asset.name) or "",
            asset_symbol=(asset and asset.symbol) or "",
            asset_decimals=(asset and asset.decimals) or 0,
            reward=unpack(bytes(send.fee if fee_change is None else fees[fee_change])),
            has_receipt=receipt is not None,
            receive=delivery,
            foreign_warp=None
            if foreign_warp is None
            else UnsignedMessage.parse(bytes(foreign_warp)),
        )
    for receive, is_executed in received:
        messages[receive.key] = ReceivedMessage(
            **fields(receive, ChainID(ids[receive.source]), own),
            deliverer=ids[receive.deliverer],
            redeemer=ids[receive.redeemer],
            is_executed=is_executed,
            has_failed=receive.outcome == Outcome.FAILED and not is_executed,
        )
    return messages


def icm_changes(session: ReadSession, _: float, key: int) -> Sequence[MessageChange]:
    """Return the sending of a message with its fee, and its newest changes; oldest first."""
    rows = session.rows(_CHANGES, key, key)
    times = _times(session, [row[0] for row in rows])
    return [
        MessageChange(ChangeKind(kind), times[height_of(at)], unpack(bytes(amount)))
        for at, kind, amount in rows
    ]


def find_icm_message(
    session: ReadSession, now: float, searched: bytes
) -> SentMessage | ReceivedMessage | None:
    """Return the message with an id: sent here, or else received here of a source that was not
    indexed then.
    """
    keys = {
        row[0]
        for layer in ("recent", "older")
        for row in session.rows(
            f"SELECT message FROM {layer}_icm_ids WHERE prefix = ? LIMIT {_MAX_EQUAL_PREFIXES}",
            prefix_of(searched),
        )
    }
    messages = [
        entry
        for entry in icm_messages(session, now, sorted(keys)).values()
        if entry.message_id == searched
    ]
    return min(messages, key=lambda entry: isinstance(entry, ReceivedMessage), default=None)


def icm_since(session: ReadSession) -> int | None:
    """Return the time of the first block whose messages are known; None without one, or if messages
    are not kept.
    """
    rows = session.rows("SELECT b.time FROM chain c JOIN blocks b ON b.number = c.icm_first")
    return rows[0][0] if rows else None


def icm_stuck(session: ReadSession, since: Mapping[ChainID, int]) -> Mapping[ChainID, int]:
    """Return the numbers of stuck messages by destination, `_MAX_STUCK` at most; destinations
    without any are left out.

    since: the time from which on it is known what each destination received.
    """
    state = read_state(session)
    counts: dict[ChainID, int] = {}
    for chain_id, destination, bounds in (
        () if state is None else _stuck_routes(session, state, since)
    ):
        ((count,),) = session.rows(_STUCK, destination, *bounds, _MAX_STUCK)
        counts |= {chain_id: count} if count else {}
    return counts


def _stuck_routes(
    session: ReadSession, state: ChainState, since: Mapping[ChainID, int]
) -> Sequence[tuple[ChainID, int, tuple[int, int]]]:
    """Return id and key of destinations, and between which keys their open messages are stuck.

    An earlier one than a destination's messages are known may have been received.
    """
    return [
        (
            chain_id,
            destination,
            (
                _first_key(session, state, since[chain_id]),
                _first_key(session, state, time - STUCK_S),
            ),
        )
        for raw, destination, time in session.rows(_OPEN_DESTINATIONS)
        if (chain_id := ChainID(bytes(raw))) in since
    ]


def _first_key(session: ReadSession, state: ChainState, time: int) -> int:
    return block_key(first_block(session, state.chain.first_height, state.height, time))


def icm_after(session: ReadSession, now: float, position: int, limit: int) -> IcmBatch:
    """Return what happened to messages behind a key; nothing if they are not kept.

    limit: of the rows.
    """
    height = next(
        (row[0] for row in session.rows("SELECT height FROM chain WHERE icm_first >= 0")), -1
    )
    rows = session.rows(_OCCURRENCES, *(position, limit) * 3, limit)
    upto = rows[-1][0] if len(rows) == limit else max(position, block_key(height + 1) - 1)
    block_start = block_key(height_of(position)) if position >= 0 else 0
    late_rows = session.rows(_LATE_OUTCOMES, block_start, upto + 1, position, upto)
    # A stable order: an outcome follows the event whose key it has.
    rows = sorted([*rows, *late_rows], key=itemgetter(0))
    messages = icm_messages(session, now, {row[1] for row in rows})
    occurrences = [
        IcmOccurrence(kind, key, time, bytes(tx_hash), messages[message])
        for key, message, step, time, tx_hash in rows
        for kind in _STEPS[step]
    ]
    return IcmBatch(upto, occurrences)


class _PageReader(Struct):
    """Reads the keys of one page of one chain.

    bounds: the first key, and the one behind the last.

    stuck: bounds of the keys of open messages that are stuck, by destination; empty if the query
        does not need them.
    """

    session: ReadSession
    query: IcmQuery
    chain: ChainID
    bounds: tuple[int, int]
    limit: int
    stuck: Mapping[int, tuple[int, int]]
    _keys: Mapping[bytes, int] = {}
    _parties: Sequence[int] = ()
    _scanned: int = 0

    def __post_init__(self) -> None:
        query = self.query
        names = (*query.indexed, query.chain, query.source, query.destination)
        accounts = (query.address, query.sender, query.recipient)
        self._keys = self.session.keys_of(
            {raw for raw in (*names, *accounts) if raw is not None}
        ) | {_NO_ADDRESS: 0}
        self._parties = [self._key(raw) for raw in accounts if raw is not None]
        # Usually these filters leave out few messages.
        self._scanned = (
            min(self.limit + 1, MAX_SCANNED) if self._parties or self._has_states else MAX_SCANNED
        )

    @property
    def _has_states(self) -> bool:
        return self.query.status is not None or self.query.is_stuck is not None

    def read(self) -> tuple[dict[int, int], int]:
        """Return the sizes of messages by key, and the key down to which all are there; 0: there
        are no more.
        """
        while True:
            sizes, read_to = self._read_scanned()
            if (
                self._scanned == MAX_SCANNED
                or not read_to
                or sum(key >= read_to for key in sizes) > self.limit
            ):
                return sizes, read_to
            self._scanned = min(4 * self._scanned, MAX_SCANNED)

    def _read_scanned(self) -> tuple[dict[int, int], int]:
        query, sizes = self.query, dict[int, int]()
        destinations = self._other_sides(query.source, query.destination)
        sources = self._other_sides(query.destination, query.source)
        if query.status is IcmStatus.DELIVERED_SOURCE_NOT_INDEXED:
            destinations = None
        if query.is_stuck or query.status not in (None, IcmStatus.DELIVERED_SOURCE_NOT_INDEXED):
            sources = None
        excluded = {self._key(raw) for raw in query.indexed}
        if sources and sources <= excluded:
            sources = None
        ends = [0]
        if self._parties:
            tables, party = ("recent_icm_addresses", "older_icm_addresses"), self._parties[0]
            sends = receives = self._read_candidates(
                ends, self._scanned, "message", tables, "address", party
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
            for key, other, sender, recipient, size in self.session.by_keys(text, keys):
                is_wanted = (not others or others == {other}) and other not in hidden
                if is_wanted and self._is_of_parties(sender, recipient):
                    sizes[key] = size
        if self._has_states:
            self._leave_out_states(sizes, excluded)
        return sizes, max(ends)

    def _leave_out_states(self, sizes: dict[int, int], indexed: Set[int]) -> None:
        """Leave out the sends that have another status or are stuck, as the query says."""
        status, is_stuck = self.query.status, self.query.is_stuck
        for key, destination, state, receive in self.session.by_keys(_STATES, sizes):
            is_delivered = receive is not None and destination in indexed
            since, before = self.stuck.get(destination, (0, 0))
            is_late = state is not None and state != IcmState.RECEIPT and since <= key < before
            if is_stuck not in (None, is_late) or (
                status and is_delivered != (status is IcmStatus.DELIVERED)
            ):
                del sizes[key]

    def _other_sides(self, own: ChainID | None, other: ChainID | None) -> set[int] | None:
        """Return the keys of which that of the chain on the other side must be, none: any; None: no
        message matches.

        own, other: the chains that the query names for this side, and for the other one.
        """
        if own not in (None, self.chain):
            return None
        either = None if self.query.chain == self.chain else self.query.chain
        others = {self._key(raw) for raw in (either, other) if raw is not None}
        return others if len(others) < 2 else None

    def _is_of_parties(self, sender: int, recipient: int) -> bool:
        query = self.query
        return (
            (query.sender is None or sender == self._key(query.sender))
            and (query.recipient is None or recipient == self._key(query.recipient))
            and (query.address is None or self._key(query.address) in (sender, recipient))
        )

    def _read_sends(self, ends: list[int], destinations: set[int] | None) -> Sequence[int]:
        if destinations is None:
            return ()
        if self.query.is_stuck:
            return self._read_stuck(ends, destinations)
        count = self._scanned if self._has_states else self.limit + 1
        if destinations:
            return self._read_candidates(
                ends, count, "send", ("icm_routes",), "destination", next(iter(destinations))
            )
        return self._read_candidates(ends, count, "key", ("icm_sends",))

    def _read_stuck(self, ends: list[int], destinations: set[int]) -> Sequence[int]:
        """Return what may be stuck, from the few messages that are open."""
        keys: list[int] = []
        start, end = self.bounds
        for destination, (since, before) in self.stuck.items():
            if not destinations or destination in destinations:
                rows = self.session.rows(
                    _OPEN, destination, max(start, since), min(end, before), MAX_SCANNED
                )
                if len(rows) == MAX_SCANNED:
                    ends.append(rows[-1][0])
                keys += [row[0] for row in rows]
        return keys

    def _read_receives(
        self, ends: list[int], sources: set[int] | None, excluded: set[int]
    ) -> Sequence[int]:
        if sources is None:
            return ()
        if sources:
            table, count, source = "icm_arrivals", self.limit + 1, next(iter(sources))
            return self._read_candidates(ends, count, "receive", (table,), "source", source)
        # Nearly all may be of indexed sources, so that their rows are not looked up. The page ends
        # where the sends do.
        start, end = self.bounds
        rows = self.session.rows(_NEWEST_RECEIVES, max(start, *ends), end, MAX_SCANNED)
        if len(rows) == MAX_SCANNED:
            ends.append(rows[-1][0])
        return [key for key, source in rows if source not in excluded]

    def _read_candidates(
        self,
        ends: list[int],
        count: int,
        name: str,
        tables: Sequence[str],
        column: str = "",
        value: int = 0,
    ) -> Sequence[int]:
        """Return the first keys; if there are more, add the last of them to `ends`."""
        template, values = (
            (_CANDIDATES_OF, (value, *self.bounds)) if column else (_CANDIDATES, self.bounds)
        )
        candidates: set[int] = set()
        for table in tables:
            candidates.update(
                row[0]
                for row in self.session.rows(template.format(name, table, column), *values, count)
            )
        keys = sorted(candidates, reverse=True)[:count]
        if len(keys) == count:
            ends.append(keys[-1])
        return keys

    def _key(self, raw: bytes) -> int:
        return self._keys.get(raw, _NO_KEY)


def _times(session: ReadSession, keys: Iterable[int]) -> dict[int, int]:
    heights = {height_of(key) for key in keys}
    return dict(session.by_keys("SELECT number, time FROM blocks WHERE number IN {keys}", heights))
