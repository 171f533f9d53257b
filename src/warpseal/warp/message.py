"""Unsigned and signed Warp messages, their payloads, signer bit sets, and logs that carry them.

Source of truth: avalanchego `vms/platformvm/warp/{unsigned_message,message,signature}.go`,
`vms/platformvm/warp/payload`, `utils/set/bits.go`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from msgspec import Struct

from warpseal.warp.codec import (
    CodecReader,
    MalformedMessage,
    pack_sized,
    pack_u32,
    pack_versioned,
    require_length,
)
from warpseal.warp.ids import ID_BYTES, ChainID, MessageID

SIGNATURE_BYTES: Final = 96
# Verifiers refuse to parse a longer payload, though an EVM chain signs it once a block has emitted
# it.
PAYLOAD_LIMIT_BYTES: Final = 24 * 1024

WARP_PRECOMPILE: Final = bytes.fromhex("0200000000000000000000000000000000000005")
"""The address on EVM chains whose SendWarpMessage events carry the messages of the chain."""

_BIT_SET_SIGNATURE: Final = 0
_HASH_TYPE: Final = 0
_ADDRESSED_CALL_TYPE: Final = 1
_HASH_BYTES: Final = 32
_ABI_WORD_BYTES: Final = 32
_PADDED: Final = "the signers' bit set starts with a zero byte"


class MalformedSigners(ValueError):
    """A bit set with a leading zero byte; verifiers refuse it."""


@dataclass(frozen=True, slots=True)
class UnsignedMessage:
    """The message that validators sign.

    raw: its bytes, which the other fields are parts of. Equal if `raw` is.
    """

    network_id: int = field(compare=False)
    source_chain_id: ChainID = field(compare=False)
    payload: bytes = field(compare=False, repr=False)
    raw: bytes = field(repr=False)
    id: MessageID = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", MessageID(sha256(self.raw).digest()))

    @classmethod
    def parse(cls, raw: bytes) -> UnsignedMessage:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = CodecReader(raw)
        message = _read_unsigned(reader, raw)
        reader.finish()
        return message

    @classmethod
    def build(cls, network_id: int, source_chain_id: ChainID, payload: bytes) -> UnsignedMessage:
        """Return a message; network_id is a uint32, source_chain_id has 32 bytes."""
        chain = require_length(source_chain_id, ID_BYTES, "source chain id")
        raw = pack_versioned(pack_u32(network_id), chain, pack_sized(payload))
        return cls(network_id, source_chain_id, payload, raw)


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """A message with its aggregate signature.

    signers: bit set of canonical indices, big-endian.
    signature: 96 bytes, compressed G2.
    """

    unsigned: UnsignedMessage
    signers: bytes
    signature: bytes = field(repr=False)

    @property
    def signer_indices(self) -> tuple[int, ...]:
        """Canonical indices of the signers, ascending."""
        return decode_signers(self.signers)

    @classmethod
    def parse(cls, raw: bytes, *, allows_padding: bool = False) -> SignedMessage:
        """Return the message whose bytes are exactly `raw`.

        Raises MalformedMessage, also for padded signers.

        allows_padding: parse padded signers as well, as nodes do; verifiers refuse them.
        """
        reader = CodecReader(raw)
        unsigned = _read_unsigned(reader, raw)
        return cls(unsigned, *_read_signature(reader, allows_padding=allows_padding))

    @classmethod
    def parse_over(cls, unsigned: UnsignedMessage, raw: bytes) -> SignedMessage:
        """Return `unsigned` with the signature in `raw`, which begins with its bytes.

        Raises MalformedMessage.
        """
        reader = CodecReader(raw)
        if reader.take(len(unsigned.raw), "message") != unsigned.raw:
            raise MalformedMessage(0, "another message")
        return cls(unsigned, *_read_signature(reader, allows_padding=False))

    def encode(self) -> bytes:
        """Return the bytes that verifiers accept."""
        signature = require_length(self.signature, SIGNATURE_BYTES, "signature")
        return (
            self.unsigned.raw + pack_u32(_BIT_SET_SIGNATURE) + pack_sized(self.signers) + signature
        )


def unwrap_log_data(raw: bytes) -> bytes | None:
    """Return the one ABI `bytes` argument of a SendWarpMessage event; None for other data.

    Strict: offset 0x20, the length, then the data with zeros up to a multiple of 32 bytes and
    nothing else.
    """
    word = _ABI_WORD_BYTES
    if len(raw) < 2 * word or len(raw) % word or int.from_bytes(raw[:word], "big") != word:
        return None
    length = int.from_bytes(raw[word : 2 * word], "big")
    padding = len(raw) - 2 * word - length
    if not 0 <= padding < word or raw[2 * word + length :].strip(b"\x00"):
        return None
    return raw[2 * word : 2 * word + length]


class Hash(Struct, frozen=True):
    """The hash (32 bytes) of a block that the source chain accepted."""

    hash: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Hash:
        """Return the payload whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _payload_reader(raw, _HASH_TYPE, "hash")
        value = reader.take(_HASH_BYTES, "hash")
        reader.finish()
        return cls(value)

    def encode(self) -> bytes:
        """Return the payload's bytes."""
        return pack_versioned(pack_u32(_HASH_TYPE), require_length(self.hash, _HASH_BYTES, "hash"))


