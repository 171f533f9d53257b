"""What waits in memory: in order, bounded, and what may be lost is given up first."""

from __future__ import annotations

import threading
import time

from tests.store.world import message, share, signature
from warpseal.store.write_queue import AddShares, AddSignature, RejectShare, ShareUpdate, WriteQueue

SOON = 0.05
FOR_EVER = 3600.0


def waiting(max_bytes: int = 10**9, gather_s: float = 0.0) -> WriteQueue:
    return WriteQueue(max_bytes, gather_s)


def shares(number: int, *keys: int) -> AddShares:
    return AddShares(message(number), tuple(map(share, keys or (1, 2))))


def keep_signature(number: int, done: list[int] | None = None) -> AddSignature:
    told = done if done is not None else []
    return AddSignature(message(number), signature(number), lambda: told.append(number))


def later() -> float:
    return time.monotonic() + 20


def test_edits_come_in_the_order_in_which_they_were_told() -> None:
    one = waiting()
    edits: list[ShareUpdate] = [
        shares(1),
        RejectShare(message(1).id, share(1).public_key, share(1).signature),
        shares(1),
    ]
    for edit in edits:
        one.edit(edit)
    assert one.take(later()).edits == edits
    assert one.writes == one.size_bytes == 0


def test_a_signature_goes_at_once_and_leaves_what_may_gather() -> None:
    one = waiting(gather_s=FOR_EVER)
    one.edit(shares(1))
    one.use(message(2).id)
    one.keep_for_ever(message(3))
    one.sign(keep_signature(4))
    batch = one.take(later())
    assert (len(batch.signatures), batch.edits, batch.used, list(batch.for_ever)) == (1, [], set(), [message(3).id])
    one.stop()
    rest = one.take(later())
    assert (rest.edits, rest.used) == ([shares(1)], {message(2).id})


def test_nothing_is_handed_over_when_the_time_is_over() -> None:
    one = waiting(gather_s=FOR_EVER)
    one.edit(shares(1))
    assert one.take(time.monotonic() + SOON).writes == 0
    assert one.writes == 1


def test_who_waits_is_woken_by_a_signature() -> None:
    one = waiting(gather_s=FOR_EVER)
    threading.Timer(SOON, lambda: one.sign(keep_signature(1))).start()
    assert len(one.take(later()).signatures) == 1


def test_what_is_put_back_comes_before_everything_newer() -> None:
    one = waiting()
    one.edit(shares(1))
    one.sign(keep_signature(1))
    failed = one.take(later())
    one.edit(shares(2))
    one.sign(keep_signature(2))
    one.put_back(failed)
    batch = one.take(later())
    assert batch.edits == [shares(1), shares(2)]
    assert [keep.message for keep in batch.signatures] == [message(1), message(2)]


def test_beyond_the_bound_the_oldest_shares_that_may_go_are_given_up_and_counted() -> None:
    one = waiting(max_bytes=20_000)
    one.keep_for_ever(message(1))
    one.edit(shares(1))
    for number in range(2, 200):
        one.edit(shares(number))
        assert one.size_bytes <= 20_000
    batch = one.take(later())
    assert batch.edits[0] == shares(1)
    assert batch.edits[-1] == shares(199)
    assert one.dropped == 199 - len(batch.edits)


def test_what_is_durable_may_take_more_room_but_not_any_amount() -> None:
    one = waiting(max_bytes=20_000)
    done: list[int] = []
    for number in range(1000):
        one.sign(keep_signature(number, done))
    batch = one.take(later())
    assert 20_000 < batch.size_bytes <= 80_000
    assert one.dropped == len(done) == 1000 - len(batch.signatures)


def test_a_piece_of_a_batch_is_one_entry_and_all_pieces_are_the_batch() -> None:
    one = waiting()
    one.edit(shares(1))
    one.sign(keep_signature(2))
    one.keep_for_ever(message(3))
    batch = one.take(later())
    pieces = batch.pieces()
    assert [piece.writes for piece in pieces] == [1, 1, 1]
    size_bytes = batch.size_bytes
    batch.clear()
    for piece in pieces:
        batch.extend(piece)
    assert (batch.writes, batch.size_bytes) == (3, size_bytes)


def test_what_hangs_on_a_signed_message_is_counted_later_and_is_no_write() -> None:
    one = waiting(gather_s=FOR_EVER)
    one.sign(keep_signature(1))
    batch = one.take(later())
    assert batch.is_signed_only
    one.settle_later(batch.signed_ids)
    assert (one.writes, one.is_empty) == (0, False)
    one.stop()
    assert one.take(later()).unsettled == {message(1).id}
    assert one.is_empty
