"""A receiver of webhooks on loopback, and the check of a signature as the documentation says it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.indexer.evm.metadata_servers import PUBLIC


@dataclass
class WebhookRequestRecord:
    """A request: its headers, and its body as it came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def numbers(self) -> list[int]:
        """The numbers of its events in the log."""
        return [
            int(event["cursor"].rpartition("-")[2]) for event in json.loads(self.body)["events"]
        ]

    def is_signed_with(self, secret: str) -> bool:
        """Return whether the signature is that of the time and the body."""
        signed = self.headers["x-warpseal-timestamp"].encode() + b"." + self.body
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        return self.headers["x-warpseal-signature"] == f"v1={digest}"


@dataclass
class Receiver:
    """A receiver of webhooks.

    statuses: HTTP statuses of the next responses; later ones have 200.
    retry_after: header of responses that are no success.
    held: while it is not set, requests get no response.
    """

    statuses: list[int] = field(default_factory=list)
    retry_after: str = ""
    port: int = 0
    requests: list[WebhookRequestRecord] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, host: str = PUBLIC) -> str:
        """Return its URL."""
        return f"http://{host}:{self.port}/hook"

    @property
    def numbers(self) -> list[int]:
        """The numbers of all events, in the order in which they came."""
        return [number for request in self.requests for number in request.numbers]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record a request."""
        self.requests.append(WebhookRequestRecord(dict(request.headers), await request.read()))
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            await self.held.wait()
        finally:
            self.open -= 1
        status = self.statuses.pop(0) if self.statuses else 200
        headers = {"location": "/other"} if 300 <= status < 400 else {}
        if self.retry_after and status != 200:
            headers["retry-after"] = self.retry_after
        return web.Response(status=status, headers=headers, body=b"x" * 100_000)


@asynccontextmanager
async def receiving(
    *statuses: int, host: str = PUBLIC, is_held: bool = False
) -> AsyncIterator[Receiver]:
    """Run a receiver."""
    receiver = Receiver(list(statuses))
    if not is_held:
        receiver.held.set()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        receiver.held.set()
        await runner.cleanup()


def webhook_fields(receiver: Receiver, **changes: Any) -> dict[str, Any]:
    """Return the fields of a webhook of a receiver, as they are stored."""
    return {
        "id": f"{receiver.port:016x}",
        "url": receiver.url(),
        "createdAt": 1,
        "deliveries": (),
        "secret": "s" * 64,
        **changes,
    }
