"""Writes the messages of ICM: rows with their blocks, and deliveries as the joiner reads them.

A destination has what it received in its own index, and the source the delivery, which the joiner
copies. Either may be written first: a delivery without its message waits in `icm_unmatched`. Both
orders give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec.structs import replace

from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.chains.evm.icm_events import (
    MESSENGER_V1,
    REGISTRIES,
    ChangeKind,
    IcmChange,
    IcmReceive,
    IcmSend,
    NewMessenger,
    Outcome,
    PayloadKind,
    WarpSend,
)
from warpseal.index import bulk
from warpseal.index.evm import schema
from warpseal.index.evm.keys import IcmState, block_key, pack, tx_key_of
from warpseal.index.evm.recent_rows import RecentRows
from warpseal.index.evm.records import DeliveredRow, IcmOptions, ReceivedBatch
from warpseal.index.evm.rows import (
    NO_ICM,
    EvmChainRow,
    IcmChangeRow,
    IcmReceiveRow,
    IcmRows,
    IcmSendRow,
    WarpSendRow,
)
from warpseal.index.evm.write_session import EvmWriteSession
from warpseal.index.keys import prefix_of
from warpseal.store.connection import Connection
from warpseal.warp.ids import ChainID

_NONCES: Final = """
    SELECT i.id, m.nonce
    FROM icm_messengers m
    JOIN ids i ON i.key = m.messenger
"""
_SET_NONCE: Final = "UPDATE icm_messengers SET nonce = ? WHERE messenger = ?"
_RECENT_SENDS: Final = """
    SELECT i.prefix, i.message, s.messenger, s.destination, s.nonce
    FROM recent_icm_ids i
    JOIN icm_sends s ON s.key = i.message
    WHERE i.prefix IN {keys}
"""
_OLDER_SENDS: Final = """
    SELECT i.prefix, i.message, s.messenger, s.destination, s.nonce
    FROM older_icm_ids i
    JOIN icm_sends s ON s.key = i.message
    WHERE i.prefix IN {keys}
"""
_FAILED: Final = """
    SELECT f.prefix, f.receive, r.messenger
    FROM icm_failures f
    JOIN icm_receives r ON r.key = f.receive
    WHERE f.prefix IN {keys}
"""
_UNMATCHED: Final = """
    SELECT prefix, destination, receive, outcome
    FROM icm_unmatched
    WHERE prefix IN {keys}
"""
_SET_RECEIPT: Final = f"""
    UPDATE icm_open
    SET state = {IcmState.RECEIPT:d}
    WHERE state = {IcmState.OPEN:d}
        AND (destination, send) IN (
            SELECT destination, key
            FROM icm_sends
            WHERE key IN {{keys}}
        )
"""
_CURSORS: Final = """
    SELECT i.id, c.epoch, c.position
    FROM icm_cursors c
    JOIN ids i ON i.key = c.destination
"""
_IDS: Final = "SELECT id, key FROM ids WHERE prefix IN {keys}"
_CHECKPOINT: Final = "SELECT chain_id, epoch, height, time, hash FROM chain"
# Both list the key of an event, the source, the message, its outcome then, and its receive.
_RECEIVES: Final = """
    SELECT r.key, i.id, r.prefix, r.nonce, r.outcome, r.key
    FROM icm_receives r
    JOIN ids i ON i.key = r.source
    WHERE r.key > ?
    ORDER BY r.key
    LIMIT ?
"""
_RETRIES: Final = f"""
    SELECT c.key, i.id, r.prefix, r.nonce, {Outcome.EXECUTED:d}, r.key
    FROM icm_changes c
    JOIN icm_receives r ON r.key = c.message
    JOIN ids i ON i.key = r.source
    WHERE c.key > ? AND c.kind = {ChangeKind.EXECUTED:d}
    ORDER BY c.key
    LIMIT ?
