"""Texts of ids, addresses and amounts on one network; those that come again and again are remembered.

Source of truth: base58-check and Bech32 of avalanchego, EIP-55 for accounts of EVM chains.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Final

from eth_hash.auto import keccak

from warpseal.chains.ids import Address, address_prefix, bech32_text
from warpseal.history.chains import PrimaryChain, PrimaryChains
from warpseal.warp.ids import NodeID, id_text, node_id_text

EVM_ADDRESS_BYTES: Final = 20
_REMEMBERED: Final = 16_384

_bech32 = lru_cache(_REMEMBERED)(bech32_text)
_node_text = lru_cache(_REMEMBERED)(node_id_text)
shared_id_text = lru_cache(_REMEMBERED)(id_text)
"""Text of an id that many answers name: of an asset, a subnet, a chain."""


class NetworkText:
    """How one network spells what is its own."""

    def __init__(self, network_id: int, chains: PrimaryChains) -> None:
        self.prefix = address_prefix(network_id)
        self.chains = chains
        self._chain_texts = {chain: id_text(chains.id_of(chain)) for chain in PrimaryChain}

    def chain(self, chain: PrimaryChain) -> str:
        """Return the id of a primary chain."""
        return self._chain_texts[chain]

    def address(self, raw: Address) -> str:
        """Return Bech32 without a chain in front, as the hosted service shows it."""
        return _bech32(self.prefix, raw)

    def addresses(self, raw: tuple[Address, ...]) -> tuple[str, ...]:
        """Return Bech32 of each."""
        prefix = self.prefix
        return tuple([_bech32(prefix, one) for one in raw])


def node_text(node_id: NodeID) -> str:
    """Return a node id's text."""
    return _node_text(node_id)


def hex_text(raw: bytes) -> str:
    """Return hex with 0x."""
    return "0x" + raw.hex()


@lru_cache(_REMEMBERED)
def account_text(raw: bytes) -> str:
    """Return the text of an account or contract: EIP-55 where it has 20 bytes, else plain hex."""
    digits = raw.hex()
    if len(raw) != EVM_ADDRESS_BYTES:
        return "0x" + digits
    hashed = keccak(digits.encode()).hex()
    marked = zip(digits, hashed, strict=False)  # The hash is longer than the address.
    return "0x" + "".join(digit.upper() if mark > "7" else digit for digit, mark in marked)


def percent_text(shares: int) -> str:
    """Return shares of 1,000,000 as percent, without needless zeros: 20000 is "2"."""
    return format((Decimal(shares) / 10_000).normalize(), "f")
