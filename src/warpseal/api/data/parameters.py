"""The kinds of query parameters of the Data API: their parsers and their schemas in OpenAPI.

Source of truth: the specification's endpoints 3 to 15 and 17 to 19. Requests and the OpenAPI
document read one table, so that the two cannot differ. Values are plain (numbers, texts, bytes,
tuples of these) since page tokens carry them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from warpseal.api.data.bodies import EvmFeature, TimeInterval, UsageGrouping
from warpseal.api.data.endpoints import (
    ADDRESSES,
    MAX_BLOCK_NUMBER,
    MAX_LIST_ENTRIES,
    PAGE_TOKEN,
    Parameter,
    ParameterKind,
)
from warpseal.api.http.error_response import RETRIED
from warpseal.api.signing.errors import ConflictingSpellings
from warpseal.api.signing.request_fields import unknown_field
from warpseal.chains.ids import Address, parse_address
from warpseal.errors import InvalidRequest
from warpseal.resources.base import (
    CurrencyCode,
    PrimaryNetworkTxType,
    SortOrder,
    ValidationStatusType,
)
from warpseal.resources.evm import IcmStatus
from warpseal.resources.queries import TimeRange
from warpseal.store.values import EventType, SigningBlockKind
from warpseal.usage.countries import CONTINENTS, COUNTRIES, TOR, UNKNOWN
from warpseal.warp.ids import MalformedID, id_text, parse_id, parse_node_id

_MAX_UINT256: Final = 2**256 - 1
_UINT256_DIGITS: Final = len(str(_MAX_UINT256))
_BLOCK_HASH_TEXT: Final = re.compile(r"0[xX][0-9a-fA-F]{64}")
_EVM_DIGITS: Final = 40
_ACCOUNT_TEXT: Final = re.compile(rf"0[xX][0-9a-fA-F]{{{_EVM_DIGITS}}}")
_ALIASES: Final = ("P", "X", "C")
_MAX_SHOWN: Final = 64
_MAX_REASON_CHARACTERS: Final = 300

Value = int | str | bytes | tuple[str | bytes, ...]
Read = Callable[[str, str], Value]
"""Takes a parameter's name and its text, not empty; returns its value.

Raises InvalidRequest naming the parameter.
"""


class Kind(Struct, frozen=True):
    """A kind of parameters.

    schema: The OpenAPI schema of the value.
    is_list: A request may repeat the parameter, or separate its values with commas.
    """

    read: Read
    schema: Mapping[str, Any]
    is_list: bool = False


def schema_of(parameter: Parameter) -> dict[str, Any]:
    """Return the schema of a parameter's value, in OpenAPI."""
    options = {
        "minimum": parameter.minimum,
        "maximum": parameter.maximum,
        "default": parameter.default,
    }
    return {
        **KINDS[parameter.kind].schema,
        **{name: value for name, value in options.items() if value is not None},
    }


def read_value(parameter: Parameter, text: str) -> Value:
    """Return the value of a text that is not empty. Raises InvalidRequest naming the parameter."""
    if parameter.minimum is not None and parameter.maximum is not None:
        return _read_integer(parameter.name, text, parameter.minimum, parameter.maximum)
    return KINDS[parameter.kind].read(parameter.name, text)


