"""What the clock of a history changes."""

from __future__ import annotations

import re
from typing import Final

from tests import paths

# Stamps of health responses, ends of certificates, names of backups; the monotonic clocks of
# threads. Nothing that a history judges depends on them.
UNCHANGED: Final = {
    "warpseal/api/status/probes.py",
    "warpseal/peers/identity.py",
    "warpseal/ops/backup.py",
    "warpseal/ops/profiles/cpu.py",
}
CLOCKS: Final = re.compile(r"datetime\.now|utcnow|\.today\(|clock_gettime|(gm|local)time\(\)")


def test_the_product_decides_by_no_clock_of_the_day_but_the_one_that_histories_change() -> None:
    source = paths.ROOT / "src"
    files = {
        str(file.relative_to(source))
        for file in source.rglob("warpseal/**/*.py")
        if CLOCKS.search(file.read_text())
    }
    assert files == UNCHANGED
