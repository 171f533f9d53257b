"""Verifies a signed message as its verifiers do: against the validator set of one subnet at one height.

Source of truth: avalanchego `vms/platformvm/warp/signature.go`; for the signing subnet: subnet-evm
`precompile/contracts/warp/config.go`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from warpseal.bls import MalformedKey, parse_public_key, verify_aggregate
from warpseal.errors import InvalidSigningSubnet, UnknownChain
from warpseal.l1.describe import hex_text, id_forms
from warpseal.l1.teleporter import parse_teleporter
from warpseal.node.platform import PlatformClient
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, ValidationID, id_text, node_id_text
from warpseal.warp.l1_messages import L1ValidatorRegistration, L1ValidatorWeight
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set, has_quorum

DEFAULT_QUORUM = 67


@dataclass(frozen=True, slots=True)
class MessageVerification:
    """The result of a verification. signers: canonical indices. fault: why the signature is invalid for this set."""

    members: CanonicalValidatorSet
    signers: tuple[int, ...]
    fault: str | None
    quorum: int

    @property
    def signed_weight(self) -> int:
        """The weight of the signers that the set has."""
        return self.members.weight_of(index for index in self.signers if index < len(self.members))

    @property
    def meets_quorum(self) -> bool:
        """Whether a verifier with this quorum accepts the message."""
        return self.fault is None and has_quorum(self.signed_weight, self.members.total_weight, self.quorum)

    def as_json(self) -> dict[str, Any]:
        """Return the result with all validators."""
        signed = set(self.signers)
        indices = range(len(self.members))
        return {
            "signatureValid": self.fault is None,
            **({"fault": self.fault} if self.fault else {}),
            "quorumPercentage": self.quorum,
            "quorumMet": self.meets_quorum,
            "signedWeight": str(self.signed_weight),
            "totalWeight": str(self.members.total_weight),
            "signedPercentage": percentage_text(self.signed_weight, self.members.total_weight),
            "signed": [self._validator(index) for index in indices if index in signed],
            "notSigned": [self._validator(index) for index in indices if index not in signed],
            "weightWithoutKey": str(self.members.keyless_weight),
        }

    def _validator(self, index: int) -> dict[str, Any]:
        validator = self.members.validators[index]
        return {
            "index": index,
            "nodeIds": [node_id_text(node_id) for node_id in validator.node_ids],
            "publicKey": hex_text(validator.public_key),
            "weight": str(validator.weight),
            "percentage": percentage_text(validator.weight, self.members.total_weight),
        }


def verify_signed(
    signed: SignedMessage, members: CanonicalValidatorSet, quorum: int = DEFAULT_QUORUM
) -> MessageVerification:
    """Verify against one canonical set, with the checks in the order of the verifiers."""
    signers = signed.signer_indices
    return MessageVerification(members, signers, _fault(signed, signers, members), quorum)


async def verify_at(
    platform: PlatformClient,
    signed: SignedMessage,
    subnet_id: SubnetID | None = None,
    height: int | None = None,
    quorum: int = DEFAULT_QUORUM,
) -> dict[str, Any]:
    """Verify with the sets that a node returns; return the result as JSON, with the subnet and the height.

    subnet_id: None for the subnet that the message determines; height: None for the proposed height.
    The Primary Network or the receiving L1 may sign a message of the C-Chain: the one whose signature is valid counts.
    Raises NodeUnavailable, RpcRefusal, UnknownChain; InvalidSigningSubnet if the message does not determine the subnet.
    """
    height = await platform.proposed_height() if height is None else height
    subnets = await _signing_subnets(platform, signed.unsigned) if subnet_id is None else [subnet_id]
    results = []
    for signing_subnet_id in subnets:
        members = build_canonical_set(await platform.validators_at(signing_subnet_id, height))
        result = verify_signed(signed, members, quorum)
        results.append(
            {"signingSubnetId": id_forms(signing_subnet_id), "pChainHeight": str(height), **result.as_json()}
        )
        if result.fault is None:
            return results[-1]
    return results[0]


def percentage_text(part: int, total: int) -> str:
    """Return part of total in percent, with two decimals, rounded down: 67.00 is never less than 67."""
    hundredths = part * 10_000 // total if total else 0
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def _fault(signed: SignedMessage, signers: tuple[int, ...], members: CanonicalValidatorSet) -> str | None:
    if not signers:
        return "no validator has signed"
    if signers[-1] >= len(members):
        return f"signer {signers[-1]} is not one of the {len(members)} validators of this set"
    try:
        keys = [parse_public_key(members.validators[index].public_key) for index in signers]
    except MalformedKey as error:
        return f"a validator has an invalid key: {error}"
    if not verify_aggregate(keys, signed.unsigned.raw, signed.signature):
        return "the signature is not valid for these validators: it is damaged, or of another validator set"
    return None


async def _signing_subnets(platform: PlatformClient, message: UnsignedMessage) -> list[SubnetID]:
    if message.source_chain_id == P_CHAIN:
        return [await _subnet_of_manager(platform, message)]
    subnet_id = await _validated_by(platform, message.source_chain_id)
    destination = _teleporter_destination(message) if subnet_id == PRIMARY_NETWORK else None
    receiver = None if destination is None else await platform.validated_by(destination)
    return [subnet_id] if receiver is None or receiver == subnet_id else [subnet_id, receiver]


async def _subnet_of_manager(platform: PlatformClient, message: UnsignedMessage) -> SubnetID:
    """Return the subnet of the L1 manager's chain, which signs the P-Chain's messages about a validation."""
    found = None
    with suppress(MalformedMessage):
        found = await platform.l1_validator(_validation_of(AddressedCall.parse(message.payload).payload))
    l1 = None if found is None or found.state is None else await platform.subnet(found.state.subnet_id)
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
    """Return the validation that a payload is about. Raises MalformedMessage if it is about none."""
    with suppress(MalformedMessage):
        return L1ValidatorRegistration.parse(payload).validation_id
    return L1ValidatorWeight.parse(payload).validation_id


def _teleporter_destination(message: UnsignedMessage) -> ChainID | None:
    found = None
    with suppress(MalformedMessage):
        call = AddressedCall.parse(message.payload)
        found = parse_teleporter(call.source_address, call.payload)
    return None if found is None else found.destination_chain_id
