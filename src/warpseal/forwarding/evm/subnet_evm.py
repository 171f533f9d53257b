"""Responses to the subnet-evm methods, derived by the daemon if a node lacks the methods.

They are made of the configuration of the chain, its headers, and calls of contracts.
Arguments are parsed as a node parses them, with its errors. Source of truth: avalanchego
`graft/subnet-evm/internal/ethapi/api_extra.go`, `core/blockchain_reader.go`; geth's `rpc/types.go`
and `common/hexutil`; recorded refusals of nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from warpseal.forwarding.evm.chain_config import ChainConfig
from warpseal.forwarding.evm.methods import ACTIVE_RULES, CHAIN_CONFIG, FEE_CONFIG
from warpseal.forwarding.evm.precompiles import FEE_FIELDS, fees_as_json
from warpseal.upstream.jsonrpc import (
    INVALID_PARAMS,
    MALFORMED,
    SERVER_ERROR,
    UNREADABLE,
    RpcCall,
    RpcError,
    RpcResponse,
    rpc_call,
)

T = TypeVar("T")

FEE_MANAGER_ADDRESS: Final = "0x0200000000000000000000000000000000000003"
_GET_FEES: Final = "0x5fbbc0d2"
_GET_LAST_CHANGED: Final = "0x9e05549a"
_WORD_BYTES: Final = 32
LATEST: Final = "latest"
_EARLIEST: Final = "earliest"
# Accepted is final: a node means its last accepted block by each of these.
_HEADS: Final = frozenset({"latest", "pending", "accepted", "finalized", "safe"})
_U64_END: Final = 1 << 64
_I64_END: Final = 1 << 63
_HASH_CHARACTERS: Final = 66
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_TEXT_TIME: Final = re.compile(r"[0-9]{1,20}|0x[0-9a-fA-F]{1,16}")
_MAX_NUMBER: Final = 32
# An argument is a block or a moment.
_MAX_PARAMS_BYTES: Final = 4_096

CallNode = Callable[[RpcCall], Awaitable[RpcResponse]]
"""Calls the chain's nodes."""


class RpcFailure(Exception):
    """A call whose response is an error object."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


class BlockRef(Struct, frozen=True):
    """A block, by its hash or by `number`: hex, or "latest"."""

    number: str = LATEST
    hash: str | None = None


class _Header(msgspec.Struct):
    number: str
    timestamp: str


async def derive(call: RpcCall, config: ChainConfig, call_node: CallNode) -> RpcResponse:
    """Return the response to one of the subnet-evm methods.

    An error of a node on the way becomes the response.
    """
    try:
        result = await _derive_result(call, config, call_node)
    except RpcFailure as failure:
        return RpcResponse(error=failure.error, is_derived=True)
    except (ValueError, TypeError):
        return RpcResponse(error=UNREADABLE.error, is_derived=True)
    return RpcResponse(msgspec.Raw(_encode(result)), is_derived=True)


def with_last_changed(response: RpcResponse) -> RpcResponse:
    """Return a node's response to eth_feeConfig with `lastChangedAt`, 0 if the node left it out."""
    if response.result is None or b'"lastChangedAt"' in bytes(response.result):
        return response
    try:
        fields = msgspec.json.decode(response.result, type=dict[str, msgspec.Raw])
    except MALFORMED:
        return response
    return RpcResponse(msgspec.Raw(msgspec.json.encode({**fields, "lastChangedAt": 0})))


