"""Checks of ICM messages: ids, failures, deliveries and open messages against the facts.

Messages are drawn at random, to be compared with what their messengers say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from itertools import zip_longest
from random import Random
from typing import Final, NamedTuple

from warpseal.chains.evm.blocks import HASH_BYTES
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.chains.evm.icm_events import (
    NO_ACCOUNT,
    ChangeKind,
    IcmReceive,
    IcmSend,
    PayloadKind,
    message_id,
)
from warpseal.chains.keccak import keccak
from warpseal.index.consistency import Inconsistency
from warpseal.index.evm.icm_queries import icm_messages
from warpseal.index.evm.icm_writer import ids_of, read_icm_rows, receive_row, send_row
from warpseal.index.evm.keys import block_key, unpack
from warpseal.index.evm.records import ReceivedMessage
from warpseal.index.evm.rows import IcmReceiveRow, IcmSendRow
from warpseal.index.keys import prefix_of
from warpseal.index.read_session import ReadSession
from warpseal.store.connection import Connection
from warpseal.warp.ids import ChainID

_HAS_CHANGE: Final = (
    "EXISTS (SELECT 1 FROM icm_message_changes m JOIN icm_changes c ON c.key = m.change"
    " WHERE m.message = {}.key AND c.kind = {:d})"
)
_HAS_RECEIPT: Final = _HAS_CHANGE.format("s", ChangeKind.RECEIPT)
_HAS_RETRY: Final = _HAS_CHANGE.format("r", ChangeKind.EXECUTED)
_MAX_WORD: Final = 2 ** (8 * HASH_BYTES) - 1
# The newest fee: `SentMessage` has only that of the last changes.
_FEE: Final = (
    "SELECT coalesce("
    "(SELECT c.amount"
    " FROM icm_message_changes m"
    " JOIN icm_changes c ON c.key = m.change"
    f" WHERE m.message = s.key AND c.kind = {ChangeKind.FEE}"
    " ORDER BY c.key DESC"
    " LIMIT 1), s.fee)"
    " FROM icm_sends s"
    " WHERE s.key = ?"
)
# What tables must have that are not compared with rows derived again, and what they have.
_EQUAL: Final = {
    "failures of messages": (
        f"SELECT r.prefix, r.key FROM icm_receives r WHERE r.outcome = 2 AND NOT {_HAS_RETRY}",
        "SELECT prefix, receive FROM icm_failures",
    ),
    "open messages": (
        "SELECT s.destination, s.key,"
        f" CASE WHEN d.outcome = 2 THEN 2 WHEN {_HAS_RECEIPT} THEN 1 ELSE 0 END"
        " FROM icm_sends s"
        " LEFT JOIN icm_deliveries d ON d.send = s.key"
        " WHERE d.send IS NULL OR d.outcome = 2",
        "SELECT destination, send, state FROM icm_open",
    ),
}
_NONE: Final = {
    "deliveries of another message": (
        "icm_deliveries d"
        " WHERE NOT EXISTS"
        " (SELECT 1 FROM icm_sends s WHERE s.key = d.send AND s.destination = d.destination)"
    ),
    "deliveries that wait for a message that is there": (
        "icm_unmatched u"
        " JOIN icm_ids i ON i.prefix = u.prefix"
        " JOIN icm_sends s ON s.key = i.message"
        " WHERE s.destination = u.destination"
    ),
    **{
        f"rows of {table} without their transaction": (
            f"{table} r"
            " WHERE NOT EXISTS"
            " (SELECT 1 FROM txs t WHERE t.key = r.key / 1048576 * 1048576 + r.tx_index)"
        )
        for table in ("icm_sends", "icm_receives", "icm_changes", "warp_sends")
    },
    "changes of no message": (
        "icm_changes c"
        " WHERE NOT EXISTS (SELECT 1 FROM icm_sends s WHERE s.key = c.message)"
        " AND NOT EXISTS (SELECT 1 FROM icm_receives r WHERE r.key = c.message)"
    ),
}
# The chain that is its own index is the source of its sends, and the destination of its receives.
_MESSAGES: Final = (
    "SELECT s.key, m.id, o.id, s.nonce, 1 AS is_send, NULL AS prefix, 1 AS has_id"
    " FROM icm_sends s"
    " JOIN ids m ON m.key = s.messenger"
    " JOIN ids o ON o.key = s.destination"
    " UNION ALL"
    " SELECT r.key, m.id, o.id, r.nonce, 0, r.prefix,"
    " CASE WHEN r.body IS NULL THEN 0 ELSE 1 END"
    " FROM icm_receives r"
    " JOIN ids m ON m.key = r.messenger"
    " JOIN ids o ON o.key = r.source"
    " UNION ALL"
    " SELECT w.key, w.message, NULL, 0, 2, NULL, 1"
    " FROM warp_sends w"
    f" WHERE w.kind <> {PayloadKind.TELEPORTER}"
    " ORDER BY 1"
)


def find_icm_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Compare rows that must agree and yield the differences. It reads every row of messages."""
    yield from _check_ids(connection)
    for subject, (expected, rows) in _EQUAL.items():
        text = (
            "SELECT count(*)"
            f" FROM (SELECT * FROM ({expected} EXCEPT {rows}) a"
            f" UNION ALL SELECT * FROM ({rows} EXCEPT SELECT * FROM ({expected}) e) b) c"
        )
        ((count,),) = connection.fetch(text)
        if count:
            yield Inconsistency(subject, f"{count} rows are missing, or of no message")
    for subject, rows in _NONE.items():
        ((count,),) = connection.fetch(f"SELECT count(*) FROM {rows}")
        if count:
            yield Inconsistency(subject, f"{count} rows")


