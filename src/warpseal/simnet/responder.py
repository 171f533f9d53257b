"""What goes over the wire in answer to a signature request: the truth, or what the behaviour says instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

import zstandard

from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.pb import sdk_pb2 as sdk
from warpseal.simnet.behaviours import Refusal, ReplyKind
from warpseal.simnet.frames import LENGTH_BYTES, MAX_MESSAGE_BYTES, encode, framed
from warpseal.simnet.signing import SignatureRequest, Signer
from warpseal.simnet.state import ChainState
from warpseal.simnet.values import ChainKind, SimChain, SimValidator

_BOMB_BYTES: Final = 64 * 1024 * 1024
_NOT_YET_EVM: Final = Refusal(1, "failed to parse addressed call message: unknown codec version")
_NOT_YET_P: Final = Refusal(11, "validation does not exist")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a validator is to answer."""

    validator: SimValidator
    chain: SimChain
    request_id: int
    question: SignatureRequest


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes for the wire; last: the connection ends behind them."""

    frame: bytes
    last: bool = False


class Responder:
    """Makes answers for all validators of a network."""

    def __init__(self, state: ChainState, signer: Signer, rng: Random) -> None:
        self._state = state
        self.signer = signer
        self._rng = rng

    def delay_s(self, validator: SimValidator) -> float:
        """Return how long this answer takes."""
        shortest, longest = validator.behaviour.delay_s
        return shortest if shortest == longest else self._rng.uniform(shortest, longest)

    def to(self, asked: Asked) -> Iterator[Sent]:
        """Yield what a validator sends, in order; nothing when it is silent."""
        behaviour = asked.validator.behaviour
        if behaviour.silent:
            return
        truth = self._truth(asked)
        _count(asked.validator, truth)
        for reply in (behaviour.reply, behaviour.second):
            if reply is not None:
                sent = self._sent(reply, asked, truth)
                for _ in range(behaviour.copies):
                    yield sent

    def _truth(self, asked: Asked) -> bytes | Refusal:
        behaviour = asked.validator.behaviour
        if behaviour.refusal is not None:
            return behaviour.refusal
        if behaviour.signs_after_s and self._is_too_early(asked):
            return _NOT_YET_P if asked.chain.kind is ChainKind.P else _NOT_YET_EVM
        return self.signer.answer(asked.validator, asked.chain, asked.question)

    def _is_too_early(self, asked: Asked) -> bool:
        now = self._state.clock()
        asked_at = asked.validator.first_asked_at
        first = asked_at.setdefault(asked.question.message.id, now)
        if len(asked_at) > 4096:
            del asked_at[next(iter(asked_at))]
        return now < first + asked.validator.behaviour.signs_after_s

    def _sent(self, reply: ReplyKind, asked: Asked, truth: bytes | Refusal) -> Sent:
        match reply:
            case ReplyKind.HONEST:
                return Sent(_frame(asked, truth))
            case ReplyKind.DROP:
                return Sent(b"", last=True)
            case ReplyKind.TRUNCATED:
                whole = _frame(asked, self._rng.randbytes(bls.SHARE_BYTES))
                return Sent(whole[: len(whole) // 2], last=True)
            case ReplyKind.OVERSIZED:
                return Sent((MAX_MESSAGE_BYTES + 1).to_bytes(LENGTH_BYTES, "big") + bytes(64))
            case ReplyKind.BOMB:
                return Sent(_bomb())
            case ReplyKind.GARBAGE:
                return Sent(_response(asked, b"\xff" + self._rng.randbytes(self._rng.randint(1, 200))))
            case ReplyKind.EMPTY:
                return Sent(_response(asked, b""))
        return Sent(_frame(asked, self._lie(reply, asked)))

    def _lie(self, reply: ReplyKind, asked: Asked) -> bytes | Refusal:
        match reply:
            case ReplyKind.WRONG:
                return self._own(asked, b"not what was asked for" + asked.question.message.raw)
            case ReplyKind.STOLEN:
                return self.signer.answer(self._other(asked), asked.chain, asked.question)
            case ReplyKind.SHORT:
                return self._own(asked, asked.question.message.raw)[:-1]
            case ReplyKind.LONG:
                return self._own(asked, asked.question.message.raw) + b"\x00"
        return bytes([0x9F]) + self._rng.randbytes(bls.SHARE_BYTES - 1)

    def _own(self, asked: Asked, message: bytes) -> bytes:
        return bls.sign(asked.validator.identity.bls_secret, message)

    def _other(self, asked: Asked) -> SimValidator:
        running = [one for one in self._state.validators if asked.chain.chain_id in one.chains]
        return running[(running.index(asked.validator) + 1) % len(running)]


def error_frame(chain_id: bytes, request_id: int, refusal: Refusal) -> bytes:
    """Return the frame of an application error."""
    error = p2p.AppError(chain_id=chain_id, request_id=request_id, error_code=refusal.code, error_message=refusal.text)
    return encode(p2p.Message(app_error=error))


def _frame(asked: Asked, content: bytes | Refusal) -> bytes:
    if isinstance(content, Refusal):
        return error_frame(asked.chain.chain_id, asked.request_id, content)
    return _response(asked, sdk.SignatureResponse(signature=content).SerializeToString())


def _response(asked: Asked, app_bytes: bytes) -> bytes:
    response = p2p.AppResponse(chain_id=asked.chain.chain_id, request_id=asked.request_id, app_bytes=app_bytes)
    return encode(p2p.Message(app_response=response))


def _bomb() -> bytes:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(_BOMB_BYTES))
    return framed(p2p.Message(compressed_zstd=packed).SerializeToString())


def _count(validator: SimValidator, truth: bytes | Refusal) -> None:
    if isinstance(truth, Refusal):
        validator.counts.refusals += 1
    else:
        validator.counts.shares += 1
