"""The proposervm's outer blocks.

An outer block adds proposer, time and P-Chain height to a chain's own (inner) block. Source of
truth: avalanchego `vms/proposervm/block`, codec version 0.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final

from msgspec import Struct

from warpseal.chains.codec import ChainReader, MalformedChainBytes, UnknownType
from warpseal.chains.ids import BlockID
from warpseal.warp.codec import VERSION, pack_sized, pack_u32, pack_versioned, require_length
from warpseal.warp.ids import EMPTY_NODE_ID, ID_BYTES, ChainID, NodeID, node_id_from_certificate

MAX_CERTIFICATE_BYTES: Final = 2048
_BLOCK: Final = 0
_OPTION: Final = 1
_GRANITE_BLOCK: Final = 2
_HEADER: Final = struct.Struct(">32sqQ")
_EPOCH: Final = struct.Struct(">QQq")
# An option holds a P-Chain block, which has at least a codec version and a type id.
_MIN_INNER_BYTES: Final = 6


class Epoch(Struct, frozen=True):
    """A Granite epoch.

    p_chain_height: the height whose validator sets verify the epoch's Warp messages.
    start_time_s: unix seconds.
    """

    p_chain_height: int
    number: int
    start_time_s: int

    def encode(self) -> bytes:
        """Return its 24 bytes."""
        return _EPOCH.pack(self.p_chain_height, self.number, self.start_time_s)


class ProposedBlock(Struct, frozen=True):
    """An outer block with a header.

    parent_id: 32 bytes, the parent's outer id.
    timestamp_s: Unix seconds, may be negative in hostile bytes.
    certificate: DER of the proposer's leaf certificate; empty, like `signature`, if any node was
        allowed to propose.
    inner: bytes of the chain's own block.
    epoch: epoch of the block; None before Granite.
    """

    parent_id: BlockID
    timestamp_s: int
    p_chain_height: int
    certificate: bytes
    inner: bytes
    epoch: Epoch | None
    signature: bytes

    @property
    def id(self) -> BlockID:
        """The outer id, 32 bytes: SHA-256 of all bytes before the length of the signature."""
        return BlockID(sha256(self._unsigned()).digest())

    @property
    def proposer(self) -> NodeID:
        """The node of the certificate, EMPTY_NODE_ID without one.

        Unproven unless the signature is verified.
        """
        if not self.certificate:
            return EMPTY_NODE_ID
        return node_id_from_certificate(self.certificate)

    def encode(self) -> bytes:
        """Return the bytes that `parse_proposervm_block` reads.

        Raises ValueError if `parent_id` has not 32 bytes.
        """
        return self._unsigned() + pack_sized(self.signature)

    def signed_bytes(self, chain_id: ChainID) -> bytes:
        """Return the bytes that `signature` signs: the ids of chain, parent and this block."""
        return pack_versioned(chain_id, self.parent_id, self.id)

    def _unsigned(self) -> bytes:
        type_id, encoded_epoch = _BLOCK, b""
        if self.epoch is not None:
            type_id, encoded_epoch = _GRANITE_BLOCK, self.epoch.encode()
        parent_id = require_length(self.parent_id, ID_BYTES, "parent id")
        return pack_versioned(
            pack_u32(type_id),
            _HEADER.pack(parent_id, self.timestamp_s, self.p_chain_height),
            pack_sized(self.certificate),
            pack_sized(self.inner),
            encoded_epoch,
        )


class OptionBlock(Struct, frozen=True):
    """An outer block without a header: one of the two options of its parent.

    The parent's header applies to it.
    parent_id: 32 bytes, the parent's outer id.
    inner: bytes of a P-Chain Commit or Abort block.
    """

    parent_id: BlockID
    inner: bytes

    @property
    def id(self) -> BlockID:
        """The outer id, 32 bytes: SHA-256 of all its bytes."""
        return BlockID(sha256(self.encode()).digest())

    def encode(self) -> bytes:
        """Return the bytes that `parse_proposervm_block` reads.

        Raises ValueError if `parent_id` has not 32 bytes.
        """
        return pack_versioned(
            pack_u32(_OPTION),
            require_length(self.parent_id, ID_BYTES, "parent id"),
            pack_sized(self.inner),
        )


ProposerVMBlock = ProposedBlock | OptionBlock


def recognize_proposervm_block(raw: bytes) -> ProposerVMBlock | None:
    """Return the outer block that `raw` is; None for a block from before the proposervm.

    The type ids of outer blocks collide with the P-Chain's first blocks'. Bytes count as an outer
    block only if they parse to the last byte and a node would accept the block: a signature if and
    only if there is a certificate, no epoch of zeros, an inner block, and in an option a versioned
    one.
    """
    try:
        outer = parse_proposervm_block(raw)
    except MalformedChainBytes:
        return None
    return outer if _is_plausible(outer) else None


def inner_block(raw: bytes) -> bytes:
    """Return the bytes of the chain's own block, from the bytes of an outer or an inner block."""
    outer = recognize_proposervm_block(raw)
    return raw if outer is None else outer.inner


def parse_proposervm_block(raw: bytes) -> ProposerVMBlock:
    """Return the outer block whose bytes are exactly `raw`, if plausible or not.

    Raises MalformedChainBytes.
    """
    reader = ChainReader(raw)
    reader.version()
    start = reader.offset
    kind = reader.u32("type id of outer block")
    outer: ProposerVMBlock
    if kind == _OPTION:
        outer = OptionBlock(BlockID(reader.take(32, "parent id")), reader.sized("inner block"))
    elif kind in (_BLOCK, _GRANITE_BLOCK):
        outer = _read_block(reader, has_epoch=kind == _GRANITE_BLOCK)
    else:
        raise UnknownType(start, kind, "outer block")
    reader.finish()
    return outer


def _is_plausible(outer: ProposerVMBlock) -> bool:
    if isinstance(outer, OptionBlock):
        return len(outer.inner) >= _MIN_INNER_BYTES and outer.inner.startswith(VERSION)
    if outer.epoch == Epoch(0, 0, 0) or not outer.inner:
        return False
    return bool(outer.certificate) == bool(outer.signature)


def _read_block(reader: ChainReader, *, has_epoch: bool) -> ProposedBlock:
    parent_id, timestamp_s, p_chain_height = reader.unpack(_HEADER, "header")
    certificate = _read_certificate(reader)
    inner = reader.sized("inner block")
    epoch = Epoch(*reader.unpack(_EPOCH, "epoch")) if has_epoch else None
    signature = reader.sized("signature")
    return ProposedBlock(
        parent_id, timestamp_s, p_chain_height, certificate, inner, epoch, signature
    )


def _read_certificate(reader: ChainReader) -> bytes:
    start = reader.offset
    certificate = reader.sized("certificate")
    if len(certificate) > MAX_CERTIFICATE_BYTES:
        text = f"certificate has {len(certificate)} of at most {MAX_CERTIFICATE_BYTES} bytes"
        raise MalformedChainBytes(start, text)
    return certificate