"""
_REOPEN: Final = f"""
    INSERT INTO icm_open
    SELECT
        s.destination,
        s.key,
        CASE
            WHEN EXISTS (
                SELECT 1
                FROM icm_message_changes m
                JOIN icm_changes c ON c.key = m.change
                WHERE m.message = s.key AND c.kind = {ChangeKind.RECEIPT:d}
            ) THEN {IcmState.RECEIPT:d}
            ELSE {IcmState.OPEN:d}
        END
    FROM icm_deliveries d
    JOIN icm_sends s ON s.key = d.send
    WHERE d.destination = ?
    ON CONFLICT (destination, send) DO UPDATE
    SET state = excluded.state
"""
_SENDS_BETWEEN: Final = "SELECT * FROM icm_sends WHERE key >= ? AND key < ? ORDER BY key"
_RECEIVES_BETWEEN: Final = "SELECT * FROM icm_receives WHERE key >= ? AND key < ? ORDER BY key"
_CHANGES_BETWEEN: Final = "SELECT * FROM icm_changes WHERE key >= ? AND key < ? ORDER BY key"


class _StoredSend(NamedTuple):
    """A row of `_RECENT_SENDS` or `_OLDER_SENDS`."""

    prefix: int
    message: int
    messenger: int
    destination: int
    nonce: int


class _AcceptedEvents:
    """The events of accepted messengers in consecutive blocks, and the keys that their rows need.

    events: each event with its key, the prefix of its message's id, and its transaction's fee.
    ids: the addresses and blockchains that the events name.
    sends: prefixes of the sent messages that events may be about.
    failures: prefixes of the received messages that retries may be about.
    raised: messengers whose largest nonce has risen.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, IcmSend | IcmReceive | IcmChange | WarpSend]] = []
        self.ids: set[bytes] = set()
        self.sends: set[int] = set()
        self.failures: set[int] = set()
        self.raised: set[bytes] = set()


