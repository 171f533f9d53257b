"""What the tests of an EVM indexer change in their process, restored; and which tests are
collected.

Those with our Solidity contracts on a real EVM node are where `make test` could install both (they
come from npm).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.forwarding.evm import anvil
from tests.solidity import compiled
from tests.store.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

collect_ignore = (
    [] if anvil.binary() is not None and compiled.is_installed() else ["test_solidity.py"]
)


@pytest.fixture(autouse=True)
def restored_recursion_limit() -> Iterator[None]:
    """Restore the limit that the tracer raises."""
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)
