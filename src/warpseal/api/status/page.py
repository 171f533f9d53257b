"""The landing page as HTML: a shell, sections, and one table row for each validator.

The page is complete without JavaScript. Its script replaces sections and rows by newer ones that
the server made by the same macros of `page.html`. The template escapes every text, and the policy
allows no script or style but those of this package.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from warpseal.api.status.document import CONNECTED, StatusDocument
from warpseal.api.status.pictures import draw_hour
from warpseal.api.status.sections import (
    PRIMARY_NETWORK_ID,
    has_usage,
    is_indexed_evm,
    network_name,
    prepare_aggregation,
    prepare_chain,
    prepare_forecast,
    prepare_subnet,
    prepare_usage,
    prepare_validator,
    shorten_id,
    split_ids,
    tracks_l1,
)
from warpseal.runtime.lazy import jinja2
from warpseal.validators.balances import UNDERFUNDED_ADVICE

_FOLDER: Final = files(__package__)
_STYLE: Final = (_FOLDER / "page.css").read_text()
_SCRIPT: Final = (_FOLDER / "page.js").read_text()


def _source_hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; script-src {_source_hash(_SCRIPT)}; style-src {_source_hash(_STYLE)};"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors"
    " 'none'"
)
"""The Content-Security-Policy of the page."""

_ROWS_PER_TURN: Final = 100
_MAX_FOLDED: Final = 50
"""Rows of validators that are shown until the reader unfolds the rest, as in `page.css`."""
_ROWS_START: Final = '<tbody id="rows">'
_MAX_RECENT: Final = 10
"""Aggregations that are shown until the reader unfolds the rest."""

Rows = Mapping[str, str]
"""HTML of the rows of validators by the keys of the rows."""


@cache
def load_macros() -> Any:
    """Return the macros of the template, as attributes: compiled once, when a page is opened."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["shorten_id"] = shorten_id
    environment.filters["split_ids"] = split_ids
    environment.globals["primary_network"] = PRIMARY_NETWORK_ID
    environment.globals["underfunded_advice"] = UNDERFUNDED_ADVICE
    source = (_FOLDER / "page.html").read_text()
    # A page of thousands of rows would be a tenth longer with the indentation.
    return environment.from_string(re.sub(r"^ +", "", source, flags=re.MULTILINE)).module


async def render_rows(
    document: StatusDocument, before: StatusDocument | None, rendered: Rows
) -> Rows:
    """Return the rows of all validators, the missing ones first.

    Other callbacks run in between.
    before, rendered: an earlier document and the HTML of its rows, which is used again for
        validators that did not change.
    """
    # The first time takes 90 ms, in which other threads have their turns.
    macros = await asyncio.to_thread(load_macros)
    totals = _total_weights(document)
    earlier = {}
    if before is not None and totals == _total_weights(before):
        earlier = {validator.key: validator for validator in before.validators}
    names = {
        subnet_id: macros.subnet_name(subnet_id)
        for subnet_id in {row.subnet_id for row in document.validators}
    }
    rows: dict[str, str] = {}
    missing_first = sorted(document.validators, key=lambda row: row.state == CONNECTED)
    for position, validator in enumerate(missing_first):
        if position % _ROWS_PER_TURN == _ROWS_PER_TURN - 1:
            await asyncio.sleep(0)
        key = validator.key
        if earlier.get(key) == validator:
            rows[key] = rendered[key]
        else:
            row = prepare_validator(validator, totals.get(validator.subnet_id, 0))
            rows[key] = str(macros.validator(row, names[validator.subnet_id]))
    return rows


def _total_weights(document: StatusDocument) -> dict[str, int]:
    return {subnet.subnet_id: int(subnet.total_weight) for subnet in document.subnets}


def render_sections(document: StatusDocument) -> Mapping[str, str]:
    """Return the inner HTML of each section that changes, by its id."""
    macros = load_macros()
    aggregations = list(map(prepare_aggregation, document.aggregations))
    forecasts = [prepare_forecast(forecast, document.time) for forecast in document.forecasts]
    sections = {
        "state": macros.state(document, network_name(document)),
        "subnets": macros.subnets(list(map(prepare_subnet, document.subnets))),
        "forecasts": macros.forecasts(forecasts, tracks_l1(document)),
        "hour": macros.hour(draw_hour(document)),
        "aggregations": macros.aggregations(aggregations[:_MAX_RECENT], aggregations[_MAX_RECENT:]),
        "nodes": macros.nodes(document.nodes),
        "chains": macros.chains(list(map(prepare_chain, document.chains))),
        "usage": macros.usage(list(map(prepare_usage, document.usage)), has_usage(document)),
        "omitted": macros.omitted(document.omitted_validators),
    }
    return {name: str(html) for name, html in sections.items()}


def render_page(
    document: StatusDocument,
    version: str,
    sections: Mapping[str, str],
    rows: Rows,
    dashboards_url: str,
) -> str:
    """Return the whole page.

    version: version of these sections and rows, from which the script goes on.
    """
    shell = load_macros().page(
        document=document,
        version=version,
        last_change=document.time.replace("T", " ").replace("Z", " UTC"),
        sections=sections,
        has_icm=any(map(is_indexed_evm, document.chains)),
        is_folded=len(rows) > _MAX_FOLDED,
        max_folded=_MAX_FOLDED,
        dashboards_url=dashboards_url,
        style=_STYLE,
        script=_SCRIPT,
    )
    # The template would take 80 ms for the rows of 5,000 validators; joining them takes 15.
    start, mark, end = str(shell).partition(_ROWS_START)
    return "".join([start, mark, *rows.values(), end])
