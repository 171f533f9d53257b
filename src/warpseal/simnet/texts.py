"""The words of a node for bytes that it cannot decode, as recorded where they were."""

from __future__ import annotations

from warpseal.warp.codec import MalformedMessage, Reader


def codec_text(raw: bytes, error: MalformedMessage) -> str:
    """Return what a node's codec says of `raw`, which `error` refused."""
    try:
        Reader(raw).version()
    except MalformedMessage:
        return "unknown codec version" if len(raw) >= 2 else "couldn't unpack codec version"
    return f"couldn't unmarshal: {error.reason}"
