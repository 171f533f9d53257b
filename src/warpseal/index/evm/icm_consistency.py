"""Checks of the messages of ICM: ids, derived rows and deliveries are computed again from the facts.

Messages are drawn at random, to be compared with what their messengers say.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import zip_longest
from random import Random
from typing import Final

from eth_hash.auto import keccak
from msgspec import Struct
from sqlalchemy import Connection

from warpseal.chains.evm.icm_events import ChangeKind, MessageFields, PayloadKind, encode_message, message_id
from warpseal.index import bulk
from warpseal.index.consistency import Inconsistency
from warpseal.index.evm.keys import unpack
from warpseal.index.evm.resources import read_addresses
from warpseal.index.evm.rows import IcmReceiveRow, IcmSendRow
from warpseal.index.keys import prefix_of
from warpseal.index.read_session import ReadSession
from warpseal.warp.ids import ChainID

_HAS_RECEIPT: Final = (
    "EXISTS (SELECT 1 FROM icm_message_changes m JOIN icm_changes c ON c.key = m.change"
    " WHERE m.message = s.key AND c.kind = 3)"
)
_HAS_RETRY: Final = (
    "EXISTS (SELECT 1 FROM icm_message_changes m JOIN icm_changes c ON c.key = m.change"
    " WHERE m.message = r.key AND c.kind = 4)"
)
_CHANGES: Final = (
    "SELECT c.kind, c.amount FROM icm_message_changes m JOIN icm_changes c ON c.key = m.change"
    " WHERE m.message = ? ORDER BY c.key"
)
# What each derived table must have, and what it has.
_EQUAL: Final = {
    "routes of messages": (
        "SELECT destination, key FROM icm_sends",
        "SELECT destination, send FROM icm_routes",
    ),
    "arrivals of messages": (
        "SELECT source, key FROM icm_receives",
        "SELECT source, receive FROM icm_arrivals",
    ),
    "addresses of messages": (
        "SELECT sender, key FROM icm_sends UNION SELECT recipient, key FROM icm_sends"
        " UNION SELECT sender, key FROM icm_receives WHERE body IS NOT NULL"
        " UNION SELECT recipient, key FROM icm_receives WHERE body IS NOT NULL",
        "SELECT address, message FROM icm_addresses",
    ),
    "changes of messages": (
        "SELECT message, key FROM icm_changes",
        "SELECT message, change FROM icm_message_changes",
    ),
    "failures of messages": (
        f"SELECT r.prefix, r.key FROM icm_receives r WHERE r.outcome = 2 AND NOT {_HAS_RETRY}",
        "SELECT prefix, receive FROM icm_failures",
    ),
    "open messages": (
        f"SELECT s.destination, s.key, CASE WHEN d.outcome = 2 THEN 2 WHEN {_HAS_RECEIPT} THEN 1 ELSE 0 END"
        " FROM icm_sends s LEFT JOIN icm_deliveries d ON d.send = s.key WHERE d.send IS NULL OR d.outcome = 2",
        "SELECT destination, send, state FROM icm_open",
    ),
}
_NONE: Final = {
    "deliveries of another message": (
        "icm_deliveries d WHERE NOT EXISTS"
        " (SELECT 1 FROM icm_sends s WHERE s.key = d.send AND s.destination = d.destination)"
    ),
    "deliveries that wait for a message that is there": (
        "icm_unmatched u JOIN icm_ids i ON i.prefix = u.prefix JOIN icm_sends s ON s.key = i.message"
        " WHERE s.destination = u.destination"
    ),
    **{
        f"rows of {table} without their transaction": (
            f"{table} r WHERE NOT EXISTS (SELECT 1 FROM txs t WHERE t.key = r.key / 1048576 * 1048576 + r.tx_index)"
        )
        for table in ("icm_sends", "icm_receives", "icm_changes", "warp_sends")
    },
    "changes of no message": (
        "icm_changes c WHERE NOT EXISTS (SELECT 1 FROM icm_sends s WHERE s.key = c.message)"
        " AND NOT EXISTS (SELECT 1 FROM icm_receives r WHERE r.key = c.message)"
    ),
}
# The chain that is its own index is the source of its sends, and the destination of its receives.
_MESSAGES: Final = (
    "SELECT s.key, m.id, o.id, s.nonce, 1 AS is_send, NULL AS prefix, 1 AS has_id FROM icm_sends s"
    " JOIN ids m ON m.key = s.messenger JOIN ids o ON o.key = s.destination UNION ALL"
    " SELECT r.key, m.id, o.id, r.nonce, 0, r.prefix, CASE WHEN r.body IS NULL THEN 0 ELSE 1 END FROM icm_receives r"
    " JOIN ids m ON m.key = r.messenger JOIN ids o ON o.key = r.source UNION ALL"
    f" SELECT w.key, w.message, NULL, 0, 2, NULL, 1 FROM warp_sends w WHERE w.kind <> {PayloadKind.TELEPORTER}"
    " ORDER BY 1"
)


def find_icm_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Compare rows that must agree and yield the differences. It reads every row of messages."""
    yield from _check_ids(connection)
    for subject, (expected, rows) in _EQUAL.items():
        text = (
            f"SELECT count(*) FROM (SELECT * FROM ({expected} EXCEPT {rows}) a UNION ALL"
            f" SELECT * FROM ({rows} EXCEPT SELECT * FROM ({expected}) e) b) c"
        )
        ((count,),) = bulk.fetch(connection, text)
        if count:
            yield Inconsistency(subject, f"{count} rows are missing, or of no message")
    for subject, rows in _NONE.items():
        ((count,),) = bulk.fetch(connection, f"SELECT count(*) FROM {rows}")
        if count:
            yield Inconsistency(subject, f"{count} rows")


