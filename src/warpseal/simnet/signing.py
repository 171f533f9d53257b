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
from warpseal.simnet import pchain
from warpseal.simnet.behaviours import Refusal
from warpseal.simnet.historical import View
from warpseal.simnet.state import World
from warpseal.simnet.texts import codec_text
from warpseal.simnet.validator import SimValidator
from warpseal.simnet.values import ChainKind, SimChain
from warpseal.warp.ids import MessageID, id_text
from warpseal.warp.l1_messages import ValidatorUptime
from warpseal.warp.message import AddressedCall, Hash, MalformedMessage, UnsignedMessage

UNEXPECTED: Final = -1
UNREGISTERED: Final = -2
HANDLER_ID: Final = 2
_PARSE: Final = 1
_VERIFY: Final = 2
# A validator of an EVM chain remembers 500 signatures; more only spares the simulation work.
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class Question:
    """A parsed signature request."""

    message: UnsignedMessage
    justification: bytes


class Signer(Protocol):
    """Where the answers come from: 96 bytes, or why not."""

    def answer(self, validator: SimValidator, chain: SimChain, question: Question) -> bytes | Refusal: ...


@lru_cache(maxsize=256)
def parse_question(raw: bytes) -> Question | Refusal:
    """Return what a request asks (bytes behind the handler id), or the refusal of an unreadable one."""
    try:
        request = sdk.SignatureRequest.FromString(raw)
    except DecodeError as error:
        return Refusal(UNEXPECTED, f"failed to unmarshal request: {error}")
    try:
        return Question(UnsignedMessage.parse(request.message), request.justification)
    except MalformedMessage as error:
        return Refusal(UNEXPECTED, f"failed to parse warp unsigned message: {codec_text(request.message, error)}")


class LiveSigner:
    """Signs with the validators' own keys, by the rules of each chain."""

    def __init__(self, world: World) -> None:
        self._world = world

    def answer(self, validator: SimValidator, chain: SimChain, question: Question) -> bytes | Refusal:
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

    def _judge(self, validator: SimValidator, chain: SimChain, question: Question) -> Refusal | None:
        message = question.message
        if chain.kind is ChainKind.P:
            refusal = pchain.refusal_of(state_of(self._world, validator), message, question.justification)
        else:
            refusal = _evm_refusal(self._world, message)
        if refusal is not None:
            return refusal
        if message.network_id != self._world.network_id:
            return Refusal(UNEXPECTED, "failed to sign message: wrong networkID")
        if message.source_chain_id != chain.chain_id:
            return Refusal(UNEXPECTED, "failed to sign message: wrong SourceChainID")
        return None


def state_of(world: World, validator: SimValidator) -> View:
    """Return the P-Chain as a validator knows it: the tip's state, unless it lags."""
    behaviour = validator.behaviour
    height = world.heights.current - behaviour.lag_blocks
    if behaviour.behind_s:
        height = min(height, world.heights.height_at(world.clock() - behaviour.behind_s))
    return View(world, height)


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


def _evm_refusal(world: World, message: UnsignedMessage) -> Refusal | None:
    if message.id in world.known_messages:
        return None
    payload = _payload(message.payload)
    match payload:
        case MalformedMessage():
            return Refusal(_PARSE, f"failed to parse payload: {codec_text(message.payload, payload)}")
        case Hash():
            if payload.hash in world.accepted_blocks:
                return None
            return Refusal(_VERIFY, f"failed to get block {id_text(payload.hash)}: not found")
        case AddressedCall():
            return _off_chain_refusal(world, payload)


def _payload(raw: bytes) -> Hash | AddressedCall | MalformedMessage:
    try:
        return Hash.parse(raw) if raw[2:6] == bytes(4) else AddressedCall.parse(raw)
    except MalformedMessage as error:
        return error


def _off_chain_refusal(world: World, call: AddressedCall) -> Refusal | None:
    try:
        uptime = ValidatorUptime.parse(call.payload)
    except MalformedMessage as error:
        return Refusal(_PARSE, f"failed to parse addressed call message: {codec_text(call.payload, error)}")
    if call.source_address:
        return Refusal(_VERIFY, "source address should be empty for offchain addressed messages")
    seat = world.validation(uptime.validation_id)
    if seat is None:
        return Refusal(_VERIFY, "failed to get uptime: validationID not found")
    measured = max(0, int(world.clock()) - seat.start_time)
    if measured < uptime.uptime_s:
        text = f"current uptime {measured} is less than queried uptime {uptime.uptime_s}"
        return Refusal(_VERIFY, text)
    return None
