"""One node of an EVM chain over HTTP: a body goes up, status, body and content type come back; nothing else does.

Source of truth: geth's `rpc/http.go`. Whether a request can have reached the node is told exactly, so that nobody
sends it twice by mistake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import aiohttp

import warpseal
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.node.endpoint import NodeEndpoint

JSON: Final = "application/json"
_BUSY: Final = frozenset({429, 502, 503, 504})
_OK: Final = 200


class EvmErrorKind(StrEnum):
    """Why a node gave no answer."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    LOST = "lost"
    TOO_LARGE = "too_large"
    BUSY = "busy"


class EvmNodeError(Exception):
    """A node gave no answer. was_written: the request may have reached it."""

    def __init__(self, kind: EvmErrorKind) -> None:
        super().__init__(str(kind))
        self.kind = kind

    @property
    def was_written(self) -> bool:
        """Whether the node may have done what it was asked."""
        return self.kind is not EvmErrorKind.UNREACHABLE


@dataclass(frozen=True, slots=True)
class EvmNodeReply:
    """What a node answered over HTTP."""

    status: int
    body: bytes
    content_type: str

    @property
    def is_ok(self) -> bool:
        """Whether the body answers the calls."""
        return self.status == _OK

    @property
    def is_busy(self) -> bool:
        """Whether another node may serve what this one does not now."""
        return self.status in _BUSY


@dataclass(frozen=True, slots=True)
class Sessions:
    """HTTP sessions to nodes. once: a new connection for each request. sockets: for WebSockets, which have a cap.

    A pooled connection may have been closed by the node meanwhile, and then nobody knows whether it took what was
    written; so what must not be sent twice never goes that way.
    """

    pooled: aiohttp.ClientSession
    once: aiohttp.ClientSession
    sockets: aiohttp.ClientSession


@asynccontextmanager
async def open_sessions(settings: EvmRpcSettings) -> AsyncIterator[Sessions]:
    """Hold the sessions to all nodes: no cookies, no redirects, no proxy of the environment."""
    per_node = settings.connections_per_node
    pooled = aiohttp.TCPConnector(limit=0, limit_per_host=per_node, keepalive_timeout=15)
    once = aiohttp.TCPConnector(limit=0, limit_per_host=per_node, force_close=True)
    sockets = aiohttp.TCPConnector(limit=0, force_close=True)
    async with _session(pooled) as first, _session(once) as second, _session(sockets) as third:
        yield Sessions(first, second, third)


class EvmNode:
    """One node. position: in the list of its chain, as logs and metrics name it."""

    def __init__(self, endpoint: NodeEndpoint, position: int, sessions: Sessions, settings: EvmRpcSettings) -> None:
        self.position = position
        self._endpoint = endpoint
        self._url = endpoint.url("")
        self._headers = {**endpoint.http_headers, "Content-Type": JSON, "Accept": JSON}
        self._sessions = sessions
        self._settings = settings

    @property
    def shown(self) -> str:
        """Scheme, host and port, for the log."""
        return self._endpoint.shown

    async def post(self, body: bytes, timeout_s: float, *, once: bool = False) -> EvmNodeReply:
        """Send a body and return the answer. once: it must not be sent twice. Raises NodeFault."""
        session = self._sessions.once if once else self._sessions.pooled
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._settings.connect_timeout_s)
        try:
            async with session.post(
                self._url, data=body, headers=self._headers, timeout=limits, allow_redirects=False
            ) as response:
                told = await self._read(response)
                return EvmNodeReply(response.status, told, response.headers.get("Content-Type", JSON)[:256])
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL):
            raise EvmNodeError(EvmErrorKind.UNREACHABLE) from None
        except TimeoutError:
            raise EvmNodeError(EvmErrorKind.TIMEOUT) from None
        except (aiohttp.ClientError, OSError):
            raise EvmNodeError(EvmErrorKind.LOST) from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        limit = self._settings.max_answer_bytes
        if (response.content_length or 0) > limit:
            response.close()
            raise EvmNodeError(EvmErrorKind.TOO_LARGE)
        if response.content_length is not None:
            return await response.read()
        told = bytearray()
        async for chunk in response.content.iter_any():
            told += chunk
            if len(told) > limit:
                response.close()
                raise EvmNodeError(EvmErrorKind.TOO_LARGE)
        return bytes(told)


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"warpseal/{warpseal.__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
    )
