"""Texts of ids, addresses and accounts on one network; texts that many responses share are cached.

Source of truth: base58-check and Bech32 of avalanchego, EIP-55 for accounts of EVM chains.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Final

from warpseal.chains.ids import Address, address_prefix, bech32_text
from warpseal.chains.keccak import keccak
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.warp.ids import id_text, node_id_text

EVM_ADDRESS_BYTES: Final = 20
_MAX_CACHED: Final = 16_384
_CASE_BIT: Final = 0x20


def _case_bits(digits: str) -> bytes:
    """Return a table of all bytes that has the case bit at these digits, and 0 elsewhere."""
    table = bytearray(256)
    for digit in digits.encode():
        table[digit] = _CASE_BIT
    return bytes(table)


_CASE_BIT_OF_LETTERS: Final = _case_bits("abcdef")
_CASE_BIT_FROM_8: Final = _case_bits("89abcdef")

_bech32 = lru_cache(_MAX_CACHED)(bech32_text)
node_text = lru_cache(_MAX_CACHED)(node_id_text)
"""Text of a node id."""
shared_id_text = lru_cache(_MAX_CACHED)(id_text)
"""Text of the ID of an asset, a subnet or a chain, which many responses name."""


class NetworkText:
    """Texts that depend on the network: addresses and the ids of its primary chains."""

    def __init__(self, network_id: int, chains: PrimaryChains) -> None:
        self.prefix = address_prefix(network_id)
        self.chains = chains
        self._chain_ids = {chain: id_text(chains.id_of(chain)) for chain in PrimaryChain}

    def chain_id(self, chain: PrimaryChain) -> str:
        """Return the id of a primary chain."""
        return self._chain_ids[chain]

    def address(self, raw: Address) -> str:
        """Return Bech32 without a chain in front, as the hosted service shows it."""
        return _bech32(self.prefix, raw)

    def addresses(self, raw: tuple[Address, ...]) -> tuple[str, ...]:
        """Return Bech32 of all addresses, in their order."""
        prefix = self.prefix
        return tuple([_bech32(prefix, address) for address in raw])


def hex_text(raw: bytes) -> str:
    """Return hex with 0x."""
    return "0x" + raw.hex()


@lru_cache(_MAX_CACHED)
def account_text(raw: bytes) -> str:
    """Return the text of an account or contract: EIP-55 if it has 20 bytes, else plain hex."""
    if len(raw) != EVM_ADDRESS_BYTES:
        return hex_text(raw)
    digits = raw.hex().encode()
    # eth_utils would import pydantic, which takes as long as half of the daemon's start.
    marks = keccak(digits)[:EVM_ADDRESS_BYTES].hex().encode()
    # All digits at once, as one number: pages have thousands of addresses.
    lowered = int.from_bytes(digits.translate(_CASE_BIT_OF_LETTERS)) & int.from_bytes(
        marks.translate(_CASE_BIT_FROM_8)
    )
    return "0x" + (int.from_bytes(digits) - lowered).to_bytes(len(digits)).decode()


def percent_text(shares: int) -> str:
    """Return shares of 1,000,000 as percent, without needless zeros: 20000 is "2"."""
    return format((Decimal(shares) / 10_000).normalize(), "f")
