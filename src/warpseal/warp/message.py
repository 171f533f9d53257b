"""Unsigned and signed Warp messages, and the log data that carries one.

Source of truth: avalanchego `vms/platformvm/warp/{unsigned_message,message,signature}.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from warpseal.warp.codec import MalformedMessage, Reader, exactly, sized, u32, versioned
from warpseal.warp.ids import ID_BYTES, ChainID, MessageID
from warpseal.warp.signers import MalformedSigners, decode_signers

__all__ = ["SIGNATURE_BYTES", "MalformedMessage", "SignedMessage", "UnsignedMessage", "unwrap_log_data"]

SIGNATURE_BYTES: Final = 96
_BIT_SET_SIGNATURE: Final = 0
_ABI_WORD_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class UnsignedMessage:
    """What validators sign: `raw`, whose other fields are its parts. Equal when `raw` is."""

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
        reader = Reader(raw)
        message = _read_unsigned(reader, raw)
        reader.finish()
        return message

    @classmethod
    def build(cls, network_id: int, source_chain_id: ChainID, payload: bytes) -> UnsignedMessage:
        """Return a message; network_id is a uint32, source_chain_id has 32 bytes."""
        chain = exactly(source_chain_id, ID_BYTES, "source chain id")
        raw = versioned(u32(network_id), chain, sized(payload))
        return cls(network_id, source_chain_id, payload, raw)


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """A message with its aggregate signature (96 bytes, compressed G2) and the bit set of who signed."""

    unsigned: UnsignedMessage
    signers: bytes
    signature: bytes = field(repr=False)

    @property
    def signer_indices(self) -> tuple[int, ...]:
        """Canonical indices of the signers, ascending."""
        return decode_signers(self.signers)

    @classmethod
    def parse(cls, raw: bytes) -> SignedMessage:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage; padded signers too."""
        reader = Reader(raw)
        unsigned = _read_unsigned(reader, raw)
        reader.type_id(_BIT_SET_SIGNATURE, "bit set signature")
        signers = reader.sized("signers")
        try:
            decode_signers(signers)
        except MalformedSigners as error:
            raise MalformedMessage(reader.offset - len(signers), str(error)) from None
        signature = reader.fixed(SIGNATURE_BYTES, "signature")
        reader.finish()
        return cls(unsigned, signers, signature)

    def encode(self) -> bytes:
        """Return the bytes that verifiers take."""
        signature = exactly(self.signature, SIGNATURE_BYTES, "signature")
        return self.unsigned.raw + u32(_BIT_SET_SIGNATURE) + sized(self.signers) + signature


def unwrap_log_data(raw: bytes) -> bytes | None:
    """Return the one ABI `bytes` argument of a SendWarpMessage event, or None where `raw` is no such data.

    Strict: offset 0x20, the length, then the data with zeros up to a multiple of 32 bytes and nothing else.
    """
    word = _ABI_WORD_BYTES
    if len(raw) < 2 * word or len(raw) % word or int.from_bytes(raw[:word], "big") != word:
        return None
    length = int.from_bytes(raw[word : 2 * word], "big")
    padding = len(raw) - 2 * word - length
    if not 0 <= padding < word or raw[2 * word + length :].strip(b"\x00"):
        return None
    return raw[2 * word : 2 * word + length]


def _read_unsigned(reader: Reader, raw: bytes) -> UnsignedMessage:
    reader.version()
    network_id = reader.unsigned(4, "network id")
    source_chain_id = ChainID(reader.fixed(ID_BYTES, "source chain id"))
    payload = reader.sized("payload")
    return UnsignedMessage(network_id, source_chain_id, payload, raw[: reader.offset])
