"""JSON-RPC bodies between us and a node: calls numbered by their place, answers put back in their places. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from warpseal.evm_rpc.calls import SERVER_ERROR, RpcAnswer, RpcCall, RpcError

NO_ANSWER: Final = RpcError(SERVER_ERROR, "the node's answer cannot be read")
_U64_END: Final = 1 << 64
_ENCODER: Final = msgspec.json.Encoder()


class _Sent(msgspec.Struct):
    jsonrpc: str
    id: int | msgspec.UnsetType
    method: str
    params: msgspec.Raw | msgspec.UnsetType


class _Error(msgspec.Struct):
    code: int
    message: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Numbered(msgspec.Struct):
    """A reply to one of our own ids."""

    id: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: _Error | None = None


class _Reply(msgspec.Struct):
    id: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: _Error | None = None


_ONE: Final = msgspec.json.Decoder(_Reply)
_MANY: Final = msgspec.json.Decoder(list[_Reply])
_ALL_NUMBERED: Final = msgspec.json.Decoder(list[_Numbered])


def encode_calls(calls: Mapping[int, RpcCall]) -> bytes:
    """Return the body of these calls; one alone is no batch. Keys are the ids."""
    sent = [_sent(number, call) for number, call in calls.items()]
    return _ENCODER.encode(sent if len(sent) > 1 else sent[0])


def decode_answers(body: bytes, numbers: Sequence[int]) -> dict[int, RpcAnswer]:
    """Return the answer to each of these calls. What is missing or cannot be read is an error of its own.

    A single object in place of a list answers all.
    """
    try:
        if body.lstrip()[:1] == b"[":
            told = _by_number(body)
            return {number: _answer(told.get(number)) for number in numbers}
        every = _answer(_ONE.decode(body))
    except msgspec.MsgspecError:
        every = RpcAnswer(error=NO_ANSWER)
    if len(numbers) > 1 and every.error is None:
        every = RpcAnswer(error=NO_ANSWER)
    return dict.fromkeys(numbers, every)


def result_of(body: bytes) -> msgspec.Raw | None:
    """Return the result of a single reply; None where there is none, or no reply."""
    try:
        result = _ONE.decode(body).result
    except msgspec.MsgspecError:
        return None
    return None if isinstance(result, msgspec.UnsetType) else result


def decode_result(body: bytes) -> Any:
    """Return the result of a single reply as JSON values; None where there is none, or no reply."""
    result = result_of(body)
    try:
        return None if result is None else msgspec.json.decode(result)
    except msgspec.MsgspecError:
        return None


def quantity_of(told: object) -> int | None:
    """Return a number of 64 bits that is written in hex with 0x; None for anything else."""
    try:
        number = int(told, 16) if isinstance(told, str) and told[:2] == "0x" else -1
    except ValueError:
        return None
    return number if 0 <= number < _U64_END else None


def _by_number(body: bytes) -> Mapping[int, _Reply | _Numbered]:
    try:
        return {reply.id: reply for reply in _ALL_NUMBERED.decode(body)}
    except msgspec.ValidationError:  # One that a node cannot tell the number of, for example.
        return {_number(reply.id): reply for reply in _MANY.decode(body)}


def _answer(reply: _Reply | _Numbered | None) -> RpcAnswer:
    if reply is None:
        return RpcAnswer(error=NO_ANSWER)
    if reply.error is not None:
        data = reply.error.data
        shown = None if isinstance(data, msgspec.UnsetType) or bytes(data) == b"null" else data
        return RpcAnswer(error=RpcError(reply.error.code, reply.error.message, shown))
    if isinstance(reply.result, msgspec.UnsetType):
        return RpcAnswer(error=NO_ANSWER)
    return RpcAnswer(reply.result)


def _sent(number: int, call: RpcCall) -> _Sent:
    params = call.params if call.params is not None else msgspec.UNSET
    return _Sent("2.0", msgspec.UNSET if call.is_notification else number, call.method, params)


def _number(raw: msgspec.Raw) -> int:
    text = bytes(raw).strip()
    return int(text) if text.isdigit() and len(text) < 10 else -1