class IcmWriter:
    """Writes the messages of one chain.

    options: the contracts whose messages are read; None: messages are not read.
    capacity: see RecentRows.
    """

    def __init__(self, session: EvmWriteSession, options: IcmOptions | None, capacity: int) -> None:
        self._session = session
        self._options = options
        self._capacity = capacity
        # Read from the database when the session opens. The largest nonce that each messenger sent.
        self._nonces: dict[bytes, int] = {}
        self._ids: RecentRows

    def load(self, connection: Connection) -> None:
        """Read the state."""
        self._nonces = {bytes(raw): nonce for raw, nonce in connection.fetch(_NONCES)}
        self._ids = RecentRows(schema.ICM_IDS, self._capacity)

    def start(self) -> None:
        """Read the configured messengers from the next block on.

        If messages are not read, the block from which on they are known is forgotten: a later start
        that reads them again would leave a gap.
        """
        chain, options = self._session.started_row(), self._options
        if options is None:
            if chain.icm_first >= 0:
                with self._session.advance() as (_, chain):
                    chain.icm_first = -1
            return
        new = {MESSENGER_V1, *options.messengers} - self._nonces.keys()
        if chain.icm_first < 0 or new:
            with self._session.advance() as (connection, chain):
                next_block = chain.height + 1
                if chain.icm_first < 0:
                    chain.icm_first = next_block
                first = block_key(next_block)
                self._add_messengers(connection, dict.fromkeys(new, (0, first)))

    def write(
        self, connection: Connection, chain: EvmChainRow, blocks: Sequence[EvmBlockFacts]
    ) -> IcmRows:
        """Write the facts of the next blocks, and return their rows."""
        if chain.icm_first < 0 or not any(block.icm for block in blocks):
            return NO_ICM
        accepted = self._accept(connection, chain, blocks)
        # Ids get their keys before the rows are made, which name them.
        self._session.load_ids(connection, accepted.ids)
        rows = self._rows(connection, accepted)
        bulk.insert(connection, schema.ICM_SENDS, rows.sends)
        bulk.insert(connection, schema.ICM_RECEIVES, rows.receives)
        bulk.insert(connection, schema.ICM_CHANGES, rows.changes)
        bulk.insert(connection, schema.WARP_SENDS, rows.warp_sends)
        return rows

    def received(self, after: int, limit: int) -> ReceivedBatch | None:
        """Return the messages that this chain received behind a key; None without blocks."""
        with self._session.reading() as connection:
            return read_received(connection, after, limit)

    def cursors(self) -> Mapping[ChainID, tuple[int, int]]:
        """Return epoch and key up to which each destination was read."""
        with self._session.reading() as connection:
            rows = connection.fetch(_CURSORS)
            return {ChainID(bytes(raw)): (epoch, key) for raw, epoch, key in rows}

    def deliver(self, batches: Sequence[ReceivedBatch]) -> None:
        """Write the receives of this chain's messages, and the cursors of their destinations.

        A batch may be written again.
        """
        with self._session.transaction() as connection:
            self._session.load_ids(connection, {batch.destination for batch in batches})
            keys = self._session.keys
            for batch in batches:
                _deliver(connection, keys[batch.destination], batch.rows)
            # In the same transaction: a cursor behind lost deliveries would skip them.
            cursors = [
                (keys[batch.destination], batch.epoch, batch.upto, batch.time) for batch in batches
            ]
            bulk.upsert(connection, schema.ICM_CURSORS, cursors)

    def keep_destinations(self, configured: Set[ChainID]) -> None:
        """Delete the deliveries of all other destinations."""
        others = self.cursors().keys() - configured
        with self._session.transaction() as connection:
            for _, key in bulk.fetch_by_id(connection, _IDS, others):
                # Before the deliveries are deleted, which name the messages to open again.
                connection.run(_REOPEN, key)
                for table in (schema.ICM_DELIVERIES, schema.ICM_UNMATCHED, schema.ICM_CURSORS):
                    connection.run(f"DELETE FROM {table.name} WHERE destination = ?", key)

    def _add_messengers(self, connection: Connection, new: Mapping[bytes, tuple[int, int]]) -> None:
        """Add messengers with version and first key."""
        self._session.load_ids(connection, set(new))
        keys = self._session.keys
        rows = [(keys[messenger], version, first, 0) for messenger, (version, first) in new.items()]
        bulk.insert(connection, schema.ICM_MESSENGERS, rows)
        self._nonces.update(dict.fromkeys(new, 0))

    def _accept(
        self, connection: Connection, chain: EvmChainRow, blocks: Sequence[EvmBlockFacts]
    ) -> _AcceptedEvents:
        """Return the events of accepted messengers, in their order.

        Events of other contracts are counted as unknown logs.
        """
        assert self._options is not None
        header = b"\0\0" + self._options.network_id.to_bytes(4) + chain.chain_id
        registries = {*REGISTRIES, *self._options.registries}
        accepted, nonces = _AcceptedEvents(), self._nonces
        ids = accepted.ids
        # A messenger logs the Warp message of a send next, so the last send decides on it.
        is_send_accepted = False
        for block in blocks:
            start = block_key(block.number)
            for event in block.icm:
                key = start | event.position
                if isinstance(event, WarpSend):
                    if event.kind is PayloadKind.TELEPORTER:
                        if not is_send_accepted:
                            event = replace(event, kind=PayloadKind.ADDRESSED_CALL)
                        elif event.message.startswith(header):
                            # The columns of its send give it, unless its network or its chain is
                            # another one.
                            continue
                    prefix = 0
                    if event.kind is not PayloadKind.TELEPORTER:
                        prefix = prefix_of(sha256(event.message).digest())
                    ids.add(event.sender)
                elif isinstance(event, NewMessenger):
                    if event.registry not in registries:
                        chain.unknown_logs += 1
                    elif event.messenger not in nonces:
                        self._add_messengers(connection, {event.messenger: (event.version, key)})
                    continue
                else:
                    messenger = event.messenger
                    is_accepted = messenger in nonces
                    if isinstance(event, IcmSend):
                        is_send_accepted = is_accepted
                    if not is_accepted:
                        chain.unknown_logs += 1
                        continue
                    prefix = prefix_of(event.message_id)
                    if isinstance(event, IcmChange):
                        ids.update((messenger, event.account))
                        if event.kind is ChangeKind.EXECUTED:
                            accepted.failures.add(prefix)
                        else:
                            accepted.sends.add(prefix)
                    else:
                        ids.update(ids_of(event))
                    if isinstance(event, IcmSend):
                        # Nonces rise, so that few sends can be those of an earlier message.
                        if event.message.nonce <= nonces[messenger]:
                            accepted.sends.add(prefix)
                        else:
                            nonces[messenger] = event.message.nonce
                            accepted.raised.add(messenger)
                accepted.events.append((key, prefix, block.tx_fees[event.tx_index], event))
        return accepted

    def _rows(self, connection: Connection, accepted: _AcceptedEvents) -> IcmRows:
        """Write ids, failures and nonces, and return the rows of events.

        The keys of the addresses that the events name are loaded.
        """
        assert self._options is not None
        is_indexed = self._options.is_indexed
        keys = self._session.keys
        rows = IcmRows()
        # By prefix and messenger: stored messages, and those of the events so far, which later
        # events of the same blocks may be about.
        sends = {
            (row.prefix, row.messenger): row.message
            for row in _find_sends(connection, accepted.sends)
        }
        failures = {
            (prefix, messenger): receive
            for prefix, receive, messenger in bulk.fetch_by_keys(
                connection, _FAILED, accepted.failures
            )
        }
        ids: list[tuple[int, int]] = []
        new_failures: set[tuple[int, int]] = set()
        ended_failures: set[tuple[int, int]] = set()
        for key, prefix, fee, event in accepted.events:
            tx_index = event.tx_index
            if isinstance(event, WarpSend):
                rows.warp_sends.append(
                    WarpSendRow(key, tx_index, keys[event.sender], event.kind, event.message)
                )
                if event.kind is not PayloadKind.TELEPORTER:
                    ids.append((prefix, key))
            elif isinstance(event, IcmReceive):
                has_content = not is_indexed(event.source)
                rows.receives.append(receive_row(key, event, keys, fee, has_content=has_content))
                if has_content:
                    ids.append((prefix, key))
                if event.outcome is Outcome.FAILED:
                    failures[prefix, keys[event.messenger]] = key
                    new_failures.add((prefix, key))
            elif isinstance(event, IcmSend):
                name = prefix, keys[event.messenger]
                message = sends.get(name)
                if message is not None:
                    change = IcmChangeRow(key, ChangeKind.RESENT, message, tx_index, 0, b"")
                    rows.changes.append(change)
                else:
                    sends[name] = key
                    ids.append((prefix, key))
                    send = send_row(key, event, keys, fee)
                    rows.sends.append(send)
                    rows.new[prefix] = send
            elif event.kind is ChangeKind.EXECUTED:
                receive = failures.pop((prefix, keys[event.messenger]), None)
                if receive is None:
                    continue
                rows.changes.append(IcmChangeRow(key, event.kind, receive, tx_index, 0, b""))
                ended_failures.add((prefix, receive))
            else:
                message = sends.get((prefix, keys[event.messenger]))
                if message is None:
                    # The message was sent before the index begins.
                    continue
                account, amount = keys[event.account], pack(event.amount)
                change = IcmChangeRow(key, event.kind, message, tx_index, account, amount)
                rows.changes.append(change)
            rows.txs.add(tx_key_of(key, tx_index))
        # A failure may end in the blocks in which it began.
        bulk.insert(connection, schema.ICM_FAILURES, sorted(new_failures - ended_failures))
        bulk.delete_pairs(connection, schema.ICM_FAILURES, sorted(ended_failures - new_failures))
        self._ids.put(connection, sorted(ids))
        for raw in accepted.raised:
            connection.run(_SET_NONCE, self._nonces[raw], keys[raw])
        return rows


