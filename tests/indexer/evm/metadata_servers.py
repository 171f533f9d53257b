"""Real DNS and HTTP servers on loopback addresses, of which one counts as public: also servers that
misbehave.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Final, cast

import dns.asyncresolver
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

PUBLIC: Final = "127.0.0.2"
PRIVATE: Final = "127.0.0.1"

Serve = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
"""Answers one request, of which it gets the head. The connection is closed afterwards."""


def http_response(body: bytes = b"{}", status: str = "200 OK", *headers: str) -> bytes:
    """Return an HTTP response after which the connection ends."""
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def redirect_to(location: str) -> bytes:
    """Return a redirect."""
    return http_response(b"", "302 Found", f"Location: {location}")


def respond_with(*responses: bytes) -> Serve:
    """Answer with these responses in turn, and with the last one from then on."""
    remaining = list(responses)

    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(remaining.pop(0) if len(remaining) > 1 else remaining[0])

    return serve


def respond_without_end(start: bytes, rest: bytes, interval_s: float = 0.0) -> Serve:
    """Send `start`, and then `rest` again and again: as fast as possible, or drop by drop."""

    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(rest)
            await writer.drain()
            await asyncio.sleep(interval_s)

    return serve


class HttpServer:
    """A server.

    heads: heads of all requests.
    connections: number of accepted connections.
    serve: function that serves a connection; a test may replace it.
    """

    def __init__(self, serve: Serve) -> None:
        self.port = 0
        self.heads: list[str] = []
        self.connections = 0
        self.serve = serve
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def paths(self) -> list[str]:
        """The paths of all requests."""
        return [head.split(" ", 2)[1] for head in self.heads]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                await self.serve(self.heads[-1], writer)
        except asyncio.CancelledError:
            return
        finally:
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def http_server(
    serve: Serve, address: str = PUBLIC, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HttpServer]:
    """Run a server on a loopback address."""
    state = HttpServer(serve)
    server = await asyncio.start_server(state.handle, address, port, ssl=tls)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        await state.stop()


@asynccontextmanager
async def twin_servers(
    public: Serve, private: Serve
) -> AsyncIterator[tuple[HttpServer, HttpServer]]:
    """Run a server at the public address, and another at the same port of the private one."""
    async with AsyncExitStack() as stack:
        while True:
            first = await stack.enter_async_context(http_server(public))
            # Another process may have this port at the other address.
            with suppress(OSError):
                second = await stack.enter_async_context(http_server(private, PRIVATE, first.port))
                break
        yield first, second


class DnsServer(asyncio.DatagramProtocol):
    """Answers queries for A and AAAA.

    names: replies by name, in turn; the last one is repeated. An empty list gets no reply.
    """

    def __init__(self, names: Mapping[str, Sequence[list[str]]]) -> None:
        self.names = names
        self.queries: Counter[tuple[str, str]] = Counter()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Python 3.11 has a datagram transport that is none by its class.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = (
            question.name.to_text(omit_final_dot=True),
            dns.rdatatype.to_text(question.rdtype),
        )
        response = dns.message.make_response(query)
        if name not in self.names:
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif turns := self.names[name]:
            addresses = turns[min(self.queries[name, kind], len(turns) - 1)]
            records = [
                text for text in addresses if ip_address(text).version == (4 if kind == "A" else 6)
            ]
            if records:
                response.answer.append(
                    dns.rrset.from_text_list(question.name, 0, "IN", kind, records)
                )
        else:
            return
        self.queries[name, kind] += 1
        assert self._transport is not None
        self._transport.sendto(response.to_wire(), addr)


@asynccontextmanager
async def dns_server(
    names: Mapping[str, Sequence[list[str]]],
) -> AsyncIterator[tuple[DnsServer, dns.asyncresolver.Resolver]]:
    """Run a DNS server; yield it, and a resolver that asks it alone."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: DnsServer(names), (PRIVATE, 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = [PRIVATE]
    resolver.port = transport.get_extra_info("sockname")[1]
    try:
        yield server, resolver
    finally:
        transport.close()
