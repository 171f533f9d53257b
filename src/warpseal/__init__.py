"""Warpseal aggregates the BLS signatures of Avalanche validators over Warp messages.

This module is the public interface for Python programs: ids, messages, validator sets, and
`verify`. Every other module is private and may change with any version. The daemon is the
`warpseal` command.

>>> from warpseal import SignedMessage, UnsignedMessage, verify
>>> from warpseal import build_canonical_set, encode_signers, parse_node_id
>>> raw = bytes.fromhex("00000000007b0102030" + "0" * 57 + "00000006666f6f626172")
>>> message = UnsignedMessage.parse(raw)
>>> message.network_id, message.payload
(123, b'foobar')
>>> key = bytes.fromhex(
...     "900c9b119b5c82d781d4b49be78c3fc7ae65f2b435b7ed9e"
...     "3a8b9a03e475edff86d8a64827fec8db23a6f236afbf127d"
... )
>>> node_id = parse_node_id("NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg")
>>> members = build_canonical_set([(node_id, key, 80)])
>>> signature = bytes.fromhex(
...     "a0f4fd6e5030198521cc31505fb77c757b5bb8d9fd9f6c54"
...     "85f34518b2d612834b76600ab609ca9b40c198f339bf405f"
...     "06731e39a530d9e2be393b3a36fab9044eac27c4b6e5292c"
...     "d69e6d0b5700c4a0dd3f62f5cb818d6652ca40957f937a00"
... )
>>> signed = SignedMessage(message, encode_signers([0]), signature)
>>> verification = verify(signed.encode(), members, quorum=67)
>>> verification.meets_quorum, verification.signed_weight, verification.fault
(True, 80, None)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warpseal.version import __version__
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    MalformedID,
    MessageID,
    NodeID,
    SubnetID,
    ValidationID,
    id_text,
    node_id_text,
    parse_id,
    parse_node_id,
)
from warpseal.warp.message import (
    AddressedCall,
    Hash,
    SignedMessage,
    UnsignedMessage,
    decode_signers,
    encode_signers,
)
from warpseal.warp.validator_set import (
    CanonicalValidatorSet,
    InvalidValidatorSet,
    Validator,
    build_canonical_set,
    has_quorum,
    required_weight,
)

if TYPE_CHECKING:
    from warpseal.messages.verification import verify

__all__ = [
    "PRIMARY_NETWORK",
    "P_CHAIN",
    "AddressedCall",
    "CanonicalValidatorSet",
    "ChainID",
    "Hash",
    "InvalidValidatorSet",
    "MalformedID",
    "MalformedMessage",
    "MessageID",
    "NodeID",
    "SignedMessage",
    "SubnetID",
    "UnsignedMessage",
    "ValidationID",
    "Validator",
    "__version__",
    "build_canonical_set",
    "decode_signers",
    "encode_signers",
    "has_quorum",
    "id_text",
    "node_id_text",
    "parse_id",
    "parse_node_id",
    "required_weight",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import `verify` when it is first read: it loads a BLS library and the clients of nodes, and
    each module of the package imports this one.
    """
    if name != "verify":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("warpseal.messages.verification").verify
