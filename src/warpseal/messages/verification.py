"""Verifies a signed message as verifiers do, against the validators of a subnet at a height.

Source of truth: avalanchego `vms/platformvm/warp/signature.go`; for the signing subnet: subnet-evm
`precompile/contracts/warp/config.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

from msgspec import Struct

from warpseal.bls import MalformedKey, PublicKey, parse_public_key, verify_aggregate
from warpseal.messages.describe import hex_text, id_forms
from warpseal.messages.errors import InvalidSigningSubnet
from warpseal.messages.teleporter import parse_teleporter
from warpseal.node.platform import PlatformClient
from warpseal.validators.errors import UnknownChain
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    SubnetID,
    ValidationID,
    id_text,
    node_id_text,
)
from warpseal.warp.l1_messages import L1ValidatorRegistration, L1ValidatorWeight
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage, decode_signers
from warpseal.warp.validator_set import (
    DEFAULT_QUORUM,
    CanonicalValidatorSet,
    build_canonical_set,
    has_quorum,
    required_weight,
)


class SignatureRefusal(StrEnum):
    """Why a verifier refuses a signed message, in the order of its checks. The values are stable.

    The first two come before a set is read: PAYLOAD, which no verifier parses, and UNKNOWN_SOURCE,
    a source chain that the P-Chain does not know.
    """

    PAYLOAD = "payload"
    UNKNOWN_SOURCE = "unknown_source"
    NETWORK_ID = "network_id"
    BIT_SET = "bit_set"
    WEIGHT = "weight"
    NO_SIGNERS = "no_signers"
    SIGNATURE = "signature"


class MemberWeight(Struct, frozen=True, rename="camel"):
    """A validator of a canonical set, and its weight."""

    index: int
    node_ids: list[str]
    public_key: str
    weight: str
    percentage: str


class VerificationReport(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of a verification for programs, with all validators of the set.

    The subnet id is CB58 and hex.
    """

    signing_subnet_id: Mapping[str, str]
    p_chain_height: str
    signature_valid: bool
    fault: str | None = None
    reason: SignatureRefusal | None = None
    quorum_percentage: int
    quorum_met: bool
    signed_weight: str
    total_weight: str
    signed_percentage: str
    signed: list[MemberWeight]
    not_signed: list[MemberWeight]
    weight_without_key: str


class MessageVerification(Struct, frozen=True):
    """The result of a verification.

    signers: canonical indices that the set has, ascending.
    fault: reason why the signature is invalid for this set, whatever its weight.
    failed_check: check of which `fault` is the reason.
    quorum: percent of the total weight that the verifier requires.
    """

    members: CanonicalValidatorSet
    signers: tuple[int, ...]
    fault: str | None
    failed_check: SignatureRefusal | None
    quorum: int

    @property
    def signed_weight(self) -> int:
        """The weight of the signers."""
        return self.members.weight_of(self.signers)

    @property
    def required_weight(self) -> int:
        """The least weight that a verifier accepts."""
        return required_weight(self.members.total_weight, self.quorum)

    @property
    def has_weight(self) -> bool:
        """Whether the signers' weight reaches the quorum, whether the signature is valid or not."""
        return has_quorum(self.signed_weight, self.members.total_weight, self.quorum)

    @property
    def meets_quorum(self) -> bool:
        """Whether a verifier with this quorum accepts the message."""
        return self.fault is None and self.has_weight

    @property
    def refusal(self) -> SignatureRefusal | None:
        """The first check of a verifier that fails; None if it accepts the message."""
        if self.failed_check in (SignatureRefusal.NETWORK_ID, SignatureRefusal.BIT_SET):
            return self.failed_check
        return self.failed_check if self.has_weight else SignatureRefusal.WEIGHT

    @property
    def refusal_text(self) -> str | None:
        """The refusal in a sentence."""
        if self.refusal is not SignatureRefusal.WEIGHT:
            return self.fault
        return (
            f"the signers have weight {self.signed_weight} of {self.members.total_weight}, "
            f"and {self.quorum} percent is {self.required_weight}"
        )

    def report(self, subnet_id: SubnetID, height: int) -> VerificationReport:
        """Return the result for the validators of a subnet at a height."""
        signed, total_weight = set(self.signers), self.members.total_weight
        members = [
            MemberWeight(
                index,
                [node_id_text(node_id) for node_id in validator.node_ids],
                hex_text(validator.public_key),
                str(validator.weight),
                percentage_text(validator.weight, total_weight),
            )
            for index, validator in enumerate(self.members.validators)
        ]
        return VerificationReport(
            signing_subnet_id=id_forms(subnet_id),
            p_chain_height=str(height),
            signature_valid=self.fault is None,
            fault=self.fault,
            reason=self.refusal,
            quorum_percentage=self.quorum,
            quorum_met=self.meets_quorum,
            signed_weight=str(self.signed_weight),
            total_weight=str(total_weight),
            signed_percentage=percentage_text(self.signed_weight, total_weight),
            signed=[member for member in members if member.index in signed],
            not_signed=[member for member in members if member.index not in signed],
            weight_without_key=str(self.members.keyless_weight),
        )


