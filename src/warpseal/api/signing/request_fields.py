"""The fields of requests: their spellings, their JSON values, and their schemas for the OpenAPI
document.

Source of truth: the spellings found in published clients (camelCase, kebab-case, four of the
height); the reference aggregator's decoder for what counts as not given (null, an empty text) and
for names in any case.
"""

from __future__ import annotations

import binascii
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import takewhile
from string import hexdigits
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.types import Scope

from warpseal.aggregation.errors import InvalidTimeout
from warpseal.api.http.errors import UnknownField
from warpseal.api.http.request_body import KEY_PARAMETERS, query_parameters
from warpseal.api.http.responses import response_headers
from warpseal.api.signing.errors import (
    ConflictingSpellings,
    FieldTooLarge,
    InvalidDestination,
    UndecodableBody,
)
from warpseal.delivery.destination import DESTINATION_FIELD
from warpseal.errors import InvalidRequest
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.warp.ids import ID_BYTES, P_CHAIN, ChainID, MalformedID, parse_id

MAX_UINT64: Final = 2**64 - 1
IGNORED_HEADER: Final = "x-warpseal-ignored"
"""Names the query parameters that a read ignored, comma-separated and percent-encoded."""
_MAX_DIGITS: Final = 40
_SHOWN_CHARACTERS: Final = 64
# Each one is compared with all known names.
_MAX_IGNORED: Final = 32
_MAX_DESTINATIONS: Final = 1_024

# The spellings other than the field's own name.
_SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "signingSubnetId": ("signing-subnet-id", "signingSubnet", "signing-subnet"),
    "quorumPercentage": ("quorum-percentage",),
    "quorumPercentageBuffer": ("quorum-percentage-buffer",),
    "pChainHeight": ("pchain-height", "p-chain-height"),
    "registrationTxHash": ("registration-tx-hash",),
    "timeoutSeconds": ("timeout-seconds",),
    "destinationBlockchainId": (
        "destination-blockchain-id",
        "destinationBlockchain",
        "destination-blockchain",
        "destinationChainId",
        "destination-chain-id",
    ),
    "signedMessage": ("signed-message",),
}


class RequestField(NamedTuple):
    """A field of a request.

    convert: The converter takes the name and the JSON value of the field.
    schema: The OpenAPI schema of the value.
    """

    name: str
    convert: Callable[[str, Any], Any]
    schema: Mapping[str, Any]
    description: str = ""
    is_required: bool = False

    @property
    def described_schema(self) -> Mapping[str, Any]:
        """The schema with the description, if there is one."""
        if not self.description:
            return self.schema
        return {"description": self.description, **self.schema}


TEXT: Final = {"type": "string"}
FLAG: Final = {"type": "boolean"}
PERCENTAGE: Final = {"type": "integer", "minimum": 0, "maximum": 100}
WHOLE_NUMBER: Final = {"type": "integer", "minimum": 0}


class RequestFields:
    """The fields that a request may have, each by several spellings and in any case."""

    def __init__(self, *fields: RequestField) -> None:
        self.fields = fields
        self.spellings = {
            text: field
            for field in fields
            for text in (field.name, *_SPELLINGS.get(field.name, ()))
        }
        self._fields = {text.casefold(): field for text, field in self.spellings.items()}

    def read(self, body: bytes, *, ignore_unknown: bool) -> dict[str, Any]:
        """Return the fields of a JSON object as `collect` does.

        Raises UndecodableBody, and as `collect` does.
        """
        return self.collect(_decode(body), ignore_unknown=ignore_unknown)

    def collect(
        self, pairs: Iterable[tuple[str, Any]], *, ignore_unknown: bool = False, parent: str = ""
    ) -> dict[str, Any]:
        """Return the converted values by field; null and an empty text count as not given.

        parent: stands before the names of fields in errors.
        Raises UnknownField, ConflictingSpellings, and what the converters raise.
        """
        values: dict[str, Any] = {}
        for key, value in pairs:
            field = self._fields.get(key.casefold())
            if field is None:
                if ignore_unknown:
                    continue
                raise unknown_field(key, self.spellings, parent)
            if value is None or value == "":
                continue
            name = parent + field.name
            plain = field.convert(name, value)
            if values.setdefault(field.name, plain) != plain:
                raise ConflictingSpellings(name, "given more than once, with different values")
        return values

    def schema(self, description: str) -> dict[str, Any]:
        """Return the schema of a JSON object with these fields."""
        return {
            "description": description,
            "type": "object",
            "properties": {field.name: field.described_schema for field in self.fields},
            "required": [field.name for field in self.fields if field.is_required],
        }


# No request nests, and none has many fields. The recursion limit of the interpreter is no
# protection: a library may have raised it too far.
_MAX_BRACKETS: Final = 256
_MAX_SEPARATORS: Final = 4_096