def read_query(
    parameters: Iterable[Parameter], query: Iterable[tuple[str, str]], *, ignore_unknown: bool
) -> dict[str, Value]:
    """Return the given values by name; an empty text counts as not given. Raises InvalidRequest.

    No other parameter is required with a page token, which carries the query.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    texts: dict[str, str] = {}
    for name, text in query:
        parameter = by_name.get(name)
        if parameter is None:
            if ignore_unknown:
                continue
            raise unknown_field(name, by_name)
        before = texts.setdefault(name, text) if text else text
        if before != text:
            if not KINDS[parameter.kind].is_list:
                raise ConflictingSpellings(name, "given more than once, with different values")
            texts[name] = f"{before},{text}"
    values = {name: read_value(by_name[name], text) for name, text in texts.items()}
    missing = next(
        (name for name, parameter in by_name.items() if parameter.required and name not in values),
        None,
    )
    if missing is not None and PAGE_TOKEN.name not in values:
        raise InvalidRequest(missing, "required")
    return values


def _quote(text: str) -> str:
    """Return a value for an error, cut to a bounded length."""
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}…"


def _read_integer(name: str, text: str, low: int = 0, high: int = MAX_BLOCK_NUMBER) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or not low <= int(text) <= high:
        raise InvalidRequest(name, f"{_quote(text)} is not an integer of {low}..{high}")
    return int(text)


def _read_text(name: str, text: str) -> str:
    return text


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidRequest(name, f"{_quote(text)} is neither true nor false")
    return text == "true"


def _enum_member(kind: Iterable[StrEnum]) -> Read:
    values = [member.value for member in kind]

    def read(name: str, text: str) -> str:
        if text not in values:
            raise InvalidRequest(name, f"{_quote(text)} is none of {', '.join(values)}")
        return text

    return read


def _split(name: str, text: str) -> tuple[str, ...]:
    """Return the distinct parts of a comma-separated list.

    Raises InvalidRequest for an empty part or too many.
    """
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in parts:
        raise InvalidRequest(name, "an entry of the list is empty")
    if len(parts) > MAX_LIST_ENTRIES:
        raise InvalidRequest(name, f"{len(parts)} entries, and {MAX_LIST_ENTRIES} are allowed")
    return parts


def _sorted_list(read: Callable[[str, str], Any]) -> Read:
    return lambda name, text: tuple(sorted(read(name, part) for part in _split(name, text)))


def _read_id(parse: Callable[[str], bytes]) -> Callable[[str, str], bytes]:
    def read(name: str, text: str) -> bytes:
        try:
            return parse(text)
        except MalformedID as error:
            raise InvalidRequest(name, str(error)) from None

    return read


read_id: Final = _read_id(parse_id)
"""Takes a parameter's name and its text; returns the 32 bytes of an id.

Raises InvalidRequest naming the parameter.
"""

read_node_id: Final = _read_id(parse_node_id)
"""Takes a parameter's name and its text; returns the bytes of a node id.

Raises InvalidRequest naming the parameter.
"""


def read_account(name: str, text: str) -> bytes:
    """Return the 20 bytes of an account or contract, in any case.

    Raises InvalidRequest naming the parameter.
    """
    if _ACCOUNT_TEXT.fullmatch(text) is None:
        reason = f"{_quote(text)}: an account is 0x and {_EVM_DIGITS} hexadecimal digits"
        raise InvalidRequest(name, reason)
    return bytes.fromhex(text[2:])


def read_uint256(name: str, text: str) -> int:
    """Return a token id or an amount, a decimal number.

    Raises InvalidRequest naming the parameter.
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= _UINT256_DIGITS
    if not is_number or int(text) > _MAX_UINT256:
        raise InvalidRequest(name, f"{_quote(text)} is not a decimal number of 0..2^256-1")
    return int(text)


def read_block_id(name: str, text: str) -> int | bytes:
    """Return the number of a block, or the 32 bytes of its hash.

    Raises InvalidRequest naming the parameter.
    """
    if _BLOCK_HASH_TEXT.fullmatch(text):
        return bytes.fromhex(text[2:])
    if text.isascii() and text.isdigit():
        return _read_integer(name, text)
    raise InvalidRequest(
        name, f"{_quote(text)} is neither a decimal number nor a hash of 32 bytes in hex"
    )


def parse_address_parameter(name: str, text: str, prefix: str) -> tuple[bytes, bool]:
    """Return the 20 bytes of an address, and whether it is an account of the C-Chain.

    text: Bech32 of an address, or 0x and 40 digits of an account.
    prefix: the human-readable part of addresses of this network.
    Raises InvalidRequest naming the parameter.
    """
    if text[:2] in ("0x", "0X"):
        return read_account(name, text), True
    alias, separator, _ = text.rpartition("-")
    if separator and alias not in _ALIASES:
        raise InvalidRequest(name, f"{_quote(text)}: before the dash stands P, X or C")
    try:
        network_prefix, address = parse_address(text)
    except MalformedID as error:
        raise InvalidRequest(name, str(error)) from None
    if network_prefix != prefix:
        raise InvalidRequest(
            name,
            f"{_quote(text)} is of another network; addresses of this one begin with {prefix}1",
        )
    return address, False


def _read_country(name: str, text: str) -> str:
    if text.upper() not in (*COUNTRIES, TOR, UNKNOWN):
        raise InvalidRequest(
            name, f"{_quote(text)} is no country code of ISO 3166-1 alpha-2, nor XX or T1"
        )
    return text.upper()


def _read_continent(name: str, text: str) -> str:
    if text.upper() not in (*CONTINENTS, UNKNOWN):
        raise InvalidRequest(name, f"{_quote(text)} is none of {', '.join(sorted(CONTINENTS))}, XX")
    return text.upper()