def _check_ids(connection: Connection) -> Iterator[Inconsistency]:
    """Compute the id of each message, and compare it with the rows by which messages are found."""
    ids = connection.stream("SELECT message, prefix FROM icm_ids ORDER BY message")
    ((chain,),) = connection.fetch("SELECT chain_id FROM chain")
    expected = _expected_ids(connection, ChainID(bytes(chain)))
    for row, entry in zip_longest(expected, ids):
        if row is None or entry is None or row != tuple(entry):
            yield Inconsistency(
                "ids of messages", f"the message {(row or entry)[0]} is not found by its id"
            )
            return


def _expected_ids(connection: Connection, chain: ChainID) -> Iterator[tuple[int, int]]:
    """Yield key and prefix of the messages that are found by id.

    A receive whose prefix is wrong has another one.
    """
    for key, raw, other, nonce, is_send, stored, has_id in connection.stream(_MESSAGES):
        if is_send == 2:
            yield key, prefix_of(sha256(bytes(raw)).digest())
            continue
        source, destination = ChainID(bytes(other)), chain
        if is_send:
            source, destination = destination, source
        prefix = prefix_of(message_id(bytes(raw), source, destination, nonce))
        if has_id or stored != prefix:
            yield key, prefix


class ExpectedResult(NamedTuple):
    """What a function of a messenger must return: a number of `size` bytes from `low` to `high`."""

    argument: bytes
    low: int
    high: int
    size: int = HASH_BYTES


class SampledMessage(NamedTuple):
    """A message, and what the functions of its messenger must return, by name."""

    messenger: bytes
    message_id: bytes
    results: dict[str, ExpectedResult]