def verify(
    signed_message: bytes, validator_set: CanonicalValidatorSet, quorum: int = DEFAULT_QUORUM
) -> MessageVerification:
    """Verify a signed message as the chain that receives it does.

    validator_set: the set of the signing subnet at the height at which the receiving chain
        verifies.
    quorum: percent of the total weight of the set.

    The result has `meets_quorum`, `signed_weight`, `signers` (canonical indices) and `fault`: why
    the signature is not valid for this set, or None. Raises MalformedMessage.
    """
    return verify_signed(SignedMessage.parse(signed_message), validator_set, quorum)


def verify_signed(
    signed: SignedMessage,
    members: CanonicalValidatorSet,
    quorum: int = DEFAULT_QUORUM,
    *,
    network_id: int | None = None,
    keys: Sequence[PublicKey] | None = None,
) -> MessageVerification:
    """Verify against one canonical set, with the checks in the order of the verifiers.

    It takes milliseconds.

    network_id: network of the verifier; None accepts every network.
    keys: parsed keys of `members`; None parses the keys of the signers.
    """
    bits = int.from_bytes(signed.signers, "big")
    member_bits = bits & ((1 << len(members)) - 1)
    byte_count = (member_bits.bit_length() + 7) // 8
    signers = decode_signers(member_bits.to_bytes(byte_count, "big"))
    refusal = _find_refusal(signed, bits.bit_length(), signers, members, network_id, keys)
    check, fault = (None, None) if refusal is None else refusal
    return MessageVerification(members, signers, fault, check, quorum)


async def verify_at(
    platform: PlatformClient,
    signed: SignedMessage,
    subnet_id: SubnetID | None = None,
    height: int | None = None,
    quorum: int = DEFAULT_QUORUM,
) -> VerificationReport:
    """Verify with the sets that a node returns.

    subnet_id: signing subnet; None means the subnet that the message determines.
    height: P-Chain height of the set; None means the proposed height.

    The Primary Network or the receiving L1 may sign a message of the C-Chain: the subnet counts
    whose signature is valid.
    Raises NodeUnavailable, RpcRefusal, UnknownChain; InvalidSigningSubnet if the message does not
    determine the subnet.
    """
    if height is None:
        height = await platform.proposed_height()
    if subnet_id is None:
        subnets = await _signing_subnets(platform, signed.unsigned)
    else:
        subnets = [subnet_id]
    reports = []
    for signing_subnet_id in subnets:
        members = build_canonical_set(await platform.validators_at(signing_subnet_id, height))
        result = verify_signed(signed, members, quorum)
        reports.append(result.report(signing_subnet_id, height))
        if result.fault is None:
            return reports[-1]
    return reports[0]


