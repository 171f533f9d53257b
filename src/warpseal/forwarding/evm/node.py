"""One node, of an EVM chain or of the gateway, over HTTP: takes a body, returns status, body and content type.

Source of truth: geth's `rpc/http.go`. An error says exactly whether the request can have reached the node, so that
the caller does not send it twice by mistake.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import aiohttp

from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.runtime.http_session import new_session, read_body
from warpseal.runtime.rate_meter import RateMeter
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.limits import RetryAfter, parse_retry_after

JSON: Final = "application/json"
MAX_PAUSE_S: Final = 60.0
"""The longest pause that a node gets by its Retry-After."""
_BUSY: Final = frozenset({429, 502, 503, 504})
_ASKS_TO_WAIT: Final = frozenset({429, 503})
_OK: Final = 200
_STATUSES: Final = range(_OK, 600)
_MAX_TYPE_CHARACTERS: Final = 256


class RpcNodeFailure(StrEnum):
    """Why a node did not answer."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    LOST = "lost"
    TOO_LARGE = "too_large"
    BUSY = "busy"


class RpcNodeError(Exception):
    """A node did not answer."""

    def __init__(self, kind: RpcNodeFailure) -> None:
        super().__init__(str(kind))
        self.kind = kind

    @property
    def was_written(self) -> bool:
        """Whether the node may have received the request, and executed it."""
        return self.kind is not RpcNodeFailure.UNREACHABLE


@dataclass(frozen=True, slots=True)
class RpcNodeReply:
    """The HTTP response of a node."""

    status: int
    body: bytes
    content_type: str

    @property
    def is_ok(self) -> bool:
        """Whether the body holds the responses to the calls."""
        return self.status == _OK

    @property
    def is_busy(self) -> bool:
        """Whether this node cannot serve the request now, while another may."""
        return self.status in _BUSY


@dataclass(frozen=True, slots=True)
class Sessions:
    """HTTP sessions to nodes. single_use: a new connection for each request. websockets: those have a cap of their own.

    The node may have closed a pooled connection in the meantime, and it is then unknown whether it received the
    request. A request that must not be sent twice therefore never uses a pooled connection.
    """

    pooled: aiohttp.ClientSession
    single_use: aiohttp.ClientSession
    websockets: aiohttp.ClientSession


@asynccontextmanager
async def open_sessions(settings: EvmRpcSettings) -> AsyncIterator[Sessions]:
    """Hold the sessions to all nodes."""
    per_node = settings.connections_per_node
    pooled = aiohttp.TCPConnector(limit=0, limit_per_host=per_node, keepalive_timeout=15)
    single_use = aiohttp.TCPConnector(limit=0, limit_per_host=per_node, force_close=True)
    websockets = aiohttp.TCPConnector(limit=0, force_close=True)
    async with new_session(pooled) as first, new_session(single_use) as second, new_session(websockets) as third:
        yield Sessions(first, second, third)


class RpcNode:
    """One node, of an EVM chain or of the gateway.

    position: its place in the operator's list, by which logs and metrics name it. display: for the log.

    The pool keeps its state. fault: why it is refused for good, or cannot be used now; None if it can. is_verified: it
    returned the identity of the chain. head: the highest block that it is known to have. head_rate: its growth.
    pause: that it asks for by Retry-After; the nodes of several chains behind one gateway may share it.
    """

    def __init__(
        self,
        endpoint: NodeEndpoint,
        position: int,
        sessions: Sessions,
        settings: EvmRpcSettings,
        pause: RetryAfter | None = None,
    ) -> None:
        self.position = position
        self.display = endpoint.display
        self.head: int | None = None
        self.head_rate = RateMeter()
        self.is_verified = False
        self.is_wrong_chain = False
        self.fault: str | None = "not asked yet"
        self.cooldown_until = 0.0
        self.checked_at = 0.0
        self._endpoint = endpoint
        self._urls = {"": endpoint.url("")}
        self._headers = {**endpoint.http_headers, "Content-Type": JSON, "Accept": JSON}
        self._sessions = sessions
        self._settings = settings
        self._pause = pause or RetryAfter()

    @property
    def is_paused(self) -> bool:
        """Whether it asked for no requests, and that time is not over."""
        return self._pause.remaining_s(asyncio.get_running_loop().time()) > 0

    @property
    def is_awaited(self) -> bool:
        """Whether it did not answer yet, or not lately, and may do so."""
        return self.fault is not None and not self.is_wrong_chain

    def set_head(self, height: int, now: float) -> None:
        """Set the head; the blocks since the last one count for the rate."""
        if self.head is None or height < self.head:
            self.head_rate.start(now)
        elif height > self.head:
            self.head_rate.add(now, height - self.head)
        self.head = height

    async def post(
        self, body: bytes, timeout_s: float, max_bytes: int | None = None, *, is_write: bool = False, path: str = ""
    ) -> RpcNodeReply:
        """Send a body and return the response. is_write: it must not be sent twice. Raises RpcNodeError.

        max_bytes: of the response; None: as the settings say. path: below the URL of the node.
        """
        session = self._sessions.single_use if is_write else self._sessions.pooled
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._endpoint.url(path)
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._settings.connect_timeout_s)
        try:
            async with session.post(
                url, data=body, headers=self._headers, timeout=limits, allow_redirects=False
            ) as response:
                if response.status in _ASKS_TO_WAIT:
                    self._note_retry_after(response.headers.get("Retry-After"))
                content = await read_body(response, max_bytes or self._settings.max_answer_bytes)
                if content is None:
                    raise RpcNodeError(RpcNodeFailure.TOO_LARGE)
                if response.status not in _STATUSES:
                    raise RpcNodeError(RpcNodeFailure.LOST)
                return RpcNodeReply(response.status, content, _content_type(response))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL):
            raise RpcNodeError(RpcNodeFailure.UNREACHABLE) from None
        except TimeoutError:
            raise RpcNodeError(RpcNodeFailure.TIMEOUT) from None
        except (aiohttp.ClientError, OSError):
            raise RpcNodeError(RpcNodeFailure.LOST) from None

    def _note_retry_after(self, text: str | None) -> None:
        wait_s = parse_retry_after(text, time.time(), MAX_PAUSE_S)
        if wait_s is not None:
            self._pause.record_request(asyncio.get_running_loop().time(), wait_s)


def _content_type(response: aiohttp.ClientResponse) -> str:
    """Return the type of a body; JSON if it is missing, or no text that a header of ours can carry."""
    given = response.headers.get("Content-Type", JSON)[:_MAX_TYPE_CHARACTERS]
    return given if given.isascii() and given.isprintable() else JSON
