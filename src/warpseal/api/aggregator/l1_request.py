"""The grammar of `GET .../aggregateSignatures/{txHash}`: the path's hash and the query's parameters.

Source of truth: the specification's endpoint 2; its parameters beyond `txHash` are those of endpoint 1, in the same
spellings and ranges, and the extensions `registrationTxHash`, `justification` and `explain`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeVar

from warpseal.api.aggregator.aggregation_request import percentages
from warpseal.api.aggregator.request_fields import plain_height, plain_hex, plain_seconds, plain_uint64, unknown_field
from warpseal.api.request_errors import ConflictingSpellings, FieldTooLarge
from warpseal.api.settings import ApiSettings
from warpseal.errors import InvalidRequest, MalformedTransactionHash, UndecodableBody, UndecodableJustification
from warpseal.l1.request import L1Request
from warpseal.warp.ids import ID_BYTES, MalformedID, parse_id

T = TypeVar("T")

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "quorumPercentage": ("quorumPercentage", "quorum-percentage"),
    "quorumPercentageBuffer": ("quorumPercentageBuffer", "quorum-percentage-buffer"),
    "pChainHeight": ("pChainHeight", "pchain-height", "p-chain-height"),
    "registrationTxHash": ("registrationTxHash", "registration-tx-hash"),
    "justification": ("justification",),
    "explain": ("explain",),
    "timeoutSeconds": ("timeoutSeconds", "timeout-seconds"),
}
_FIELDS: Final = {name.casefold(): field for field, names in _NAMES.items() for name in names}
_FRACTION: Final = re.compile(r"\d{1,9}\.\d{1,9}", re.ASCII)
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class L1MessageQuery:
    """A parsed request. explain: describe how the message would be made, and make none."""

    request: L1Request
    explain: bool


def parse_l1_query(tx_hash: str, query: Iterable[tuple[str, str]], settings: ApiSettings) -> L1MessageQuery:
    """Parse a path and its query. Raises an InvalidRequest that names the first error.

    A missing quorum is 67 percent. A missing height means the epoch height; 0 and 2^64-1 mean the proposed height.
    """
    given = _read_parameters(query, ignore_unknown=settings.ignore_unknown_fields)
    quorum, buffer = percentages(
        _number("quorumPercentage", given, plain_uint64) or 0,
        _number("quorumPercentageBuffer", given, plain_uint64) or 0,
    )
    registration = given.get("registrationTxHash")
    request = L1Request(
        tx_id=_hash("txHash", tx_hash),
        quorum=quorum,
        buffer=buffer,
        height=(_number("pChainHeight", given, plain_height) or 0) if "pChainHeight" in given else None,
        registration_tx_id=None if registration is None else _hash("registrationTxHash", registration),
        justification=_justification(given.get("justification", ""), settings.max_message_bytes),
        timeout_s=_number("timeoutSeconds", given, _seconds),
    )
    return L1MessageQuery(request, _flag("explain", given.get("explain", "false")))


def _read_parameters(query: Iterable[tuple[str, str]], *, ignore_unknown: bool) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in query:
        field = _FIELDS.get(key.casefold())
        if field is None:
            if ignore_unknown:
                continue
            raise unknown_field(key, tuple(name for names in _NAMES.values() for name in names))
        if value == "":
            continue
        if given.setdefault(field, value) != value:
            raise ConflictingSpellings(field, "given more than once, with different values")
    return given


def _hash(field: str, text: str) -> bytes:
    """Return the 32 bytes of a transaction hash: cb58, or hex with or without 0x."""
    bare_hex = len(text) == 2 * ID_BYTES
    try:
        return parse_id("0x" + text if bare_hex else text)
    except MalformedID as error:
        raise MalformedTransactionHash(field, str(error)) from None


def _number(field: str, given: Mapping[str, str], convert: Callable[[str, str], T]) -> T | None:
    """Return a parameter as a number, or None if it is missing. Raises InvalidRequest."""
    if field not in given:
        return None
    try:
        return convert(field, given[field])
    except UndecodableBody as error:
        raise InvalidRequest(field, error.reason) from None


def _seconds(field: str, text: str) -> float | None:
    """Return seconds; a query has no numbers, so that a fraction comes as text."""
    return plain_seconds(field, Decimal(text) if _FRACTION.fullmatch(text) else text)


def _justification(text: str, limit_bytes: int) -> bytes:
    digits = plain_hex("justification", text)
    if len(digits) > 2 * limit_bytes:
        raise FieldTooLarge("justification", limit_bytes)
    try:
        return binascii.unhexlify(digits)
    except ValueError:
        raise UndecodableJustification("justification", "not hex") from None


def _flag(field: str, text: str) -> bool:
    flag = _FLAGS.get(text.casefold())
    if flag is None:
        raise InvalidRequest(field, "neither true nor false")
    return flag
