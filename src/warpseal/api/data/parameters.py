"""The query parameters of the Data API: names, parsers and OpenAPI descriptions.

Source of truth: the specification's endpoints 3 to 15 and 17 to 19. The handlers and the OpenAPI document read one
table, so that the two cannot differ. Values are plain (numbers, texts, bytes, tuples of these) since page tokens carry
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.api.data.bodies import EvmFeature, TimeInterval, UsageGrouping
from warpseal.api.http.error_response import RETRIED
from warpseal.api.signing.errors import ConflictingSpellings
from warpseal.api.signing.request_fields import unknown_field
from warpseal.chains.ids import Address, parse_address
from warpseal.errors import InvalidRequest
from warpseal.resources.base import CurrencyCode, PrimaryNetworkTxType, SortOrder, ValidationStatusType
from warpseal.resources.evm import IcmStatus
from warpseal.resources.queries import TimeRange
from warpseal.store.values import EventType, SigningBlockKind
from warpseal.usage.countries import CONTINENTS, COUNTRIES, TOR, UNKNOWN
from warpseal.warp.ids import MalformedID, id_text, parse_id, parse_node_id

MAX_LIST_ENTRIES: Final = 64
DEFAULT_PAGE_SIZE: Final = 10
MAX_PAGE_SIZE: Final = 100
MAX_COLLECTIBLES: Final = 500
DEFAULT_METRICS_PAGE_SIZE: Final = 1_000
MAX_METRICS_PAGE_SIZE: Final = 5_000
DEFAULT_POINTS: Final = 100
MAX_POINTS: Final = 2_160
MAX_TIMESTAMP: Final = 2**53
MAX_BLOCK_NUMBER: Final = 2**63 - 1
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
"""Takes a parameter's name and its text, not empty; returns its value. Raises InvalidRequest naming the parameter."""


class Parameter(Struct, frozen=True):
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
            if not parameter.is_list:
                raise ConflictingSpellings(name, "given more than once, with different values")
            texts[name] = f"{before},{text}"
    values = {name: by_name[name].read(name, text) for name, text in texts.items()}
    missing = next((name for name, parameter in by_name.items() if parameter.required and name not in values), None)
    if missing is not None and PAGE_TOKEN.name not in values:
        raise InvalidRequest(missing, "required")
    return values


def _shown(text: str) -> str:
    """Return a value for an error, cut to a bounded length."""
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}…"