class JsonPairs(list[tuple[str, Any]]):
    """A decoded JSON object that still knows its duplicate keys."""


def _decode(body: bytes) -> JsonPairs:
    """Return the top object of a body; null is an object without fields, as in the reference."""
    if body.count(b"[") + body.count(b"{") > _MAX_BRACKETS:
        raise UndecodableBody("body", "nested too deeply")
    if body.count(b",") + body.count(b":") > _MAX_SEPARATORS:
        raise UndecodableBody("body", "too many fields")
    try:
        decoded = _DECODER.decode(body.decode("utf-8"))
    except json.JSONDecodeError as error:
        if not body.strip(_JSON_WHITESPACE):
            raise UndecodableBody("body", "empty; send a JSON object") from None
        reason = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise UndecodableBody("body", reason) from None
    except UnicodeDecodeError:
        is_gzip = body.startswith(_GZIP_MAGIC)
        reason = "compressed with gzip; send it uncompressed" if is_gzip else "not UTF-8"
        raise UndecodableBody("body", reason) from None
    except (ValueError, ArithmeticError, RecursionError):
        reason = "not JSON: it has a number that is none, or that is too large"
        raise UndecodableBody("body", reason) from None
    if decoded is None:
        return JsonPairs()
    if not isinstance(decoded, JsonPairs):
        kind = _JSON_KINDS.get(type(decoded), "number")
        raise UndecodableBody("body", f"a JSON {kind}, not a JSON object")
    return decoded


# The second byte of gzip, 0x8b, is never UTF-8 at this place.
_GZIP_MAGIC: Final = b"\x1f\x8b"
_JSON_WHITESPACE: Final = b" \t\r\n"
_JSON_KINDS: Final = {list: "array", str: "string", bool: "boolean"}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=JsonPairs, parse_float=Decimal, parse_constant=_refuse_constant
)


def unknown_field(key: str, names: Iterable[str], parent: str = "") -> UnknownField:
    """Return the error for a name that is not among `names`; it shows the nearest of them."""
    displayed = key[:_SHOWN_CHARACTERS]
    spellings = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(displayed.casefold(), spellings, n=1, cutoff=0.5)
    hint = f"; did you mean {spellings[near[0]]}?" if near else ""
    return UnknownField(parent + ascii(displayed)[1:-1], f"no such field{hint}")


def select_parameters(
    scope: Scope, names: Iterable[str], *, ignore_all: bool
) -> list[tuple[str, str]]:
    """Return the query parameters of a read that have one of these names, in any case, in the order
    of the query.

    The others are ignored and named in the header x-warpseal-ignored, since clients of the hosted
    API add their own. A name within a letter of a known one is a misspelling, which would change
    the answer without a word.

    ignore_all: misspellings are ignored as well.
    Raises UnknownField for a misspelling; InvalidRequest for too many parameters, or too many
    unknown ones.
    """
    spellings = {name.casefold() for name in names}
    pairs: list[tuple[str, str]] = []
    ignored: set[str] = set()
    for name, text in query_parameters(scope):
        folded = name.casefold()
        if folded in spellings:
            pairs.append((name, text))
            continue
        if name in KEY_PARAMETERS or name in ignored:
            continue
        if not ignore_all and any(_is_within_a_letter(folded, spelling) for spelling in spellings):
            raise unknown_field(name, names)
        ignored.add(name)
        if len(ignored) > _MAX_IGNORED:
            raise InvalidRequest("query", f"more than {_MAX_IGNORED} unknown parameters")
    if ignored:
        encoded_names = sorted(quote(name[:_SHOWN_CHARACTERS], safe="") for name in ignored)
        response_headers(scope)[IGNORED_HEADER] = ", ".join(encoded_names)
    return pairs


def _is_within_a_letter(name: str, other: str) -> bool:
    """Return whether names are equal, or differ by a letter that was added, removed or replaced, or
    by two swapped.
    """
    if abs(len(name) - len(other)) > 1:
        return False
    same = (a == b for a, b in zip(name, other, strict=False))
    begin = sum(1 for _ in takewhile(bool, same))
    rest, other_rest = name[begin:], other[begin:]
    is_swapped = rest[:2] == other_rest[1::-1] and rest[2:] == other_rest[2:]
    return is_swapped or rest[1:] in (other_rest, other_rest[1:]) or rest == other_rest[1:]


def plain_text(name: str, value: Any) -> str:
    """Return a text. Raises UndecodableBody for another value."""
    if not isinstance(value, str):
        raise UndecodableBody(name, "not a text")
    return value


def plain_hex(name: str, value: Any) -> str:
    """Return the digits of hex in lower case and without 0x, so that equal values are equal."""
    return plain_text(name, value).removeprefix("0x").lower()