class AddressedCall(Struct, frozen=True):
    """Bytes that an address of the source chain sent.

    source_address: 20 bytes on EVM chains, empty from the P-Chain.
    """

    source_address: bytes
    payload: bytes

    @classmethod
    def parse(cls, raw: bytes) -> AddressedCall:
        """Return the payload whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _payload_reader(raw, _ADDRESSED_CALL_TYPE, "addressed call")
        source_address = reader.sized("source address")
        payload = reader.sized("payload")
        reader.finish()
        return cls(source_address, payload)

    def encode(self) -> bytes:
        """Return the payload's bytes."""
        return pack_versioned(
            pack_u32(_ADDRESSED_CALL_TYPE),
            pack_sized(self.source_address),
            pack_sized(self.payload),
        )


def encode_signers(indices: Iterable[int]) -> bytes:
    """Return the bit set of canonical `indices`, in any order.

    It is a big-endian integer of minimal length, empty without indices; bit i stands for canonical
    index i.
    """
    bits = 0
    for index in indices:
        bits |= 1 << index
    return bits.to_bytes((bits.bit_length() + 7) // 8, "big")


def decode_signers(raw: bytes) -> tuple[int, ...]:
    """Return the canonical indices in ascending order.

    Raises MalformedSigners for a padded encoding.
    """
    if raw[:1] == b"\x00":
        raise MalformedSigners(_PADDED)
    digits = bin(int.from_bytes(raw, "big"))[:1:-1]
    return tuple(index for index, digit in enumerate(digits) if digit == "1")


def _read_unsigned(reader: CodecReader, raw: bytes) -> UnsignedMessage:
    reader.version()
    network_id = reader.u32("network id")
    source_chain_id = ChainID(reader.take(ID_BYTES, "source chain id"))
    payload = reader.sized("payload")
    return UnsignedMessage(network_id, source_chain_id, payload, raw[: reader.offset])


def _read_signature(reader: CodecReader, *, allows_padding: bool) -> tuple[bytes, bytes]:
    """Return the bit set of the signers and the signature, which end the bytes."""
    reader.type_id(_BIT_SET_SIGNATURE, "bit set signature")
    signers = reader.sized("signers")
    if signers[:1] == b"\x00" and not allows_padding:
        raise MalformedMessage(reader.offset - len(signers), _PADDED)
    signature = reader.take(SIGNATURE_BYTES, "signature")
    reader.finish()
    return signers, signature


def _payload_reader(raw: bytes, type_id: int, name: str) -> CodecReader:
    if len(raw) > PAYLOAD_LIMIT_BYTES:
        raise MalformedMessage(
            PAYLOAD_LIMIT_BYTES, f"a payload has at most {PAYLOAD_LIMIT_BYTES} bytes"
        )
    reader = CodecReader(raw)
    reader.version()
    reader.type_id(type_id, name)
    return reader