def _integer(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 20 or not low <= int(text) <= high:
            raise InvalidRequest(name, f"{_shown(text)} is not an integer of {low}..{high}")
        return int(text)

    return read


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidRequest(name, f"{_shown(text)} is neither true nor false")
    return text == "true"


def _enum_member(kind: Iterable[StrEnum]) -> Read:
    values = [member.value for member in kind]

    def read(name: str, text: str) -> str:
        if text not in values:
            raise InvalidRequest(name, f"{_shown(text)} is none of {', '.join(values)}")
        return text

    return read


def _split(name: str, text: str) -> tuple[str, ...]:
    """Return the distinct parts of a comma-separated list. Raises InvalidRequest for an empty part or too many."""
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
"""Takes a parameter's name and its text; returns the 32 bytes of an id. Raises InvalidRequest naming the parameter."""

read_node_id: Final = _read_id(parse_node_id)
"""Takes a parameter's name and its text; returns the bytes of a node id. Raises InvalidRequest naming the parameter."""


def read_account(name: str, text: str) -> bytes:
    """Return the 20 bytes of an account or contract, in any case. Raises InvalidRequest naming the parameter."""
    if _ACCOUNT_TEXT.fullmatch(text) is None:
        reason = f"{_shown(text)}: an account is 0x and {_EVM_DIGITS} hexadecimal digits"
        raise InvalidRequest(name, reason)
    return bytes.fromhex(text[2:])


def read_uint256(name: str, text: str) -> int:
    """Return a token id or an amount, a decimal number. Raises InvalidRequest naming the parameter."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _UINT256_DIGITS
    if not is_number or int(text) > _MAX_UINT256:
        raise InvalidRequest(name, f"{_shown(text)} is not a decimal number of 0..2^256-1")
    return int(text)


def read_block_id(name: str, text: str) -> int | bytes:
    """Return the number of a block, or the 32 bytes of its hash. Raises InvalidRequest naming the parameter."""
    if _BLOCK_HASH_TEXT.fullmatch(text):
        return bytes.fromhex(text[2:])
    if text.isascii() and text.isdigit():
        return _integer(0, MAX_BLOCK_NUMBER)(name, text)
    raise InvalidRequest(name, f"{_shown(text)} is neither a decimal number nor a hash of 32 bytes in hex")


def parse_address_parameter(name: str, text: str, prefix: str) -> tuple[bytes, bool]:
    """Return the 20 bytes of an address, and whether it is an account of the C-Chain (0x and 40 digits).

    prefix: what addresses of this network begin with. Raises InvalidRequest naming the parameter.
    """
    if text[:2] in ("0x", "0X"):
        return read_account(name, text), True
    alias, separator, _ = text.rpartition("-")
    if separator and alias not in _ALIASES:
        raise InvalidRequest(name, f"{_shown(text)}: before the dash stands P, X or C")
    try:
        network_prefix, address = parse_address(text)
    except MalformedID as error:
        raise InvalidRequest(name, str(error)) from None
    if network_prefix != prefix:
        raise InvalidRequest(name, f"{_shown(text)} is of another network; addresses of this one begin with {prefix}1")
    return address, False


def _enum(
    name: str, description: str, kind: type[StrEnum], default: StrEnum | None = None, *, is_list: bool = False
) -> Parameter:
    """Return a parameter that takes members of an enumeration."""
    schema: dict[str, Any] = {"type": "string", "enum": [member.value for member in kind]}
    if is_list:
        return Parameter(
            name, description, {"type": "array", "items": schema}, _sorted_list(_enum_member(kind)), is_list=True
        )
    if default is not None:
        schema["default"] = default.value
    return Parameter(name, description, schema, _enum_member(kind), default and default.value)


def _text(name: str, description: str, read: Read = lambda _, text: text, **options: Any) -> Parameter:
    """Return a parameter that is a text. options: more fields of Parameter."""
    return Parameter(name, description, {"type": "string"}, read, **options)


def _bounded(name: str, description: str, low: int, high: int, default: int | None = None) -> Parameter:
    """Return a parameter that is an integer of low..high."""
    schema = {"type": "integer", "minimum": low, "maximum": high, **({} if default is None else {"default": default})}
    return Parameter(name, description, schema, _integer(low, high), default)


def _time(name: str, description: str) -> Parameter:
    return _bounded(name, description, 0, MAX_TIMESTAMP)


def _page_size(default: int, high: int) -> Parameter:
    text = "How many items a page has at most; it may have fewer and not be the last."
    return _bounded("pageSize", text, 1, high, default)


ADDRESSES: Final = _text(
    "addresses",
    f"Up to {MAX_LIST_ENTRIES} addresses, comma-separated: Bech32 with the network's prefix, P-, X- or C- in front or "
    "not; accounts of the C-Chain as 0x and 40 digits.",
    _split,
    is_list=True,
)
REQUIRED_ADDRESSES: Final = replace(ADDRESSES, required=True)
L1_VALIDATION_ID: Final = _text(
    "l1ValidationId", "P-Chain only: transactions that touch this L1 validation, base58-check or hex.", read_id
)
TX_TYPES: Final = _enum(
    "txTypes",
    "Types of transactions, repeated or comma-separated; only together with `addresses` or `l1ValidationId`.",
    PrimaryNetworkTxType,
    is_list=True,
)
START_TIMESTAMP: Final = _time("startTimestamp", "Unix seconds: items at this time and after it.")
END_TIMESTAMP: Final = _time("endTimestamp", "Unix seconds: items at this time and before it.")
PAGE_TOKEN: Final = _text(
    "pageToken",
    "`nextPageToken` of the page before; valid 24 hours. It may come alone, or with the parameters repeated.",
)
PAGE_SIZE: Final = _page_size(DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
SORT_ORDER: Final = _enum("sortOrder", "Oldest or newest first.", SortOrder, SortOrder.DESC)
NODE_IDS: Final = _text(
    "nodeIds",
    f"Up to {MAX_LIST_ENTRIES} node ids, comma-separated; `addresses` or `nodeIds` is required.",
    _sorted_list(read_node_id),
    is_list=True,
)
CURRENCY: Final = _enum(
    "currency", "Currency of `historicalPrice`, which is left out if no price is known.", CurrencyCode, CurrencyCode.USD
)
VALIDATION_STATUS: Final = _enum("validationStatus", "Only validations with this status.", ValidationStatusType)
START_BLOCK: Final = _bounded("startBlock", "Items in this block and after it.", 0, MAX_BLOCK_NUMBER)
END_BLOCK: Final = _bounded("endBlock", "Items before this block.", 0, MAX_BLOCK_NUMBER)
COLLECTIBLES_PAGE_SIZE: Final = _page_size(DEFAULT_PAGE_SIZE, MAX_COLLECTIBLES)
CONTRACT_ADDRESS: Final = _text("contractAddress", "Only NFTs of this contract.", read_account)
METRICS_PAGE_SIZE: Final = _page_size(DEFAULT_METRICS_PAGE_SIZE, MAX_METRICS_PAGE_SIZE)
SERIES_PAGE_SIZE: Final = _page_size(DEFAULT_POINTS, MAX_POINTS)
START_KEY: Final = _text("startKey", "Another name of `pageToken`: `nextPageStartKey` of the page before.")
FROM: Final = _time("from", "Unix seconds: points at this time and after it.")
TO: Final = _time("to", "Unix seconds: points at this time and before it.")
THRESHOLD: Final = Parameter(
    "threshold",
    "Only addresses whose balance was above it, in the smallest unit of the token: decimal, 0..2^256-1.",
    {"type": "string", "pattern": f"^[0-9]{{1,{_UINT256_DIGITS}}}$"},
    read_uint256,
    required=True,
)
NETWORK: Final = _text("network", "Only chains of this network: mainnet, fuji or testnet.")
FEATURE: Final = _enum("feature", "Only chains with this feature.", EvmFeature)

REQUIRED_NETWORK: Final = replace(
    NETWORK, description="The network of this daemon: mainnet, fuji or testnet.", required=True
)
TIME_INTERVAL: Final = _enum("timeInterval", "Length of the buckets.", TimeInterval, TimeInterval.DAILY)
_GROUPINGS: Final = [grouping for grouping in UsageGrouping if grouping is not UsageGrouping.NONE]
GROUP_BY: Final = Parameter(
    "groupBy", "Label by which each bucket is split.", {"type": "string", "enum": _GROUPINGS}, _enum_member(_GROUPINGS)
)
USAGE_START: Final = _time(
    "startTimestamp",
    "Unix seconds, rounded down to 00:00 UTC: buckets that overlap the time from there on. By default 1, 30, 182 or "
    "365 days before the end, by interval.",
)
USAGE_END: Final = _time(
    "endTimestamp",
    "Unix seconds, rounded down to 00:00 UTC: the time before it. By default now. Both bounds on one day mean that "
    "day.",
)


def _read_country(name: str, text: str) -> str:
    if text.upper() not in (*COUNTRIES, TOR, UNKNOWN):
        raise InvalidRequest(name, f"{_shown(text)} is no country code of ISO 3166-1 alpha-2, nor XX or T1")
    return text.upper()


def _read_continent(name: str, text: str) -> str:
    if text.upper() not in (*CONTINENTS, UNKNOWN):
        raise InvalidRequest(name, f"{_shown(text)} is none of {', '.join(sorted(CONTINENTS))}, XX")
    return text.upper()


AFTER: Final = _text(
    "after",
    "A cursor: events behind it, the stored ones first. Without it and the header `Last-Event-ID` from now on.",
)
EVENT_TYPES: Final = _enum("types", "Only events of these types, repeated or comma-separated.", EventType, is_list=True)


def _read_id_text(name: str, text: str) -> str:
    """Return an id in base58-check. Raises InvalidRequest naming the parameter."""
    return id_text(read_id(name, text))


EVENT_FILTERS: Final = (
    EVENT_TYPES,
    _text("sourceBlockchainId", "Only events about messages from this blockchain.", _read_id_text),
    _text("destinationBlockchainId", "Only events about messages to this blockchain.", _read_id_text),
    _text("subnetId", "Only events about this subnet or L1, or messages that it signs.", _read_id_text),
)

WEBHOOK_URL: Final = _text("url", "Where events are sent.", required=True)


def _read_reason(name: str, text: str) -> str:
    """Return a reason that an error may quote. Raises InvalidRequest."""
    if not text.isprintable() or len(text) > _MAX_REASON_CHARACTERS or RETRIED.search(text):
        words = f"without the words on which published clients retry: {RETRIED.pattern}"
        raise InvalidRequest(name, f"expected at most {_MAX_REASON_CHARACTERS} printable characters, {words}")
    return text


BLOCK_KIND: Final = replace(_enum("kind", "What blocked messages have in common.", SigningBlockKind), required=True)
BLOCK_FIELDS: Final = (
    BLOCK_KIND,
    _text("value", "The chain, sender or message.", required=True),
    _text("reason", "Why, for callers.", _read_reason, required=True),
)

USAGE_FILTERS: Final = (
    _text("responseCode", "Only responses with this HTTP status; 101: calls on WebSockets."),
    _text("requestPath", "Only this route, with any alias of its chain, such as /ext/bc/C/rpc."),
    _text("country", "Only clients of this country; XX: unknown, T1: the Tor network.", _read_country),
    _text("continent", "Only clients of this continent: AF, AN, AS, EU, NA, OC, SA; XX: unknown.", _read_continent),
    _text("userAgent", "Only clients with this product name, as groups by userAgent show it."),
    _text("rpcMethod", "Only calls of this method."),
)

_CHAIN_NAME: Final = "base58-check or hex blockchain id, EVM chain id or alias."
MESSAGE_CHAIN: Final = _text("blockchainId", f"Only messages from or to this chain: {_CHAIN_NAME}")
SOURCE: Final = _text("sourceBlockchainId", f"Only messages from this chain: {_CHAIN_NAME}")
DESTINATION: Final = _text("destinationBlockchainId", f"Only messages to this chain: {_CHAIN_NAME}")
SENDER: Final = _text("from", "Only messages of this sender, an account or contract.", read_account)
RECIPIENT: Final = _text("to", "Only messages to this recipient, an account or contract.", read_account)
MESSAGE_STATUS: Final = _enum("status", "Only messages with this status.", IcmStatus)
IS_STUCK: Final = Parameter(
    "isStuck",
    "Only messages that are stuck, or only others: not received, or not executed, five minutes later.",
    {"type": "boolean"},
    _boolean,
)
MESSAGE_NETWORK: Final = replace(NETWORK, description="Only messages of this network: mainnet, fuji or testnet.")

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
        raise InvalidRequest("endTimestamp", f"{times.until} is before startTimestamp, {times.since}")
    return times


def block_range_in(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the first block of a query and the one behind its last. Raises InvalidRequest if start is above end."""
    start, end = values.get("startBlock"), values.get("endBlock")
    if start is not None and end is not None and end < start:
        raise InvalidRequest("endBlock", f"{end} is below startBlock, {start}")
    return start, end


def order_in(values: Mapping[str, Any]) -> SortOrder:
    """Return the order of a query; by default the newest first."""
    return SortOrder(values.get("sortOrder", SortOrder.DESC))
