"""The response of a base URL to one JSON-RPC call, for the operator, with its usual meaning.

No part of the URL beyond host and port and no part of a body is returned: both may hold keys.
"""

from __future__ import annotations

import asyncio
import time
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from warpseal.runtime.http_session import aiohttp, is_success, read_body
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.jsonrpc import ERROR_BODY, RESULT_BODY, describe_body

_MAX_BODY_BYTES: Final = 64 * 1024
_NOT_FOUND: Final = 404
# No date is longer.
_MAX_DATE_LENGTH: Final = 64
_HALF_A_SECOND_S: Final = 0.5
_NO_NODE: Final = "something else than a node answers: check the base URL"
_MEANINGS_OF_BODIES: Final = {
    RESULT_BODY: "",
    ERROR_BODY: "the node has the API disabled, or is still starting",
    "HTML": "a web page answers, not a node: check the base URL",
}
_MEANINGS: Final = {
    401: (
        "the node or its gateway wants a key: set query-parameters or http-headers, or correct"
        " the key"
    ),
    403: (
        "the key is refused, or the node does not allow this host name (http-allowed-hosts of the"
        " node)"
    ),
    _NOT_FOUND: "the base URL has a path too many, or this gateway does not serve the API",
    405: "a web server answers, not a node: check host and port",
    429: "the gateway limits the calls: use another node, a key, or lower node-requests-per-second",
}


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """The response of one base URL.

    status: HTTP status; None without an HTTP response.
    body: kind of the body.
    meaning: usual meaning of the response and advice; "" if all is well.
    clock_offset_s: server's clock minus this machine's clock, exact to a second; None if the
        response has no date.
    """

    status: int | None
    body: str
    meaning: str = ""
    clock_offset_s: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.body if self.status is None else f"HTTP {self.status}, {self.body}"


async def probe_endpoint(
    session: aiohttp.ClientSession,
    endpoint: NodeEndpoint,
    paths: Sequence[str],
    method: str,
    timeout_s: float,
    params: Sequence[Any] | None = None,
) -> EndpointResponse:
    """Call a method below a base URL, at the first path that exists.

    Never raises. params: params of the call; None stands for an empty object.
    """
    json_params = {} if params is None else params
    call = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": json_params})
    for path in paths:
        response = await _probe_path(session, endpoint, path, call, timeout_s)
        if response.status != _NOT_FOUND:
            break
    return response


async def _probe_path(
    session: aiohttp.ClientSession, endpoint: NodeEndpoint, path: str, call: bytes, timeout_s: float
) -> EndpointResponse:
    headers = {"Content-Type": "application/json", **endpoint.http_headers}
    sent_at = time.time()
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(
                endpoint.url(path), data=call, headers=headers, allow_redirects=False
            ) as response,
        ):
            offset_s = _clock_offset_s(response.headers.get("Date"), (sent_at + time.time()) / 2)
            content = await read_body(response, _MAX_BODY_BYTES)
            body = "a large body"
            if content is not None:
                body = describe_body(content.removeprefix(BOM_UTF8))
            meaning = _meaning(response.status, body)
            return EndpointResponse(response.status, body, meaning, offset_s)
    except TimeoutError:
        meaning = "a firewall drops the packets, or the node is overloaded"
        return EndpointResponse(None, "no answer in time", meaning)
    except aiohttp.ClientConnectorDNSError:
        meaning = "check the host of the base URL, and the name server"
        return EndpointResponse(None, "unknown host name", meaning)
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError):
        meaning = (
            "the port speaks no TLS (use http://), or its certificate is not valid for this host"
        )
        return EndpointResponse(None, "TLS failed", meaning)
    except aiohttp.ClientConnectorError:
        meaning = "no process listens there: is the node up, the port right?"
        return EndpointResponse(None, "connection refused", meaning)
    except (aiohttp.ClientError, OSError, ValueError):
        meaning = "the port speaks TLS (use https://), or is not that of the API"
        return EndpointResponse(None, "no HTTP response", meaning)


def _clock_offset_s(date: str | None, unix_now_s: float) -> float | None:
    """Return the difference of a Date header to the time at which it was written.

    A Date has whole seconds, so that half a second is its best guess.
    """
    if date is None or len(date) > _MAX_DATE_LENGTH:
        return None
    try:
        written_at = parsedate_to_datetime(date)
        return written_at.timestamp() + _HALF_A_SECOND_S - unix_now_s
    except (ValueError, TypeError, OverflowError):
        return None


def _meaning(status: int, body: str) -> str:
    if is_success(status):
        return _MEANINGS_OF_BODIES.get(body, _NO_NODE)
    if 300 <= status < 400:
        return "the base URL is redirected, which is not followed: use the address that it leads to"
    if status >= 500:
        return (
            "the gateway does not reach the node, or the node is starting: wait, or look at its log"
        )
    return _MEANINGS.get(status, _NO_NODE)