def _read_id_text(name: str, text: str) -> str:
    """Return an id in base58-check. Raises InvalidRequest naming the parameter."""
    return id_text(read_id(name, text))


def _read_reason(name: str, text: str) -> str:
    """Return a reason that an error may quote. Raises InvalidRequest."""
    if not text.isprintable() or len(text) > _MAX_REASON_CHARACTERS or RETRIED.search(text):
        words = f"without the words on which published clients retry: {RETRIED.pattern}"
        raise InvalidRequest(
            name, f"expected at most {_MAX_REASON_CHARACTERS} printable characters, {words}"
        )
    return text


def _enum(kind: Iterable[StrEnum], *, is_list: bool = False) -> Kind:
    """Return the kind of parameters that take members of an enumeration, or lists of them."""
    read, schema = _enum_member(kind), {"type": "string", "enum": [member.value for member in kind]}
    if is_list:
        return Kind(_sorted_list(read), {"type": "array", "items": schema}, is_list=True)
    return Kind(read, schema)


_TEXT: Final = {"type": "string"}
KINDS: Final[Mapping[ParameterKind, Kind]] = {
    "account": Kind(read_account, _TEXT),
    "addresses": Kind(_split, _TEXT, is_list=True),
    "boolean": Kind(_boolean, {"type": "boolean"}),
    "continent": Kind(_read_continent, _TEXT),
    "country": Kind(_read_country, _TEXT),
    "currency": _enum(CurrencyCode),
    "event types": _enum(EventType, is_list=True),
    "EVM feature": _enum(EvmFeature),
    "ICM status": _enum(IcmStatus),
    "id": Kind(read_id, _TEXT),
    "id text": Kind(_read_id_text, _TEXT),
    "integer": Kind(_read_integer, {"type": "integer"}),
    "node id": Kind(read_node_id, _TEXT),
    "node ids": Kind(_sorted_list(read_node_id), _TEXT, is_list=True),
    "reason": Kind(_read_reason, _TEXT),
    "signing block kind": _enum(SigningBlockKind),
    "sort order": _enum(SortOrder),
    "text": Kind(_read_text, _TEXT),
    "time interval": _enum(TimeInterval),
    "transaction types": _enum(PrimaryNetworkTxType, is_list=True),
    "uint256": Kind(read_uint256, {"type": "string", "pattern": f"^[0-9]{{1,{_UINT256_DIGITS}}}$"}),
    "usage grouping": _enum(
        [grouping for grouping in UsageGrouping if grouping is not UsageGrouping.NONE]
    ),
    "validation status": _enum(ValidationStatusType),
}

_ADDRESS: Final = b"\x00"
_ACCOUNT: Final = b"\x01"


def normalize_addresses(parameters: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Return the values with addresses as sorted bytes, so that equal queries look equal."""
    values = dict(parameters)
    texts = values.get(ADDRESSES.name)
    if isinstance(texts, tuple):
        parsed = {parse_address_parameter(ADDRESSES.name, str(text), prefix) for text in texts}
        values[ADDRESSES.name] = tuple(
            sorted((_ACCOUNT if is_account else _ADDRESS) + raw for raw, is_account in parsed)
        )
    return values


def addresses_in(values: Mapping[str, Any]) -> tuple[tuple[Address, ...], tuple[bytes, ...]]:
    """Return the normalized addresses, and the accounts of the C-Chain, of a query."""
    tagged: tuple[bytes, ...] = values.get(ADDRESSES.name, ())
    addresses = tuple(Address(entry[1:]) for entry in tagged if entry[:1] == _ADDRESS)
    return addresses, tuple(entry[1:] for entry in tagged if entry[:1] == _ACCOUNT)


def time_range_in(values: Mapping[str, Any]) -> TimeRange:
    """Return the time range of a query. Raises InvalidRequest if it ends before it begins."""
    times = TimeRange(values.get("startTimestamp"), values.get("endTimestamp"))
    if times.since is not None and times.until is not None and times.until < times.since:
        raise InvalidRequest(
            "endTimestamp", f"{times.until} is before startTimestamp, {times.since}"
        )
    return times


def block_range_in(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the first block of a query and the one behind its last.

    Raises InvalidRequest if start is above end.
    """
    start, end = values.get("startBlock"), values.get("endBlock")
    if start is not None and end is not None and end < start:
        raise InvalidRequest("endBlock", f"{end} is below startBlock, {start}")
    return start, end


def order_in(values: Mapping[str, Any]) -> SortOrder:
    """Return the order of a query; by default the newest first."""
    return SortOrder(values.get("sortOrder", SortOrder.DESC))
