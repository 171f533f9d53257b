"""HTTP client sessions to nodes and price sources: no cookies, no compression, no proxy of the environment."""

from __future__ import annotations

import aiohttp

from warpseal.version import __version__


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