def normalize_timestamp(params: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return params with a timestamp in text form replaced by its number, "latest" by nothing.

    Params without text are returned unchanged. Raises RpcFailure.
    """
    value = _parse_arguments(params)
    if not value or not isinstance(value[0], str):
        return params
    text = value[0]
    if text == LATEST:
        value[0] = None
    else:
        value[0] = _parse_text_time(text)
    if value == [None]:
        return msgspec.Raw(b"[]")
    return msgspec.Raw(msgspec.json.encode(value))


def _parse_text_time(text: str) -> int:
    """Return a timestamp in decimal or hex digits. Raises RpcFailure."""
    if _TEXT_TIME.fullmatch(text):
        moment = int(text, 0 if text[:2] == "0x" else 10)
        if moment < _U64_END:
            return moment
    raise _wrong_kind("string", "uint64")


async def _derive_result(
    call: RpcCall, config: ChainConfig, call_node: CallNode
) -> Mapping[str, Any]:
    if call.method == CHAIN_CONFIG:
        if _parse_arguments(call.params):
            raise _too_many_arguments(0)
        return config.as_json()
    if call.method == FEE_CONFIG:
        return await _fee_config(_parse_only_argument(call.params, _block), config, call_node)
    moment = _parse_only_argument(call.params, _timestamp)
    if moment is None:
        header = await _get_header(BlockRef(), call_node)
        moment = int(header.timestamp, 16)
    if call.method == ACTIVE_RULES:
        return config.rules_at(moment)
    return config.precompiles_at(moment)


async def _fee_config(
    block: BlockRef, config: ChainConfig, call_node: CallNode
) -> Mapping[str, Any]:
    header = await _get_header(block, call_node)
    moment = int(header.timestamp, 16)
    if not config.has_fee_manager(moment):
        return {"feeConfig": config.fees(moment), "lastChangedAt": 0}
    words = await _eth_call(_GET_FEES, header.number, len(FEE_FIELDS), call_node)
    changed = await _eth_call(_GET_LAST_CHANGED, header.number, 1, call_node)
    fees = fees_as_json(dict(zip(FEE_FIELDS, words, strict=True)))
    return {"feeConfig": fees, "lastChangedAt": changed[0]}


async def _get_header(block: BlockRef, call_node: CallNode) -> _Header:
    by_hash = block.hash is not None
    method = "eth_getBlockByHash" if by_hash else "eth_getBlockByNumber"
    block_object = await _result_of(call_node, method, [block.hash or block.number, False])
    if block_object is None:
        missing = "header for hash not found" if by_hash else "cannot query unfinalized data"
        raise RpcFailure(RpcError(SERVER_ERROR, missing))
    return msgspec.convert(block_object, _Header)


async def _eth_call(data: str, block: str, words: int, call_node: CallNode) -> list[int]:
    call = {"to": FEE_MANAGER_ADDRESS, "data": data}
    output = await _result_of(call_node, "eth_call", [call, block])
    raw = bytes.fromhex(str(output).removeprefix("0x"))
    if len(raw) != words * _WORD_BYTES:
        raise ValueError("the fee manager returned another number of words")
    starts = range(0, len(raw), _WORD_BYTES)
    return [int.from_bytes(raw[start : start + _WORD_BYTES], "big") for start in starts]


async def _result_of(call_node: CallNode, method: str, params: list[Any]) -> Any:
    response = await call_node(rpc_call(method, *params))
    if response.error is not None:
        raise RpcFailure(response.error)
    return None if response.result is None else msgspec.json.decode(response.result)


def _encode(result: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(result)
    except OverflowError:  # Fees and chain ids may have more than 64 bits
        return json.dumps(result, separators=(",", ":")).encode()


def _parse_arguments(params: msgspec.Raw | None) -> list[Any]:
    """Return the arguments of a call. Numbers may have any size. Raises RpcFailure, ValueError."""
    if params is not None and memoryview(params).nbytes > _MAX_PARAMS_BYTES:
        raise _too_many_arguments(1)
    value = None if params is None else msgspec.json.decode(params)
    return [] if value is None else msgspec.convert(value, list[Any])


def _parse_only_argument(params: msgspec.Raw | None, parse: Callable[[Any], T]) -> T:
    """Return the only argument, or the value of null if there is none.

    Raises RpcFailure, ValueError.
    """
    value = _parse_arguments(params)
    argument = parse(value[0] if value else None)
    if len(value) > 1:
        raise _too_many_arguments(1)
    return argument


def _block(value: Any) -> BlockRef:
    if value is None:
        return BlockRef()
    if isinstance(value, dict):
        return _block_object(value)
    if not isinstance(value, str):
        raise _wrong_kind(_kind(value), "string")
    if len(value) == _HASH_CHARACTERS:
        return BlockRef(hash=_hash(value))
    return BlockRef(number=_number(value))


def _block_object(value: dict[str, Any]) -> BlockRef:
    number, block_hash = value.get("blockNumber"), value.get("blockHash")
    if number is not None and block_hash is not None:
        reason = "cannot specify both BlockHash and BlockNumber, choose one or the other"
        raise _invalid_argument(reason)
    if block_hash is not None:
        return BlockRef(hash=_hash(str(block_hash)))
    if number is None:
        text = "invalid arguments; neither block nor hash specified"
        raise RpcFailure(RpcError(SERVER_ERROR, text))
    return BlockRef(number=_number(str(number)))


def _number(text: str) -> str:
    if text in _HEADS:
        return LATEST
    if text == _EARLIEST:
        return "0x0"
    digits = text[2:]
    if text[:2].lower() != "0x":
        raise _invalid_argument("hex string without 0x prefix" if text else "empty hex string")
    if not digits:
        raise _invalid_argument('hex string "0x"')
    if len(digits) > 1 and digits[0] == "0":
        raise _invalid_argument("hex number with leading zero digits")
    if not _HEX.fullmatch(digits):
        raise _invalid_argument("invalid hex string")
    if len(digits) > 16:
        raise _invalid_argument("hex number > 64 bits")
    if int(digits, 16) >= _I64_END:
        raise _invalid_argument("block number larger than int64")
    return text


def _hash(text: str) -> str:
    if text[:2].lower() != "0x":
        raise _invalid_argument("hex string without 0x prefix")
    if not _HEX.fullmatch(text[2:]):
        raise _invalid_argument("invalid hex string")
    if len(text) != _HASH_CHARACTERS:
        raise _invalid_argument(f"hex string has length {len(text) - 2}, want 64 for common.Hash")
    return text.lower()


def _timestamp(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is int and 0 <= value < _U64_END:
        return value
    kind = _kind(value)
    if type(value) in (int, float):
        kind = f"number {value}"[:_MAX_NUMBER]
    raise _wrong_kind(kind, "uint64")


def _kind(value: Any) -> str:
    kinds = {
        str: "string",
        bool: "bool",
        int: "number",
        float: "number",
        list: "array",
        dict: "object",
    }
    return kinds.get(type(value), "value")


def _wrong_kind(kind: str, expected: str) -> RpcFailure:
    return _invalid_argument(f"json: cannot unmarshal {kind} into Go value of type {expected}")


def _invalid_argument(reason: str) -> RpcFailure:
    return RpcFailure(RpcError(INVALID_PARAMS, f"invalid argument 0: {reason}"))


def _too_many_arguments(at_most: int) -> RpcFailure:
    return RpcFailure(RpcError(INVALID_PARAMS, f"too many arguments, want at most {at_most}"))
