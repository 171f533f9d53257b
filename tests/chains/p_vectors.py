"""P-Chain bytes that others made: signed transactions, mainnet blocks, genesis files, the recorded
network.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, Final

import zstandard

from tests import paths
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.warp.ids import id_text

VECTORS: Final = paths.VECTORS
_CHECKSUM_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Vector:
    """Bytes and their fields, as the node reports them."""

    raw: bytes
    fields: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.fields.get('about', self.fields['kind'])}"


def _vectors(name: str) -> list[Vector]:
    rows = json.loads((VECTORS / "p_chain.json").read_text())[name]
    return [Vector(bytes.fromhex(row["hex"]), row) for row in rows]


TRANSACTIONS: Final = _vectors("transactions")
BLOCKS: Final = _vectors("blocks")


def transaction(kind: str) -> bytes:
    """Return the bytes of the first vector of a kind."""
    return next(vector.raw for vector in TRANSACTIONS if vector.fields["kind"] == kind)


@cache
def genesis_bytes(network: str) -> bytes:
    """Return the genesis of `mainnet`, `fuji`, `localnet` or `helicon`."""
    return zstandard.ZstdDecompressor().decompress(
        (VECTORS / "genesis" / f"{network}.bin.zst").read_bytes()
    )


@cache
def genesis_chains(network: str = "localnet") -> dict[str, bytes]:
    """Return the transactions of a genesis that create chains, by id: a node has them like those of
    blocks.
    """
    return {id_text(tx.id): tx.raw for tx in parse_p_genesis(genesis_bytes(network)).chains}


@cache
def recording(network: str = "localnet") -> tuple[dict[str, Any], ...]:
    """Return the recorded calls: blocks, transactions and unspent outputs in hex, blocks and
    transactions as JSON.
    """
    packed = (VECTORS / network / "p-chain.jsonl.zst").read_bytes()
    lines = zstandard.ZstdDecompressor().stream_reader(packed).read().decode().splitlines()
    return tuple(json.loads(line) for line in lines)


def recorded(method: str, encoding: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (params, result) of the recorded calls of a method in an encoding."""
    calls = [call for call in recording() if call["method"] == f"platform.{method}"]
    return [
        (call["params"], call["result"]) for call in calls if call["params"]["encoding"] == encoding
    ]


def checked_hex(raw: bytes) -> str:
    """Return a node's `hex` encoding."""
    return "0x" + (raw + sha256(raw).digest()[-_CHECKSUM_BYTES:]).hex()


def unchecked(text: str) -> bytes:
    """Return the bytes behind the node's hex, whose four checksum bytes must be right."""
    checked = bytes.fromhex(text.removeprefix("0x"))
    raw = checked[:-_CHECKSUM_BYTES]
    assert sha256(raw).digest()[-_CHECKSUM_BYTES:] == checked[-_CHECKSUM_BYTES:]
    return raw
