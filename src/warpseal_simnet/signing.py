"""The signatures of validators in responses (ACP-118) and in aggregated Warp messages.

Source of truth: avalanchego `network/p2p/acp118/handler.go`,
`graft/subnet-evm/warp/verifier_backend.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from warpseal import bls
from warpseal.pb import sdk_pb2 as sdk
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, SubnetID, id_text
from warpseal.warp.l1_messages import ValidatorUptime
from warpseal.warp.message import (
    AddressedCall,
    Hash,
    SignedMessage,
    UnsignedMessage,
    encode_signers,
)
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set
from warpseal_simnet import p_chain_verifier
from warpseal_simnet.behaviours import Refusal
from warpseal_simnet.p_chain_verifier import codec_text
from warpseal_simnet.state import SimState, StateAt
from warpseal_simnet.values import ChainKind, SimChain, SimValidator

UNEXPECTED: Final = -1
UNREGISTERED: Final = -2
HANDLER_ID: Final = 2
_PARSE: Final = 1
_VERIFY: Final = 2


@dataclass(frozen=True, slots=True)
class SignatureRequest:
    """A parsed signature request."""

    message: UnsignedMessage
    justification: bytes


class ShareSigner(Protocol):
    """Returns a share of 96 bytes, or a refusal."""

    def respond(
        self, validator: SimValidator, chain: SimChain, request: SignatureRequest
    ) -> bytes | Refusal: ...


@lru_cache(maxsize=256)
def parse_signature_request(raw: bytes) -> SignatureRequest | Refusal:
    """Return the request in the bytes behind the handler ID, or the refusal of a malformed one."""
    try:
        request = sdk.SignatureRequest.FromString(raw)
    except DecodeError as error:
        return Refusal(UNEXPECTED, f"failed to unmarshal request: {error}")
    try:
        return SignatureRequest(UnsignedMessage.parse(request.message), request.justification)
    except MalformedMessage as error:
        return Refusal(
            UNEXPECTED,
            f"failed to parse warp unsigned message: {codec_text(request.message, error)}",
        )


class LiveSigner:
    """Signs with the validators' own keys, by the rules of each chain."""

    def __init__(self, state: SimState) -> None:
        self._state = state

    def respond(
        self, validator: SimValidator, chain: SimChain, request: SignatureRequest
    ) -> bytes | Refusal:
        """Return the validator's share, or the refusal of a node."""
        message = request.message
        share = find_share(validator, message)
        # The P-Chain verifies every request; an EVM chain returns the signature that it has.
        if share is not None and chain.kind is ChainKind.EVM:
            return share
        refusal = self._find_refusal(validator, chain, request)
        if refusal is not None:
            return refusal
        return share or sign_share(validator, message)

    def _find_refusal(
        self, validator: SimValidator, chain: SimChain, request: SignatureRequest
    ) -> Refusal | None:
        message = request.message
        if chain.kind is ChainKind.P:
            refusal = p_chain_verifier.refusal_of(
                validator_state(self._state, validator), message, request.justification
            )
        else:
            refusal = _evm_refusal(self._state, message)
        if refusal is not None:
            return refusal
        if message.network_id != self._state.network_id:
            return Refusal(UNEXPECTED, "failed to sign message: wrong networkID")
        if message.source_chain_id != chain.chain_id:
            return Refusal(UNEXPECTED, "failed to sign message: wrong SourceChainID")
        return None


def validator_state(state: SimState, validator: SimValidator) -> StateAt:
    """Return the P-Chain state of a validator: the tip's unless the validator lags."""
    behaviour = validator.behaviour
    height = state.heights.current - behaviour.lag_blocks
    if behaviour.behind_s:
        height = min(height, state.heights.height_at(state.clock() - behaviour.behind_s))
    return StateAt(state, height)


def sign_share(validator: SimValidator, message: UnsignedMessage) -> bytes:
    """Return a validator's signature over a message, 96 bytes, computed once."""
    share = find_share(validator, message)
    if share is None:
        share = validator.shares[message.id] = bls.sign(validator.identity.bls_secret, message.raw)
    return share


def find_share(validator: SimValidator, message: UnsignedMessage) -> bytes | None:
    """Return the signature that a validator has made before, or None."""
    return validator.presigned.get(message.id) or validator.shares.get(message.id)


