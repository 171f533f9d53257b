"""Arguments of the subnet-evm methods, parsed as a node parses them, with the errors that a node returns. Pure.

Source of truth: geth's `rpc/types.go` and `common/hexutil`; recorded refusals of nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from warpseal.node.jsonrpc import INVALID_PARAMS, SERVER_ERROR, RpcError

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


class RpcFailure(Exception):
    """A call whose response is an error object."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block, by its hash or by `number`: hex, or "latest"."""

    number: str = LATEST
    hash: str | None = None


def parse_arguments(params: msgspec.Raw | None) -> list[Any]:
    """Return the arguments of a call. Numbers may have any size. Raises ValueError."""
    given = None if params is None else msgspec.json.decode(params)
    return [] if given is None else msgspec.convert(given, list[Any])


def check_no_arguments(params: msgspec.Raw | None) -> None:
    """Raise RpcFailure if there are arguments."""
    if parse_arguments(params):
        raise _too_many_arguments(0)


def parse_timestamp(params: msgspec.Raw | None) -> int | None:
    """Return the only argument, Unix seconds; None if it is not given. Raises RpcFailure."""
    given = parse_arguments(params)
    moment = _timestamp(given[0]) if given else None
    if len(given) > 1:
        raise _too_many_arguments(1)
    return moment


def normalize_timestamp(params: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return params with a timestamp in text form replaced by its number, "latest" by nothing. Raises RpcFailure.

    Params without text are returned unchanged.
    """
    given = parse_arguments(params)
    if not given or not isinstance(given[0], str):
        return params
    text = given[0]
    if text == LATEST:
        given[0] = None
    elif not _TEXT_TIME.fullmatch(text) or (moment := int(text, 0 if text[:2] == "0x" else 10)) >= _U64_END:
        raise _wrong_kind("string", "uint64")
    else:
        given[0] = moment
    return msgspec.Raw(b"[]" if given == [None] else msgspec.json.encode(given))


def parse_block(params: msgspec.Raw | None) -> BlockRef:
    """Return the block that the only argument names. Raises RpcFailure."""
    given = parse_arguments(params)
    block = _block(given[0]) if given and given[0] is not None else BlockRef()
    if len(given) > 1:
        raise _too_many_arguments(1)
    return block


def _block(given: Any) -> BlockRef:
    if isinstance(given, dict):
        return _block_object(given)
    if not isinstance(given, str):
        raise _wrong_kind(_kind(given), "string")
    if len(given) == _HASH_CHARACTERS:
        return BlockRef(hash=_hash(given))
    return BlockRef(number=_number(given))


def _block_object(given: dict[str, Any]) -> BlockRef:
    number, block_hash = given.get("blockNumber"), given.get("blockHash")
    if number is not None and block_hash is not None:
        raise _invalid_argument("cannot specify both BlockHash and BlockNumber, choose one or the other")
    if block_hash is not None:
        return BlockRef(hash=_hash(str(block_hash)))
    if number is None:
        raise RpcFailure(RpcError(SERVER_ERROR, "invalid arguments; neither block nor hash specified"))
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


def _timestamp(given: Any) -> int | None:
    if given is None:
        return None
    if type(given) is int and 0 <= given < _U64_END:
        return given
    is_number = type(given) in (int, float)
    raise _wrong_kind(f"number {given}"[:_MAX_NUMBER] if is_number else _kind(given), "uint64")


def _kind(given: Any) -> str:
    kinds = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    return kinds.get(type(given), "value")


def _wrong_kind(kind: str, wanted: str) -> RpcFailure:
    return _invalid_argument(f"json: cannot unmarshal {kind} into Go value of type {wanted}")


def _invalid_argument(reason: str) -> RpcFailure:
    return RpcFailure(RpcError(INVALID_PARAMS, f"invalid argument 0: {reason}"))


def _too_many_arguments(at_most: int) -> RpcFailure:
    return RpcFailure(RpcError(INVALID_PARAMS, f"too many arguments, want at most {at_most}"))
