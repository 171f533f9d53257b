"""The status as one audience sees it: the newest document, its HTML, and the changes that open
pages still lack.

All clients share a document for a second, and the HTML is rendered only while pages are open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Final, Protocol
from uuid import uuid4

import msgspec

from warpseal.api.http.responses import EncodedBody
from warpseal.api.status.document import StatusDocument
from warpseal.api.status.page import Rows, render_page, render_rows, render_sections
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache

_MAX_CHANGES: Final = 8
_KEY: Final = "status"


class StatusSource(Protocol):
    """Collects the document."""

    @property
    def document_class(self) -> type[StatusDocument]:
        """The class of the document, with the fields that parts of the daemon declare."""

    async def collect(self, *, with_addresses: bool) -> StatusDocument:
        """Return the current document.

        with_addresses: include those of validators and of upstream nodes.
        """


class StatusChange(msgspec.Struct, frozen=True, rename="camel"):
    """The changes of a page, for its script: sections and rows as HTML by their ids and keys, and
    rows that are gone.

    is_complete: `rows` are all rows.
    version: version of the page after the change.
    """

    version: str
    time: str
    sections: Mapping[str, str]
    rows: Mapping[str, str]
    gone: list[str]
    is_complete: bool = False


class StatusView:
    """The HTML of one version of the page."""

    def __init__(
        self, document: StatusDocument, version: str, sections: Mapping[str, str], rows: Rows
    ) -> None:
        self.document = document
        self.version = version
        self.sections = sections
        self.rows = rows

    def change_from(self, before: StatusView) -> StatusChange | None:
        """Return the difference from an earlier view; None if they are equal."""
        sections = {
            name: html for name, html in self.sections.items() if before.sections[name] != html
        }
        rows = {key: html for key, html in self.rows.items() if before.rows.get(key) != html}
        gone = [f"v-{key}" for key in before.rows if key not in self.rows]
        if not sections and not rows and not gone:
            return None
        return StatusChange(self.version, self.document.time, sections, rows, gone)

    @cached_property
    def complete(self) -> bytes:
        """The whole view as a change, JSON."""
        whole = StatusChange(
            self.version, self.document.time, self.sections, self.rows, [], is_complete=True
        )
        return msgspec.json.encode(whole)


class StatusFeed:
    """One audience.

    dashboards_url: URL that the page links; empty for no link.
    max_age_s: largest age of a document that is served again.
    """

    def __init__(
        self,
        source: StatusSource,
        dashboards_url: str,
        *,
        with_addresses: bool,
        max_age_s: float = 1.0,
    ) -> None:
        self._source = source
        self._max_age_s = max_age_s
        self._dashboards_url = dashboards_url
        self._with_addresses = with_addresses
        self._documents: TtlCache[str, StatusDocument] = TtlCache(1)
        self._collecting: SingleFlight[str, StatusDocument] = SingleFlight()
        self._rendering: SingleFlight[str, StatusView] = SingleFlight()
        self._json: tuple[StatusDocument, EncodedBody] | None = None
        self._page: tuple[StatusDocument, EncodedBody] | None = None
        # Pages of an earlier process must not take its versions for ours.
        self._start = uuid4().hex[:8]
        self._count = 0
        self._view: StatusView | None = None
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=_MAX_CHANGES)

    async def document(self) -> StatusDocument:
        """Return the current document."""
        cached = self._documents.get(_KEY)
        return await self._collecting.run(_KEY, self._collect) if cached is None else cached.value

    async def json(self) -> EncodedBody:
        """Return the current document as JSON."""
        document = await self.document()
        if self._json is None or self._json[0] is not document:
            self._json = document, EncodedBody(msgspec.json.encode(document))
        return self._json[1]

    async def page(self) -> EncodedBody:
        """Return the current page."""
        view = await self._current_view()
        if self._page is None or self._page[0] is not view.document:
            html = render_page(
                view.document, view.version, view.sections, view.rows, self._dashboards_url
            )
            self._page = view.document, EncodedBody(html.encode())
        return self._page[1]

    async def changes_since(self, version: str) -> tuple[str, list[bytes]]:
        """Return the current version, and the changes that lead to it from `version`, as JSON."""
        view = await self._current_view()
        if version == view.version:
            return view.version, []
        start, _, number = version.partition("-")
        seen_count = (
            int(number) if start == self._start and number.isdecimal() and len(number) < 16 else -1
        )
        missed = [change for count, change in self._changes if count > seen_count]
        if seen_count < 0 or len(missed) != self._count - seen_count:
            return view.version, [view.complete]
        return view.version, missed

    async def _collect(self) -> StatusDocument:
        document = await self._source.collect(with_addresses=self._with_addresses)
        self._documents.put(_KEY, document, self._max_age_s)
        return document

    async def _current_view(self) -> StatusView:
        document = await self.document()
        if self._view is not None and self._view.document is document:
            return self._view
        return await self._rendering.run(_KEY, self._render)

    async def _render(self) -> StatusView:
        """Render the current document; a version is as new as the last change."""
        document, before = await self.document(), self._view
        rows = await render_rows(
            document, before.document if before else None, before.rows if before else {}
        )
        view = StatusView(
            document, f"{self._start}-{self._count + 1}", render_sections(document), rows
        )
        change = view.change_from(before) if before is not None else None
        if before is not None and change is None:
            view = StatusView(document, before.version, before.sections, rows)
        else:
            self._count += 1
            if change is not None:
                self._changes.append((self._count, msgspec.json.encode(change)))
        self._view = view
        return view