class IcmDerivedRows:
    """Derives the rows that follow from the facts of one chain.

    capacity: see RecentRows.
    """

    def __init__(self, capacity: int) -> None:
        self._addresses = RecentRows(schema.ICM_ADDRESSES, capacity)

    def add(self, connection: Connection, rows: IcmRows) -> None:
        """Add the rows that follow from those of the next blocks."""
        if rows is NO_ICM:
            return
        routes = sorted((send.destination, send.key) for send in rows.sends)
        bulk.insert(connection, schema.ICM_ROUTES, routes)
        # All sends are open at first: receipts and deliveries below find their rows.
        is_open = IcmState.OPEN.value
        bulk.insert(connection, schema.ICM_OPEN, [(*route, is_open) for route in routes])
        arrivals = sorted((receive.source, receive.key) for receive in rows.receives)
        bulk.insert(connection, schema.ICM_ARRIVALS, arrivals)
        changes = sorted((change.message, change.key) for change in rows.changes)
        bulk.insert(connection, schema.ICM_MESSAGE_CHANGES, changes)
        addresses: set[tuple[int, int]] = set()
        for send in rows.sends:
            addresses.update(((send.sender, send.key), (send.recipient, send.key)))
        for receive in rows.receives:
            if receive.body is not None:
                addresses.update(((receive.sender, receive.key), (receive.recipient, receive.key)))
        self._addresses.put(connection, sorted(addresses))
        receipts = [change.message for change in rows.changes if change.kind == ChangeKind.RECEIPT]
        if receipts:
            bulk.run(connection, _SET_RECEIPT, receipts)
        # Deliveries come after receipts: a failed one keeps its message open.
        matched: list[tuple[int, int]] = []
        deliveries: list[tuple[int, int, int, int]] = []
        unmatched = bulk.fetch_by_keys(connection, _UNMATCHED, rows.new)
        for prefix, destination, receive_key, outcome in unmatched:
            send = rows.new[prefix]
            if send.destination == destination:
                matched.append((prefix, destination))
                deliveries.append((send.key, destination, receive_key, outcome))
        bulk.delete_pairs(connection, schema.ICM_UNMATCHED, matched)
        _write_deliveries(connection, deliveries)


