"""A receiver of webhooks that records what it gets, and fails for some time when a run says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from time import monotonic
from typing import Final

from aiohttp import web

from tests.histories.operations import SENDER, Operation, WebhookRequest
from warpseal_simnet.listener import LOOPBACK, reserve_port

REFUSE: Final = "refuse"
RESET: Final = "reset"
HANG: Final = "hang"
FAILURES: Final = (REFUSE, RESET, HANG, "302", "404", "500", "503")
"""No listening port, a connection that ends without a response, no response, or a response with
this status."""
_HANG_S: Final = 600.0


class Receiver:
    """A server of one webhook.

    confirmed: number of the last event that it has confirmed.
    """

    def __init__(self, record: Callable[[Operation], None], random: Random) -> None:
        self.confirmed = 0
        self._record = record
        self._random = random
        self._failure = ""
        self._failing: asyncio.Task[None] | None = None
        app = web.Application()
        app.router.add_post("/hook", self._receive)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        self._site: web.TCPSite | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The URL of the webhook."""
        return f"http://{LOOPBACK}:{self._port}/hook"

    @property
    def is_failing(self) -> bool:
        """Whether it fails now."""
        return bool(self._failure)

    async def fail(self, failure: str, seconds: float) -> None:
        """Fail in a way for some time from now on, and end an earlier failure."""
        await self._recover()
        self._failing = asyncio.create_task(self._fail(failure, seconds))

    async def until_recovered(self) -> None:
        """Wait until it does not fail any more."""
        if self._failing is not None:
            await self._failing

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen on a port that stays the same."""
        await self._runner.setup()
        try:
            await self._listen()
            # No other process gets the port while connections are refused.
            with reserve_port(self._port):
                yield
        finally:
            await self._recover()
            await self._runner.cleanup()

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, LOOPBACK, self._port, reuse_port=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def _fail(self, failure: str, seconds: float) -> None:
        self._failure = failure
        try:
            if failure == REFUSE:
                await self._refuse()
            await asyncio.sleep(seconds)
        finally:
            self._failure = ""
            if failure == REFUSE:
                await self._listen()

    async def _refuse(self) -> None:
        """Stop listening, and end all connections."""
        assert self._site is not None
        assert self._runner.server is not None
        await self._site.stop()
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def _recover(self) -> None:
        if self._failing is not None:
            self._failing.cancel()
            await asyncio.wait((self._failing,))

    async def _receive(self, request: web.Request) -> web.Response:
        """Take a request, with a delay, or fail."""
        begin = monotonic()
        body = await request.json()
        numbers = tuple(number_of(event["cursor"]) for event in body["events"])
        status = 0
        try:
            await asyncio.sleep(self._random.uniform(0.0, 0.2))
            if self._failure == RESET and request.transport is not None:
                request.transport.abort()
            if self._failure in (REFUSE, RESET, HANG):
                # The end of the connection cancels this.
                await asyncio.sleep(_HANG_S)
            status = int(self._failure or 200)
        finally:
            self._record(
                WebhookRequest(
                    process=request.headers[SENDER],
                    begin=begin,
                    end=monotonic(),
                    webhook=body["webhookId"],
                    numbers=numbers,
                    status=status,
                )
            )
        if numbers and status == 200:
            self.confirmed = max(self.confirmed, numbers[-1])
        return web.Response(status=status)


def number_of(cursor: str) -> int:
    """Return the number in the cursor of an event."""
    return int(cursor.rpartition("-")[2])
