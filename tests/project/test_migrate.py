"""docs/migrate.md names the series that the reference shows, and series of Warpseal that exist."""

from __future__ import annotations

import re

from tests.paths import DOCS, VECTORS
from tests.test_metrics import full_metrics, text_of
from warpseal.validators.errors import UnknownChain

PAGE = (DOCS / "migrate.md").read_text()
ROWS = re.findall(r"^\| `((?:signature_aggregator|timeoutmanager|msgcreator)_\w+)` \|", PAGE, re.M)
RECORDED = VECTORS / "localnet" / "reference-aggregator.jsonl"
SERIES = r"# TYPE (\w+) (\w+)"


def test_the_page_lists_the_series_that_the_reference_shows() -> None:
    shown = {name for name, _ in re.findall(SERIES, RECORDED.read_text())}
    assert set(ROWS) == shown
    assert len(ROWS) == len(shown) == 17
    assert f"| {len(shown)} series |" in PAGE


async def test_every_series_of_the_page_is_on_the_metrics_page_with_the_type_of_the_reference() -> None:
    found = dict(re.findall(SERIES, await text_of(full_metrics())))
    kinds = dict(re.findall(SERIES, RECORDED.read_text()))
    own = set(re.findall(r"`(warpseal_\w+)`", PAGE))
    assert len(own) > 10
    assert own - found.keys() == set()
    assert {name: found[name] for name in ROWS} == kinds


def test_the_status_of_an_unknown_chain_is_that_of_the_page() -> None:
    status = UnknownChain.http_status
    assert f"| {status}, `{UnknownChain.code}`:" in PAGE
