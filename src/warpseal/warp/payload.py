"""The payloads of a Warp message: a block hash, or a call from an address.

Source of truth: avalanchego `vms/platformvm/warp/payload`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.warp.codec import MalformedMessage, Reader, exactly, sized, u32, versioned

# Verifiers refuse to parse a longer payload, though an EVM chain signs it once a block has emitted it.
PAYLOAD_LIMIT_BYTES: Final = 24 * 1024

_HASH_TYPE: Final = 0
_ADDRESSED_CALL_TYPE: Final = 1
_HASH_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Hash:
    """The hash (32 bytes) of a block that the source chain accepted."""

    hash: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Hash:
        """Return the payload whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _reader(raw, _HASH_TYPE, "hash")
        value = reader.fixed(_HASH_BYTES, "hash")
        reader.finish()
        return cls(value)

    def encode(self) -> bytes:
        """Return the payload's bytes."""
        return versioned(u32(_HASH_TYPE), exactly(self.hash, _HASH_BYTES, "hash"))


@dataclass(frozen=True, slots=True)
class AddressedCall:
    """Bytes sent by an address of the source chain: 20 bytes on EVM chains, empty from the P-Chain."""

    source_address: bytes
    payload: bytes

    @classmethod
    def parse(cls, raw: bytes) -> AddressedCall:
        """Return the payload whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _reader(raw, _ADDRESSED_CALL_TYPE, "addressed call")
        source_address = reader.sized("source address")
        payload = reader.sized("payload")
        reader.finish()
        return cls(source_address, payload)

    def encode(self) -> bytes:
        """Return the payload's bytes."""
        return versioned(u32(_ADDRESSED_CALL_TYPE), sized(self.source_address), sized(self.payload))


def _reader(raw: bytes, type_id: int, what: str) -> Reader:
    if len(raw) > PAYLOAD_LIMIT_BYTES:
        raise MalformedMessage(PAYLOAD_LIMIT_BYTES, f"a payload has at most {PAYLOAD_LIMIT_BYTES} bytes")
    reader = Reader(raw)
    reader.version()
    reader.type_id(type_id, what)
    return reader
