"""What a history consists of: operations of clients, and statements of the daemons themselves.

A history file has one operation in each line, as JSON. All times are those of the monotonic clock,
which the processes of one machine share, whatever their clocks of the day say.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

DRIVER: Final = "driver"
"""The process of the clients."""
SERVER: Final = "server"
"""The PostgreSQL server in `Idle`: it answered no probe in that time."""

ADMITTED: Final = "admitted"
"""Result of a request with an API key that a daemon has admitted."""
LOST: Final = "lost"
"""Result of a request without a response."""

SENDER: Final = "x-sender"
"""Header of requests to webhooks: the process that sends them."""
GONE: Final = 410
"""Status of a response that pauses a webhook."""


class Operation(Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """An operation, in the time between two moments of which its effect lies.

    process: name of the daemon's process; a daemon that starts again is another process.
    """

    process: str
    begin: float
    end: float


class Signing(Operation, frozen=True, tag="signing"):
    """A request for the signature of a message.

    result: `signed`, the code of the refusal, or `lost` without a response.
    signature: the end of the aggregate signature, if it is signed.
    """

    message: str
    result: str
    signature: str = ""


class BlockChange(Operation, frozen=True, tag="block"):
    """A signing block of a message that an operator adds or removes.

    is_acknowledged: the daemon has confirmed it; without that it may hold or not.
    """

    message: str
    is_added: bool
    is_acknowledged: bool = True


class EventRead(Operation, frozen=True, tag="event"):
    """A part of an event stream.

    number: number in its cursor.
    event: the body without the cursor; empty for a part that has a cursor only.
    message: id of the signed message, if it is the event of a signature.
    chain_event: the event of a chain as `ChainEvent` names it, if it is one.
    """

    reader: str
    number: int
    event: str = ""
    message: str = ""
    chain_event: str = ""


class ChainEvent(Operation, frozen=True, tag="chain"):
    """An ICM event in a block that an EVM chain has from now on.

    place: its place in the order of the chain.
    event: its type and the messenger's id of the message.
    """

    place: int
    event: str


class SourceWrite(Operation, frozen=True, tag="source"):
    """A statement of a daemon: it adds events of a chain's index to the event log.

    before, position: positions in the index before it and after it; no position before the first.
    is_added: the daemon knows that its transaction is committed.
    """

    source: str
    before: int | None
    position: int
    is_added: bool


class WebhookRequest(Operation, frozen=True, tag="webhook"):
    """A request to a receiver.

    process: the sender.
    numbers: numbers of its events; none of a test of the webhook, which any daemon may send.
    status: status of the response; 0 if none was sent whole.
    """

    webhook: str
    numbers: tuple[int, ...]
    status: int = 200

    @property
    def is_confirmed(self) -> bool:
        """Whether the response was a success."""
        return self.status == 200


class Leadership(Operation, frozen=True, tag="leadership"):
    """A statement of a daemon: it leads in a job from now on, or does not."""

    job: str
    is_leader: bool


class Idle(Operation, frozen=True, tag="idle"):
    """A time in which a process did nothing: its event loop was stopped or starved, as measured."""


class Cut(Operation, frozen=True, tag="cut"):
    """A time in which a daemon did not reach its database."""


class Lifetime(Operation, frozen=True, tag="lifetime"):
    """The life of a process.

    signaled_at: time of the signal that ended it.
    was_killed: it ended by SIGKILL.
    """

    signaled_at: float
    was_killed: bool = False


class KeyCreation(Operation, frozen=True, tag="key"):
    """A new API key and its compute units in a minute and in a day; 0 stands for any number.

    is_stored: the store has the key; without that no daemon knows it.
    """

    key: str
    units_per_minute: int = 0
    units_per_day: int = 0
    is_stored: bool = True

    @property
    def limits(self) -> tuple[UnitLimit, ...]:
        """The limits that the key has."""
        limits = (
            UnitLimit("minute", self.units_per_minute, 60.0),
            UnitLimit("day", self.units_per_day, 86_400.0),
        )
        return tuple(limit for limit in limits if limit.units)


class UnitLimit(NamedTuple):
    """Compute units of a key in a window of time.

    window: its name in sentences.
    """

    window: str
    units: int
    window_s: float


class KeyRevocation(Operation, frozen=True, tag="revocation"):
    """The revocation of an API key."""

    key: str


class KeyUse(Operation, frozen=True, tag="use"):
    """A request with an API key.

    result: `admitted`, the code of the refusal, or `lost` without a response.
    """

    key: str
    units: int
    result: str


AnyOperation = (
    Signing
    | BlockChange
    | EventRead
    | ChainEvent
    | SourceWrite
    | WebhookRequest
    | Leadership
    | Idle
    | Cut
    | Lifetime
    | KeyCreation
    | KeyRevocation
    | KeyUse
)
_DECODER: Final = msgspec.json.Decoder(AnyOperation)


def encode(operation: Operation) -> bytes:
    """Return the line of an operation."""
    return msgspec.json.encode(operation) + b"\n"


def read_history(files: Iterable[Path]) -> list[Operation]:
    """Return the operations of some files by the time of their ends.

    The last line of a process that was killed may be a part of one.
    """
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    operations: list[Operation] = [_DECODER.decode(line) for line in lines if line.endswith(b"\n")]
    return sorted(operations, key=lambda operation: operation.end)
