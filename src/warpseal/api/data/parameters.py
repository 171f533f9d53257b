"""The query parameters of the Data API: names, parsers and OpenAPI descriptions.

Source of truth: the specification's endpoints 3 to 8. The handlers and the OpenAPI document read one table,
so that the two cannot differ. Values are plain (numbers, texts, bytes, tuples of these) since page tokens carry them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from warpseal.api.aggregator.request_fields import unknown_field
from warpseal.chains.ids import parse_address
from warpseal.errors import ConflictingSpellings, InvalidRequest
from warpseal.history.resources import CurrencyCode, PrimaryNetworkTxType, SortOrder, ValidationStatusType
from warpseal.warp.ids import MalformedID, parse_id, parse_node_id

MAX_LIST_ENTRIES: Final = 64
DEFAULT_PAGE_SIZE: Final = 10
MAX_PAGE_SIZE: Final = 100
MAX_TIMESTAMP: Final = 2**53
_EVM_DIGITS: Final = 40
_ALIASES: Final = ("P", "X", "C")
_MAX_SHOWN: Final = 64

Value = int | str | bytes | tuple[str, ...] | tuple[bytes, ...]
Read = Callable[[str, str], Value]
"""Takes a parameter's name and its text, not empty; returns its value. Raises InvalidRequest naming the parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter. schema: of its value, in OpenAPI; is_list: repeated or comma-separated."""

    name: str
    description: str
    schema: Mapping[str, Any]
    read: Read
    default: Value | None = None
    is_list: bool = False
    required: bool = False


def read_query(
    parameters: Iterable[Parameter], query: Iterable[tuple[str, str]], *, ignore_unknown: bool
) -> dict[str, Value]:
    """Return the given values by name; an empty text counts as not given. Raises InvalidRequest."""
    known = {parameter.name: parameter for parameter in parameters}
    texts: dict[str, str] = {}
    for name, text in query:
        parameter = known.get(name)
        if parameter is None:
            if ignore_unknown:
                continue
            raise unknown_field(name, known)
        if text:
            texts[name] = _join(parameter, texts.get(name), text)
    return {name: known[name].read(name, text) for name, text in texts.items()}


def _join(parameter: Parameter, before: str | None, text: str) -> str:
    if before is None or before == text:
        return text
    if parameter.is_list:
        return f"{before},{text}"
    raise ConflictingSpellings(parameter.name, "given more than once, with different values")


def _integer(low: int, high: int) -> Read:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 20 or not low <= int(text) <= high:
            raise InvalidRequest(name, f"{text[:_MAX_SHOWN]!r} is not an integer of {low}..{high}")
        return int(text)

    return read


def _enum_member(kind: type[StrEnum]) -> Read:
    values = [member.value for member in kind]

    def read(name: str, text: str) -> str:
        if text not in values:
            raise InvalidRequest(name, f"{text[:_MAX_SHOWN]!r} is none of {', '.join(values)}")
        return text

    return read


