"""docs/operations.md lists exactly the keys that exist."""

from __future__ import annotations

import re

from tests import paths
from warpseal.config.keys import KEYS

PAGE = paths.DOCS / "operations.md"


def test_the_settings_table_lists_every_key_in_order_and_no_other() -> None:
    table = PAGE.read_text().split("| key | default | meaning |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE) == [key.name for key in KEYS]
