"""HTTP client sessions to nodes and price sources, without cookies, compression and the proxy of
the environment.

Other modules import aiohttp from here. When it is imported, it makes two TLS contexts, which read
the certificate authorities of the system: 44 ms and 3 MiB, which a daemon whose nodes have http
URLs never needs.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Callable
from typing import Any, Final

from warpseal.version import __version__

__all__ = [
    "UnreadableBody",
    "aiohttp",
    "is_success",
    "new_session",
    "read_authorities_late",
    "read_body",
]

_UNDONE_COMPRESSIONS: Final = frozenset({"gzip", "x-gzip", "deflate"})
# The registry of HTTP content codings, IANA.
_COMPRESSIONS: Final = _UNDONE_COMPRESSIONS | {
    *("aes128gcm", "br", "compress", "dcb", "dcz", "exi", "pack200-gzip", "x-compress", "zstd")
}
_AUTO_DETECT: Final = 32 + zlib.MAX_WBITS
"""zlib's window bits for gzip or zlib, whichever the data begins with."""
_PIECE_BYTES: Final = 256 * 1024
_BEGINNING_BYTES: Final = 512
_MAX_NAMES: Final = 64
_READ_AUTHORITIES: Final = ssl.SSLContext.set_default_verify_paths


def read_authorities_late(context: ssl.SSLContext) -> None:
    """Let a context read the system's certificate authorities when its first connection begins."""

    def wrap_bio(*args: Any, **kwargs: Any) -> ssl.SSLObject:
        _READ_AUTHORITIES(context)
        vars(context).pop("wrap_bio", None)
        return context.wrap_bio(*args, **kwargs)

    context.wrap_bio = wrap_bio  # type: ignore[method-assign]


ssl.SSLContext.set_default_verify_paths = read_authorities_late  # type: ignore[assignment, method-assign]
import aiohttp  # noqa: E402 - the line above is for it

del ssl.SSLContext.set_default_verify_paths


def new_session(connector: aiohttp.BaseConnector | None = None) -> aiohttp.ClientSession:
    """Return a session without a timeout of its own.

    It asks for no compression; `read_body` undoes it in bounds.
    """
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"warpseal/{__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
    )


class UnreadableBody(ValueError):
    """A body is compressed, and cannot be decompressed."""


def is_success(status: int) -> bool:
    """Return whether the body is the result: with any status of 2xx, since proxies change 200 into
    201.
    """
    return status // 100 == 2


async def read_body(
    response: aiohttp.ClientResponse, limit: int, is_enough: Callable[[bytes], bool] | None = None
) -> bytes | None:
    """Return the body, with gzip and deflate undone; None if it is too long.

    limit: bytes that a body may have, compressed and decompressed; the rest of a longer one is not
        read.
    is_enough: called with the first bytes of the body, at most 512. If it returns True, the
        beginning of the body is returned, whatever its length.
    Raises UnreadableBody.
    """
    declared, decoder = response.content_length, _find_decoder(response)
    if is_enough is None and declared is not None:
        if declared > limit:
            response.close()
            return None
        if decoder is None:
            return await response.read()
    content, received = bytearray(), 0
    async for chunk in response.content.iter_any():
        received += len(chunk)
        if decoder is None:
            content += chunk
        else:
            await _decompress(decoder, chunk, content, limit)
        if is_enough is not None and is_enough(bytes(content[:_BEGINNING_BYTES])):
            response.close()
            return bytes(content)
        # A compressed body may have bytes without end that hold nothing.
        if max(declared or 0, received, len(content)) > limit:
            response.close()
            return None
    if decoder is not None and not decoder.eof:
        raise UnreadableBody("the compressed response is cut off")
    return bytes(content)


def _find_decoder(response: aiohttp.ClientResponse) -> zlib._Decompress | None:
    """Return the decompressor of a body; None if the body is not compressed.

    Storage servers and proxies send a Content-Encoding that names no compression, such as a
    character set.
    """
    tokens = ",".join(response.headers.getall("Content-Encoding", ())).lower().split(",")
    compressions = [token.strip() for token in tokens if token.strip() in _COMPRESSIONS]
    if not compressions:
        return None
    if compressions[1:] or compressions[0] not in _UNDONE_COMPRESSIONS:
        names = ", ".join(compressions)[:_MAX_NAMES]
        raise UnreadableBody(f"the response is compressed ({names}), which was not requested")
    return zlib.decompressobj(_AUTO_DETECT)


async def _decompress(
    decoder: zlib._Decompress, chunk: bytes, content: bytearray, limit: int
) -> None:
    """Append the content of a chunk, at most one byte beyond the limit.

    Other tasks run between the pieces.
    """
    while chunk and len(content) <= limit:
        try:
            content += decoder.decompress(chunk, min(_PIECE_BYTES, limit + 1 - len(content)))
        except zlib.error:
            raise UnreadableBody("the compressed response is damaged") from None
        chunk = decoder.unconsumed_tail
        if chunk:
            await asyncio.sleep(0)
