"""How a chain answers a signature request: parse, judge, sign (ACP-118).

Source of truth: avalanchego `network/p2p/acp118/handler.go`, `graft/subnet-evm/warp/verifier_backend.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from warpseal import bls
from warpseal.pb import sdk_pb2 as sdk
from warpseal.simnet import p_chain_verifier
from warpseal.simnet.behaviours import Refusal
from warpseal.simnet.p_chain_verifier import codec_text
from warpseal.simnet.state import ChainState, StateAt
from warpseal.simnet.values import ChainKind, SimChain, SimValidator
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import MessageID, SubnetID, id_text
from warpseal.warp.l1_messages import ValidatorUptime
from warpseal.warp.message import AddressedCall, Hash, SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set, has_quorum

UNEXPECTED: Final = -1
UNREGISTERED: Final = -2
HANDLER_ID: Final = 2
_PARSE: Final = 1
_VERIFY: Final = 2
# A validator of an EVM chain remembers 500 signatures; more only spares the simulation work.
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class SignatureRequest:
    """A parsed signature request."""

    message: UnsignedMessage
    justification: bytes


class Signer(Protocol):
    """Where the answers come from: 96 bytes, or why not."""

    def answer(self, validator: SimValidator, chain: SimChain, question: SignatureRequest) -> bytes | Refusal: ...


@lru_cache(maxsize=256)
def parse_signature_request(raw: bytes) -> SignatureRequest | Refusal:
    """Return what a request asks (bytes behind the handler id), or the refusal of an unreadable one."""
    try:
        request = sdk.SignatureRequest.FromString(raw)
    except DecodeError as error:
        return Refusal(UNEXPECTED, f"failed to unmarshal request: {error}")
    try:
        return SignatureRequest(UnsignedMessage.parse(request.message), request.justification)
    except MalformedMessage as error:
        return Refusal(UNEXPECTED, f"failed to parse warp unsigned message: {codec_text(request.message, error)}")


class LiveSigner:
    """Signs with the validators' own keys, by the rules of each chain."""

    def __init__(self, state: ChainState) -> None:
        self._state = state

    def answer(self, validator: SimValidator, chain: SimChain, question: SignatureRequest) -> bytes | Refusal:
        """Return the validator's share, or the refusal that a node gives."""
        message = question.message
        remembered = validator.shares.get(message.id)
        # The P-Chain judges every request anew; an EVM chain signs what it signed before.
        if remembered is not None and chain.kind is ChainKind.EVM:
            return remembered
        refusal = self._judge(validator, chain, question)
        if refusal is not None:
            return refusal
        return remembered or share_of(validator, message)

    def _judge(self, validator: SimValidator, chain: SimChain, question: SignatureRequest) -> Refusal | None:
        message = question.message
        if chain.kind is ChainKind.P:
            refusal = p_chain_verifier.refusal_of(state_of(self._state, validator), message, question.justification)
        else:
            refusal = _evm_refusal(self._state, message)
        if refusal is not None:
            return refusal
        if message.network_id != self._state.network_id:
            return Refusal(UNEXPECTED, "failed to sign message: wrong networkID")
        if message.source_chain_id != chain.chain_id:
            return Refusal(UNEXPECTED, "failed to sign message: wrong SourceChainID")
        return None


def state_of(state: ChainState, validator: SimValidator) -> StateAt:
    """Return the P-Chain as a validator knows it: the tip's state, unless it lags."""
    behaviour = validator.behaviour
    height = state.heights.current - behaviour.lag_blocks
    if behaviour.behind_s:
        height = min(height, state.heights.height_at(state.clock() - behaviour.behind_s))
    return StateAt(state, height)


def share_of(validator: SimValidator, message: UnsignedMessage) -> bytes:
    """Return a validator's signature over a message, 96 bytes, signed once and remembered."""
    share = validator.shares.get(message.id)
    if share is None:
        share = bls.sign(validator.identity.bls_secret, message.raw)
        remember(validator, message.id, share)
    return share


def remember(validator: SimValidator, message_id: MessageID, share: bytes) -> None:
    """Keep a signature; the oldest gives way beyond 4,096 that were not pre-signed."""
    if len(validator.shares) >= _REMEMBERED:
        del validator.shares[next(iter(validator.shares))]
    validator.shares[message_id] = share


def presign(
    work: Sequence[tuple[UnsignedMessage, Sequence[SimValidator]]],
    executor: Executor,
    progress: Callable[[int], None],
) -> None:
    """Sign every message for its validators in the executor's threads; progress: messages done so far."""
    for done, _ in enumerate(executor.map(_sign_for_all, work), start=1):
        progress(done)


