"""Writes the messages of ICM: facts and derived rows with their blocks, deliveries as the joiner
finds them.

A destination has what it received in its own index, and the source the delivery, which the joiner
copies. Either may be written first: a delivery without its message waits in `icm_unmatched`. Both
orders give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any, Final, NamedTuple

from msgspec import Struct
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

_SENT: Final = (
    "SELECT i.prefix, i.message, s.messenger, s.destination, s.nonce FROM {}_icm_ids i"
    " JOIN icm_sends s ON s.key = i.message WHERE i.prefix IN {{keys}}"
)
_FAILED: Final = (
    "SELECT f.prefix, f.receive, r.messenger FROM icm_failures f JOIN icm_receives r ON r.key = f.receive"
    " WHERE f.prefix IN {keys}"
)
_SET_RECEIPT: Final = (
    "UPDATE icm_open SET state = 1 WHERE state = 0 AND (destination, send) IN"
    " (SELECT destination, key FROM icm_sends WHERE key IN {keys})"
)
_RECEIVES: Final = (
    "SELECT r.key, i.id, r.prefix, r.nonce, r.outcome, r.key FROM icm_receives r JOIN ids i ON i.key = r.source"
    " WHERE r.key > ? ORDER BY r.key LIMIT ?"
)
_RETRIES: Final = (
    "SELECT c.key, i.id, r.prefix, r.nonce, 1, r.key FROM icm_changes c JOIN icm_receives r ON r.key = c.message"
    " JOIN ids i ON i.key = r.source WHERE c.key > ? AND c.kind = 4 ORDER BY c.key LIMIT ?"
)
_REOPEN: Final = (
    "INSERT INTO icm_open SELECT s.destination, s.key, CASE WHEN EXISTS (SELECT 1 FROM icm_message_changes m"
    " JOIN icm_changes c ON c.key = m.change WHERE m.message = s.key AND c.kind = 3) THEN 1 ELSE 0 END"
    " FROM icm_deliveries d JOIN icm_sends s ON s.key = d.send WHERE d.destination = ?"
    " ON CONFLICT (destination, send) DO UPDATE SET state = excluded.state"
)


class _StoredSend(NamedTuple):
    """A row of `_SENT`."""

    prefix: int
    message: int
    messenger: int
    destination: int
    nonce: int


class _Batch(Struct):
    """The events that count of some blocks, and what has to be read for them.

    events: each with its key, the prefix of its id, and the fee of its transaction.
    ids: addresses and blockchains.
    sends, failures: prefixes of the messages that they may be about.
    raised: messengers with a larger nonce.
    """

    events: list[tuple[int, int, int, IcmSend | IcmReceive | IcmChange | WarpSend]] = []
    ids: set[bytes] = set()
    sends: set[int] = set()
    failures: set[int] = set()
    raised: set[bytes] = set()


class IcmWriter:
    """The messages of one chain.

    options: None: they are not read.
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
        rows = connection.fetch(
            "SELECT i.id, m.nonce FROM icm_messengers m JOIN ids i ON i.key = m.messenger"
        )
        self._nonces = {bytes(raw): nonce for raw, nonce in rows}
        self._ids = RecentRows(schema.ICM_IDS, self._capacity)

    def start(self) -> None:
        """Count the configured messengers from the next block on; forget where messages begin if
        none are read.
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
                chain.icm_first = chain.icm_first if chain.icm_first >= 0 else chain.height + 1
                self._add_messengers(
                    connection, {messenger: (0, block_key(chain.height + 1)) for messenger in new}
                )

    def write(
        self, connection: Connection, chain: EvmChainRow, blocks: Sequence[EvmBlockFacts]
    ) -> IcmRows:
        """Write the facts of the next blocks, and return their rows."""
        if chain.icm_first < 0 or not any(block.icm for block in blocks):
            return NO_ICM
        batch = self._accept(connection, chain, blocks)
        self._session.load_ids(connection, batch.ids)
        rows = self._rows(connection, batch)
        bulk.insert(connection, schema.ICM_SENDS, rows.sends)
        bulk.insert(connection, schema.ICM_RECEIVES, rows.receives)
        bulk.insert(connection, schema.ICM_CHANGES, rows.changes)
        bulk.insert(connection, schema.WARP_SENDS, rows.warp_sends)
        return rows

    def received(self, after: int, limit: int) -> ReceivedBatch | None:
        """Return what this chain received behind a key; None without blocks."""
        with self._session.reading() as connection:
            return read_received(connection, after, limit)

    def cursors(self) -> Mapping[ChainID, tuple[int, int]]:
        """Return epoch and key up to which each destination was read."""
        text = "SELECT i.id, c.epoch, c.position FROM icm_cursors c JOIN ids i ON i.key = c.destination"
        with self._session.reading() as connection:
            return {ChainID(bytes(raw)): (epoch, key) for raw, epoch, key in connection.fetch(text)}

    def deliver(self, batches: Sequence[ReceivedBatch]) -> None:
        """Write what destinations received of this chain, and up to where they were read.

        It may be repeated.
        """
        with self._session.transaction() as connection:
            self._session.load_ids(connection, {batch.destination for batch in batches})
            keys = self._session.keys
            for batch in batches:
                _deliver(connection, keys[batch.destination], batch.rows)
            cursors = [
                (keys[batch.destination], batch.epoch, batch.upto, batch.time) for batch in batches
            ]
            bulk.upsert(connection, schema.ICM_CURSORS, cursors)

    def keep_destinations(self, configured: Set[ChainID]) -> None:
        """Delete what other destinations received."""
        gone = self.cursors().keys() - configured
        with self._session.transaction() as connection:
            for _, key in bulk.fetch_by_id(
                connection, "SELECT id, key FROM ids WHERE prefix IN {keys}", gone
            ):
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
    ) -> _Batch:
        """Return the events that count, in their order.

        Those of other contracts are counted as unknown logs.
        """
        assert self._options is not None
        header = b"\0\0" + self._options.network_id.to_bytes(4) + chain.chain_id
        registries = {*REGISTRIES, *self._options.registries}
        batch, nonces = _Batch(), self._nonces
        ids = batch.ids
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
                    prefix = (
                        0
                        if event.kind is PayloadKind.TELEPORTER
                        else prefix_of(sha256(event.message).digest())
                    )
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
                        (batch.failures if event.kind is ChangeKind.EXECUTED else batch.sends).add(
                            prefix
                        )
                    else:
                        ids.update(ids_of(event))
                    if isinstance(event, IcmSend):
                        # Nonces rise, so that few sends can be those of an earlier message.
                        if event.message.nonce <= nonces[messenger]:
                            batch.sends.add(prefix)
                        else:
                            nonces[messenger] = event.message.nonce
                            batch.raised.add(messenger)
                batch.events.append((key, prefix, block.tx_fees[event.tx_index], event))
        return batch

    def _rows(self, connection: Connection, batch: _Batch) -> IcmRows:
        """Write ids, failures and nonces, and return the rows of events whose addresses are loaded."""
        assert self._options is not None
        keys, rows, is_indexed = (
            self._session.keys,
            IcmRows([], [], [], [], {}, set()),
            self._options.is_indexed,
        )
        sends = {
            (row.prefix, row.messenger): row.message for row in _find_sends(connection, batch.sends)
        }
        failed = bulk.fetch_by_keys(connection, _FAILED, batch.failures)
        failures = {(prefix, messenger): receive for prefix, receive, messenger in failed}
        ids: list[tuple[int, int]] = []
        new_failures: set[tuple[int, int]] = set()
        gone: set[tuple[int, int]] = set()
        for key, prefix, fee, event in batch.events:
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
                if (message := sends.get(name)) is not None:
                    rows.changes.append(
                        IcmChangeRow(key, ChangeKind.RESENT, message, tx_index, 0, b"")
                    )
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
                gone.add((prefix, receive))
            else:
                message = sends.get((prefix, keys[event.messenger]))
                if message is None:
                    # Messages from before the index are not known.
                    continue
                account, amount = keys[event.account], pack(event.amount)
                rows.changes.append(
                    IcmChangeRow(key, event.kind, message, tx_index, account, amount)
                )
            rows.txs.add(tx_key_of(key, tx_index))
        bulk.insert(connection, schema.ICM_FAILURES, sorted(new_failures - gone))
        bulk.delete_pairs(connection, schema.ICM_FAILURES, sorted(gone - new_failures))
        self._ids.put(connection, sorted(ids))
        for raw in batch.raised:
            text = "UPDATE icm_messengers SET nonce = ? WHERE messenger = ?"
            connection.run(text, self._nonces[raw], keys[raw])
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
        is_open = IcmState.OPEN.value
        bulk.insert(connection, schema.ICM_OPEN, [(*route, is_open) for route in routes])
        bulk.insert(
            connection,
            schema.ICM_ARRIVALS,
            sorted((receive.source, receive.key) for receive in rows.receives),
        )
        bulk.insert(
            connection,
            schema.ICM_MESSAGE_CHANGES,
            sorted((change.message, change.key) for change in rows.changes),
        )
        addresses = {
            (address, send.key) for send in rows.sends for address in (send.sender, send.recipient)
        }
        for receive in rows.receives:
            if receive.body is not None:
                addresses.update(((receive.sender, receive.key), (receive.recipient, receive.key)))
        self._addresses.put(connection, sorted(addresses))
        receipts = [change.message for change in rows.changes if change.kind == ChangeKind.RECEIPT]
        if receipts:
            bulk.run(connection, _SET_RECEIPT, receipts)
        text = (
            "SELECT prefix, destination, receive, outcome FROM icm_unmatched WHERE prefix IN {keys}"
        )
        waiting = [
            row
            for row in bulk.fetch_by_keys(connection, text, rows.new)
            if rows.new[row[0]].destination == row[1]
        ]
        bulk.delete_pairs(connection, schema.ICM_UNMATCHED, [row[:2] for row in waiting])
        _write_deliveries(connection, [(rows.new[prefix].key, *row) for prefix, *row in waiting])


def read_icm_rows(connection: Connection, bounds: tuple[int, int]) -> IcmRows:
    """Return the stored rows between two keys from which others are derived."""
    text = "SELECT * FROM {} WHERE key >= ? AND key < ? ORDER BY key"
    sends = map(IcmSendRow._make, connection.fetch(text.format("icm_sends"), *bounds))
    receives = map(IcmReceiveRow._make, connection.fetch(text.format("icm_receives"), *bounds))
    changes = map(IcmChangeRow._make, connection.fetch(text.format("icm_changes"), *bounds))
    return IcmRows(list(sends), list(receives), list(changes))


def read_received(connection: Connection, after: int, limit: int) -> ReceivedBatch | None:
    """Return what a chain received behind a key; None without blocks.

    limit: of rows, at least 1.
    """
    chain = connection.records("SELECT chain_id, epoch, height, time, hash FROM chain")
    if not chain or not chain[0].hash:
        return None
    upto = block_key(chain[0].height + 1) - 1
    events: list[Any] = []
    for text in (_RECEIVES, _RETRIES):
        rows = connection.fetch(text, after, limit)
        events += rows
        if len(rows) == limit:
            upto = min(upto, rows[-1][0])
    delivered = [
        DeliveredRow(row[0], ChainID(bytes(row[1])), *row[2:]) for row in events if row[0] <= upto
    ]
    return ReceivedBatch(
        ChainID(bytes(chain[0].chain_id)), chain[0].epoch, upto, chain[0].time, sorted(delivered)
    )


def _deliver(connection: Connection, destination: int, rows: Sequence[DeliveredRow]) -> None:
    """Write what a destination received of this chain, or have it wait for its message."""
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
    for table in ("recent", "older"):
        yield from map(
            _StoredSend._make, bulk.fetch_by_keys(connection, _SENT.format(table), prefixes)
        )


def ids_of(event: IcmSend | IcmReceive) -> tuple[bytes, ...]:
    """Return the addresses and blockchains of which the row of a message has the keys."""
    message = event.message
    parties = event.messenger, message.sender, message.recipient
    if isinstance(event, IcmSend):
        return *parties, message.destination, event.fee_asset, event.warp_sender or event.messenger
    return *parties, event.source, event.deliverer, event.redeemer


def send_row(key: int, event: IcmSend, keys: Mapping[bytes, int], fee: int) -> IcmSendRow:
    """Return the row of a sent message.

    keys: of its addresses and its destination.
    fee: of the transaction.
    """
    message = event.message
    warp_sender = keys[event.warp_sender] if event.warp_sender else 0
    return IcmSendRow(
        key, event.tx_index, keys[event.messenger], keys[message.destination], message.nonce, keys[message.sender],
        keys[message.recipient], pack(message.gas_limit), keys[event.fee_asset], pack(event.fee), pack(fee),
        None if warp_sender and message.origin is None else warp_sender, message.tail or None, message.body,
    )  # fmt: skip


def receive_row(
    key: int, event: IcmReceive, keys: Mapping[bytes, int], fee: int, *, has_content: bool
) -> IcmReceiveRow:
    """Return the row of a received message.

    has_content: its source is not indexed. For the others see `send_row`.
    """
    message = event.message
    content: tuple[bytes | None, bytes | None, bytes | None] = (None, None, None)
    if has_content:
        content = pack(message.gas_limit), message.tail or None, message.body
    return IcmReceiveRow(
        key, event.tx_index, prefix_of(event.message_id), keys[event.messenger], keys[event.source], message.nonce,
        keys[message.sender], keys[message.recipient], keys[event.deliverer], keys[event.redeemer],
        event.outcome.value, pack(fee), *content, event.inner_events,
    )  # fmt: skip
