"""Settings of all tests: the number of examples bounds a property test, not the speed of the
machine.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
from collections.abc import Generator, Iterator

# Lifts the recursion limit beyond what the stack holds; the daemon never loads it.
import py_ecc.bls  # noqa: F401
import pytest
from hypothesis import settings

from warpseal.cli.serve import GC_THRESHOLDS
from warpseal.ops.logs.loggers import PACKAGE_LOGGERS

DEFAULT_RECURSION_LIMIT = 1_000
# The long files begin first, so that no process is left alone with one at the end.
FIRST = tuple(
    f"tests/{name}"
    for name in (
        "world/",
        "integration/test_kill.py",
        "integration/",
        "cli/",
        "clients/",
        "usage/",
        "index/",
    )
)

TOUCHED_LOGGERS = (
    "aiohttp",
    "asyncio",
    "uvicorn",
    "warpseal.ops.plugins",
    *(f"warpseal.{parent}{package}" for package in PACKAGE_LOGGERS for parent in ("", "ops.")),
)

# Temporary files in memory: on a disk, to make and remove the files of databases takes a fifth of
# the CPU time of their tests. Five workers with a server each need less than half of this space.
MEMORY = "/dev/shm"
MEMORY_BYTES = 3_000_000_000

if "TMPDIR" not in os.environ and os.path.isdir(MEMORY):
    _space = os.statvfs(MEMORY)
    if _space.f_bavail * _space.f_frsize >= MEMORY_BYTES and not _space.f_flag & getattr(
        os, "ST_NOEXEC", 0
    ):
        tempfile.tempdir = os.environ["TMPDIR"] = MEMORY
sys.setrecursionlimit(DEFAULT_RECURSION_LIMIT)
settings.register_profile("warpseal", deadline=None)
settings.load_profile("warpseal")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, a third of the time of it; later it runs as seldom as
    in the daemon.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files; the tests of a file keep their order."""
    items.sort(
        key=lambda item: next(
            (place for place, start in enumerate(FIRST) if item.nodeid.startswith(start)),
            len(FIRST),
        )
    )


def pytest_collection_finish() -> None:
    """Spare the garbage collector the objects of all tests and libraries: they live until the end.

    The garbage of the collection stays with them: to look for it would take each worker half a
    second.
    """
    gc.freeze()


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore the logging configuration after each test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    libraries = {name: logging.getLogger(name).level for name in TOUCHED_LOGGERS}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in libraries.items():
        logging.getLogger(name).setLevel(before)
