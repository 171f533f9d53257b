"""Teleporter (ICM) messages, as their contracts put them into an addressed call.

Source of truth: icm-contracts `TeleporterMessenger.sol`; for the second version `TeleporterMessageV2.sol` and
`WarpAdapter.sol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from warpseal.runtime.lazy import LazyModule
from warpseal.warp.ids import ChainID

if TYPE_CHECKING:
    from eth_abi import abi as eth_abi
    from eth_abi import exceptions as eth_abi_errors
    from eth_hash import auto as eth_hash
else:
    # It takes 0.15 s, and signing does not need it.
    eth_abi = LazyModule("eth_abi.abi")
    eth_abi_errors = LazyModule("eth_abi.exceptions")
    eth_hash = LazyModule("eth_hash.auto")

# Where version 1 is deployed on every chain; other deployments have other addresses.
MESSENGER_V1: Final = bytes.fromhex("253b2784c75e510dd0ff1da844684a1ac0aa5fcf")

_ABI_V1: Final = "(uint256,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
_ABI_V2: Final = "(uint256,address,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
_ABI_ID: Final = ("address", "bytes32", "bytes32", "uint256")


class TeleporterMessage(Struct, frozen=True):
    """A call of a contract on another chain. Addresses have 20 bytes.

    messenger: the contract that assigned the nonce. version 1 sends its calls itself, version 2 through an adapter.
    receipts: the nonces of messages that were delivered to the source chain, and the addresses of the rewards.
    """

    version: int
    messenger: bytes
    nonce: int
    sender: bytes
    destination_chain_id: ChainID
    destination: bytes
    gas_limit: int
    relayers: tuple[bytes, ...]
    receipts: tuple[tuple[int, bytes], ...]
    body: bytes

    def message_id(self, source_chain_id: ChainID) -> bytes:
        """Return the 32 bytes by which the contracts identify the message; not the id of the Warp message."""
        fields = (self.messenger, source_chain_id, self.destination_chain_id, self.nonce)
        return eth_hash.keccak(eth_abi.encode(_ABI_ID, fields))


def parse_teleporter(sender: bytes, payload: bytes) -> TeleporterMessage | None:
    """Return the message in the payload of an addressed call from `sender`, or None if the payload is something else.

    The bytes must be exactly the ABI encoding of the message.
    """
    if len(sender) != 20:
        return None
    first = _decode(_ABI_V1, payload)
    if first is not None:
        return _build_message(1, sender, first)
    second = _decode(_ABI_V2, payload)
    if second is not None:
        return _build_message(2, _address(second[2]), (*second[:2], *second[3:]))
    return None


def _decode(abi: str, payload: bytes) -> tuple[Any, ...] | None:
    try:
        (fields,) = eth_abi.decode([abi], payload)
    except (eth_abi_errors.DecodingError, OverflowError, ValueError):
        return None
    return tuple(fields) if eth_abi.encode([abi], [fields]) == payload else None


def _build_message(version: int, messenger: bytes, fields: tuple[Any, ...]) -> TeleporterMessage:
    nonce, sender, chain_id, destination, gas_limit, relayers, receipts, body = fields
    return TeleporterMessage(
        version=version,
        messenger=messenger,
        nonce=nonce,
        sender=_address(sender),
        destination_chain_id=ChainID(chain_id),
        destination=_address(destination),
        gas_limit=gas_limit,
        relayers=tuple(map(_address, relayers)),
        receipts=tuple((receipt_nonce, _address(reward)) for receipt_nonce, reward in receipts),
        body=body,
    )


def _address(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
