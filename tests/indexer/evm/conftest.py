"""What the tests of an EVM indexer change in their process, restored."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restored_recursion_limit() -> Iterator[None]:
    """Restore the limit that the tracer raises."""
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)
