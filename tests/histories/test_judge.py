"""The judge finds each contradiction of a history, and blames no right one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.histories.judge import judge, measure_blocks
from tests.histories.operations import (
    SERVER,
    BlockChange,
    ChainEvent,
    Cut,
    EventRead,
    Idle,
    KeyCreation,
    KeyRevocation,
    KeyUse,
    Leadership,
    Lifetime,
    Operation,
    Signing,
    SourceWrite,
    WebhookRequest,
    encode,
    read_history,
)


def read(number: int, at: float, event: str = "", **fields: str) -> EventRead:
    """Return a part of a stream that comes at a moment."""
    values = {"process": "a1", "reader": "r", **fields}
    return EventRead(begin=at, end=at, number=number, event=event, **values)


def sign(at: float, result: str = "signed", **fields: str) -> Signing:
    """Return a request that takes a tenth of a second."""
    values = {"process": "b1", "message": "m", **fields}
    return Signing(begin=at, end=at + 0.1, result=result, **values)


def lead(process: str, at: float, *, job: str = "p-chain", is_leader: bool = True) -> Leadership:
    """Return a statement of a process."""
    return Leadership(process=process, begin=at, end=at, job=job, is_leader=is_leader)


def have(place: int, at: float, event: str) -> ChainEvent:
    """Return an event that the chain has from a moment on."""
    return ChainEvent(process="driver", begin=at, end=at, place=place, event=event)


def add(before: int | None, position: int, at: float, process: str = "a1") -> SourceWrite:
    """Return events of the chain's index that a daemon adds."""
    return SourceWrite(
        process=process,
        begin=at,
        end=at + 0.1,
        source="c",
        before=before,
        position=position,
        is_added=True,
    )


def block(at: float, *, is_added: bool = True, is_acknowledged: bool = True) -> BlockChange:
    """Return a change of the block of `m` by the first daemon."""
    return BlockChange(
        process="a1",
        begin=at,
        end=at + 0.1,
        message="m",
        is_added=is_added,
        is_acknowledged=is_acknowledged,
    )


def send(*numbers: int, at: float, process: str = "a1", status: int = 200) -> Operation:
    """Return a request to the webhook."""
    return WebhookRequest(
        process=process,
        begin=at,
        end=at + 0.1,
        webhook="w",
        numbers=numbers,
        status=status,
    )


def use(at: float, result: str = "admitted", units: int = 1) -> KeyUse:
    """Return a request with the key `k`."""
    return KeyUse(process="b1", begin=at, end=at + 0.1, key="k", units=units, result=result)


def idle(process: str, begin: float, end: float) -> Idle:
    """Return a time in which a process did nothing."""
    return Idle(process=process, begin=begin, end=end)


def kill(process: str, begin: float, end: float) -> Lifetime:
    """Return the life of a process that was killed."""
    return Lifetime(process=process, begin=begin, end=end, signaled_at=end, was_killed=True)