def presign(
    work: Sequence[tuple[UnsignedMessage, Sequence[SimValidator]]],
    executor: Executor,
    progress: Callable[[int], None],
) -> None:
    """Sign every message with its validators in the executor's threads.

    progress: a function of the number of signed messages.
    """
    for done, _ in enumerate(executor.map(_sign_for_all, work), start=1):
        progress(done)


def _sign_for_all(task: tuple[UnsignedMessage, Sequence[SimValidator]]) -> None:
    message, validators = task
    for validator in validators:
        validator.presigned[message.id] = bls.sign(validator.identity.bls_secret, message.raw)


def _evm_refusal(state: SimState, message: UnsignedMessage) -> Refusal | None:
    if message.id in state.message_ids:
        return None
    try:
        payload = parse_payload(message.payload)
    except MalformedMessage as error:
        return Refusal(_PARSE, f"failed to parse payload: {codec_text(message.payload, error)}")
    if isinstance(payload, AddressedCall):
        return _off_chain_refusal(state, payload)
    if payload.hash in state.accepted_blocks:
        return None
    return Refusal(_VERIFY, f"failed to get block {id_text(payload.hash)}: not found")


def parse_payload(raw: bytes) -> Hash | AddressedCall:
    """Return the payload of a message of an EVM chain. Raises MalformedMessage."""
    return Hash.parse(raw) if raw[2:6] == bytes(4) else AddressedCall.parse(raw)


def _off_chain_refusal(state: SimState, call: AddressedCall) -> Refusal | None:
    try:
        uptime = ValidatorUptime.parse(call.payload)
    except MalformedMessage as error:
        return Refusal(
            _PARSE, f"failed to parse addressed call message: {codec_text(call.payload, error)}"
        )
    if call.source_address:
        return Refusal(_VERIFY, "source address should be empty for offchain addressed messages")
    validation = state.validation(uptime.validation_id)
    if validation is None:
        return Refusal(_VERIFY, "failed to get uptime: validationID not found")
    measured = max(0, int(state.clock()) - validation.start_time)
    if measured < uptime.uptime_s:
        text = f"current uptime {measured} is less than queried uptime {uptime.uptime_s}"
        return Refusal(_VERIFY, text)
    return None


_ORDER: Final = int("73eda753299d7d483339d80809a1d80553bda402fffe5bfeffffffff00000001", 16)


def signing_height(state: SimState, subnet_id: SubnetID) -> int:
    """Return the height of the set with which the P-Chain verifies now.

    The tip takes its place if that set is empty.
    """
    height = state.proposervm[P_CHAIN].verifying_height
    return height if state.set_at(subnet_id, height) else state.heights.current


def sign(
    state: SimState,
    unsigned: UnsignedMessage,
    subnet_id: SubnetID,
    height: int,
    *,
    without: Collection[bytes] = (),
) -> SignedMessage:
    """Return the message signed by every member of a set whose secret key is known.

    without: the public keys that do not sign.
    If the set has no such member, because all have left or are inactive, every former validator
    signs. Raises RuntimeError if there was none.
    """
    secrets = {node.identity.bls_public_key: node.identity.bls_secret for node in state.validators}
    for public_key in without:
        del secrets[public_key]
    for merged in (_canonical(state, subnet_id, height), _every_validation(state, subnet_id)):
        signers = [
            index
            for index, validator in enumerate(merged.validators)
            if validator.public_key in secrets
        ]
        if signers:
            break
    else:
        raise RuntimeError(f"no validator can sign for {subnet_id.hex()}")
    keys = (bls.secret_bytes(secrets[merged.validators[index].public_key]) for index in signers)
    total = sum(int.from_bytes(key, "big") for key in keys) % _ORDER
    signature = bls.sign(
        bls.secret_from_bytes(total.to_bytes(bls.SECRET_KEY_BYTES, "big")), unsigned.raw
    )
    return SignedMessage(unsigned, encode_signers(signers), signature)


def _canonical(state: SimState, subnet_id: SubnetID, height: int) -> CanonicalValidatorSet:
    return build_canonical_set(state.set_at(subnet_id, height))


def _every_validation(state: SimState, subnet_id: SubnetID) -> CanonicalValidatorSet:
    # A node may have had several validations.
    validations = {
        validation.node_id: validation for validation in state.validations.get(subnet_id, ())
    }
    return build_canonical_set(
        (validation.node_id, validation.public_key, validation.weight)
        for validation in validations.values()
    )
