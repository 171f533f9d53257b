"""The relayer in Python of `examples` delivers what it can, says of other messages why not, and
misses none.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests import paths
from tests.examples.route import open_route, relay_messages


async def test_the_relayer_delivers_waits_refuses_and_misses_nothing(tmp_path: Path) -> None:
    async with open_route(tmp_path / "route") as route:
        await relay_messages(
            route,
            (sys.executable, str(paths.ROOT / "examples" / "python" / "relayer.py")),
            tmp_path,
        )


def test_there_is_a_relayer_in_each_language() -> None:
    relayers = sorted((paths.ROOT / "examples").glob("*/relayer.*"))
    assert [relayer.suffix for relayer in relayers] == [".go", ".py", ".ts"]
