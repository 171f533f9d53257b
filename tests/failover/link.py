"""A link with latency between a client and a server of this machine, which can be cut in each
direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# After as long without a reply each side of a connection gives it up: keepalives of the daemon and
# the server.
_KEEPALIVE_S = 5.0


@dataclass
class Link:
    """Forwards connections from a port.

    target: port on the loopback address, or Unix socket, of the server.
    delay_s: delay of each direction. `async with` opens and closes the link.
    loses_requests, loses_replies: the bytes of a direction are lost.
    """

    target: int | Path
    delay_s: float
    port: int = 0
    loses_requests: bool = False
    loses_replies: bool = False
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._abort()

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        """Lose all bytes from now on, and each connection when its keepalives are not answered.

        requests, replies: directions whose bytes are lost.
        """
        self.loses_requests, self.loses_replies = requests, replies
        asyncio.get_running_loop().call_later(_KEEPALIVE_S, self._abort)

    def heal(self) -> None:
        """Forward again; what was lost stays lost."""
        self._abort()
        self.loses_requests = self.loses_replies = False

    def _abort(self) -> None:
        for writer in [*self._writers]:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            # A connection needs both directions.
            if self.loses_requests or self.loses_replies:
                await reader.read()
                return
            await asyncio.sleep(2 * self.delay_s)
            remote_reader, remote_writer = await self._connect()
            self._writers.add(remote_writer)
            await asyncio.gather(
                self._pump(reader, remote_writer, lambda: self.loses_requests),
                self._pump(remote_reader, writer, lambda: self.loses_replies),
            )
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.target, Path):
            return await asyncio.open_unix_connection(self.target)
        return await asyncio.open_connection("127.0.0.1", self.target)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_lost: Callable[[], bool],
    ) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await reader.read(65536):
                if not is_lost():
                    loop.call_later(self.delay_s, writer.write, data)
        loop.call_later(self.delay_s, writer.close)
        self._writers.discard(writer)
