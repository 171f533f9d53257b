"""Runs a coroutine on the fastest event loop at hand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on uvloop where there is one, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
