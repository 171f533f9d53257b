"""Requests for pages: the parameters of the request, or those that its page token carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpseal.api.data.operations import Operation
from warpseal.api.data.page_tokens import PageQuery, merge_parameters
from warpseal.api.data.parameters import (
    ADDRESSES,
    DEFAULT_PAGE_SIZE,
    PAGE_SIZE,
    PAGE_TOKEN,
    Value,
    parse_address_parameter,
    read_query,
)
from warpseal.api.data.request_context import RequestContext
from warpseal.chains.ids import Address
from warpseal.errors import InvalidRequest
from warpseal.history.queries import PageRequest, Position, TimeRange
from warpseal.history.resources import UNSET, SortOrder, UnsetType

_ADDRESS = b"\x00"
_ACCOUNT = b"\x01"


async def read_page_query(
    context: RequestContext, operation: Operation, subject: bytes
) -> tuple[PageQuery, PageRequest]:
    """Return the query of a request and the requested page. subject: the resource of the path in its canonical form.

    Raises InvalidRequest naming the parameter, and the errors of a page token.
    """
    given = read_query(operation.parameters, context.query, ignore_unknown=context.ignore_unknown)
    token = given.pop(PAGE_TOKEN.name, None)
    size: Any = given.pop(PAGE_SIZE.name, None)
    values = _normalize(given, context.text.prefix)
    if token is None:
        query = PageQuery(operation.name, subject, values, size or DEFAULT_PAGE_SIZE)
        return query, PageRequest(query.size)
    payload = await context.tokens.decode(str(token), operation.name, subject)
    merged = merge_parameters(payload, values, operation.parameters)
    query = PageQuery(operation.name, subject, merged, size or payload.size)
    return query, PageRequest(query.size, payload.position)


async def next_token(context: RequestContext, query: PageQuery, position: Position | None) -> str | UnsetType:
    """Return the token of the next page, left out if there is none."""
    return UNSET if position is None else await context.tokens.encode(query, position)


def _normalize(given: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Return the values with addresses as sorted bytes, so that equal queries look equal."""
    values = dict(given)
    texts = values.get(ADDRESSES.name)
    if isinstance(texts, tuple):
        tagged = {_tag(*parse_address_parameter(ADDRESSES.name, str(text), prefix)) for text in texts}
        values[ADDRESSES.name] = tuple(sorted(tagged))
    return values


def _tag(raw: bytes, is_account: bool) -> bytes:
    return (_ACCOUNT if is_account else _ADDRESS) + raw


def addresses_in(values: Mapping[str, Any]) -> tuple[tuple[Address, ...], tuple[bytes, ...]]:
    """Return the addresses, and the accounts of the C-Chain, of a query."""
    tagged: tuple[bytes, ...] = values.get(ADDRESSES.name, ())
    addresses = tuple(Address(entry[1:]) for entry in tagged if entry[:1] == _ADDRESS)
    return addresses, tuple(entry[1:] for entry in tagged if entry[:1] == _ACCOUNT)


def time_range_in(values: Mapping[str, Any]) -> TimeRange:
    """Return the time range of a query. Raises InvalidRequest if it ends before it begins."""
    times = TimeRange(values.get("startTimestamp"), values.get("endTimestamp"))
    if times.since is not None and times.until is not None and times.until < times.since:
        raise InvalidRequest("endTimestamp", f"{times.until} is before startTimestamp, {times.since}")
    return times


def order_in(values: Mapping[str, Any]) -> SortOrder:
    """Return the order of a query; by default the newest first."""
    return SortOrder(values.get("sortOrder", SortOrder.DESC))
