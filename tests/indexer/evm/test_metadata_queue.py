"""Documents that wait to be requested: the most urgent first, in turn by host and contract, and
never too many.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from warpseal.indexer.evm.document_queue import DocumentQueue, QueuedDocument

MAX_QUEUED = 12


def new_queue(per_host: int = 2, max_bytes: int = 10**6) -> DocumentQueue[str]:
    return DocumentQueue(2, MAX_QUEUED, max_bytes, max_per_contract=6, per_host=per_host)


def fetch(host: str, contract: str, job: str, size_bytes: int = 1) -> QueuedDocument[str]:
    return QueuedDocument(host, contract.encode(), size_bytes, job)


def take_all(queue: DocumentQueue[str]) -> list[str]:
    jobs = []
    while (document := queue.take()) is not None:
        jobs.append(document.job)
        queue.finish(document)
    return jobs


def test_hosts_take_turns_and_so_do_the_contracts_of_a_host() -> None:
    queue = new_queue()
    for host, contract, job in [
        ("a", "x", "1"),
        ("a", "x", "2"),
        ("a", "y", "3"),
        ("a", "x", "4"),
        ("b", "z", "5"),
    ]:
        assert list(queue.add(0, fetch(host, contract, job))) == []
    assert take_all(queue) == ["1", "5", "3", "2", "4"]


def test_the_more_urgent_level_goes_first() -> None:
    queue = new_queue()
    for level, job in [(1, "later"), (0, "sooner")]:
        assert list(queue.add(level, fetch("a", "x", job))) == []
    assert take_all(queue) == ["sooner", "later"]


def test_a_document_that_waits_can_be_moved_to_another_level() -> None:
    queue = new_queue()
    for contract, job in [("x", "1"), ("x", "2"), ("y", "3")]:
        assert list(queue.add(1, fetch("a", contract, job))) == []
    document = queue.remove(b"x", lambda job: job == "2")
    assert document is not None
    assert list(queue.add(0, document)) == []
    assert queue.remove(b"y", lambda job: job == "1") is None
    assert (queue.room(0), queue.room(1)) == (MAX_QUEUED - 1, MAX_QUEUED - 2)
    assert take_all(queue) == ["2", "1", "3"]
    assert queue.remove(b"x", lambda job: True) is None


def test_a_host_with_two_running_requests_is_passed_over() -> None:
    queue = new_queue()
    for job in ("1", "2", "3"):
        assert list(queue.add(0, fetch("slow", "x", job))) == []
    assert list(queue.add(1, fetch("fast", "y", "4"))) == []
    first, second, third = queue.take(), queue.take(), queue.take()
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.job, second.job, third.job, queue.take()) == ("1", "2", "4", None)
    queue.finish(second)
    assert take_all(queue) == ["3"]


def test_a_full_queue_loses_the_newest_documents_of_the_host_that_has_most() -> None:
    queue = new_queue()
    for number in range(MAX_QUEUED):
        assert list(queue.add(0, fetch("busy", f"x{number % 4}", f"busy{number}"))) == []
    assert queue.room(0) == 0
    assert queue.room(1) == MAX_QUEUED
    assert list(queue.add(0, fetch("other", "y", "other"))) == ["busy8"]
    assert take_all(queue)[:2] == ["busy0", "other"]


def test_a_contract_with_its_share_is_reported_until_its_documents_are_taken() -> None:
    queue = new_queue()
    for number in range(6):
        assert list(queue.add(0, fetch("a", "x", str(number)))) == []
    assert queue.crowded(0) == frozenset((b"x",))
    assert queue.crowded(1) == frozenset()
    assert queue.take() is not None
    assert queue.crowded(0) == frozenset()


def test_long_uris_fill_the_queue_as_well() -> None:
    queue = new_queue(max_bytes=100)
    assert list(queue.add(0, fetch("a", "x", "1", 60))) == []
    assert queue.room(0) == MAX_QUEUED - 1
    assert list(queue.add(0, fetch("b", "y", "2", 30))) == []
    assert list(queue.add(0, fetch("b", "y", "3", 30))) == ["3"]
    assert list(queue.add(1, fetch("c", "z", "4", 1_000))) == []
    assert queue.room(1) == 0


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "finish"]),
        st.integers(0, 1),
        st.sampled_from("abc"),
        st.sampled_from("xyz"),
    )
)


@given(OPERATIONS)
def test_every_document_is_taken_or_displaced_once(
    operations: list[tuple[str, int, str, str]],
) -> None:
    queue = new_queue()
    added: list[str] = []
    gone: list[str] = []
    running: list[QueuedDocument[str]] = []
    for operation, level, host, contract in operations * 3:
        if operation == "add":
            added.append(str(len(added)))
            gone += queue.add(level, fetch(host, contract, added[-1]))
        elif operation == "take" and (document := queue.take()) is not None:
            running.append(document)
            gone.append(document.job)
            assert max(Counter(fetch.host for fetch in running).values()) <= 2
        elif operation == "finish" and running:
            queue.finish(running.pop())
        assert queue.room(0) >= 0
    while running:
        queue.finish(running.pop())
    gone += take_all(queue)
    assert sorted(gone) == sorted(added)
    assert queue.room(0) == queue.room(1) == MAX_QUEUED
