"""The bytes of the reply to a signature request, honest or misbehaving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final

from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.pb import sdk_pb2 as sdk
from warpseal.runtime.zstd import Compressor
from warpseal_simnet.behaviours import Refusal, ReplyKind
from warpseal_simnet.frames import LENGTH_BYTES, MAX_MESSAGE_BYTES, encode, framed
from warpseal_simnet.signing import ShareSigner, SignatureRequest
from warpseal_simnet.state import SimState
from warpseal_simnet.values import ChainKind, SimChain, SimValidator

_BOMB_BYTES: Final = 64 * 1024 * 1024
_NOT_YET_EVM: Final = Refusal(1, "failed to parse addressed call message: unknown codec version")
_NOT_YET_P: Final = Refusal(11, "validation does not exist")


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A signature request to a validator.

    asked_ns: time at which the request was read, on the machine's monotonic clock.
    """

    validator: SimValidator
    chain: SimChain
    request_id: int
    signature_request: SignatureRequest
    asked_ns: int


@dataclass(frozen=True, slots=True)
class WireReply:
    """Bytes to send.

    closes: the validator closes the connection after them.
    is_share: they are the right share.
    """

    frame: bytes
    closes: bool = False
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class Responder:
    """Makes the replies of all validators of a network.

    lies: the replies that were not an honest validator's, by the word of the behaviour.
    """

    state: SimState
    signer: ShareSigner
    rng: Random
    lies: Counter[str] = field(default_factory=Counter)

    def delay_s(self, validator: SimValidator) -> float:
        """Return the delay of this reply in seconds."""
        shortest, longest = validator.behaviour.delay_s
        if longest:
            self.lies["slow"] += 1
        return shortest if shortest == longest else self.rng.uniform(shortest, longest)

    def replies_to(self, request: ReceivedRequest) -> Iterator[WireReply]:
        """Yield the replies of a validator in order; none if it is silent."""
        behaviour = request.validator.behaviour
        if behaviour.silent:
            self.lies["silent"] += 1
            return
        honest = self._honest_reply(request)
        counts = request.validator.counts
        if isinstance(honest, Refusal):
            counts.refusals += 1
        else:
            counts.shares += 1
        if behaviour.reply is not ReplyKind.HONEST:
            self.lies[behaviour.reply] += 1
        if behaviour.second is not None:
            self.lies[f"twice={behaviour.second}"] += 1
        if behaviour.copies > 1:
            self.lies["duplicate"] += 1
        for reply in (behaviour.reply, behaviour.second):
            if reply is not None:
                wire_reply = self._make_reply(reply, request, honest)
                for _ in range(behaviour.copies):
                    yield wire_reply

    def _honest_reply(self, request: ReceivedRequest) -> bytes | Refusal:
        behaviour = request.validator.behaviour
        if behaviour.refusal is not None:
            self.lies["refuse"] += 1
            return behaviour.refusal
        if behaviour.signs_after_s and self._is_too_early(request):
            self.lies["after"] += 1
            return _NOT_YET_P if request.chain.kind is ChainKind.P else _NOT_YET_EVM
        return self.signer.respond(request.validator, request.chain, request.signature_request)

    def _is_too_early(self, request: ReceivedRequest) -> bool:
        now = self.state.clock()
        first = request.validator.first_asked_at.setdefault(
            request.signature_request.message.id, now
        )
        return now < first + request.validator.behaviour.signs_after_s

    def _make_reply(
        self, reply: ReplyKind, request: ReceivedRequest, honest: bytes | Refusal
    ) -> WireReply:
        match reply:
            case ReplyKind.HONEST:
                is_share = not isinstance(honest, Refusal)
                return WireReply(_frame(request, honest), is_share=is_share)
            case ReplyKind.DROP:
                return WireReply(b"", closes=True)
            case ReplyKind.TRUNCATED:
                whole = _frame(request, self.rng.randbytes(bls.SHARE_BYTES))
                return WireReply(whole[: len(whole) // 2], closes=True)
            case ReplyKind.OVERSIZED:
                return WireReply((MAX_MESSAGE_BYTES + 1).to_bytes(LENGTH_BYTES, "big") + bytes(64))
            case ReplyKind.BOMB:
                return WireReply(_bomb())
            case ReplyKind.GARBAGE:
                return WireReply(
                    _response(request, b"\xff" + self.rng.randbytes(self.rng.randint(1, 200)))
                )
            case ReplyKind.EMPTY:
                return WireReply(_response(request, b""))
        return WireReply(_frame(request, self._false_reply(reply, request)))

    def _false_reply(self, reply: ReplyKind, request: ReceivedRequest) -> bytes | Refusal:
        match reply:
            case ReplyKind.WRONG:
                return self._sign(
                    request, b"not what was asked for" + request.signature_request.message.raw
                )
            case ReplyKind.STOLEN:
                return self.signer.respond(
                    self._next_validator(request), request.chain, request.signature_request
                )
            case ReplyKind.SHORT:
                return self._sign(request, request.signature_request.message.raw)[:-1]
            case ReplyKind.LONG:
                return self._sign(request, request.signature_request.message.raw) + b"\x00"
        return bytes([0x9F]) + self.rng.randbytes(bls.SHARE_BYTES - 1)

    def _sign(self, request: ReceivedRequest, message: bytes) -> bytes:
        return bls.sign(request.validator.identity.bls_secret, message)

    def _next_validator(self, request: ReceivedRequest) -> SimValidator:
        running = [node for node in self.state.validators if request.chain.chain_id in node.chains]
        return running[(running.index(request.validator) + 1) % len(running)]


def error_frame(chain_id: bytes, request_id: int, refusal: Refusal) -> bytes:
    """Return the frame of an application error."""
    error = p2p.AppError(
        chain_id=chain_id,
        request_id=request_id,
        error_code=refusal.code,
        error_message=refusal.text,
    )
    return encode(p2p.Message(app_error=error))


def _frame(request: ReceivedRequest, content: bytes | Refusal) -> bytes:
    if isinstance(content, Refusal):
        return error_frame(request.chain.chain_id, request.request_id, content)
    return _response(request, sdk.SignatureResponse(signature=content).SerializeToString())


def _response(request: ReceivedRequest, app_bytes: bytes) -> bytes:
    response = p2p.AppResponse(
        chain_id=request.chain.chain_id, request_id=request.request_id, app_bytes=app_bytes
    )
    return encode(p2p.Message(app_response=response))


@cache
def _bomb() -> bytes:
    packed = Compressor(declares_size=False).compress(bytes(_BOMB_BYTES))
    return framed(p2p.Message(compressed_zstd=packed).SerializeToString())