def plain_uint64(name: str, value: Any) -> int:
    """Return an exact integer of 0..2^64-1. Raises UndecodableBody."""
    number = _number(name, value)
    if number != number.to_integral_value() or not 0 <= number <= MAX_UINT64:
        raise UndecodableBody(name, "not an integer of 0..2^64-1")
    return int(number)


def plain_height(name: str, value: Any) -> int | None:
    """Return a height, or None if it means the proposed height. Raises UndecodableBody."""
    number = plain_uint64(name, value)
    return None if number in (0, MAX_UINT64) else number


def plain_seconds(name: str, value: Any) -> float | None:
    """Return seconds, or None if 0 means the default. Raises UndecodableBody, InvalidTimeout."""
    number = _number(name, value)
    if number < 0:
        raise InvalidTimeout(name, "not a positive number of seconds")
    return float(number) or None


def _number(name: str, value: Any) -> Decimal:
    """Return an exact number of sane size, from a JSON number or a text of one."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise UndecodableBody(name, "not a number")
    if isinstance(value, str):
        is_digits = value.isascii() and value.isdigit()
        if not is_digits or len(value) > _MAX_DIGITS:
            raise UndecodableBody(name, "neither a number nor a text of digits")
    number = Decimal(value)
    if abs(number.adjusted()) > _MAX_DIGITS:
        raise UndecodableBody(name, "out of range")
    return number


def plain_flag(name: str, value: Any) -> bool:
    """Return a flag, from a JSON flag or a text of one. Raises UndecodableBody."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.casefold() not in _FLAGS:
        raise UndecodableBody(name, "neither true nor false")
    return _FLAGS[value.casefold()]


_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}

BODY_FIELDS: Final = RequestFields(
    RequestField("message", plain_hex, TEXT, "Hex of the unsigned message, with or without 0x."),
    RequestField("justification", plain_hex, TEXT, "Hex of the justification."),
    RequestField(
        "signingSubnetId",
        plain_text,
        TEXT,
        "Base58-check or hex; by default the subnet of the source chain.",
    ),
    RequestField(
        "quorumPercentage", plain_uint64, PERCENTAGE, "By default 67, or that of the destination."
    ),
    RequestField(
        "quorumPercentageBuffer",
        plain_uint64,
        PERCENTAGE,
        "By default 0; quorum and buffer are at most 100 together.",
    ),
    RequestField(
        "pChainHeight",
        plain_height,
        WHOLE_NUMBER,
        "By default the proposed height, as with 0; or that of the destination.",
    ),
    RequestField(
        "timeoutSeconds",
        plain_seconds,
        {"type": "number", "minimum": 0},
        "How long the caller waits.",
    ),
    RequestField(
        DESTINATION_FIELD,
        plain_text,
        TEXT,
        "The chain that has to accept the message: base58-check or hex.",
    ),
    RequestField(
        "report",
        plain_flag,
        FLAG,
        "Return the report on the destination, and a message for its next epoch.",
    ),
)
"""The fields of a request to aggregate.

Hex is text without 0x, which `decode_hex` checks. A height of None means the proposed height, a
timeout of None the default of the daemon.
"""


def decode_hex(
    field: str, digits: str, limit_bytes: int, error_type: type[InvalidRequest]
) -> bytes:
    """Return the bytes of hex digits. Raises FieldTooLarge, or `error_type` if they are not hex."""
    if len(digits) > 2 * limit_bytes:
        raise FieldTooLarge(field, limit_bytes)
    try:
        return binascii.unhexlify(digits)
    except ValueError:
        reason = "not hex"
        if len(digits) % 2 and not digits.strip(hexdigits):
            reason = f"an odd number of hex digits, {len(digits)}: one is missing"
        raise error_type(field, reason) from None


class UnresolvedChain(Exception):
    """A request names the X- or the C-Chain by its letter, and was parsed without the ids of the
    network's chains.
    """


def decode_destination(text: str, chains: PrimaryChains | None = None) -> ChainID:
    """Return the blockchain id of a destination: an id, or P, X or C.

    Raises InvalidDestination, or UnresolvedChain for the X- and the C-Chain without `chains`.
    """
    chain = PrimaryChain.__members__.get(text)
    if chain is None:
        return _decode_chain_id(text)
    if chain is PrimaryChain.P:
        return P_CHAIN
    if chains is None:
        raise UnresolvedChain
    return chains.id_of(chain)


@lru_cache(_MAX_DESTINATIONS)
def _decode_chain_id(text: str) -> ChainID:
    return ChainID(decode_id(DESTINATION_FIELD, text, InvalidDestination))


def decode_id(field: str, text: str, error_type: type[InvalidRequest]) -> bytes:
    """Return the 32 bytes of an id in base58-check, or in hex with or without 0x.

    Raises `error_type`.
    """
    is_bare_hex = len(text) == 2 * ID_BYTES
    try:
        return parse_id("0x" + text if is_bare_hex else text)
    except MalformedID as error:
        raise error_type(field, str(error)) from None