def read_icm_rows(connection: Connection, bounds: tuple[int, int]) -> IcmRows:
    """Return the stored rows between two keys from which others are derived."""
    sends = map(IcmSendRow._make, connection.fetch(_SENDS_BETWEEN, *bounds))
    receives = map(IcmReceiveRow._make, connection.fetch(_RECEIVES_BETWEEN, *bounds))
    changes = map(IcmChangeRow._make, connection.fetch(_CHANGES_BETWEEN, *bounds))
    return IcmRows(list(sends), list(receives), list(changes))


def read_received(connection: Connection, after: int, limit: int) -> ReceivedBatch | None:
    """Return the messages that a chain received behind a key; None without blocks.

    limit: number of receives, and of retries, that are read; at least 1.
    """
    rows = connection.records(_CHECKPOINT)
    if not rows or not rows[0].hash:
        return None
    (chain,) = rows
    upto = block_key(chain.height + 1) - 1
    delivered: list[DeliveredRow] = []
    for text in (_RECEIVES, _RETRIES):
        events = [
            DeliveredRow(key, ChainID(bytes(raw)), prefix, nonce, outcome, receive)
            for key, raw, prefix, nonce, outcome, receive in connection.fetch(text, after, limit)
        ]
        delivered += events
        if len(events) == limit:
            # There may be more behind the last, which the other statement must not overtake.
            upto = min(upto, events[-1].key)
    ordered = sorted(row for row in delivered if row.key <= upto)
    return ReceivedBatch(ChainID(bytes(chain.chain_id)), chain.epoch, upto, chain.time, ordered)