def split_list(name: str, text: str) -> list[str]:
    """Return the distinct parts of a comma-separated list. Raises InvalidRequest for an empty part or too many."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in parts:
        raise InvalidRequest(name, "an entry of the list is empty")
    if len(parts) > MAX_LIST_ENTRIES:
        raise InvalidRequest(name, f"{len(parts)} entries, and {MAX_LIST_ENTRIES} are allowed")
    return parts


def _enum_members(kind: type[StrEnum]) -> Read:
    read_member = _enum_member(kind)

    def read(name: str, text: str) -> tuple[str, ...]:
        return tuple(sorted(str(read_member(name, part)) for part in split_list(name, text)))

    return read


def _texts(name: str, text: str) -> tuple[str, ...]:
    return tuple(split_list(name, text))


def _node_ids(name: str, text: str) -> tuple[bytes, ...]:
    return tuple(sorted(parse_node_id_parameter(name, part) for part in split_list(name, text)))


def _validation_id(name: str, text: str) -> bytes:
    try:
        return parse_id(text)
    except MalformedID as error:
        raise InvalidRequest(name, str(error)) from None


def parse_node_id_parameter(name: str, text: str) -> bytes:
    """Return the bytes of a node id. Raises InvalidRequest naming the parameter."""
    try:
        return parse_node_id(text)
    except MalformedID as error:
        raise InvalidRequest(name, str(error)) from None


def parse_address_parameter(name: str, text: str, prefix: str) -> tuple[bytes, bool]:
    """Return the 20 bytes of an address, and whether it is an account of the C-Chain (0x and 40 digits).

    prefix: what addresses of this network begin with. Raises InvalidRequest naming the parameter.
    """
    if text[:2] in ("0x", "0X"):
        return _parse_account(name, text), True
    alias, separator, _ = text.rpartition("-")
    if separator and alias not in _ALIASES:
        raise InvalidRequest(name, f"{text[:_MAX_SHOWN]!r}: before the dash stands P, X or C")
    try:
        found, address = parse_address(text)
    except MalformedID as error:
        raise InvalidRequest(name, str(error)) from None
    if found != prefix:
        raise InvalidRequest(
            name, f"{text[:_MAX_SHOWN]!r} is of another network; addresses of this one begin with {prefix}1"
        )
    return address, False


def _parse_account(name: str, text: str) -> bytes:
    digits = text[2:]
    try:
        if len(digits) == _EVM_DIGITS:
            return bytes.fromhex(digits)
    except ValueError:
        pass
    raise InvalidRequest(name, f"{text[:_MAX_SHOWN]!r}: an account is 0x and {_EVM_DIGITS} hexadecimal digits")


def _enum_schema(kind: type[StrEnum]) -> dict[str, Any]:
    return {"type": "string", "enum": [member.value for member in kind]}


_TIME: Final = {"type": "integer", "minimum": 0, "maximum": MAX_TIMESTAMP}

ADDRESSES: Final = Parameter(
    "addresses",
    f"Up to {MAX_LIST_ENTRIES} addresses, comma-separated: Bech32 with the network's prefix, P-, X- or C- in front or "
    "not; accounts of the C-Chain as 0x and 40 digits.",
    {"type": "string"},
    _texts,
    is_list=True,
)
REQUIRED_ADDRESSES: Final = Parameter(
    ADDRESSES.name, ADDRESSES.description, ADDRESSES.schema, _texts, is_list=True, required=True
)
L1_VALIDATION_ID: Final = Parameter(
    "l1ValidationId",
    "P-Chain only: transactions that touch this L1 validation, base58-check or hex.",
    {"type": "string"},
    _validation_id,
)
TX_TYPES: Final = Parameter(
    "txTypes",
    "Types of transactions, repeated or comma-separated; only together with `addresses` or `l1ValidationId`.",
    {"type": "array", "items": _enum_schema(PrimaryNetworkTxType)},
    _enum_members(PrimaryNetworkTxType),
    is_list=True,
)
START_TIMESTAMP: Final = Parameter(
    "startTimestamp", "Unix seconds: items at this time and after it.", _TIME, _integer(0, MAX_TIMESTAMP)
)
END_TIMESTAMP: Final = Parameter(
    "endTimestamp", "Unix seconds: items at this time and before it.", _TIME, _integer(0, MAX_TIMESTAMP)
)
PAGE_TOKEN: Final = Parameter(
    "pageToken",
    "`nextPageToken` of the page before; valid 24 hours. It may come alone, or with the parameters repeated.",
    {"type": "string"},
    lambda _, text: text,
)
PAGE_SIZE: Final = Parameter(
    "pageSize",
    "How many items a page has at most; it may have fewer and not be the last.",
    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": DEFAULT_PAGE_SIZE},
    _integer(1, MAX_PAGE_SIZE),
    default=DEFAULT_PAGE_SIZE,
)
SORT_ORDER: Final = Parameter(
    "sortOrder",
    "Oldest or newest first.",
    {**_enum_schema(SortOrder), "default": "desc"},
    _enum_member(SortOrder),
    default="desc",
)
NODE_IDS: Final = Parameter(
    "nodeIds",
    f"Up to {MAX_LIST_ENTRIES} node ids, comma-separated; `addresses` or `nodeIds` is required.",
    {"type": "string"},
    _node_ids,
    is_list=True,
)
CURRENCY: Final = Parameter(
    "currency",
    "Currency of `historicalPrice`, which is left out if no price is known.",
    {**_enum_schema(CurrencyCode), "default": "usd"},
    _enum_member(CurrencyCode),
    default="usd",
)
VALIDATION_STATUS: Final = Parameter(
    "validationStatus",
    "Only validations with this status.",
    _enum_schema(ValidationStatusType),
    _enum_member(ValidationStatusType),
)