def sample_messages(connection: Connection, count: int, random: Random) -> list[int]:
    """Draw at most `count` keys, half of sends and half of receives."""
    sample = set[int]()
    for table in ("icm_sends", "icm_receives"):
        ((low, high),) = connection.fetch(f"SELECT min(key), max(key) FROM {table}")
        text = f"SELECT key FROM {table} WHERE key >= ? ORDER BY key LIMIT 1"
        places = [] if low is None else [random.randint(low, high) for _ in range(count // 2)]
        sample.update(connection.fetch(text, place)[0][0] for place in places)
    return sorted(sample)


def read_message(connection: Connection, key: int) -> SampledMessage:
    """Return a message as it is now."""
    message = icm_messages(ReadSession(connection), [key])[key]
    id_ = message.message_id
    if isinstance(message, ReceivedMessage):
        # Of a messenger that counts from the first block of the chain on.
        text = (
            "SELECT count(*)"
            " FROM icm_receives r"
            " JOIN icm_receives o USING (source, messenger)"
            " JOIN icm_messengers m USING (messenger), chain c"
            " WHERE r.key = ? AND m.first = 0 AND c.icm_first = 0"
        )
        ((received,),) = connection.fetch(text, key)
        redeemer = int.from_bytes(message.redeemer)
        results = {
            "messageReceived": ExpectedResult(id_, 1, 1),
            "getRelayerRewardAddress": ExpectedResult(id_, redeemer, redeemer),
            # An event does not say whether a receipt was taken from the queue: its size has only a
            # bound.
            "getReceiptQueueSize": ExpectedResult(message.source, 0, received or _MAX_WORD),
        }
        return SampledMessage(message.messenger, id_, results)
    low, high, fee = 0, 0, 0
    if not message.has_receipt:
        ((reward,),) = connection.fetch(_FEE, key)
        fee = int.from_bytes(message.asset) << 8 * HASH_BYTES | unpack(bytes(reward))
        low, high = 1, _MAX_WORD
        if message.warp_sender and not message.is_v2 and (encoded := message.encode()) is not None:
            # Of version 2 only whether there is one.
            low = high = int.from_bytes(keccak(HASH_BYTES.to_bytes(HASH_BYTES) + encoded))
    results = {
        "getMessageHash": ExpectedResult(id_, low, high),
        "getFeeInfo": ExpectedResult(id_, fee, fee, 2 * HASH_BYTES),
    }
    return SampledMessage(message.messenger, id_, results)


def compare_messages(connection: Connection, block: EvmBlockFacts) -> str:
    """Return how the rows differ from the messages of a block; "" if they do not."""
    start, end = block_key(block.number), block_key(block.number + 1)
    ((first,),) = connection.fetch("SELECT icm_first FROM chain")
    if not 0 <= first <= block.number:
        return ""
    text = "SELECT i.id, m.first FROM icm_messengers m JOIN ids i ON i.key = m.messenger"
    firsts = {bytes(raw): key for raw, key in connection.fetch(text)}
    text = f"SELECT key FROM icm_changes WHERE key >= ? AND key < ? AND kind = {ChangeKind.RESENT}"
    resent = {key for (key,) in connection.fetch(text, start, end)}
    stored = read_icm_rows(connection, (start, end))
    stored_rows: list[IcmSendRow | IcmReceiveRow] = [*stored.sends, *stored.receives]
    rows = {row.key: row for row in stored_rows}
    events = {
        start | event.position: event
        for event in block.icm
        if isinstance(event, IcmSend | IcmReceive)
        and firsts.get(event.messenger, end) <= start | event.position
    }
    raw_ids = {raw for event in events.values() for raw in ids_of(event)}
    keys = defaultdict(lambda: -1, {**ReadSession(connection).keys_of(raw_ids), NO_ACCOUNT: 0})
    for key in sorted(rows.keys() | events.keys() - resent):
        row, event = rows.get(key), events.get(key)
        if row is None or event is None:
            return (
                f"message {key - start}: {'the node' if row is None else 'the index'} alone has it"
            )
        fee = block.tx_fees[event.tx_index]
        if isinstance(event, IcmSend):
            expected: IcmSendRow | IcmReceiveRow = send_row(key, event, keys, fee)
        else:
            expected = receive_row(key, event, keys, fee, has_content=row.body is not None)
            if isinstance(row, IcmReceiveRow) and row.inner_events is None:
                expected = expected._replace(inner_events=None)
        columns = expected._asdict()
        if other := [name for name, value in row._asdict().items() if value != columns.get(name)]:
            return f"message {key - start}: the index and the node have another {', '.join(other)}"
    return ""
