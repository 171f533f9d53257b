"""The queries of the ICM messages of one chain: keys of a page, and messages by key or id.

The work for a page is bounded: if messages are left out by a filter, some thousand candidates are
read, and the page says how far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from warpseal.chains.evm.icm_events import ChangeKind, Outcome, PayloadKind, message_id
from warpseal.index.evm.keys import IcmState, block_key, height_of, tx_key_of, unpack
from warpseal.index.evm.queries import MAX_SCANNED, EvmIndexState, first_block, read_state
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
from warpseal.index.evm.resources import (
    UNKNOWN_CONTRACT,
    ContractRow,
    read_addresses,
    read_contracts,
)
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

# Candidates of a page: keys of messages between two bounds, newest first.
_NEWEST_SENDS: Final = """
    SELECT key
    FROM icm_sends
    WHERE key >= ? AND key < ?
    ORDER BY key DESC
    LIMIT ?
"""
_SENDS_TO: Final = """
    SELECT send
    FROM icm_routes
    WHERE destination = ? AND send >= ? AND send < ?
    ORDER BY send DESC
    LIMIT ?
"""
_OPEN_SENDS_TO: Final = """
    SELECT send
    FROM icm_open
    WHERE destination = ? AND send >= ? AND send < ?
    ORDER BY send DESC
    LIMIT ?
"""
_NEWEST_RECEIVES: Final = """
    SELECT key, source
    FROM icm_receives
    WHERE key >= ? AND key < ?
    ORDER BY key DESC
    LIMIT ?
"""
_RECEIVES_FROM: Final = """
    SELECT receive
    FROM icm_arrivals
    WHERE source = ? AND receive >= ? AND receive < ?
    ORDER BY receive DESC
    LIMIT ?
"""
_RECENT_MESSAGES_OF: Final = """
    SELECT message
    FROM recent_icm_addresses
    WHERE address = ? AND message >= ? AND message < ?
    ORDER BY message DESC
    LIMIT ?
"""
_OLDER_MESSAGES_OF: Final = """
    SELECT message
    FROM older_icm_addresses
    WHERE address = ? AND message >= ? AND message < ?
    ORDER BY message DESC
    LIMIT ?
"""

# What the filters of a page examine; a peer is the chain on the other side.
_SENT_CANDIDATES: Final = """
    SELECT
        key,
        destination AS peer,
        sender,
        recipient,
        length(body) + coalesce(length(tail), 0) AS size
    FROM icm_sends
    WHERE key IN {keys}
"""
_RECEIVED_CANDIDATES: Final = """
    SELECT
        key,
        source AS peer,
        sender,
        recipient,
        coalesce(length(body), 0) + coalesce(length(tail), 0) AS size
    FROM icm_receives
    WHERE key IN {keys}
"""
_STATES: Final = """
    SELECT s.key, s.destination, o.state, d.receive
    FROM icm_sends s
    LEFT JOIN icm_open o ON o.destination = s.destination AND o.send = s.key
    LEFT JOIN icm_deliveries d ON d.send = s.key
    WHERE s.key IN {keys}
"""

# The row of a send, its delivery, its last changes, and its Warp message if it names another
# network or chain: the next log.
_SENT: Final = f"""
    SELECT
        s.key, s.tx_index, s.messenger, s.destination, s.nonce, s.sender, s.recipient, s.gas_limit,
        s.fee_asset, s.fee, s.tx_fee, s.warp_sender, s.tail, s.body,
        d.receive,
        (
            SELECT max(c.key)
            FROM (
                SELECT change
                FROM icm_message_changes
                WHERE message = s.key
                ORDER BY change DESC
                LIMIT {MAX_CHANGES}
            ) m
            JOIN icm_changes c ON c.key = m.change
            WHERE c.kind = {ChangeKind.FEE:d}
        ) AS fee_change,
        (
            SELECT max(c.key)
            FROM (
                SELECT change
                FROM icm_message_changes
                WHERE message = s.key
                ORDER BY change DESC
                LIMIT {MAX_CHANGES}
            ) m
            JOIN icm_changes c ON c.key = m.change
            WHERE c.kind = {ChangeKind.RECEIPT:d}
        ) AS receipt,
        w.message AS foreign_warp
    FROM icm_sends s
    LEFT JOIN icm_deliveries d ON d.send = s.key
    LEFT JOIN warp_sends w ON w.key = s.key + 1 AND w.kind = {PayloadKind.TELEPORTER:d}
    WHERE s.key IN {{keys}}
