"""What a request for a page asks: parameters of its own, or those that its page token carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpseal.api.data.operations import Operation
from warpseal.api.data.page_tokens import PageQuery, merge_parameters
from warpseal.api.data.parameters import ADDRESSES, DEFAULT_PAGE_SIZE, PAGE_SIZE, PAGE_TOKEN, Value, address_of
from warpseal.api.data.parameters import read_query as read
from warpseal.api.data.request_context import RequestContext
from warpseal.api.data.schema.base import UNSET, UnsetType
from warpseal.chains.ids import Address
from warpseal.errors import InvalidRequest
from warpseal.history.queries import Order, PageRequest, Position, TimeRange

_ADDRESS = b"\x00"
_ACCOUNT = b"\x01"


async def asked_page(visit: RequestContext, operation: Operation, subject: bytes) -> tuple[PageQuery, PageRequest]:
    """Return what is asked, and which page of it. subject: what the path names, in one spelling.

    Raises InvalidRequest naming the parameter, and what is wrong with a page token.
    """
    given = read(operation.parameters, visit.query, ignore_unknown=visit.ignore_unknown)
    token = given.pop(PAGE_TOKEN.name, None)
    size: Any = given.pop(PAGE_SIZE.name, None)
    values = _in_one_spelling(given, visit.words.prefix)
    if token is None:
        asked = PageQuery(operation.name, subject, values, size or DEFAULT_PAGE_SIZE)
        return asked, PageRequest(asked.size)
    said = await visit.tokens.open(str(token), operation.name, subject)
    asked = PageQuery(operation.name, subject, merge_parameters(said, values, operation.parameters), size or said.size)
    return asked, PageRequest(asked.size, said.position)


async def next_token(visit: RequestContext, asked: PageQuery, position: Position | None) -> str | UnsetType:
    """Return the token of the next page, left out where there is none."""
    return UNSET if position is None else await visit.tokens.seal(asked, position)


def _in_one_spelling(given: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Return the values with addresses as sorted bytes, so that equal questions look equal."""
    values = dict(given)
    texts = values.get(ADDRESSES.name)
    if isinstance(texts, tuple):
        tagged = {_tagged(*address_of(ADDRESSES.name, str(text), prefix)) for text in texts}
        values[ADDRESSES.name] = tuple(sorted(tagged))
    return values


def _tagged(raw: bytes, is_account: bool) -> bytes:
    return (_ACCOUNT if is_account else _ADDRESS) + raw


def addresses_of(values: Mapping[str, Any]) -> tuple[tuple[Address, ...], tuple[bytes, ...]]:
    """Return the addresses, and the accounts of the C-Chain, that are asked for."""
    tagged: tuple[bytes, ...] = values.get(ADDRESSES.name, ())
    addresses = tuple(Address(one[1:]) for one in tagged if one[:1] == _ADDRESS)
    return addresses, tuple(one[1:] for one in tagged if one[:1] == _ACCOUNT)


def times_of(values: Mapping[str, Any]) -> TimeRange:
    """Return the times that are asked for. Raises InvalidRequest where they end before they begin."""
    times = TimeRange(values.get("startTimestamp"), values.get("endTimestamp"))
    if times.since is not None and times.until is not None and times.until < times.since:
        raise InvalidRequest("endTimestamp", f"{times.until} is before startTimestamp, {times.since}")
    return times


def order_of(values: Mapping[str, Any]) -> Order:
    """Return the order that is asked for; the newest first without one."""
    return Order(values.get("sortOrder", Order.DESC))