KEY = KeyCreation(process="command", begin=0, end=0, key="k", units_per_minute=60)
DAY_KEY = KeyCreation(process="command", begin=0, end=0, key="k", units_per_day=60)
VALID_KEY = KeyCreation(process="command", begin=0, end=0, key="k")
UNKNOWN_KEY = KeyCreation(process="command", begin=0, end=0, key="k", is_stored=False)
REVOCATION = KeyRevocation(process="command", begin=10, end=10, key="k")
WRONG: dict[str, tuple[str, Sequence[Operation]]] = {
    "an event comes again": (
        "cursors never go back",
        [read(1, 0), read(2, 1, "x"), read(2, 2, "x")],
    ),
    "a heartbeat goes back": ("cursors never go back", [read(2, 1, "x"), read(1, 2)]),
    "an event is missing": ("no event is lost", [read(1, 0), read(3, 1, "y")]),
    "a heartbeat goes beyond an event": ("no event is lost", [read(1, 0), read(2, 1)]),
    "readers see another order": (
        "events have one order",
        [read(1, 0, "x"), read(1, 1, "y", reader="other")],
    ),
    "an event was added twice": (
        "each event is there once",
        [sign(0), read(1, 1, "x", message="m"), read(2, 1, "y", message="m")],
    ),
    "a signature that two requests get was added twice": (
        "each event is there once",
        [
            sign(0, signature="s"),
            sign(1, process="a1", signature="s"),
            read(1, 2, "x", message="m"),
            read(2, 2, "y", message="m"),
        ],
    ),
    "a message that is blocked has more events": (
        "each event is there once",
        [
            sign(0, signature="s"),
            sign(1, "signing_blocked"),
            sign(2, "signing_blocked"),
            read(1, 2, "x", message="m"),
            read(2, 2, "y", message="m"),
            read(3, 2, "z", message="m"),
        ],
    ),
    "a signature has no event": (
        "no event is lost",
        [read(1, 0), sign(1), kill("b1", 0, 2), read(2, 9, "x")],
    ),
    "an event of the chain has two numbers": (
        "each event is there once",
        [have(0, 0, "x"), read(1, 1, "x 1", chain_event="x"), read(2, 2, "x 2", chain_event="x")],
    ),
    "the events of the chain have another order": (
        "events have the order of their chain",
        [
            have(0, 0, "x"),
            have(1, 0, "y"),
            read(1, 1, "y", chain_event="y"),
            read(2, 2, "x", chain_event="x"),
        ],
    ),
    "an event of the chain has none": (
        "no event is lost",
        [have(0, 0, "x"), read(1, 1), kill("a1", 0, 2), read(1, 3)],
    ),
    "another daemon adds events of the chain": (
        "one leader adds events of chains",
        [lead("a1", 0, job="icm"), lead("b1", 0), add(None, 5, 1, "b1")],
    ),
    "a former leader adds events of the chain": (
        "one leader adds events of chains",
        [lead("a1", 0, job="icm"), lead("a1", 3, job="icm", is_leader=False), add(None, 5, 5)],
    ),
    "a part of an index is added twice": (
        "each part of an index is added once",
        [lead("a1", 0, job="icm"), add(None, 5, 1), add(5, 8, 2), add(6, 9, 3)],
    ),
    "two lead in another job": (
        "icm has one leader",
        [lead("a1", 0, job="icm"), lead("b1", 5, job="icm")],
    ),
    "two lead": ("p-chain has one leader", [lead("a1", 0), lead("b1", 5)]),
    "a leader learns too late": (
        "p-chain has one leader",
        [lead("a1", 0), lead("b1", 5), lead("a1", 5.5, is_leader=False)],
    ),
    "a process leads on after a pause": (
        "p-chain has one leader",
        [
            lead("a1", 0),
            idle("a1", 1, 9),
            lead("b1", 8),
            lead("a1", 9.5, is_leader=False),
        ],
    ),
    "a killed process led before": (
        "p-chain has one leader",
        [lead("a1", 0), lead("b1", 5), kill("a1", 0, 6)],
    ),
    "the other daemon signs later": ("a blocked message does not leave", [block(0), sign(2.2)]),
    "the daemon that has blocked it signs": (
        "a blocked message does not leave",
        [block(0), sign(0.15, process="a1")],
    ),
    "two stalls at one time": (
        "a blocked message does not leave",
        [block(0), idle("b1", 1, 1.6), idle(SERVER, 1.2, 1.7), sign(2.9)],
    ),
    "a block that came back": (
        "a blocked message does not leave",
        [block(0), block(1, is_added=False), block(2), sign(4.2)],
    ),
    "a daemon that started later signs": (
        "a blocked message does not leave",
        [block(0), kill("b1", 0.2, 9), sign(0.5)],
    ),
    "a daemon signs although it has its store again": (
        "a blocked message does not leave",
        [block(0), Cut(process="b1", begin=-5, end=1), sign(9.2)],
    ),
    "a daemon loses its store long after a block": (
        "a blocked message does not leave",
        [block(0), Cut(process="b1", begin=2.2, end=5), sign(4)],
    ),
    "a stall that was shorter than the wait": (
        "a blocked message does not leave",
        [block(0), idle("b1", 1, 1.5), sign(3)],
    ),
    "another daemon sends": (
        "one leader sends webhooks",
        [lead("a1", 0), send(1, at=5, process="b1")],
    ),
    "a former leader sends": (
        "one leader sends webhooks",
        [lead("a1", 0), lead("a1", 3, is_leader=False), send(1, at=5)],
    ),
    "a webhook lacks an event": (
        "webhooks come in order",
        [lead("a1", 0), send(1, at=1), send(3, at=2)],
    ),
    "a request lacks an event": (
        "webhooks come in order",
        [lead("a1", 0), read(2, 0, "x"), send(1, 3, at=1)],
    ),
    "a failed request is left out": (
        "webhooks come in order",
        [lead("a1", 0), send(1, at=1), send(2, at=2, status=500), send(3, at=3)],
    ),
    "a webhook gets more after 410": (
        "410 pauses a webhook",
        [lead("a1", 0), send(1, at=1, status=410), send(at=2, status=500), send(1, at=3)],
    ),
    "two requests at once": (
        "one request at a time",
        [lead("a1", 0), send(1, at=1), send(2, at=1.05)],
    ),
    "the last event is not sent": (
        "webhooks get each event",
        [lead("a1", 0), send(1, at=1), read(1, 0, "x"), read(2, 2, "y")],
    ),
    "a revoked key is admitted": ("a revoked key is refused", [REVOCATION, use(21.2)]),
    "too many units at once": (
        "units of a minute are limited",
        [KEY, use(0, units=50), use(1, units=20)],
    ),
    "too many units in two minutes": (
        "units of a minute are limited",
        [KEY, use(0, units=60), use(60, units=60), use(90, units=40)],
    ),
    "one unit too many": (
        "units of a day are limited",
        [DAY_KEY, use(0, units=60), use(60)],
    ),
    "a key without limits is limited": (
        "a key gets its units",
        [VALID_KEY, use(0), use(1, "rate_limited")],
    ),
    "a key is limited before it has used its units": (
        "a key gets its units",
        [
            DAY_KEY,
            idle("b1", -1, 0),
            use(0, "lost", 8),
            use(1, units=50),
            use(2, "rate_limited", 2),
        ],
    ),
    "a valid key is refused": (
        "a valid key is admitted",
        [VALID_KEY, use(0), use(1, "api_key_refused")],
    ),
    "a key is refused before its revocation": (
        "a valid key is admitted",
        [VALID_KEY, use(0), use(9.8, "api_key_refused"), REVOCATION],
    ),
    "a key that no store has is admitted": ("an unknown key is refused", [UNKNOWN_KEY, use(0)]),
    "a daemon takes its store for down": (
        "a daemon decides about a key",
        [VALID_KEY, Cut(process="b1", begin=0, end=1), use(7.1, "store_down")],
    ),
    "a daemon gives no response": (
        "a daemon decides about a key",
        [VALID_KEY, kill("b1", 0, 9), use(2, "lost")],
    ),
    "a daemon refuses a key as if it ended": (
        "a daemon decides about a key",
        [UNKNOWN_KEY, Cut(process="b1", begin=1, end=3), use(2, "shutting_down")],
    ),
    "a daemon forgets a key": (
        "a daemon remembers a key",
        [VALID_KEY, Cut(process="b1", begin=1, end=12), use(0), use(8.9, "store_down")],
    ),
}
RIGHT: dict[str, Sequence[Operation]] = {
    "events by two readers": [
        sign(0, message="m"),
        read(3, 0),
        read(3, 1),
        read(4, 2, "x", message="m"),
        read(4, 3),
        read(4, 2, "x", message="m", reader="other"),
    ],
    "events of the chain": [
        have(0, 0, "x"),
        have(1, 0.5, "y"),
        lead("a1", 0, job="icm"),
        lead("b1", 0),
        add(None, 5, 1),
        lead("a1", 1.5, job="icm", is_leader=False),
        add(5, 6, 2),
        lead("b1", 3, job="icm"),
        add(8, 9, 4, "b1"),
        read(4, 2, "x", chain_event="x"),
        read(5, 3, "y", chain_event="y"),
        read(4, 6, "x", chain_event="x", reader="other"),
        read(5, 7, "y", chain_event="y", reader="other"),
    ],
    "a leader that goes on after a stop": [
        lead("a1", 0, job="icm"),
        idle("a1", 1, 12),
        lead("b1", 9, job="icm"),
        lead("a1", 12, job="icm", is_leader=False),
        add(None, 5, 12.1),
    ],
    "a message that two requests sign": [
        sign(0, signature="s"),
        sign(1, process="a1", signature="t"),
        read(1, 2, "x", message="m"),
        read(2, 2, "y", message="m"),
    ],
    "a message with a request that was lost": [
        sign(0, signature="s"),
        sign(1, "lost", process="a1"),
        sign(2, "signing_blocked", process="a1"),
        read(1, 2, "x", message="m"),
        read(2, 2, "y", message="m"),
        read(3, 2, "z", message="m"),
    ],
    "a reader that came later": [sign(0), read(1, 5), read(2, 6, "x")],
    "a refused message has no event": [sign(0, "quorum_timeout"), read(1, -1)],
    "a signature before a kill while the store was away": [
        read(1, 0),
        Cut(process="b1", begin=0.5, end=2),
        sign(1),
        kill("b1", 0, 3),
    ],
    "a signature whose commit was not awaited": [
        read(1, 0),
        Signing(process="b1", begin=1, end=2.1, message="m", result="signed"),
        kill("b1", 0, 3),
    ],
    "leaders one after the other": [
        lead("a1", 0),
        lead("a1", 6, is_leader=False),
        lead("b1", 8),
        kill("b1", 0, 9),
        lead("a2", 17),
    ],
    "a leader that was stopped": [
        lead("a1", 0),
        idle("a1", 1, 9),
        lead("b1", 8),
        lead("a1", 9.01, is_leader=False),
    ],
    "a block in time": [block(0), sign(2.0), sign(2.5, "signing_blocked")],
    "a block that was removed": [block(0), block(3, is_added=False), sign(3.05)],
    "a block that was not confirmed": [block(0, is_acknowledged=False), sign(5)],
    "a daemon that was stalled": [block(0), idle("b1", 1, 2.5), sign(3)],
    "two stalls one after the other": [
        block(0),
        idle("b1", 1, 1.6),
        idle(SERVER, 1.4, 1.9),
        sign(2.9),
    ],
    "a server that was slow": [block(0), idle(SERVER, 1, 2.5), sign(3)],
    "a daemon without its store": [block(0), Cut(process="b1", begin=1, end=8), sign(16)],
    "a daemon that loses its store again": [
        block(0),
        Cut(process="b1", begin=10, end=11),
        Cut(process="b1", begin=-5, end=3),
        sign(19),
    ],
    "webhooks of two leaders": [
        lead("a1", 0),
        send(1, 2, at=1),
        send(3, at=5.95),
        lead("a1", 6, is_leader=False),
        lead("b1", 8),
        send(3, 4, at=9, process="b1"),
        send(at=10, process="b1"),
    ],
    "a receiver that fails": [
        lead("a1", 0),
        send(1, at=1),
        send(2, at=2, status=500),
        send(at=12, process="b1", status=0),
        send(2, 3, at=12.05, status=0),
        send(2, 3, 4, at=30),
    ],
    "a test during a request": [lead("a1", 0), send(1, at=1, status=0), send(at=1.05)],
    "a webhook that was resumed after 410": [
        lead("a1", 0),
        send(1, at=1, status=410),
        send(at=2, process="b1"),
        send(1, at=3),
    ],
    "a webhook that was resumed just before 410": [
        lead("a1", 0),
        send(1, at=1, status=500),
        send(at=12, process="b1"),
        send(1, at=12.5, status=410),
        send(1, at=13),
    ],
    "a leader that does not get the 410": [
        lead("a1", 0),
        send(1, at=1, status=410),
        idle("a1", 1.05, 12),
        send(1, at=25),
    ],
    "a pause that was not stored": [
        lead("a1", 0),
        send(1, at=1, status=410),
        lead("a1", 1.5, is_leader=False),
        lead("a1", 2.5),
        send(1, at=3, status=410),
        lead("a1", 3.5, is_leader=False),
        lead("b1", 4),
        send(1, at=5, process="b1"),
    ],
    "a revoked key within ten seconds": [REVOCATION, use(20.0), use(21, "api_key_refused")],
    "keys of a daemon without its store": [
        VALID_KEY,
        Cut(process="b1", begin=1, end=18),
        use(0),
        use(9.5),
        use(9.8, "store_down"),
        use(12.5, "lost"),
        use(17.6),
        use(22.6, "store_down"),
    ],
    "an unknown key": [
        UNKNOWN_KEY,
        Cut(process="b1", begin=1, end=12),
        use(0, "api_key_refused"),
        use(11, "store_down"),
    ],
    "keys of a daemon that ends": [
        VALID_KEY,
        Lifetime(process="b1", begin=0, end=5, signaled_at=2),
        use(1.95, "lost"),
        use(2, "shutting_down"),
    ],
    "keys of a daemon that was stopped": [VALID_KEY, idle("b1", 0, 4), use(0.95, "lost")],
    "units of a day": [
        DAY_KEY,
        idle(SERVER, -1, 0),
        use(0, "lost", 9),
        use(1, units=50),
        use(2, "rate_limited", 2),
        use(3),
    ],
    "units as they refill": [
        KEY,
        use(0, units=60),
        use(60.2, units=60),
        use(61, "rate_limited", units=60),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_contradiction_is_found_with_both_operations(name: str) -> None:
    rule, operations = WRONG[name]
    violations = judge(operations)
    assert {violation.rule for violation in violations} == {rule}
    for violation in violations:
        assert violation.first in operations
        assert violation.second in operations
        assert violation.first != violation.second


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_is_not_blamed(name: str) -> None:
    assert judge(RIGHT[name]) == []


def test_a_history_is_read_as_it_was_written_without_a_last_line_that_a_kill_cut(
    tmp_path: Path,
) -> None:
    operations = sorted(
        [operation for _, history in WRONG.values() for operation in history],
        key=lambda operation: operation.end,
    )
    lines = [encode(operation) for operation in operations]
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    files[0].write_bytes(b"".join(lines) + lines[0][:10])
    files[1].write_bytes(b"")
    assert read_history(files) == operations


def test_the_time_until_a_block_holds_elsewhere_is_measured() -> None:
    operations = [block(0), sign(0.5), sign(1.0), sign(1.5, "signing_blocked")]
    assert measure_blocks(operations) == [pytest.approx(0.9)]
