"""The response of a base URL to one JSON-RPC call, for the operator: status, class of the body, and
its usual meaning.

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

    status: None without an HTTP response; body: its class.

    meaning: the usual cause and advice, empty if all is well.
    clock_offset_s: the server's clock minus this machine's, exact to a second; None if its response
        has no date.
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

    params: None for an empty object. Never raises.
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
            body = (
                "a large body" if content is None else describe_body(content.removeprefix(BOM_UTF8))
            )
            return EndpointResponse(
                response.status, body, _meaning(response.status, body), offset_s
            )
    except TimeoutError:
        return EndpointResponse(
            None, "no answer in time", "a firewall drops the packets, or the node is overloaded"
        )
    except aiohttp.ClientConnectorDNSError:
        return EndpointResponse(
            None, "unknown host name", "check the host of the base URL, and the name server"
        )
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError):
        meaning = (
            "the port speaks no TLS (use http://), or its certificate is not valid for this host"
        )
        return EndpointResponse(None, "TLS failed", meaning)
    except aiohttp.ClientConnectorError:
        return EndpointResponse(
            None, "connection refused", "no process listens there: is the node up, the port right?"
        )
    except (aiohttp.ClientError, OSError, ValueError):
        return EndpointResponse(
            None,
            "no HTTP response",
            "the port speaks TLS (use https://), or is not that of the API",
        )


def _clock_offset_s(date: str | None, unix_now_s: float) -> float | None:
    """Return the difference of a Date header, which has whole seconds, to the time at which it was
    written.
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
        return {
            RESULT_BODY: "",
            ERROR_BODY: "the node has the API disabled, or is still starting",
            "HTML": "a web page answers, not a node: check the base URL",
        }.get(body, "something else than a node answers: check the base URL")
    if 300 <= status < 400:
        return "the base URL is redirected, which is not followed: use the address that it leads to"
    if status >= 500:
        return (
            "the gateway does not reach the node, or the node is starting: wait, or look at its log"
        )
    return _MEANINGS.get(status, "something else than a node answers: check the base URL")
