"""RLP, as far as an EVM block needs it: nested lists of byte strings."""

from __future__ import annotations

from typing import Any


def rlp_decode(raw: bytes) -> Any:
    """Return the item whose bytes are exactly `raw`: bytes, or a list of items."""
    item, end = _item(raw, 0)
    assert end == len(raw)
    return item


def _item(raw: bytes, at: int) -> tuple[Any, int]:
    first = raw[at]
    if first < 0x80:
        return raw[at : at + 1], at + 1
    base = 0xC0 if first >= 0xC0 else 0x80
    start, length = at + 1, first - base
    if length > 55:
        start, length = start + length - 55, int.from_bytes(raw[start : start + length - 55], "big")
    end = start + length
    assert end <= len(raw)
    if base == 0x80:
        return raw[start:end], end
    items = []
    while start < end:
        item, start = _item(raw, start)
        items.append(item)
    assert start == end
    return items, end