def _deliver(connection: Connection, destination: int, rows: Sequence[DeliveredRow]) -> None:
    """Write the deliveries of a destination; a receive without its message waits for it."""
    # A retry comes behind the receive, so the last row of a message has its outcome.
    last = {(row.prefix, row.nonce): row for row in rows}
    sends = {
        (send.prefix, send.nonce): send.message
        for send in _find_sends(connection, {row.prefix for row in rows})
        if send.destination == destination
    }
    deliveries = [
        (sends[name], destination, row.receive, row.outcome)
        for name, row in last.items()
        if name in sends
    ]
    _write_deliveries(connection, deliveries)
    waiting = {
        row.prefix: (row.prefix, destination, row.receive, row.outcome)
        for name, row in last.items()
        if name not in sends
    }
    bulk.upsert(connection, schema.ICM_UNMATCHED, sorted(waiting.values()))


def _write_deliveries(
    connection: Connection, deliveries: Sequence[tuple[int, int, int, int]]
) -> None:
    """Write deliveries: send, destination, receive and outcome."""
    bulk.upsert(connection, schema.ICM_DELIVERIES, sorted(deliveries))
    failed = {
        (destination, send)
        for send, destination, _, outcome in deliveries
        if outcome == Outcome.FAILED
    }
    bulk.upsert(connection, schema.ICM_OPEN, sorted((*pair, IcmState.FAILED) for pair in failed))
    done = {(destination, send) for send, destination, _, _ in deliveries} - failed
    bulk.delete_pairs(connection, schema.ICM_OPEN, sorted(done))


def _find_sends(connection: Connection, prefixes: Set[int]) -> Iterator[_StoredSend]:
    for text in (_RECENT_SENDS, _OLDER_SENDS):
        yield from map(_StoredSend._make, bulk.fetch_by_keys(connection, text, prefixes))


def ids_of(event: IcmSend | IcmReceive) -> tuple[bytes, ...]:
    """Return the addresses and blockchains that the row of a message names."""
    message = event.message
    parties = event.messenger, message.sender, message.recipient
    if isinstance(event, IcmSend):
        return *parties, message.destination, event.fee_asset, event.warp_sender or event.messenger
    return *parties, event.source, event.deliverer, event.redeemer


def send_row(key: int, event: IcmSend, keys: Mapping[bytes, int], fee: int) -> IcmSendRow:
    """Return the row of a sent message.

    keys: keys of the addresses and blockchains that `ids_of` returns.
    fee: fee of the transaction, in wei.
    """
    message = event.message
    warp_sender = keys[event.warp_sender] if event.warp_sender else 0
    # Version 1: the messenger itself sent the Warp message.
    is_v1 = bool(warp_sender) and message.origin is None
    return IcmSendRow(
        key=key,
        tx_index=event.tx_index,
        messenger=keys[event.messenger],
        destination=keys[message.destination],
        nonce=message.nonce,
        sender=keys[message.sender],
        recipient=keys[message.recipient],
        gas_limit=pack(message.gas_limit),
        fee_asset=keys[event.fee_asset],
        fee=pack(event.fee),
        tx_fee=pack(fee),
        warp_sender=None if is_v1 else warp_sender,
        tail=message.tail or None,
        body=message.body,
    )


def receive_row(
    key: int, event: IcmReceive, keys: Mapping[bytes, int], fee: int, *, has_content: bool
) -> IcmReceiveRow:
    """Return the row of a received message.

    keys, fee: see `send_row`.
    has_content: the row has gas limit, tail and body, since the source is not indexed.
    """
    message = event.message
    return IcmReceiveRow(
        key=key,
        tx_index=event.tx_index,
        prefix=prefix_of(event.message_id),
        messenger=keys[event.messenger],
        source=keys[event.source],
        nonce=message.nonce,
        sender=keys[message.sender],
        recipient=keys[message.recipient],
        deliverer=keys[event.deliverer],
        redeemer=keys[event.redeemer],
        outcome=event.outcome.value,
        tx_fee=pack(fee),
        gas_limit=pack(message.gas_limit) if has_content else None,
        tail=(message.tail or None) if has_content else None,
        body=message.body if has_content else None,
        inner_events=event.inner_events,
    )
