"""The network of the world: connections between processes in place of TCP.

Bytes arrive in order, after a drawn delay, in the pieces in which they were sent or in smaller
ones. A link is one machine and one address; it can be slow, cut, or half open.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.world.simulation import Process, Simulation

Address = tuple[str, int]
_LOOPBACK: Final = "127.0.0.1"
_FIRST_PORT: Final = 20_000
_RETRY_S: Final = 1.0
_WINDOW_BYTES: Final = 256 * 1024


class Link:
    """The way from a machine to an address and back.

    delay_s: shortest time of one way; jitter_s: mean of what is drawn in addition.
    is_cut: bytes wait, and connections are not made, until it is whole again.
    is_half_open: bytes of connections that exist are lost, and neither side learns of it.
    """

    def __init__(self, delay_s: float, jitter_s: float) -> None:
        self.delay_s = delay_s
        self.jitter_s = jitter_s
        self.is_cut = False
        self.is_half_open = False


class Network:
    """All listeners and links."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._servers: dict[Address, Server] = {}
        self._links: dict[tuple[str, Address], Link] = {}
        self._next_port = _FIRST_PORT
        self._next_client_port = 50_000
        self.transports: dict[Transport, None] = {}
        # Draws a link when it is first used.
        self.draw_link: Callable[[Process, Address], Link] = lambda *_: Link(0.0002, 0.0001)

    def link(self, process: Process, address: Address) -> Link:
        """Return the link from a process to an address."""
        key = process.machine, address
        if key not in self._links:
            self._links[key] = self.draw_link(process, address)
        return self._links[key]

    def free_port(self) -> int:
        """Return a port that no process has used."""
        self._next_port += 1
        return self._next_port

    def listen(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> Server:
        """Let a process listen at an address."""
        address = host, port or self.free_port()
        existing = self._servers.get(address)
        if existing is not None and existing.is_serving():
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = self._servers[address] = Server(process, factory, address)
        return server

    async def connect(self, process: Process, address: Address) -> Channel:
        """Return a connection that is made; raises OSError if no server listens there."""
        link = self.link(process, address)
        await asyncio.sleep(self.draw_delay(link))
        while link.is_cut:
            self._simulation.reach("connect over a cut link")
            await asyncio.sleep(_RETRY_S)
        server = self._servers.get(address)
        if server is None or not server.is_serving():
            kind = "a closed port" if address[0] == _LOOPBACK else "a private address"
            self._simulation.reach(f"connect to {kind}")
            await asyncio.sleep(self.draw_delay(link))
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._next_client_port += 1
        channel = Channel(self, process, server, link, ("127.0.0.1", self._next_client_port))
        channel.accept()
        await asyncio.sleep(self.draw_delay(link))
        return channel

    def draw_delay(self, link: Link) -> float:
        """Return the time of one way."""
        jitter_s = self._simulation.rng.expovariate(1 / link.jitter_s) if link.jitter_s else 0.0
        return link.delay_s + jitter_s

    def cut_off(self, process: Process) -> None:
        """End the connections of a process that has ended."""
        for transport in [t for t in self.transports if t.process is process]:
            transport.vanish()
        for server in self._servers.values():
            if server.process is process:
                server.close()

    @property
    def simulation(self) -> Simulation:
        """The world of this network."""
        return self._simulation


class ServerSocket:
    """What a server or a listener shows of its socket."""

    family = socket.AF_INET

    def __init__(self, address: Address, peer: Address = ("", 0)) -> None:
        self._address = address
        self._peer = peer

    def getpeername(self) -> Address:
        return self._peer

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        pass

    def fileno(self) -> int:
        return -1

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, *_: object) -> int:
        return 0


class Server(asyncio.AbstractServer):
    """A listening address."""

    def __init__(self, process: Process, factory: Callable[[], Any], address: Address) -> None:
        self.process = process
        self.factory = factory
        self.address = address
        self.sockets = (ServerSocket(address),)
        self._is_open = True

    def is_serving(self) -> bool:
        return self._is_open and self.process.is_alive

    def close(self) -> None:
        self._is_open = False

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        await asyncio.Event().wait()

    async def wait_closed(self) -> None:
        pass

    def get_loop(self) -> Any:
        return self.process.loop


class Channel:
    """A connection: two transports."""

    def __init__(
        self, network: Network, client: Process, server: Server, link: Link, address: Address
    ) -> None:
        self._server = server
        self.client_side = Transport(network, client, link, address, server.address)
        self.server_side = Transport(network, server.process, link, server.address, address)
        self.client_side.peer, self.server_side.peer = self.server_side, self.client_side

    def accept(self) -> None:
        """Hand the connection to the server."""
        server, side = self._server, self.server_side
        server.process.loop.call_soon(lambda: side.begin(server.factory()))

    def open(self, protocol: Any) -> tuple[Transport, Any]:
        """Hand the connection to the client's protocol, in the client's loop."""
        self.client_side.begin(protocol)
        return self.client_side, protocol


