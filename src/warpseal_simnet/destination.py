"""The verification of a signed message by the block of its destination, as nodes do it.

Source of truth: avalanchego `vms/platformvm/warp/signature.go`,
`vms/platformvm/txs/executor/warp_verifier.go`,
`graft/subnet-evm/precompile/contracts/warp/config.go`. It shares no logic with clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from warpseal import bls
from warpseal.warp.codec import CodecReader, MalformedMessage
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID
from warpseal.warp.message import SIGNATURE_BYTES, UnsignedMessage
from warpseal_simnet.proposervm import ChainBlock
from warpseal_simnet.signing import parse_payload
from warpseal_simnet.state import SimState
from warpseal_simnet.validator_sets import SetEntry
from warpseal_simnet.values import ChainKind, SimChain
from warpseal_simnet.warp_config import DEFAULT_QUORUM

_FIELD: Final = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf"
    "6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    16,
)
_LARGER_ROOT: Final = 0x20


class RefusalCode(StrEnum):
    """Why a destination refuses a message."""

    # The bytes are no signed message, or carry no payload of Warp.
    MALFORMED = "malformed"
    PAYLOAD = "payload"
    WARP_DISABLED = "warp_disabled"
    UNKNOWN_SOURCE = "unknown_source"
    NETWORK_ID = "network_id"
    BIT_SET = "bit_set"
    WEIGHT = "weight"
    NO_SIGNERS = "no_signers"
    SIGNATURE = "signature"
    # Kinds of the P-Chain; Teleporter has the last one as well.
    WRONG_MANAGER = "wrong_manager"
    EXPIRED_REGISTRATION = "expired_registration"
    EARLY_REGISTRATION = "early_registration"
    NO_VALIDATION = "no_validation"
    STALE_NONCE = "stale_nonce"
    RESERVED_NONCE = "reserved_nonce"
    LAST_VALIDATOR = "last_validator"
    OTHER_DESTINATION = "other_destination"
    NOT_ALLOWED = "not_allowed"
    ALREADY_DELIVERED = "already_delivered"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Whether a chain or a contract accepted a message, and the reason if not.

    code: None also for a contract's own.
    """

    accepted: bool
    reason: str = ""
    code: RefusalCode | None = None


ACCEPTED: Final = Delivery(True)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """The parts of a signed message. The signer bits and the signature may be anything."""

    unsigned: UnsignedMessage
    signers: bytes
    signature: bytes

    @classmethod
    def parse(cls, raw: bytes) -> ReceivedMessage:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = CodecReader(raw)
        reader.version()
        network_id, chain_id = reader.u32("network id"), ChainID(reader.take(32, "source chain id"))
        unsigned = UnsignedMessage(
            network_id, chain_id, reader.sized("payload"), raw[: reader.offset]
        )
        reader.type_id(0, "bit set signature")
        message = cls(unsigned, reader.sized("signers"), reader.take(SIGNATURE_BYTES, "signature"))
        reader.finish()
        return message


def refuse(code: RefusalCode, reason: str) -> Delivery:
    """Return a refusal."""
    return Delivery(False, reason, code)


def verify_in_block(state: SimState, chain: SimChain, block: ChainBlock, raw: bytes) -> Delivery:
    """Return whether a block of a chain accepts the signature of a message.

    The X-Chain takes no messages.
    """
    quorum, needs_primary_signers = DEFAULT_QUORUM, True
    if chain.kind is not ChainKind.P:
        rule = state.warp[chain.chain_id].at(block.time) if chain.chain_id in state.warp else None
        if rule is None:
            return refuse(
                RefusalCode.WARP_DISABLED, f"{chain.name} takes no messages at {block.time}"
            )
        quorum, needs_primary_signers = rule.numerator, rule.needs_primary_signers
    try:
        message = ReceivedMessage.parse(raw)
    except MalformedMessage as error:
        return refuse(RefusalCode.MALFORMED, f"malformed message: {error}")
    try:
        parse_payload(message.unsigned.payload)
    except MalformedMessage:
        return refuse(RefusalCode.PAYLOAD, "the payload is neither a hash nor an addressed call")
    source = state.chains.get(message.unsigned.source_chain_id)
    if source is None:
        return refuse(RefusalCode.UNKNOWN_SOURCE, "the source chain does not exist")
    signer = source.subnet_id
    has_own_signers = chain.kind is not ChainKind.P and (
        source.chain_id == P_CHAIN or not needs_primary_signers
    )
    if signer == PRIMARY_NETWORK and has_own_signers:
        signer = chain.subnet_id
    return verify_for_set(state, message, signer, block.verifying_height, quorum)


def verify_for_set(
    state: SimState,
    message: ReceivedMessage,
    subnet_id: SubnetID,
    height: int,
    quorum: int = DEFAULT_QUORUM,
) -> Delivery:
    """Return whether a message is validly signed by a subnet's set at a height.

    quorum: the least percentage of all weight.
    """
    if message.unsigned.network_id != state.network_id:
        return refuse(RefusalCode.NETWORK_ID, f"wrong network id {message.unsigned.network_id}")
    bits = int.from_bytes(message.signers, "big")
    if len(message.signers) != (bits.bit_length() + 7) // 8:
        return refuse(RefusalCode.BIT_SET, "the bit set is padded")
    members = state.set_at(subnet_id, height)
    weights = _weights_by_key(members)
    if bits.bit_length() > len(weights):
        text = (
            f"unknown validator: bit {bits.bit_length() - 1} of {len(weights)} at height {height}"
        )
        return refuse(RefusalCode.BIT_SET, text)
    signers = [key for index, key in enumerate(canonical_keys(members)) if bits >> index & 1]
    weight, total = sum(weights[key] for key in signers), sum(member.weight for member in members)
    if weight * 100 < total * quorum:
        return refuse(
            RefusalCode.WEIGHT, f"insufficient weight: {weight} of {total} at height {height}"
        )
    if not signers:
        return refuse(RefusalCode.NO_SIGNERS, f"no validators at height {height}")
    keys = [bls.parse_public_key(key) for key in signers]
    if not bls.verify_aggregate(keys, message.unsigned.raw, message.signature):
        return refuse(RefusalCode.SIGNATURE, f"invalid signature for the set at height {height}")
    return ACCEPTED


def canonical_keys(members: Iterable[SetEntry]) -> list[bytes]:
    """Return the public keys of a set in the order of signer bits."""
    return sorted(_weights_by_key(members), key=_uncompressed)


def _weights_by_key(members: Iterable[SetEntry]) -> dict[bytes, int]:
    weights: dict[bytes, int] = {}
    for member in members:
        if member.public_key is not None:
            weights[member.public_key] = weights.get(member.public_key, 0) + member.weight
    return weights


@lru_cache(maxsize=8192)
def _uncompressed(key: bytes) -> bytes:
    """Return both coordinates of a public key's point, 96 bytes, by which nodes sort a set."""
    x = int.from_bytes(key, "big") & (1 << 381) - 1
    root = pow(x**3 + 4, (_FIELD + 1) // 4, _FIELD)
    low, high = sorted((root, _FIELD - root))
    return x.to_bytes(48, "big") + (high if key[0] & _LARGER_ROOT else low).to_bytes(48, "big")
