"""Ids of transactions, blocks, outputs and assets; addresses and their texts.

Source of truth: avalanchego `ids/id.go`, `vms/components/avax/utxo_id.go`; for addresses BIP-173
(constant 1, not Bech32m), avalanchego `utils/formatting/address`, `utils/constants/network_ids.go`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NewType

import bech32

from warpseal.warp.ids import MalformedID

TxID = NewType("TxID", bytes)
BlockID = NewType("BlockID", bytes)
UtxoID = NewType("UtxoID", bytes)
AssetID = NewType("AssetID", bytes)
Address = NewType("Address", bytes)

ADDRESS_BYTES: Final = 20

_PREFIXES: Final = {
    1: "avax",
    2: "cascade",
    3: "denali",
    4: "everest",
    5: "fuji",
    10: "testing",
    12345: "local",
}
_OTHER_NETWORKS: Final = "custom"
_MAX_TEXT_LENGTH: Final = 90


def utxo_id(tx_id: TxID, output_index: int) -> UtxoID:
    """Return the id of an output: SHA-256 of its index and the transaction's id.

    The index is hashed as a uint64, although it is a uint32 everywhere else.
    """
    return UtxoID(sha256(output_index.to_bytes(8, "big") + tx_id).digest())


def address_prefix(network_id: int) -> str:
    """Return the human-readable part of addresses of a network."""
    return _PREFIXES.get(network_id, _OTHER_NETWORKS)


def bech32_text(prefix: str, address: Address) -> str:
    """Return Bech32 of an address (20 bytes) without a chain, as the public data API shows it."""
    if len(address) != ADDRESS_BYTES:
        raise ValueError(f"an address has {ADDRESS_BYTES} bytes, not {len(address)}")
    digits = bech32.convertbits(address, 8, 5)
    assert digits is not None
    return bech32.bech32_encode(prefix, digits)


def address_text(network_id: int, address: Address, chain: str = "P") -> str:
    """Return the text of an address on a chain, such as `P-avax1...`."""
    return f"{chain}-{bech32_text(address_prefix(network_id), address)}"


def parse_address(text: str) -> tuple[str, Address]:
    """Return the human-readable part and the 20 bytes of an address.

    The human-readable part stands for the network: compare it with `address_prefix`. Raises
    MalformedID.

    text: Bech32 text, with or without a chain's alias in front.
    """
    bare = text.rpartition("-")[2]
    if len(bare) > _MAX_TEXT_LENGTH or bare != bare.lower():
        raise MalformedID(text, "not Bech32 in lower case")
    prefix, digits = bech32.bech32_decode(bare)
    if prefix is None or digits is None:
        raise MalformedID(text, "not Bech32, or a wrong checksum")
    raw = bech32.convertbits(digits, 5, 8, False)
    if raw is None or len(raw) != ADDRESS_BYTES:
        raise MalformedID(text, f"not {ADDRESS_BYTES} bytes of Bech32")
    return prefix, Address(bytes(raw))
