"""The one table from error type to HTTP status, text and Retry-After in each dialect; see docs/errors.md.

Source of truth: the specification's error table for `/v1` (its eight statuses only), which the Metrics API shares, and
the reference aggregator's texts for `/aggregate-signatures`, each followed by the reason. Clients retry on texts that
match /threshold|no signatures|signature weight is insufficient/, so the text of what can never succeed matches none of
these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus
from math import ceil
from typing import Any, Final

from starlette.responses import PlainTextResponse, Response

from warpseal import errors

MIN_RETRY_AFTER_S: Final = 1
MAX_RETRY_AFTER_S: Final = 60
_RETRY_SOON_S: Final = 2
_RETRY_LATER_S: Final = 10
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_MAX_CACHED_NAMES: Final = 1_024
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])[A-Z]")
_RETRIED: Final = re.compile(r"threshold|no signatures|signature weight is insufficient", re.IGNORECASE)
# Reasons for which the reference says that it could not connect.
_UNREACHED: Final = frozenset(
    {"not_connected", "no_address", "private_address", "wrong_identity", "inactive", "no_bls_key"}
)
# Paths of the specification, served or not.
_SPECIFICATION_PATH: Final = "/v1/"
_METRICS_API_PATHS: Final = ("/v1/avg_tps/", "/v2/")


class Dialect(StrEnum):
    """The form of the error responses of a group of paths."""

    V1 = "/v1"
    METRICS_API = "/v2"
    KEBAB = "/aggregate-signatures"
    NODE = "/ext"


@dataclass(frozen=True, slots=True)
class ErrorResponseRule:
    """The response to one type of error; the node API sends its own text with the kebab status.

    v1, kebab: HTTP statuses. late: the kebab status when the caller's own deadline has passed. text: what the
    kebab dialect says before the reason (a text of the reference). retry_after_s: None means
    that no Retry-After is sent; max_retry_after_s: bounds what the error itself names.
    """

    v1: int
    kebab: int
    late: int | None = None
    text: str | None = None
    retry_after_s: int | None = None
    max_retry_after_s: int = MAX_RETRY_AFTER_S


_REQUEST: Final = ErrorResponseRule(400, 400)

ERROR_TABLE: Final[Mapping[type[errors.WarpsealError], ErrorResponseRule]] = {
    errors.InvalidRequest: _REQUEST,
    errors.UndecodableBody: ErrorResponseRule(400, 400, text="Could not decode request body"),
    errors.UnknownField: _REQUEST,
    errors.ConflictingSpellings: _REQUEST,
    errors.FieldTooLarge: _REQUEST,
    errors.UndecodableMessage: ErrorResponseRule(400, 400, text="Could not decode message"),
    errors.NotAWarpMessage: ErrorResponseRule(400, 400, text="Error unpacking warp message"),
    errors.NothingToSign: ErrorResponseRule(400, 400, text="Error unpacking warp message"),
    errors.UnusableJustification: ErrorResponseRule(400, 400, text="Error unpacking warp message"),
    errors.UndecodableJustification: ErrorResponseRule(400, 400, text="Could not decode justification"),
    errors.AllZeroes: ErrorResponseRule(400, 400, text="Must provide either message or justification"),
    errors.InvalidQuorum: ErrorResponseRule(400, 400, text="Invalid quorum number"),
    errors.InvalidQuorumBuffer: ErrorResponseRule(400, 400, text="Invalid quorum buffer number"),
    errors.WrongSigningSubnet: ErrorResponseRule(400, 400),
    errors.InvalidSigningSubnet: ErrorResponseRule(400, 400, text="Error parsing signing subnet ID"),
    errors.InvalidTimeout: _REQUEST,
    errors.InvalidDestination: _REQUEST,
    errors.DestinationMismatch: _REQUEST,
    errors.WarpDisabled: _REQUEST,
    errors.WrongNetwork: _REQUEST,
    errors.UnknownSubnet: _REQUEST,
    errors.SubnetNotConverted: _REQUEST,
    errors.NoValidators: _REQUEST,
    errors.HeightTooOld: _REQUEST,
    errors.HeightTooNew: _REQUEST,
    errors.QuorumImpossible: _REQUEST,
    errors.QuorumNotReached: ErrorResponseRule(503, 503, late=504, retry_after_s=_RETRY_SOON_S),
    errors.MalformedTransactionHash: _REQUEST,
    errors.ProofMismatch: _REQUEST,
    errors.NoMessage: _REQUEST,
    errors.MessageSuperseded: _REQUEST,
    errors.TransactionNotFound: ErrorResponseRule(404, 404),
    errors.OriginNotIndexed: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.UndecodableTransaction: ErrorResponseRule(502, 502, retry_after_s=_RETRY_LATER_S),
    errors.UnknownChain: ErrorResponseRule(404, 404),
    errors.NetworkNotServed: ErrorResponseRule(404, 404),
    errors.NotFound: ErrorResponseRule(404, 404),
    errors.MethodNotAllowed: ErrorResponseRule(400, 405),
    errors.BodyTooLarge: ErrorResponseRule(400, 413),
    errors.HeaderTooLarge: ErrorResponseRule(400, 400),
    errors.MalformedHTTP: ErrorResponseRule(400, 400),
    errors.UnknownTransferCoding: ErrorResponseRule(501, 501),
    errors.ReceiveTimeout: ErrorResponseRule(400, 400),
    errors.TooManyConnections: ErrorResponseRule(429, 429, retry_after_s=_RETRY_SOON_S),
    errors.TooManyRequests: ErrorResponseRule(429, 429, retry_after_s=_RETRY_SOON_S),
    errors.Overloaded: ErrorResponseRule(503, 503, retry_after_s=_RETRY_SOON_S),
    errors.NodeUnavailable: ErrorResponseRule(502, 502, retry_after_s=_RETRY_SOON_S),
    errors.DestinationUnavailable: ErrorResponseRule(502, 502, retry_after_s=_RETRY_SOON_S),
    errors.NodesDisagree: ErrorResponseRule(502, 502, retry_after_s=_RETRY_SOON_S),
    errors.InvalidPageToken: _REQUEST,
    errors.ExpiredPageToken: _REQUEST,
    errors.PageTokenMismatch: _REQUEST,
    errors.TooManyPageTokens: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.IndexNotEnabled: ErrorResponseRule(404, 404),
    errors.NotAPrimaryChain: ErrorResponseRule(404, 404),
    errors.IndexNotReady: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.IndexStale: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.IndexBehind: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.BlockNotFound: ErrorResponseRule(404, 404),
    errors.TokenNotFound: ErrorResponseRule(404, 404),
    errors.ReindexedRecently: ErrorResponseRule(429, 429, retry_after_s=_HOUR_S, max_retry_after_s=_HOUR_S),
    errors.ReindexUnavailable: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.ApiKeyRequired: ErrorResponseRule(401, 401),
    errors.ApiKeyRefused: ErrorResponseRule(403, 403),
    errors.AdminTokenRequired: ErrorResponseRule(401, 401),
    errors.AdminTokenRefused: ErrorResponseRule(403, 403),
    errors.UsageNotEnabled: ErrorResponseRule(404, 404),
    errors.UsageDamaged: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.UsageQueryTooLong: ErrorResponseRule(503, 503, retry_after_s=_RETRY_LATER_S),
    errors.RateLimited: ErrorResponseRule(429, 429, retry_after_s=_RETRY_SOON_S, max_retry_after_s=_DAY_S),
    errors.StoreDown: ErrorResponseRule(503, 503, retry_after_s=_RETRY_SOON_S),
    errors.IndexDamaged: ErrorResponseRule(503, 503, retry_after_s=_RETRY_SOON_S),
    errors.IndexMoved: ErrorResponseRule(503, 503, retry_after_s=_RETRY_SOON_S),
    errors.StillStarting: ErrorResponseRule(503, 503, retry_after_s=_RETRY_SOON_S),
    errors.ShuttingDown: ErrorResponseRule(503, 503, retry_after_s=_RETRY_SOON_S),
    errors.InternalError: ErrorResponseRule(500, 500),
    errors.WarpsealError: ErrorResponseRule(500, 500),
}


def error_response(error: errors.WarpsealError, dialect: Dialect, *, shows_addresses: bool = True) -> Response:
    """Return the answer to `error` in the words of `dialect`.

    shows_addresses: whether the caller may see where validators listen.
    """
    rule = find_rule(type(error))
    status = _status(error, rule, dialect)
    if dialect is Dialect.NODE:
        return PlainTextResponse(f"{error_text(error)}\n", status, _headers(error, rule))
    if dialect in (Dialect.V1, Dialect.METRICS_API):
        message = [error_text(error)] if dialect is Dialect.METRICS_API else error_text(error)
        content = {"message": message, "error": HTTPStatus(status).phrase, "statusCode": status}
    else:
        content = {"error": _kebab_text(error, rule)}
    detail = dict(error.detail())
    if not shows_addresses and isinstance(error, errors.QuorumNotReached | errors.QuorumImpossible):
        detail["validators"] = [without_addresses(validator) for validator in detail["validators"]]
    if dialect is Dialect.KEBAB:
        if "field" in detail and not isinstance(error, errors.UnknownField):
            detail["field"] = kebab_name(detail["field"])
        detail = with_kebab_names(detail)
    body = json.dumps({**content, "code": error.code, "detail": detail}, separators=(",", ":"))
    return Response(body, status, _headers(error, rule), "application/json")


@lru_cache(_MAX_CACHED_NAMES)
def kebab_name(name: str) -> str:
    """Return a camelCase name in kebab-case: pChainHeight is p-chain-height."""
    return _CAPITAL.sub(lambda match: "-" + match[0].lower(), name)


def _kebab_text(error: errors.WarpsealError, rule: ErrorResponseRule) -> str:
    """Return a text of the reference, followed by the reason if that does not make clients retry in vain."""
    if isinstance(error, errors.QuorumNotReached):
        lacking = error.shortfall
        is_cut_off = not _UNREACHED.isdisjoint(lacking.counts)
        fault = "connect to a threshold of stake" if is_cut_off else "collect a threshold of signatures"
        weights = (
            f"signed weight {lacking.signed_weight}, threshold of stake {lacking.required_weight}, total "
            f"{lacking.total_weight}"
        )
        missing = "; ".join(f"{reason}: {count}" for reason, count in lacking.counts.items()) or "unknown"
        return f"failed to aggregate signatures. error: failed to {fault}: {weights}; missing validators: {missing}"
    if not isinstance(error, errors.InvalidRequest):
        return rule.text or error_text(error)
    if rule.text is None:
        field = error.field if isinstance(error, errors.UnknownField) else kebab_name(error.field)
        return f"{field}: {error.reason}"
    return rule.text if _RETRIED.search(error.reason) else f"{rule.text}: {error.reason}"


def with_kebab_names(value: Any) -> Any:
    """Return JSON with all names of its objects in kebab-case."""
    if isinstance(value, Mapping):
        return {kebab_name(name): with_kebab_names(item) for name, item in value.items()}
    return [with_kebab_names(item) for item in value] if isinstance(value, list | tuple) else value


def without_addresses(validator: Mapping[str, Any]) -> dict[str, Any]:
    """Return a missing validator in its JSON form without the addresses of its nodes."""
    connections = validator.get("connections")
    if connections is None:
        return dict(validator)
    hidden = [{name: item for name, item in found.items() if name != "address"} for found in connections]
    return {**validator, "connections": hidden}


def find_rule(kind: type[errors.WarpsealError]) -> ErrorResponseRule:
    """Return the rule of an error type, or of its nearest ancestor in the table."""
    return next(ERROR_TABLE[ancestor] for ancestor in kind.__mro__ if ancestor in ERROR_TABLE)


def error_text(error: errors.WarpsealError) -> str:
    """Return the text of the error, or the first line of its class docstring if it has none."""
    return str(error) or (type(error).__doc__ or error.code).partition("\n")[0]


def _status(error: errors.WarpsealError, rule: ErrorResponseRule, dialect: Dialect) -> int:
    if dialect in (Dialect.V1, Dialect.METRICS_API):
        return rule.v1
    return rule.late if rule.late is not None and getattr(error, "at_deadline", False) else rule.kebab


def _headers(error: errors.WarpsealError, rule: ErrorResponseRule) -> dict[str, str]:
    headers = {}
    if rule.retry_after_s is not None:
        headers["retry-after"] = str(_retry_after_s(error, rule, rule.retry_after_s))
    if isinstance(error, errors.MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    if isinstance(error, errors.ReceiveTimeout):
        headers["connection"] = "close"
    return headers


def _retry_after_s(error: errors.WarpsealError, rule: ErrorResponseRule, default_s: int) -> int:
    """Return whole seconds: the moment the error itself names, if it names one, within sensible bounds."""
    about: Any = getattr(error, "shortfall", error)
    named: float | None = getattr(about, "retry_after_s", None)
    return default_s if named is None else min(rule.max_retry_after_s, max(MIN_RETRY_AFTER_S, ceil(named)))


def dialect_of(path: str) -> Dialect:
    """Return the dialect that clients of `path` speak."""
    if path.startswith(_METRICS_API_PATHS) or path == "/v2":
        return Dialect.METRICS_API
    if path.startswith(_SPECIFICATION_PATH) or path == "/v1":
        return Dialect.V1
    return Dialect.NODE if path.startswith("/ext/") else Dialect.KEBAB
