"""The bodies of pages, made of the rows of endpoints, so that responses and the OpenAPI document
cannot differ.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Union, cast

import msgspec
from msgspec.structs import FieldInfo, fields

from warpseal.api.data.endpoints import EndpointRow, PageBody, load
from warpseal.resources.base import UNSET, Resource, UnsetType


@cache
def page_class(page: PageBody) -> type[Resource]:
    """Return the struct of a page: `next_page_token`, `items`, and the fields of the row's
    `beside`.
    """
    # The last page has no token.
    token = ("next_page_token", str | UnsetType, UNSET)
    item: Any = Union[tuple(map(load, page.resources))]  # noqa: UP007
    items = ("items", tuple[item, ...], msgspec.field(name=page.items))
    beside = fields(load(page.beside)) if page.beside else ()
    body = msgspec.defstruct(
        page.title,
        [token, items, *map(_declare, beside)],
        bases=(Resource,),
        namespace={"__doc__": page.description},
        module=__name__,
        frozen=True,
        gc=False,
        kw_only=True,
    )
    return cast(type[Resource], body)


def body_classes(endpoint: EndpointRow) -> tuple[type[Resource], ...]:
    """Return the structs of the bodies of a success."""
    return tuple(
        [page_class(body) if isinstance(body, PageBody) else load(body) for body in endpoint.bodies]
    )


def _declare(field: FieldInfo) -> Any:
    """Return the declaration of a field of another struct."""
    if field.required:
        return field.name, field.type
    return field.name, field.type, field.default
