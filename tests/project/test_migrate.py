"""docs/migrate.md names the series that the reference shows, and series of Warpseal that exist."""

from __future__ import annotations

import json
import re

from tests.paths import DOCS, ROOT, VECTORS
from tests.test_metrics import full_metrics, text_of
from warpseal.validators.errors import UnknownChain

PAGE = (DOCS / "migrate.md").read_text()
ROWS = re.findall(r"^\| `((?:signature_aggregator|timeoutmanager|msgcreator)_\w+)` \|", PAGE, re.M)
RECORDED = VECTORS / "localnet" / "reference-aggregator.jsonl"
SERIES = r"# TYPE (\w+) (\w+)"


def test_the_page_lists_the_series_that_the_reference_shows() -> None:
    recorded = {name for name, _ in re.findall(SERIES, RECORDED.read_text())}
    assert set(ROWS) == recorded
    assert len(ROWS) == len(recorded) == 17
    assert f"| {len(recorded)} series |" in PAGE


async def test_every_series_of_the_page_is_on_the_metrics_page_with_the_references_type() -> None:
    series = dict(re.findall(SERIES, await text_of(full_metrics())))
    kinds = dict(re.findall(SERIES, RECORDED.read_text()))
    own = set(re.findall(r"`(warpseal_\w+)`", PAGE))
    assert len(own) > 10
    assert own - series.keys() == set()
    assert {name: series[name] for name in ROWS} == kinds


def test_the_status_of_an_unknown_chain_is_that_of_the_page() -> None:
    status = UnknownChain.http_status
    assert f"| {status}, `{UnknownChain.code}`:" in PAGE


def test_the_reference_starts_with_the_config_of_fuji() -> None:
    table = PAGE.partition("## Keys")[2].partition("## Routes")[0]
    keys = {
        key
        for cell in re.findall(r"^\| (`[^|]*) \|", table, re.M)
        for key in re.findall(r"`([\w-]+)`", cell)
    }
    # As the page says, its release 0.5.4 refuses this one.
    refused = "validator-refresh-period-seconds"
    assert refused in keys
    assert f"has the keys of the [table above](#keys) without `{refused}`" in " ".join(PAGE.split())
    assert set(json.loads((ROOT / "configs" / "fuji.json").read_text())) <= keys - {refused}
