"""Settings of all tests: property tests are bounded by their examples, never by the speed of the machine."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import py_ecc.bls  # noqa: F401 - lifts the recursion limit beyond what the stack holds; the daemon never loads it
import pytest
from hypothesis import settings

from warpseal.ops.logs.loggers import PACKAGE_LOGGERS

DEFAULT_RECURSION_LIMIT = 1_000

TOUCHED_LOGGERS = (
    "aiohttp",
    "asyncio",
    "uvicorn",
    "warpseal.ops.plugins",
    *(f"warpseal.{room}" for room in PACKAGE_LOGGERS),
)

sys.setrecursionlimit(DEFAULT_RECURSION_LIMIT)
settings.register_profile("warpseal", deadline=None)
settings.load_profile("warpseal")


@pytest.fixture(autouse=True)
def log_set_up() -> Iterator[None]:
    """Undo what a test sets up of logging: the next one looks at its own lines."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    libraries = {name: logging.getLogger(name).level for name in TOUCHED_LOGGERS}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in libraries.items():
        logging.getLogger(name).setLevel(before)
