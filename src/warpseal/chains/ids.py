"""Ids of transactions, blocks, outputs and assets, and how they follow from bytes.

Source of truth: avalanchego `ids/id.go`, `vms/components/avax/utxo_id.go`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NewType

from warpseal.warp.ids import MalformedID

TxID = NewType("TxID", bytes)
BlockID = NewType("BlockID", bytes)
UtxoID = NewType("UtxoID", bytes)
AssetID = NewType("AssetID", bytes)
Address = NewType("Address", bytes)


def utxo_id(tx_id: TxID, output_index: int) -> UtxoID:
    """Return the id of an output: SHA-256 of its index as a uint64, though it is a uint32, and the transaction's id."""
    return UtxoID(sha256(output_index.to_bytes(8, "big") + tx_id).digest())


ADDRESS_BYTES: Final = 20

_PREFIXES: Final = {1: "avax", 2: "cascade", 3: "denali", 4: "everest", 5: "fuji", 10: "testing", 12345: "local"}
_OTHER_NETWORKS: Final = "custom"
_ALPHABET: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_DIGIT_BITS: Final = 5
_CHECKSUM_DIGITS: Final = 6
_ADDRESS_DIGITS: Final = ADDRESS_BYTES * 8 // _DIGIT_BITS
_LONGEST: Final = 90


def address_prefix(network_id: int) -> str:
    """Return the human-readable part of addresses of a network."""
    return _PREFIXES.get(network_id, _OTHER_NETWORKS)


def bech32_text(prefix: str, address: Address) -> str:
    """Return Bech32 of an address (20 bytes) without a chain, as the public data API shows it."""
    if len(address) != ADDRESS_BYTES:
        raise ValueError(f"an address has {ADDRESS_BYTES} bytes, not {len(address)}")
    number = int.from_bytes(address, "big")
    digits = [number >> _DIGIT_BITS * place & 31 for place in range(_ADDRESS_DIGITS - 1, -1, -1)]
    checksum = _checksum(prefix, [*digits, *[0] * _CHECKSUM_DIGITS]) ^ 1
    digits += [checksum >> _DIGIT_BITS * place & 31 for place in range(_CHECKSUM_DIGITS - 1, -1, -1)]
    return prefix + "1" + "".join(_ALPHABET[digit] for digit in digits)


def address_text(network_id: int, address: Address, chain: str = "P") -> str:
    """Return the text of an address on a chain, such as `P-avax1...`."""
    return f"{chain}-{bech32_text(address_prefix(network_id), address)}"


def parse_address(text: str) -> tuple[str, Address]:
    """Return the human-readable part and the 20 bytes of an address, with or without a chain's alias in front.

    The prefix stands for the network: compare it with `address_prefix`. Raises MalformedID.
    """
    bare = text.rpartition("-")[2]
    prefix, separator, shown = bare.rpartition("1")
    if not separator or not prefix or len(bare) > _LONGEST or not bare.isascii() or bare != bare.lower():
        raise MalformedID(text, "not Bech32 in lower case")
    digits = [_ALPHABET.find(letter) for letter in shown]
    if -1 in digits or len(digits) != _ADDRESS_DIGITS + _CHECKSUM_DIGITS:
        raise MalformedID(text, f"not {_ADDRESS_DIGITS} characters of Bech32 and a checksum")
    if _checksum(prefix, digits) != 1:
        raise MalformedID(text, "wrong checksum")
    number = 0
    for digit in digits[:_ADDRESS_DIGITS]:
        number = number << _DIGIT_BITS | digit
    return prefix, Address(number.to_bytes(ADDRESS_BYTES, "big"))


def _checksum(prefix: str, digits: list[int]) -> int:
    letters = prefix.encode()
    value = 1
    for digit in (*(letter >> _DIGIT_BITS for letter in letters), 0, *(letter & 31 for letter in letters), *digits):
        top = value >> 25
        value = (value & 0x1FFFFFF) << _DIGIT_BITS ^ digit
        for bit, term in enumerate(_GENERATOR):
            if top >> bit & 1:
                value ^= term
    return value