class Transport(asyncio.Transport):
    """One side of a connection."""

    def __init__(
        self, network: Network, process: Process, link: Link, own: Address, other: Address
    ) -> None:
        super().__init__({"peername": other, "sockname": own, "socket": ServerSocket(own, other)})
        self._network = network
        self._simulation = network.simulation
        self.process = process
        self._link = link
        self.peer: Transport
        self._protocol: Any = None
        # Bytes that have arrived while the protocol did not read, or before there was one.
        self._inbox: list[bytes | None] = []
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._arrives_at = 0.0
        # Bytes that were sent and not yet read by the other side.
        self._unread_bytes = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_paused = False
        network.transports[self] = None

    def begin(self, protocol: Any) -> None:
        """Connect the protocol."""
        self._protocol = protocol
        if self._is_lost:
            # The other side went away before.
            protocol.connection_made(self)
            protocol.connection_lost(ConnectionResetError(errno.ECONNRESET, "reset"))
            return
        protocol.connection_made(self)
        self._read_inbox()

    # What the protocol calls.

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost or not data:
            return
        data = bytes(data)
        self._unread_bytes += len(data)
        self.process.backlog_bytes = max(self.process.backlog_bytes, self._unread_bytes)
        rng = self._simulation.rng
        # The lengths of TLS records differ between runs by a byte or two, so that no choice of the
        # world depends on them.
        is_split, share = rng.random() < 0.02, rng.random()
        if is_split and len(data) > 1:
            middle = 1 + int(share * (len(data) - 1))
            self._send(data[:middle])
            data = data[middle:]
        self._send(data)
        if self.get_write_buffer_size() > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._send(None)
            self.process.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._reset_peer()
            self.process.loop.call_soon(self._lose, None)

    def write_eof(self) -> None:
        self._send(None)

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread_bytes - _WINDOW_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.process.loop.call_soon(self._read_inbox)

    def is_reading(self) -> bool:
        return self._is_reading

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    # The way to the other side.

    def _send(self, data: bytes | None) -> None:
        when = max(self._arrives_at, self._simulation.now + self._network.draw_delay(self._link))
        self._arrives_at = when
        peer = self.peer
        self._simulation.at(when + _ORDER_S * peer.next_place(), lambda: peer.arrive(data))

    _places = 0

    def next_place(self) -> int:
        """Number what is sent to this side, so that equal times keep their order."""
        self._places += 1
        return self._places % 1000

    def arrive(self, data: bytes | None) -> None:
        """Take bytes from the network; None is the end of the stream."""
        if self._is_lost or not self.process.is_alive:
            return
        if self._link.is_half_open:
            self._simulation.reach("bytes lost on a half-open connection")
            return
        self._inbox.append(data)
        if self._link.is_cut:
            self._simulation.reach("bytes held by a cut link")
        self.process.loop.call_soon(self._read_inbox)

    def _read_inbox(self) -> None:
        if self._link.is_cut:
            if self._inbox:
                self.process.loop.call_later(_RETRY_S, self._read_inbox)
            return
        while self._inbox and self._is_reading and not self._is_lost and self._protocol is not None:
            data = self._inbox.pop(0)
            if data is None:
                if not self._protocol.eof_received():
                    self.close()
                continue
            self._feed(data)
            self.peer.on_read(len(data))

    def _feed(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        position = 0
        while position < len(data) and not self._is_lost:
            buffer = memoryview(protocol.get_buffer(-1))
            piece = data[position : position + len(buffer)]
            buffer[: len(piece)] = piece
            protocol.buffer_updated(len(piece))
            position += len(piece)

    def on_read(self, count: int) -> None:
        """Note that the other side has read bytes."""
        self._unread_bytes -= count
        if self._is_paused and self.get_write_buffer_size() <= self._low and not self._is_lost:
            self._is_paused = False
            self.process.loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._is_lost and not self._is_paused:
            self._protocol.resume_writing()

    def _reset_peer(self) -> None:
        peer, delay_s = self.peer, self._network.draw_delay(self._link)
        self._simulation.after(delay_s, peer.on_reset)

    def on_reset(self) -> None:
        """Learn that the other side is gone."""
        if self._link.is_cut or self._link.is_half_open or not self.process.is_alive:
            return
        error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self.process.loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._inbox.clear()
        self._network.transports.pop(self, None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def vanish(self) -> None:
        """End with the process; the other side learns of it by a reset."""
        self._is_lost = self._is_closing = True
        self._network.transports.pop(self, None)
        self._reset_peer()


_ORDER_S: Final = 1e-9