def _sign_for_all(task: tuple[UnsignedMessage, Sequence[SimValidator]]) -> None:
    message, validators = task
    for validator in validators:
        validator.shares[message.id] = bls.sign(validator.identity.bls_secret, message.raw)


def _evm_refusal(state: ChainState, message: UnsignedMessage) -> Refusal | None:
    if message.id in state.known_messages:
        return None
    payload = _payload(message.payload)
    match payload:
        case MalformedMessage():
            return Refusal(_PARSE, f"failed to parse payload: {codec_text(message.payload, payload)}")
        case Hash():
            if payload.hash in state.accepted_blocks:
                return None
            return Refusal(_VERIFY, f"failed to get block {id_text(payload.hash)}: not found")
        case AddressedCall():
            return _off_chain_refusal(state, payload)


def _payload(raw: bytes) -> Hash | AddressedCall | MalformedMessage:
    try:
        return Hash.parse(raw) if raw[2:6] == bytes(4) else AddressedCall.parse(raw)
    except MalformedMessage as error:
        return error


def _off_chain_refusal(state: ChainState, call: AddressedCall) -> Refusal | None:
    try:
        uptime = ValidatorUptime.parse(call.payload)
    except MalformedMessage as error:
        return Refusal(_PARSE, f"failed to parse addressed call message: {codec_text(call.payload, error)}")
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


QUORUM: Final = 67
_ORDER: Final = int("73eda753299d7d483339d80809a1d80553bda402fffe5bfeffffffff00000001", 16)


def signing_height(state: ChainState, subnet_id: SubnetID) -> int:
    """Return the height of the set that verifiers take now, or the tip's where that set is empty."""
    height = state.heights.verifying
    return height if state.set_at(subnet_id, height) else state.heights.current


def sign(state: ChainState, unsigned: UnsignedMessage, subnet_id: SubnetID, height: int) -> SignedMessage:
    """Return the message with the signatures of every member of a set whose secret key is known here.

    Where that is nobody, because all left or are inactive, everyone signs who ever had a validation. RuntimeError where
    nobody had.
    """
    secrets = {one.identity.bls_public_key: one.identity.bls_secret for one in state.validators}
    for merged in (_canonical(state, subnet_id, height), _every_validation(state, subnet_id)):
        signers = [place for place, one in enumerate(merged.validators) if one.public_key in secrets]
        if signers:
            break
    else:
        raise RuntimeError(f"nobody can sign for {subnet_id.hex()}")
    keys = (bls.secret_bytes(secrets[merged.validators[place].public_key]) for place in signers)
    total = sum(int.from_bytes(key, "big") for key in keys) % _ORDER
    signature = bls.sign(bls.secret_from_bytes(total.to_bytes(bls.SECRET_KEY_BYTES, "big")), unsigned.raw)
    return SignedMessage(unsigned, encode_signers(signers), signature)


def verify_signed_message(state: ChainState, raw: bytes, subnet_id: SubnetID, height: int) -> str:
    """Return why a subnet's set at a height does not stand behind a signed message; empty where it does."""
    try:
        message = SignedMessage.parse(raw)
    except MalformedMessage as error:
        return f"malformed message: {error}"
    merged = _canonical(state, subnet_id, height)
    indices = message.signer_indices
    if message.unsigned.network_id != state.network_id:
        return f"wrong network id {message.unsigned.network_id}"
    if indices and indices[-1] >= len(merged.validators):
        return f"unknown validator: bit {indices[-1]} of {len(merged.validators)}"
    weight = sum(merged.validators[index].weight for index in indices)
    if not has_quorum(weight, merged.total_weight, QUORUM):
        return f"insufficient weight: {weight} of {merged.total_weight} at height {height}"
    keys = [bls.parse_public_key(merged.validators[index].public_key) for index in indices]
    if not bls.verify_aggregate(keys, message.unsigned.raw, message.signature):
        return f"invalid signature for the set at height {height}"
    return ""


def _canonical(state: ChainState, subnet_id: SubnetID, height: int) -> CanonicalValidatorSet:
    members = state.set_at(subnet_id, height)
    return build_canonical_set((member.node_id, member.public_key, member.weight) for member in members)


def _every_validation(state: ChainState, subnet_id: SubnetID) -> CanonicalValidatorSet:
    # A node may have had several, one after another.
    validations = {validation.node_id: validation for validation in state.validations.get(subnet_id, ())}
    return build_canonical_set(
        (validation.node_id, validation.public_key, validation.weight) for validation in validations.values()
    )