def percentage_text(part: int, total: int) -> str:
    """Return part of total in percent, with two decimals, rounded down.

    So 67.00 is never less than 67.
    """
    hundredths = part * 10_000 // total if total else 0
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def _find_refusal(
    signed: SignedMessage,
    bit_length: int,
    signers: tuple[int, ...],
    members: CanonicalValidatorSet,
    network_id: int | None,
    keys: Sequence[PublicKey] | None,
) -> tuple[SignatureRefusal, str] | None:
    """Return the first check except the weight's that fails, and why.

    Returns None if the signature is valid.
    """
    if network_id is not None and signed.unsigned.network_id != network_id:
        reason = (
            f"the message is of network {signed.unsigned.network_id}, the verifier of network"
            f" {network_id}"
        )
        return SignatureRefusal.NETWORK_ID, reason
    if signed.signers[:1] == b"\x00":
        return SignatureRefusal.BIT_SET, "the signers' bit set starts with a zero byte"
    if bit_length > len(members):
        reason = f"signer {bit_length - 1} is not one of the {len(members)} validators of this set"
        return SignatureRefusal.BIT_SET, reason
    if not signers:
        return SignatureRefusal.NO_SIGNERS, "no validator has signed"
    try:
        if keys is None:
            validators = members.validators
            signer_keys = [parse_public_key(validators[index].public_key) for index in signers]
        else:
            signer_keys = [keys[index] for index in signers]
    except MalformedKey as error:
        return SignatureRefusal.SIGNATURE, f"a validator has an invalid key: {error}"
    if not verify_aggregate(signer_keys, signed.unsigned.raw, signed.signature):
        reason = (
            "the signature is not valid for these validators: it is damaged, or of another"
            " validator set"
        )
        return SignatureRefusal.SIGNATURE, reason
    return None


async def _signing_subnets(platform: PlatformClient, message: UnsignedMessage) -> list[SubnetID]:
    if message.source_chain_id == P_CHAIN:
        return [await _subnet_of_manager(platform, message)]
    subnet_id = await _validated_by(platform, message.source_chain_id)
    destination = _teleporter_destination(message) if subnet_id == PRIMARY_NETWORK else None
    receiver = None if destination is None else await platform.validated_by(destination)
    return [subnet_id] if receiver is None or receiver == subnet_id else [subnet_id, receiver]


async def _subnet_of_manager(platform: PlatformClient, message: UnsignedMessage) -> SubnetID:
    """Return the subnet of the chain of an L1's manager.

    It signs the P-Chain's messages about a validation.
    """
    validation, l1 = None, None
    with suppress(MalformedMessage):
        call = AddressedCall.parse(message.payload)
        validation = await platform.l1_validator(_validation_of(call.payload))
    if validation is not None and validation.state is not None:
        l1 = await platform.subnet(validation.state.subnet_id)
    if l1 is None or l1.manager_chain_id is None:
        reason = "a message of the P-Chain does not determine its signing subnet: give the subnet"
        raise InvalidSigningSubnet("--signing-subnet", reason)
    return await _validated_by(platform, l1.manager_chain_id)


async def _validated_by(platform: PlatformClient, chain_id: ChainID) -> SubnetID:
    subnet_id = await platform.validated_by(chain_id)
    if subnet_id is None:
        raise UnknownChain(id_text(chain_id))
    return subnet_id


def _validation_of(payload: bytes) -> ValidationID:
    """Return the validation of a payload. Raises MalformedMessage for another payload."""
    with suppress(MalformedMessage):
        return L1ValidatorRegistration.parse(payload).validation_id
    return L1ValidatorWeight.parse(payload).validation_id


def _teleporter_destination(message: UnsignedMessage) -> ChainID | None:
    teleporter = None
    with suppress(MalformedMessage):
        call = AddressedCall.parse(message.payload)
        teleporter = parse_teleporter(call.source_address, call.payload)
    return None if teleporter is None else teleporter.fields.destination
