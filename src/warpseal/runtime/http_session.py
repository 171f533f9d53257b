"""HTTP client sessions to nodes and price sources: no cookies, no compression, no proxy of the environment.

Other modules import aiohttp from here. When it is imported, it makes two TLS contexts, which read the certificate
authorities of the system: 44 ms and 3 MiB, which a daemon whose nodes have http URLs never needs. Its traces of
calls, which the daemon does not use, take another 7 ms.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from warpseal.runtime.lazy import imported_without
from warpseal.version import __version__

__all__ = ["aiohttp", "new_session", "read_authorities_late", "read_body"]

_READ_AUTHORITIES: Final = ssl.SSLContext.set_default_verify_paths


def read_authorities_late(context: ssl.SSLContext) -> None:
    """Let a context read the certificate authorities of the system when its first connection begins."""

    def wrap_bio(*args: Any, **kwargs: Any) -> ssl.SSLObject:
        _READ_AUTHORITIES(context)
        vars(context).pop("wrap_bio", None)
        return context.wrap_bio(*args, **kwargs)

    context.wrap_bio = wrap_bio  # type: ignore[method-assign]


ssl.SSLContext.set_default_verify_paths = read_authorities_late  # type: ignore[assignment, method-assign]
with imported_without("aiohttp.tracing"):
    import aiohttp

del ssl.SSLContext.set_default_verify_paths


def new_session(connector: aiohttp.BaseConnector | None = None) -> aiohttp.ClientSession:
    """Return a session without a timeout of its own. Nothing is decompressed: compressed data has no known bound."""
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"warpseal/{__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
    )


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """Return the body; None if it is longer than `limit` bytes, the rest of which is not read."""
    declared = response.content_length
    if declared is not None and declared <= limit:
        return await response.read()
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if max(len(content), declared or 0) > limit:
            response.close()
            return None
    return bytes(content)