"""
_RECEIVED: Final = f"""
    SELECT
        r.key, r.tx_index, r.messenger, r.source, r.nonce, r.sender, r.recipient, r.deliverer,
        r.redeemer, r.outcome, r.tx_fee, r.gas_limit, r.tail, r.body,
        r.outcome = {Outcome.EXECUTED:d} OR EXISTS (
            SELECT 1
            FROM icm_message_changes m
            WHERE m.message = r.key
        ) AS is_executed
    FROM icm_receives r
    WHERE r.key IN {{keys}}
"""
_TX_HASHES: Final = "SELECT key, hash FROM txs WHERE key IN {keys}"
_AMOUNTS: Final = "SELECT key, amount FROM icm_changes WHERE key IN {keys}"
_BLOCK_TIMES: Final = "SELECT number, time FROM blocks WHERE number IN {keys}"
_CHAIN_ID: Final = "SELECT chain_id FROM chain"
_CHANGES: Final = f"""
    SELECT c.key, c.kind, c.amount
    FROM (
        SELECT change
        FROM icm_message_changes
        WHERE message = ?
        ORDER BY change DESC
        LIMIT {MAX_CHANGES}
    ) m
    JOIN icm_changes c ON c.key = m.change
    UNION ALL
    SELECT key, {ChangeKind.FEE:d}, fee
    FROM icm_sends
    WHERE key = ?
    ORDER BY 1
"""
_RECENT_IDS: Final = f"""
    SELECT message
    FROM recent_icm_ids
    WHERE prefix = ?
    LIMIT {_MAX_EQUAL_PREFIXES}
"""
_OLDER_IDS: Final = f"""
    SELECT message
    FROM older_icm_ids
    WHERE prefix = ?
    LIMIT {_MAX_EQUAL_PREFIXES}
"""
_FIRST_TIME: Final = "SELECT b.time FROM chain c JOIN blocks b ON b.number = c.icm_first"
_HEIGHT: Final = "SELECT height FROM chain WHERE icm_first >= 0"

# Destinations without an open message are left out: there may be a hundred, and each one is asked
# about in its turn.
_OPEN_DESTINATIONS: Final = """
    SELECT i.id, c.destination, c.time
    FROM icm_cursors c
    JOIN ids i ON i.key = c.destination
    WHERE EXISTS (
        SELECT 1
        FROM icm_open o
        WHERE o.destination = c.destination
    )
"""
# The newest ones are looked at, also of those that have only a receipt: a hostile chain may send
# any number of those.
_COUNT_STUCK: Final = f"""
    SELECT count(*)
    FROM (
        SELECT state
        FROM icm_open
        WHERE destination = ? AND send >= ? AND send < ?
        ORDER BY send DESC
        LIMIT ?
    ) o
    WHERE state <> {IcmState.RECEIPT:d}
"""

# What happened behind a key, in order: each kind is read in the order of its rows, so that no more
# than the limit of each is read. The steps are those of `_STEPS`.
_OCCURRENCES: Final = f"""
    SELECT e.key, e.message, e.step, b.time, t.hash
    FROM (
        SELECT *
        FROM (
            SELECT key, key AS message, tx_index, -1 AS step
            FROM icm_sends
            WHERE key > ?
            ORDER BY key
            LIMIT ?
        ) s
        UNION ALL
        SELECT *
        FROM (
            SELECT key, key, tx_index, CASE WHEN inner_events > 0 THEN 0 ELSE outcome END
            FROM icm_receives
            WHERE key > ?
            ORDER BY key
            LIMIT ?
        ) r
        UNION ALL
        SELECT *
        FROM (
            SELECT key, message, tx_index, -2
            FROM icm_changes
            WHERE key > ? AND kind = {ChangeKind.EXECUTED:d}
            ORDER BY key
            LIMIT ?
        ) c
    ) e
    JOIN blocks b ON b.number = e.key >> 20
    JOIN txs t ON t.key = (e.key >> 20 << 20) + e.tx_index
    ORDER BY e.key
    LIMIT ?