def _check_ids(connection: Connection) -> Iterator[Inconsistency]:
    """Compute the id of each message, and compare it with the rows by which messages are found."""
    ids = bulk.stream(connection, "SELECT message, prefix FROM icm_ids ORDER BY message")
    expected = _expected_ids(connection, _chain_id(connection))
    for row, entry in zip_longest(expected, ids):
        if row is None or entry is None or row != tuple(entry):
            yield Inconsistency("ids of messages", f"the message {(row or entry)[0]} is not found by its id")
            return


def _expected_ids(connection: Connection, chain: ChainID) -> Iterator[tuple[int, int]]:
    """Yield key and prefix of the messages that are found by id. A receive whose prefix is wrong has another one."""
    for key, raw, other, nonce, is_send, stored, has_id in bulk.stream(connection, _MESSAGES):
        if is_send == 2:
            yield key, prefix_of(sha256(bytes(raw)).digest())
            continue
        source, destination = (chain, ChainID(bytes(other))) if is_send else (ChainID(bytes(other)), chain)
        prefix = prefix_of(message_id(bytes(raw), source, destination, nonce))
        if has_id or stored != prefix:
            yield key, prefix


class SampledSend(Struct, frozen=True):
    """A sent message. message_hash: None of version 2. has_receipt: its messenger has deleted hash and fee."""

    messenger: bytes
    message_id: bytes
    message_hash: bytes | None
    asset: bytes
    fee: int
    has_receipt: bool


class SampledReceive(Struct, frozen=True):
    """A received message. received: the number of messages that its messenger received of its source; None: unknown."""

    messenger: bytes
    message_id: bytes
    source: ChainID
    redeemer: bytes
    received: int | None


def sample_messages(connection: Connection, count: int, random: Random) -> tuple[set[int], set[int]]:
    """Draw at most `count` keys, half of sends and half of receives."""
    drawn = []
    for table in ("icm_sends", "icm_receives"):
        ((low, high),) = bulk.fetch(connection, f"SELECT min(key), max(key) FROM {table}")
        text = f"SELECT key FROM {table} WHERE key >= ? ORDER BY key LIMIT 1"
        places = [] if low is None else [random.randint(low, high) for _ in range(count // 2)]
        drawn.append({bulk.fetch(connection, text, place)[0][0] for place in places})
    return drawn[0], drawn[1]


def read_send(connection: Connection, key: int) -> SampledSend:
    """Return a send as it is now."""
    (row,) = map(IcmSendRow._make, bulk.fetch(connection, "SELECT * FROM icm_sends WHERE key = ?", key))
    changes = bulk.fetch(connection, _CHANGES, key)
    fees = [change.amount for change in changes if change.kind == ChangeKind.FEE]
    parties = {row.messenger, row.destination, row.sender, row.recipient, row.fee_asset}
    ids = read_addresses(ReadSession(connection), parties)
    destination, messenger = ChainID(ids[row.destination]), ids[row.messenger]
    message_hash = None
    if row.warp_sender is None:
        fields = MessageFields(
            row.nonce,
            ids[row.sender],
            None,
            destination,
            ids[row.recipient],
            unpack(bytes(row.gas_limit)),
            b"" if row.tail is None else bytes(row.tail),
            bytes(row.body),
        )
        message_hash = keccak((32).to_bytes(32) + encode_message(fields))
    return SampledSend(
        messenger,
        message_id(messenger, _chain_id(connection), destination, row.nonce),
        message_hash,
        ids[row.fee_asset],
        unpack(bytes(fees[-1] if fees else row.fee)),
        any(change.kind == ChangeKind.RECEIPT for change in changes),
    )


def read_receive(connection: Connection, key: int) -> SampledReceive:
    """Return a receive as it is now."""
    (row,) = map(IcmReceiveRow._make, bulk.fetch(connection, "SELECT * FROM icm_receives WHERE key = ?", key))
    ids = read_addresses(ReadSession(connection), {row.messenger, row.source, row.redeemer})
    # Of a messenger that counts from the first block of the chain on.
    text = (
        "SELECT count(*) FROM icm_receives WHERE source = ? AND messenger = (SELECT m.messenger FROM icm_messengers m,"
        " chain c WHERE m.messenger = ? AND m.first = 0 AND c.icm_first = 0)"
    )
    ((count,),) = bulk.fetch(connection, text, row.source, row.messenger)
    source, messenger = ChainID(ids[row.source]), ids[row.messenger]
    id_ = message_id(messenger, source, _chain_id(connection), row.nonce)
    return SampledReceive(messenger, id_, source, ids[row.redeemer], count or None)


def _chain_id(connection: Connection) -> ChainID:
    ((raw,),) = bulk.fetch(connection, "SELECT chain_id FROM chain")
    return ChainID(bytes(raw))
