"""What the callers of a world saw."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.world.http_client import HttpReply
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.values import SimMessage


class Ending(StrEnum):
    """How a request ended for its caller."""

    NONE = "none"
    REPLY = "reply"
    LEFT = "left"
    NO_CONNECTION = "no connection"


@dataclass
class Ask:
    """A request for a signed message.

    place: place of the message among those of the scenario.
    daemon: letter of the daemon that was asked.
    height: height of the P-Chain that the caller named.
    transaction: transaction of the P-Chain that the caller named.
    daemon_at_start: number of the daemon's changes when it began; daemon_at_end: when it ended.
    daemon_age_s: time for which the daemon had run undisturbed when it began.
    index_age_s: time for which the index process had run; 0 if the index has stopped.
    c_chain_height: height at which the next block of the C-Chain verified messages then.
    block_age_s: time from the last block of the P-Chain to the request; negative if one came later.
    """

    number: int
    place: int
    message: SimMessage
    quorum: int
    timeout_s: float
    started_at: float
    daemon: str
    ending: Ending = Ending.NONE
    reply: HttpReply | None = None
    detail: str = ""
    ended_at: float = math.inf
    height: int | None = None
    daemon_at_start: int = 0
    daemon_at_end: int = 0
    had_daemon: bool = False
    daemon_age_s: float = 0.0
    index_age_s: float = 0.0
    c_chain_height: int = 0
    block_age_s: float = 0.0
    transaction: Transaction | None = None
    has_destination: bool = False

    @property
    def is_of_tx(self) -> bool:
        """Whether the caller named a transaction instead of a message."""
        return self.transaction is not None

    @property
    def is_signed(self) -> bool:
        """Whether the caller got the signed message."""
        return self.reply is not None and self.reply.status == 201

    def describe(self) -> str:
        """Return the answer in a few words."""
        if self.reply is None:
            return f"{self.ending} {self.detail}"
        text = "" if self.is_signed else str(self.reply.body.get("message", ""))[:300]
        return f"{self.reply.status} {self.reply.code} {text}"


@dataclass
class Block:
    """A signing block that the operator made.

    daemon: letter of the daemon that the operator asked.
    until: when its removal began.
    """

    since: float
    daemon: str
    until: float = math.inf


@dataclass
class Session:
    """The time for which a reader could continue with its cursor.

    began_at: when it had the first event, or heartbeat.
    ended_at: when it learned that its cursor had expired.
    """

    began_at: float = math.inf
    ended_at: float = math.inf


@dataclass
class Reader:
    """A reader of events who keeps its cursor."""

    cursor: str = ""
    numbers: list[list[int]] = field(default_factory=lambda: [[]])
    events: list[dict[str, Any]] = field(default_factory=list)
    log_ids: set[str] = field(default_factory=set)
    sessions: list[Session] = field(default_factory=lambda: [Session()])

    def on_event(self, cursor: str, event: dict[str, Any] | None, now: float) -> None:
        """Take an event, or a heartbeat."""
        log_id, _, number = cursor.rpartition("-")
        self.sessions[-1].began_at = min(self.sessions[-1].began_at, now)
        self.cursor = cursor
        self.log_ids.add(log_id)
        if event is not None:
            self.events.append(event)
            self.numbers[-1].append(int(number))

    def begin_again(self, now: float) -> None:
        """Continue without a cursor, since it has expired."""
        self.cursor = ""
        self.numbers.append([])
        self.sessions[-1].ended_at = now
        self.sessions.append(Session())

    def session_at(self, time: float) -> Session | None:
        """Return the session in which the reader was at a time."""
        return next((s for s in self.sessions if s.began_at < time <= s.ended_at), None)