"""
# The outcomes that follow other events of the transaction that received the message. They have the
# key of the last one of these, which is in the same block. Of messages that were received during
# each other, the last one ends first.
_LATE_OUTCOMES: Final = """
    SELECT r.key + r.inner_events, r.key, -1 - r.outcome, b.time, t.hash
    FROM icm_receives r
    JOIN blocks b ON b.number = r.key >> 20
    JOIN txs t ON t.key = (r.key >> 20 << 20) + r.tx_index
    WHERE r.key >= ? AND r.key < ?
        AND r.inner_events > 0
        AND r.outcome > 0
        AND r.key + r.inner_events > ?
        AND r.key + r.inner_events <= ?
    ORDER BY r.key DESC
"""
# A sending, an outcome that has its own event, or a receive with the outcome that its own event
# shows. Every kind of row has its own codes.
_STEPS: Final[dict[int, tuple[EventType, ...]]] = {
    -1: (EventType.ICM_SENT,),
    -1 - Outcome.EXECUTED: (EventType.ICM_EXECUTED,),
    -1 - Outcome.FAILED: (EventType.ICM_FAILED,),
    Outcome.NONE: (EventType.ICM_RECEIVED,),
    Outcome.EXECUTED: (EventType.ICM_RECEIVED, EventType.ICM_EXECUTED),
    Outcome.FAILED: (EventType.ICM_RECEIVED, EventType.ICM_FAILED),
}


class _CandidateRow(NamedTuple):
    """A row of `_SENT_CANDIDATES` or `_RECEIVED_CANDIDATES`."""

    key: int
    peer: int
    sender: int
    recipient: int
    size: int


class _StateRow(NamedTuple):
    """A row of `_STATES`."""

    key: int
    destination: int
    state: int | None
    receive: int | None


class _SentRow(NamedTuple):
    """A row of `_SENT`.

    fee_change, receipt: keys of the newest changes of these kinds.
    """

    key: int
    tx_index: int
    messenger: int
    destination: int
    nonce: int
    sender: int
    recipient: int
    gas_limit: bytes
    fee_asset: int
    fee: bytes
    tx_fee: bytes
    warp_sender: int | None
    tail: bytes | None
    body: bytes
    receive: int | None
    fee_change: int | None
    receipt: int | None
    foreign_warp: bytes | None


class _ReceivedRow(NamedTuple):
    """A row of `_RECEIVED`."""

    key: int
    tx_index: int
    messenger: int
    source: int
    nonce: int
    sender: int
    recipient: int
    deliverer: int
    redeemer: int
    outcome: int
    tx_fee: bytes
    gas_limit: bytes | None
    tail: bytes | None
    body: bytes | None
    is_executed: bool


class _OccurrenceRow(NamedTuple):
    """A row of `_OCCURRENCES` or `_LATE_OUTCOMES`."""

    key: int
    message: int
    step: int
    time: int
    tx_hash: bytes


class _StuckRange(NamedTuple):
    """The keys between which the open messages to a destination are stuck.

    end: the key behind the last.
    """

    chain_id: ChainID
    destination: int
    first: int
    end: int


class _RowValues(NamedTuple):
    """The values that rows of messages name by keys.

    own: the chain of the index.
    fees: packed amounts by the key of a change.
    contracts: assets of fees by the key of their address.
    """

    own: ChainID
    ids: Mapping[int, bytes]
    tx_hashes: Mapping[int, bytes]
    times: Mapping[int, int]
    fees: Mapping[int, bytes]
    contracts: Mapping[int, ContractRow]


def icm_page(
    session: ReadSession, query: IcmQuery, before: IcmPosition | None, limit: int
) -> IcmKeys:
    """Return keys of messages behind a position, newest first; none if they are not kept.

    A page may be short.

    before: position of a message of any chain; None: the page begins with the newest message.
    """
    state = read_state(session)
    if state is None or state.chain.icm_first < 0:
        return IcmKeys()
    chain = ChainID(bytes(state.chain.chain_id))
    bounds = _page_bounds(session, state, chain, query, before)
    stuck: Sequence[_StuckRange] = ()
    if query.is_stuck is not None:
        stuck = _stuck_ranges(session, state, query.indexed_since)
    sizes, read_to = _PageReader(session, query, chain, bounds, limit, stuck).read()
    keys = sorted((key for key in sizes if key >= read_to), reverse=True)
    if len(keys) > limit:
        keys, read_to = keys[:limit], keys[limit - 1]
    times = _times(session, [*keys, read_to])

    def position(key: int) -> IcmPosition:
        return IcmPosition(times[height_of(key)], chain, key)

    items = [IcmKey(position(key), sizes[key]) for key in keys]
    return IcmKeys(items, position(read_to) if read_to else None)


def _page_bounds(
    session: ReadSession,
    state: EvmIndexState,
    chain: ChainID,
    query: IcmQuery,
    before: IcmPosition | None,
) -> tuple[int, int]:
    """Return the first key that a page may have, and the key behind its last."""
    end = block_key(state.height + 1)
    if before is not None and before.chain == chain:
        end = min(end, before.key)
    elif before is not None:
        # Of messages with one time, those of the chain with the larger id come first.
        has_equal_times = chain < before.chain
        end = _first_key(session, state, before.time + has_equal_times)
    times = query.times
    if times.until is not None:
        end = min(end, _first_key(session, state, times.until + 1))
    start = 0 if times.since is None else _first_key(session, state, times.since)
    return start, end


def icm_messages(
    session: ReadSession, keys: Collection[int]
) -> Mapping[int, SentMessage | ReceivedMessage]:
    """Return messages by their keys; those that are not there are left out."""
    sent = list(map(_SentRow._make, session.by_keys(_SENT, keys)))
    received = list(map(_ReceivedRow._make, session.by_keys(_RECEIVED, keys)))
    values = _read_values(session, sent, received)
    messages: dict[int, SentMessage | ReceivedMessage] = {}
    for send in sent:
        messages[send.key] = _sent_message(send, values)
    for receive in received:
        messages[receive.key] = _received_message(receive, values)
    return messages


def _read_values(
    session: ReadSession, sent: Sequence[_SentRow], received: Sequence[_ReceivedRow]
) -> _RowValues:
    """Return the values that rows name, read by one statement for each kind."""
    rows: tuple[_SentRow | _ReceivedRow, ...] = (*sent, *received)
    id_keys: set[int] = set()
    for row in rows:
        id_keys.update((row.messenger, row.sender, row.recipient))
    for send in sent:
        id_keys.update((send.destination, send.fee_asset, send.warp_sender or 0))
    for receive in received:
        id_keys.update((receive.source, receive.deliverer, receive.redeemer))
    txs = {tx_key_of(row.key, row.tx_index) for row in rows}
    fee_changes = [send.fee_change for send in sent if send.fee_change is not None]
    chains = session.rows(_CHAIN_ID)
    return _RowValues(
        own=ChainID(bytes(chains[0][0]) if chains else b""),
        ids=read_addresses(session, id_keys),
        tx_hashes=dict(session.by_keys(_TX_HASHES, txs)),
        times=_times(session, [row.key for row in rows]),
        fees=dict(session.by_keys(_AMOUNTS, fee_changes)),
        contracts=read_contracts(session, {send.fee_asset for send in sent}),
    )


def _sent_message(row: _SentRow, values: _RowValues) -> SentMessage:
    ids = values.ids
    asset = values.contracts.get(row.fee_asset, UNKNOWN_CONTRACT)
    fee = row.fee if row.fee_change is None else values.fees[row.fee_change]
    warp_sender = b""
    if row.warp_sender != 0:
        warp_sender = ids[row.warp_sender or row.messenger]
    foreign_warp = None
    if row.foreign_warp is not None:
        foreign_warp = UnsignedMessage.parse(bytes(row.foreign_warp))
    return SentMessage(
        **_side_fields(row, values, values.own, ChainID(ids[row.destination])),
        key=row.key,
        warp_sender=warp_sender,
        is_v2=bool(row.warp_sender),
        asset=ids[row.fee_asset],
        asset_name=asset.name or "",
        asset_symbol=asset.symbol or "",
        asset_decimals=asset.decimals or 0,
        reward=unpack(bytes(fee)),
        has_receipt=row.receipt is not None,
        receive=row.receive,
        foreign_warp=foreign_warp,
    )


def _received_message(row: _ReceivedRow, values: _RowValues) -> ReceivedMessage:
    ids = values.ids
    is_executed = bool(row.is_executed)
    return ReceivedMessage(
        **_side_fields(row, values, ChainID(ids[row.source]), values.own),
        deliverer=ids[row.deliverer],
        redeemer=ids[row.redeemer],
        is_executed=is_executed,
        has_failed=row.outcome == Outcome.FAILED and not is_executed,
    )


def _side_fields(
    row: _SentRow | _ReceivedRow, values: _RowValues, source: ChainID, destination: ChainID
) -> dict[str, Any]:
    """Return the fields that both sides of a message have."""
    ids = values.ids
    messenger = ids[row.messenger]
    height = height_of(row.key)
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
        "tx_hash": bytes(values.tx_hashes[tx_key_of(row.key, row.tx_index)]),
        "height": height,
        "time": values.times[height],
        "tx_fee": unpack(bytes(row.tx_fee)),
    }


def icm_changes(session: ReadSession, key: int) -> Sequence[MessageChange]:
    """Return the sending of a message with its fee, and its newest changes; oldest first."""
    rows = session.rows(_CHANGES, key, key)
    times = _times(session, [change for change, _, _ in rows])
    return [
        MessageChange(ChangeKind(kind), times[height_of(change)], unpack(bytes(amount)))
        for change, kind, amount in rows
    ]


def find_icm_message(session: ReadSession, raw_id: bytes) -> SentMessage | ReceivedMessage | None:
    """Return the message with an id: as this chain sent it, else as this chain received it.

    An index has the received side only of a source that was not indexed then.
    """
    prefix = prefix_of(raw_id)
    keys = {key for text in (_RECENT_IDS, _OLDER_IDS) for (key,) in session.rows(text, prefix)}
    # Other messages may have the prefix: it has 8 bytes.
    messages = [
        message
        for message in icm_messages(session, sorted(keys)).values()
        if message.message_id == raw_id
    ]
    return min(messages, key=lambda message: isinstance(message, ReceivedMessage), default=None)


def icm_since(session: ReadSession) -> int | None:
    """Return the time of the first block whose messages are read; None without such a block."""
    rows = session.rows(_FIRST_TIME)
    return rows[0][0] if rows else None


def icm_stuck(session: ReadSession, since: Mapping[ChainID, int]) -> Mapping[ChainID, int]:
    """Return the numbers of stuck messages by destination, `_MAX_STUCK` at most.

    Destinations without any are left out.

    since: the time from which on the receives of each destination are indexed.
    """
    state = read_state(session)
    if state is None:
        return {}
    counts: dict[ChainID, int] = {}
    for stuck in _stuck_ranges(session, state, since):
        bounds = (stuck.first, stuck.end)
        ((count,),) = session.rows(_COUNT_STUCK, stuck.destination, *bounds, _MAX_STUCK)
        if count:
            counts[stuck.chain_id] = count
    return counts


def _stuck_ranges(
    session: ReadSession, state: EvmIndexState, since: Mapping[ChainID, int]
) -> list[_StuckRange]:
    """Return the range of each destination that has open messages.

    since: see `icm_stuck`. An earlier message may have been received before.
    """
    ranges: list[_StuckRange] = []
    for raw_id, destination, time in session.rows(_OPEN_DESTINATIONS):
        chain_id = ChainID(bytes(raw_id))
        if chain_id in since:
            first = _first_key(session, state, since[chain_id])
            end = _first_key(session, state, time - STUCK_S)
            ranges.append(_StuckRange(chain_id, destination, first, end))
    return ranges


def _first_key(session: ReadSession, state: EvmIndexState, time: int) -> int:
    return block_key(first_block(session, state.chain.first_height, state.height, time))


def icm_after(session: ReadSession, position: int, limit: int) -> IcmBatch:
    """Return the events of messages behind a key; none if they are not kept.

    limit: number of rows that are read of each kind.
    """
    heights = session.rows(_HEIGHT)
    height = heights[0][0] if heights else -1
    rows = list(
        map(_OccurrenceRow._make, session.rows(_OCCURRENCES, *(position, limit) * 3, limit))
    )
    upto = rows[-1].key if len(rows) == limit else max(position, block_key(height + 1) - 1)
    # A late outcome behind the position may follow a receive before it, in the same block.
    block_start = block_key(height_of(position)) if position >= 0 else 0
    late_rows = session.rows(_LATE_OUTCOMES, block_start, upto + 1, position, upto)
    rows += map(_OccurrenceRow._make, late_rows)
    # A stable order: an outcome follows the event whose key it has.
    rows.sort(key=lambda row: row.key)
    messages = icm_messages(session, {row.message for row in rows})
    occurrences = [
        IcmOccurrence(kind, row.key, row.time, bytes(row.tx_hash), messages[row.message])
        for row in rows
        for kind in _STEPS[row.step]
    ]
    return IcmBatch(upto, occurrences)


class _Side(NamedTuple):
    """The sent messages that a query selects by chain, or the received ones.

    is_selected: the query selects some of them.
    peer: key of the only chain on the other side; None: any chain.
    """

    is_selected: bool
    peer: int | None = None


_NO_SIDE: Final = _Side(False)


class _PageReader:
    """Reads the keys of one page of one chain.

    bounds: the first key, and the one behind the last.
    stuck: keys of open messages that are stuck; empty if the query does not need them.
    """

    def __init__(
        self,
        session: ReadSession,
        query: IcmQuery,
        chain: ChainID,
        bounds: tuple[int, int],
        limit: int,
        stuck: Sequence[_StuckRange],
    ) -> None:
        self._session = session
        self._query = query
        self._chain = chain
        self._bounds = bounds
        self._limit = limit
        self._stuck = {item.destination: item for item in stuck}
        chains = (*query.indexed, query.chain, query.source, query.destination)
        accounts = (query.address, query.sender, query.recipient)
        names = {raw for raw in (*chains, *accounts) if raw is not None}
        self._keys = session.keys_of(names) | {_NO_ADDRESS: 0}
        self._parties = [self._key(raw) for raw in accounts if raw is not None]
        self._indexed = {self._key(raw) for raw in query.indexed}
        self._sent = self._select_sent()
        self._received = self._select_received()
        self._has_states = query.status is not None or query.is_stuck is not None
        # Usually these filters leave out few messages.
        self._scanned = MAX_SCANNED
        if self._parties or self._has_states:
            self._scanned = min(limit + 1, MAX_SCANNED)
        # Down to this key every candidate is read; 0: there are no more.
        self._read_to = 0

    def read(self) -> tuple[dict[int, int], int]:
        """Return the sizes of messages by key, and the key down to which the page has all.

        The key is 0 if there are no more messages.
        """
        while True:
            sizes = self._read_scanned()
            read_to = self._read_to
            is_last = self._scanned == MAX_SCANNED or not read_to
            if is_last or sum(key >= read_to for key in sizes) > self._limit:
                return sizes, read_to
            self._scanned = min(4 * self._scanned, MAX_SCANNED)

    def _select_sent(self) -> _Side:
        query = self._query
        if query.status is IcmStatus.DELIVERED_SOURCE_NOT_INDEXED:
            return _NO_SIDE
        return self._select_side(query.source, query.destination)

    def _select_received(self) -> _Side:
        """Return the side of received messages, of sources that are not indexed."""
        query = self._query
        # Such a message has one status, and is never stuck.
        if query.is_stuck or query.status not in (None, IcmStatus.DELIVERED_SOURCE_NOT_INDEXED):
            return _NO_SIDE
        side = self._select_side(query.destination, query.source)
        return _NO_SIDE if side.peer in self._indexed else side

    def _select_side(self, own: ChainID | None, other: ChainID | None) -> _Side:
        """Return the side that this chain is on.

        own, other: the chains that the query names for this side, and for the other one.
        """
        if own not in (None, self._chain):
            return _NO_SIDE
        either = self._query.chain
        if either == self._chain:
            either = None
        peers = {chain for chain in (either, other) if chain is not None}
        if len(peers) > 1:
            return _NO_SIDE
        peer = next(iter(peers), None)
        return _Side(True, None if peer is None else self._key(peer))

    def _read_scanned(self) -> dict[int, int]:
        """Return the sizes of the messages among the next candidates."""
        self._read_to = 0
        if self._parties:
            # Both sides have a message of an account under its address.
            texts = (_RECENT_MESSAGES_OF, _OLDER_MESSAGES_OF)
            sends = receives = self._read_keys(texts, self._scanned, self._parties[0])
        else:
            # Sends come first: receives are read no further than they are.
            sends = self._read_sends()
            receives = self._read_receives()
        sizes: dict[int, int] = {}
        if self._sent.is_selected:
            for row in self._read_candidates(_SENT_CANDIDATES, sends, self._sent):
                sizes[row.key] = row.size
        if self._received.is_selected:
            for row in self._read_candidates(_RECEIVED_CANDIDATES, receives, self._received):
                if row.peer not in self._indexed:
                    sizes[row.key] = row.size
        if self._has_states:
            self._leave_out_states(sizes)
        return sizes

    def _read_candidates(
        self, text: str, keys: Sequence[int], side: _Side
    ) -> Iterator[_CandidateRow]:
        """Yield the candidates with the chain and the accounts that the query names."""
        for row in map(_CandidateRow._make, self._session.by_keys(text, keys)):
            if side.peer in (None, row.peer) and self._is_of_parties(row):
                yield row

    def _leave_out_states(self, sizes: dict[int, int]) -> None:
        """Leave out the sends that have another status or are stuck, as the query says."""
        status, is_stuck = self._query.status, self._query.is_stuck
        for row in map(_StateRow._make, self._session.by_keys(_STATES, sizes)):
            is_delivered = row.receive is not None and row.destination in self._indexed
            has_status = status is None or is_delivered == (status is IcmStatus.DELIVERED)
            if not has_status or is_stuck not in (None, self._is_stuck(row)):
                del sizes[row.key]

    def _is_stuck(self, row: _StateRow) -> bool:
        stuck = self._stuck.get(row.destination)
        is_open = row.state is not None and row.state != IcmState.RECEIPT
        return is_open and stuck is not None and stuck.first <= row.key < stuck.end

    def _is_of_parties(self, row: _CandidateRow) -> bool:
        query = self._query
        return (
            (query.sender is None or row.sender == self._key(query.sender))
            and (query.recipient is None or row.recipient == self._key(query.recipient))
            and (query.address is None or self._key(query.address) in (row.sender, row.recipient))
        )

    def _read_sends(self) -> Sequence[int]:
        if not self._sent.is_selected:
            return ()
        if self._query.is_stuck:
            return self._read_stuck()
        count = self._scanned if self._has_states else self._limit + 1
        if self._sent.peer is None:
            return self._read_keys((_NEWEST_SENDS,), count)
        return self._read_keys((_SENDS_TO,), count, self._sent.peer)

    def _read_stuck(self) -> Sequence[int]:
        """Return the messages that may be stuck, from the few that are open."""
        keys: list[int] = []
        start, end = self._bounds
        for destination, stuck in self._stuck.items():
            if self._sent.peer in (None, destination):
                bounds = (max(start, stuck.first), min(end, stuck.end))
                rows = self._session.rows(_OPEN_SENDS_TO, destination, *bounds, MAX_SCANNED)
                if len(rows) == MAX_SCANNED:
                    self._end_at(rows[-1][0])
                keys += [send for (send,) in rows]
        return keys

    def _read_receives(self) -> Sequence[int]:
        if not self._received.is_selected:
            return ()
        if self._received.peer is not None:
            return self._read_keys((_RECEIVES_FROM,), self._limit + 1, self._received.peer)
        # Nearly all may be of indexed sources, so that their rows are not looked up. The page ends
        # where the sends do.
        start, end = self._bounds
        rows = self._session.rows(_NEWEST_RECEIVES, max(start, self._read_to), end, MAX_SCANNED)
        if len(rows) == MAX_SCANNED:
            self._end_at(rows[-1][0])
        return [key for key, source in rows if source not in self._indexed]

    def _read_keys(self, texts: Sequence[str], count: int, *values: int) -> Sequence[int]:
        """Return the newest keys of statements; if there are more, the page ends at the last.

        values: the values before the bounds.
        """
        candidates: set[int] = set()
        for text in texts:
            rows = self._session.rows(text, *values, *self._bounds, count)
            candidates.update(key for (key,) in rows)
        keys = sorted(candidates, reverse=True)[:count]
        if len(keys) == count:
            self._end_at(keys[-1])
        return keys

    def _end_at(self, key: int) -> None:
        """End the page at a key: a source of candidates was read no further."""
        self._read_to = max(self._read_to, key)

    def _key(self, raw: bytes) -> int:
        return self._keys.get(raw, _NO_KEY)


def _times(session: ReadSession, keys: Iterable[int]) -> dict[int, int]:
    """Return the times of the blocks of keys, by height."""
    heights = {height_of(key) for key in keys}
    return dict(session.by_keys(_BLOCK_TIMES, heights))
