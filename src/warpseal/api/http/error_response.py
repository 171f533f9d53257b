"""The response to an error in each dialect; its status, text and Retry-After are attributes of the
error's class.

Source of truth: the specification's error table for `/v1`, which the Metrics API shares, and the
reference aggregator's texts for `/aggregate-signatures`. Clients retry on texts that match
/threshold|no signatures|signature weight is insufficient/, so the text of what can never succeed
matches none of these. Interchain Kit retries on nothing else, so on that path the text of what
waiting helps against matches one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus
from math import ceil
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from starlette.responses import PlainTextResponse, Response

from warpseal.aggregation.errors import QuorumNotReached
from warpseal.api.http.error_bodies import Error, ErrorDetail, KebabError, MetricsApiError
from warpseal.api.http.errors import MethodNotAllowed, ReceiveTimeout, UnknownField
from warpseal.errors import InvalidRequest, WarpsealError
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner, QuorumShortfall

MIN_RETRY_AFTER_S: Final = 1
_MAX_CACHED_NAMES: Final = 1_024
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])[A-Z]")
RETRIED: Final = re.compile(
    r"threshold|no signatures|signature weight is insufficient", re.IGNORECASE
)
"""In a text, one of these makes published clients retry."""
# Reasons for which the reference says that it could not connect.
_UNREACHED: Final = frozenset(
    {"not_connected", "no_address", "private_address", "wrong_identity", "inactive", "no_bls_key"}
)
# Paths of the specification, served or not.
_SPECIFICATION_PATH: Final = "/v1/"
_METRICS_API_PATHS: Final = ("/v1/avg_tps/", "/v2/")


class Dialect(StrEnum):
    """The form of the error responses of a group of paths.

    OTHER: The form of KEBAB, for paths that serve no signatures.
    """

    V1 = "/v1"
    METRICS_API = "/v2"
    KEBAB = "/aggregate-signatures"
    NODE = "/ext"
    OTHER = ""


def error_response(
    error: WarpsealError, dialect: Dialect, *, shows_addresses: bool = True
) -> Response:
    """Return the response to `error` in the words of `dialect`.

    shows_addresses: Whether the caller may see the addresses of validators.
    """
    status, text = status_of(error, dialect), error_text(error)
    if dialect is Dialect.NODE:
        return PlainTextResponse(f"{text}\n", status, _headers(error))
    detail = error_detail(error, shows_addresses=shows_addresses)
    phrase = HTTPStatus(status).phrase
    body: Error | MetricsApiError | KebabError
    if dialect is Dialect.V1:
        body = Error(message=text, error=phrase, status_code=status, code=error.code, detail=detail)
    elif dialect is Dialect.METRICS_API:
        body = MetricsApiError(
            message=(text,), error=phrase, status_code=status, code=error.code, detail=detail
        )
    else:
        # The name of an unknown field is the caller's.
        if detail.field and not isinstance(error, UnknownField):
            detail = replace(detail, field=kebab_name(detail.field))
        kebab_text = _kebab_text(error)
        is_temporary = dialect is Dialect.KEBAB and error.retry_after_s is not None
        if is_temporary and not RETRIED.search(kebab_text):
            kebab_text = f"no signatures yet: {kebab_text}"
        body = KebabError(error=kebab_text, code=error.code, detail=detail)
    content = msgspec.to_builtins(body)
    # The text may quote half of a surrogate pair, which msgspec does not encode.
    if isinstance(body, KebabError):
        content = with_kebab_names(content)
    encoded = json.dumps(content, separators=(",", ":"))
    return Response(encoded, status, _headers(error), "application/json")


def error_detail(error: WarpsealError, *, shows_addresses: bool) -> ErrorDetail:
    """Return the detail of an error for a caller."""
    detail = ErrorDetail(**error.detail)
    if detail.validators and not shows_addresses:
        signers = tuple(map(_without_addresses_of, detail.validators))
        detail = replace(detail, validators=signers)
    return detail


def _without_addresses_of(signer: MissingSigner) -> MissingSigner:
    """Return a signer without the addresses of its nodes."""
    if not signer.connections:
        return replace(signer, connections=UNSET)
    return replace(signer, connections=without_addresses(signer.connections))


@lru_cache(_MAX_CACHED_NAMES)
def kebab_name(name: str) -> str:
    """Return a camelCase name in kebab-case: pChainHeight is p-chain-height."""
    return _CAPITAL.sub(lambda match: "-" + match[0].lower(), name)


def _kebab_text(error: WarpsealError) -> str:
    """Return the text of the reference.

    The reason follows, unless its words would make clients retry a hopeless request.
    """
    if isinstance(error, QuorumNotReached):
        return _kebab_shortfall(error.shortfall)
    if not isinstance(error, InvalidRequest):
        return error.reference_text or error_text(error)
    if error.reference_text is None:
        field = error.field if isinstance(error, UnknownField) else kebab_name(error.field)
        return f"{field}: {error.reason}"
    if RETRIED.search(error.reason):
        return error.reference_text
    return f"{error.reference_text}: {error.reason}"


def _kebab_shortfall(shortfall: QuorumShortfall) -> str:
    """Return the text of a missed quorum."""
    task = "collect a threshold of signatures"
    if not _UNREACHED.isdisjoint(shortfall.counts):
        task = "connect to a threshold of stake"
    weights = (
        f"signed weight {shortfall.signed_weight}, threshold of stake {shortfall.required_weight},"
        f" total {shortfall.total_weight}"
    )
    counts = [f"{reason}: {count}" for reason, count in shortfall.counts.items()]
    missing = "; ".join(counts) or "unknown"
    cause = f"; {shortfall.cause}" if shortfall.cause else ""
    return (
        f"failed to aggregate signatures. error: failed to {task}: {weights}; missing"
        f" validators: {missing}{cause}"
    )


def with_kebab_names(value: Any) -> Any:
    """Return JSON with all names of its objects in kebab-case."""
    if isinstance(value, Mapping):
        return {kebab_name(name): with_kebab_names(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_kebab_names(item) for item in value]
    return value


def without_addresses(nodes: Iterable[DisconnectedNode]) -> tuple[DisconnectedNode, ...]:
    """Return nodes as callers on other machines see them."""
    return tuple(replace(node, address=UNSET) for node in nodes)


def status_of(error: WarpsealError | type[WarpsealError], dialect: Dialect) -> int:
    """Return the HTTP status of an error in a dialect."""
    is_v1 = dialect in (Dialect.V1, Dialect.METRICS_API)
    return error.v1_status if is_v1 and error.v1_status is not None else error.http_status


def error_text(error: WarpsealError) -> str:
    """Return the text of the error, or the sentence of its class if it has none."""
    return str(error) or class_sentence(type(error))


def class_sentence(kind: type[WarpsealError]) -> str:
    """Return the first sentence of an error class's docstring, on one line."""
    first_paragraph = (kind.__doc__ or kind.code).partition("\n\n")[0]
    return " ".join(first_paragraph.split())


def retry_after_s(error: WarpsealError) -> int | None:
    """Return the seconds after which the caller may try again, within bounds.

    None: waiting does not help, as far as the error says.
    """
    if error.retry_after_s is None:
        return None
    return min(error.max_retry_after_s, max(MIN_RETRY_AFTER_S, ceil(error.retry_after_s)))


def _headers(error: WarpsealError) -> dict[str, str]:
    headers = {}
    seconds = retry_after_s(error)
    if seconds is not None:
        headers["retry-after"] = str(seconds)
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    if isinstance(error, ReceiveTimeout):
        headers["connection"] = "close"
    return headers


def dialect_of(path: str) -> Dialect:
    """Return the dialect that clients of `path` speak."""
    if path.startswith(_METRICS_API_PATHS) or path == "/v2":
        return Dialect.METRICS_API
    if path.startswith(_SPECIFICATION_PATH) or path == "/v1":
        return Dialect.V1
    if path.startswith("/ext/"):
        return Dialect.NODE
    return Dialect.KEBAB if path.partition("?")[0] == Dialect.KEBAB else Dialect.OTHER
