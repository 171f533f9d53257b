"""The reason in the bytes of a revert. Any contract may return any bytes.

Source of truth: the Solidity documentation, "Panic via assert and Error via require".
"""

from __future__ import annotations

from typing import Final

_ERROR: Final = bytes.fromhex("08c379a0")
"""Selector of `Error(string)`."""
_PANIC: Final = bytes.fromhex("4e487b71")
"""Selector of `Panic(uint256)`."""
_SELECTOR_BYTES: Final = 4
_WORD_BYTES: Final = 32
_TEXT_AT: Final = _SELECTOR_BYTES + 2 * _WORD_BYTES


def decode_revert(data: bytes) -> str | None:
    """Return the reason in the data of a revert; None if it has none. Any character may be in it.

    An error that a contract declares is named by its selector.
    """
    selector, arguments = data[:_SELECTOR_BYTES], data[_SELECTOR_BYTES:]
    if len(selector) < _SELECTOR_BYTES:
        return None
    if selector == _PANIC and len(arguments) == _WORD_BYTES:
        return f"panic 0x{int.from_bytes(arguments):02x}"
    if selector != _ERROR:
        return f"error 0x{selector.hex()} of the contract"
    offset, size = arguments[:_WORD_BYTES], arguments[_WORD_BYTES : 2 * _WORD_BYTES]
    end = _TEXT_AT + int.from_bytes(size)
    if int.from_bytes(offset) != _WORD_BYTES or end > len(data):
        return None
    return data[_TEXT_AT:end].decode(errors="replace")
