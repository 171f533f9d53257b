"""Pages of the Metrics API: a page token names a row in the metrics database, which has the query and the position.

Source of truth: the specification's Limits section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from warpseal.api.data.errors import ExpiredPageToken, InvalidPageToken
from warpseal.api.data.page_tokens import PageQuery, check_unchanged
from warpseal.api.data.parameters import PAGE_SIZE, PAGE_TOKEN, START_KEY
from warpseal.api.data.request_context import RequestContext
from warpseal.api.signing.errors import ConflictingSpellings
from warpseal.resources.base import UNSET, UnsetType
from warpseal.resources.queries import Position
from warpseal.store.errors import StoreDown

if TYPE_CHECKING:
    from warpseal.usage.page_tokens import PageTokenStore


async def metrics_query(context: RequestContext, subject: bytes) -> PageQuery:
    """Return the request for a page: its own parameters, or those of the row that its page token names.

    subject: the resource of the path in its canonical form. Raises InvalidRequest, and the errors of a page token.
    """
    given: dict[str, Any] = context.parameters()
    tokens = {given.pop(name) for name in (PAGE_TOKEN.name, START_KEY.name) if name in given}
    if len(tokens) > 1:
        raise ConflictingSpellings(START_KEY.name, f"differs from {PAGE_TOKEN.name}")
    size = given.pop(PAGE_SIZE.name, None)
    if not tokens:
        return PageQuery(context.operation.name, subject, given, size or context.operation.default_page_size)
    query = await _read_query(context, tokens.pop())
    if (query.operation, query.subject) != (context.operation.name, subject):
        raise InvalidPageToken(PAGE_TOKEN.name, "given out for another path")
    check_unchanged(query, given, context.operation.parameters)
    return replace(query, size=size or query.size)


async def next_metrics_token(context: RequestContext, query: PageQuery, position: Position | None) -> str | UnsetType:
    """Return the token of the next page, left out if there is none. Raises StoreDown, TooManyPageTokens."""
    if position is None:
        return UNSET
    return await _store_of(context).add(msgspec.json.encode(replace(query, position=position)))


async def _read_query(context: RequestContext, token: str) -> PageQuery:
    row = await _store_of(context).find(token)
    if row is None:
        raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service, or older than 24 hours")
    if context.now > row.expires_at:
        raise ExpiredPageToken(PAGE_TOKEN.name, "older than 24 hours; begin again with the first page")
    try:
        # Unlike MessagePack, JSON has integers of 256 bits.
        return msgspec.json.decode(row.body, type=PageQuery)
    except msgspec.DecodeError:
        raise InvalidPageToken(PAGE_TOKEN.name, "made by another version of this service") from None


def _store_of(context: RequestContext) -> PageTokenStore:
    store = context.metrics_tokens
    if store is None:
        raise StoreDown("there is no place for the metrics database; set metrics-db-url")
    return store
