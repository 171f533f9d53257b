"""Writes wait in memory in order and bounded, and evictable ones are dropped first."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from tests.eventually import TIMEOUT_S
from tests.store.fixtures import message, share, signature
from warpseal.store.write_queue import (
    AddShares,
    AddSignature,
    JudgeShare,
    ShareUpdate,
    WriteCall,
    WriteQueue,
)

SOON = 0.05
AN_HOUR_S = 3600.0


def queue_of(max_bytes: int = 10**9, gather_s: float = 0.0) -> WriteQueue:
    return WriteQueue(max_bytes, gather_s)


def shares(number: int, *keys: int) -> AddShares:
    return AddShares(message(number), tuple(map(share, keys or (1, 2))))


def new_signature(number: int, done: list[int] | None = None) -> AddSignature:
    numbers = done if done is not None else []
    return AddSignature(message(number), signature(number), lambda: numbers.append(number))


def later() -> float:
    return time.monotonic() + TIMEOUT_S


def test_updates_are_taken_in_the_order_in_which_they_were_added() -> None:
    queue = queue_of()
    updates: list[ShareUpdate] = [
        shares(1),
        JudgeShare(message(1).id, share(1).public_key, share(1).signature, is_valid=False),
        shares(1),
    ]
    for update in updates:
        queue.update_shares(update)
    assert queue.take(later()).updates == updates
    assert queue.writes == queue.size_bytes == 0


def test_a_signature_is_due_at_once_and_gathering_entries_stay() -> None:
    queue = queue_of(gather_s=AN_HOUR_S)
    queue.update_shares(shares(1))
    queue.mark_used(message(2).id)
    queue.pin(message(3))
    queue.add_signature(new_signature(4))
    batch = queue.take(later())
    assert (len(batch.signatures), batch.updates, batch.used, list(batch.pinned)) == (
        1,
        [],
        set(),
        [message(3).id],
    )
    queue.stop()
    rest = queue.take(later())
    assert (rest.updates, rest.used) == ([shares(1)], {message(2).id})


def test_an_empty_batch_is_taken_at_the_end_of_the_wait() -> None:
    queue = queue_of(gather_s=AN_HOUR_S)
    queue.update_shares(shares(1))
    assert queue.take(time.monotonic() + SOON).writes == 0
    assert queue.writes == 1


def test_a_signature_ends_the_wait() -> None:
    queue = queue_of(gather_s=AN_HOUR_S)
    threading.Timer(SOON, lambda: queue.add_signature(new_signature(1))).start()
    assert len(queue.take(later()).signatures) == 1


def test_a_signature_waits_for_one_call_at_most() -> None:
    queue = queue_of()
    calls = [WriteCall(lambda connection: connection, Future()) for _ in range(3)]
    for call in calls:
        queue.add_call(call)
    assert queue.take(later()).calls == calls[:1]
    queue.add_signature(new_signature(1))
    batch = queue.take(later())
    assert (len(batch.signatures), batch.calls) == (1, calls[1:2])
    assert queue.take(later()).calls == calls[2:]
    assert queue.is_empty


def test_entries_that_were_put_back_come_before_newer_ones() -> None:
    queue = queue_of()
    queue.update_shares(shares(1))
    queue.add_signature(new_signature(1))
    failed = queue.take(later())
    queue.update_shares(shares(2))
    queue.add_signature(new_signature(2))
    queue.put_back(failed)
    batch = queue.take(later())
    assert batch.updates == [shares(1), shares(2)]
    assert [added.message for added in batch.signatures] == [message(1), message(2)]


def test_beyond_the_bound_the_oldest_evictable_shares_are_dropped_and_counted() -> None:
    queue = queue_of(max_bytes=20_000)
    queue.pin(message(1))
    queue.update_shares(shares(1))
    for number in range(2, 200):
        queue.update_shares(shares(number))
        assert queue.size_bytes <= 20_000
    batch = queue.take(later())
    assert batch.updates[0] == shares(1)
    assert batch.updates[-1] == shares(199)
    assert queue.dropped == 199 - len(batch.updates)


def test_durable_entries_have_a_larger_bound() -> None:
    queue = queue_of(max_bytes=20_000)
    done: list[int] = []
    for number in range(1000):
        queue.add_signature(new_signature(number, done))
    batch = queue.take(later())
    assert 20_000 < batch.size_bytes <= 80_000
    assert queue.dropped == len(done) == 1000 - len(batch.signatures)


def test_a_batch_is_split_into_its_entries() -> None:
    queue = queue_of()
    queue.update_shares(shares(1))
    queue.add_signature(new_signature(2))
    queue.pin(message(3))
    batch = queue.take(later())
    pieces = batch.split()
    assert [piece.writes for piece in pieces] == [1, 1, 1]
    size_bytes = batch.size_bytes
    batch.clear()
    for piece in pieces:
        batch.extend(piece)
    assert (batch.writes, batch.size_bytes) == (3, size_bytes)


def test_counting_the_rows_of_a_signed_message_is_no_write() -> None:
    queue = queue_of(gather_s=AN_HOUR_S)
    queue.add_signature(new_signature(1))
    batch = queue.take(later())
    assert batch.is_signed_only
    queue.recount_later(batch.signed_ids)
    assert (queue.writes, queue.is_empty) == (0, False)
    queue.stop()
    assert queue.take(later()).to_recount == {message(1).id}
    assert queue.is_empty
