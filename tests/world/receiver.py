"""A server that receives the events of a webhook."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.world.network import Transport

if TYPE_CHECKING:
    from tests.world.simulation import Process, Simulation

_LATE_S: Final = 15.0


class EventID(NamedTuple):
    """The log and the number of an event."""

    log_id: str
    number: int


class Receiver:
    """The server, and the events whose requests it answered with 200.

    begin: number of the event behind which the webhook begins; None until it was added.
    kind: what it does with a request: a status, `hang`, `drop`, or `late`; `down` if it has ended.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._process: Process
        port = simulation.network.free_port()
        self._port = port
        self.host = f"127.0.0.1:{port}"
        self.url = f"http://{self.host}/hook"
        self.kind = "200"
        self.webhook_id = ""
        self.begin: int | None = None
        # By webhook: a request to add one that had no response may have added another one.
        self._events: dict[str, list[EventID]] = {}

    def start(self) -> None:
        """Begin to listen."""

        async def run() -> None:
            loop = asyncio.get_running_loop()
            await loop.create_server(lambda: _Connection(self), "127.0.0.1", self._port)
            await asyncio.Event().wait()

        self._process = self._simulation.process("receiver")
        self._process.start(run())

    def behave(self, kind: str) -> None:
        """Change what it does with requests; end, or start again, if need be."""
        if kind == "down":
            self._simulation.reach("receiver ended")
            self._process.kill()
        elif self.kind == "down":
            self.start()
        self.kind = kind

    def note_refusal(self) -> None:
        """Note that a request does not get the usual answer."""
        self._simulation.reach(f"receiver: {self.kind}")

    def take(self, body: bytes, sender: Process) -> None:
        """Note the events of a request that is answered with 200."""
        content, simulation = json.loads(body), sender.simulation
        events = content["events"]
        deliveries = self._events.setdefault(content["webhookId"], [])
        is_leader = simulation.server is None or simulation.leases.may_act("p-chain", sender)
        # Any daemon may send a test, which has no events.
        if events and not is_leader:
            text = f"{sender.name} sends to a webhook although it does not lead"
            simulation.unhandled(sender, {"message": text})
        for event in events:
            log_id, _, number = event["cursor"].rpartition("-")
            deliveries.append(EventID(log_id, int(number)))

    def first_events(self) -> list[EventID]:
        """Return events in the order in which they came first."""
        return list(dict.fromkeys(self._events.get(self.webhook_id, ())))


class _Connection(asyncio.Protocol):
    """A connection of the daemon, with one request at a time."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._buffer = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = bytes(self._buffer).partition(b"\r\n\r\n")
        if not separator:
            return
        length = next(
            int(line.partition(b":")[2])
            for line in (*head.split(b"\r\n"), b"content-length: 0")
            if line.lower().startswith(b"content-length:")
        )
        if len(body) >= length:
            self._buffer.clear()
            self._respond(body)

    def _respond(self, body: bytes) -> None:
        kind = self._receiver.kind
        if kind != "200":
            self._receiver.note_refusal()
        if kind == "drop":
            self._transport.abort()
        elif kind == "late":
            asyncio.get_running_loop().call_later(_LATE_S, self._send, "200")
        elif kind != "hang":
            if kind == "200":
                assert isinstance(self._transport, Transport)
                self._receiver.take(body, self._transport.peer.process)
            self._send(kind)

    def _send(self, status: str) -> None:
        if not self._transport.is_closing():
            self._transport.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode())
