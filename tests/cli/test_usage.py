"""`warpseal usage`: what the metrics database has, as a table and as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from pathlib import Path

import pytest

from tests.usage.test_database import database
from tests.usage.test_sums import flush
from tests.usage.traffic import Call
from warpseal.cli.main import main
from warpseal.usage.calls import UsageLabels


async def record(url: str, calls: list[Call]) -> None:
    """Write calls."""
    async with database(url) as metrics:
        await flush(metrics, calls)


def calls_of(now: int) -> list[Call]:
    """Return calls of some clients, now and five days ago."""
    agents = ["curl", "curl", "=cmd()", "curl"]
    return [
        Call(
            at,
            UsageLabels("/ext/info", "info.peers", 200, "alpha", "DE", agent),
            "successful",
            100,
            5.0,
        )
        for at in (now, now - 5 * 86_400)
        for agent in agents
    ]


def test_usage_is_shown_by_label_and_time(
    any_metrics_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = int(time.time())
    asyncio.run(record(any_metrics_url, calls_of(now)))
    where = ("--metrics-db-url", any_metrics_url)

    def rows(*arguments: str) -> list[list[str]]:
        assert main(("usage", "--csv", *arguments, *where)) == 0
        header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
        assert header[:3] == ["begins", "value", "requests"]
        return rows

    (row,) = rows()
    begins = time.strftime("%Y-%m-%d %H:00", time.gmtime(now))
    assert (row[:3], row[4], row[6:]) == ([begins, "total", "4"], "100.0000", ["0", "400", "0"])
    assert float(row[5]) == pytest.approx(5.0, rel=0.01)
    assert [row[1:3] for row in rows("--by", "userAgent", "--last", "1w")] == [
        ["curl", "3"],
        ["'=cmd()", "1"],
    ] * 2
    weekly = rows("--by", "apiKey", "--last", "52w")
    assert ({row[1] for row in weekly}, sum(int(row[2]) for row in weekly)) == ({"alpha"}, 8)
    assert main(("usage", "--by", "continent", *where)) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["begins", "value", "requests"]
    assert line.split()[2:4] == ["EU", "4"]


def test_a_folder_without_usage_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "5").mkdir()
    assert main(("usage", "--data-dir", str(tmp_path), "--network", "5")) == 1
    error = capsys.readouterr().err
    assert (
        f"there is no metrics database {tmp_path}/5/metrics.db: a daemon with gateway-nodes or"
        in error
    )
    assert main(("usage", "--last", "soon")) == 2
