"""Settings of all tests: property tests are bounded by their examples, never by the speed of the machine."""

from __future__ import annotations

import sys

import py_ecc.bls  # noqa: F401 - lifts the recursion limit beyond what the stack holds; the daemon never loads it
from hypothesis import settings

DEFAULT_RECURSION_LIMIT = 1_000

sys.setrecursionlimit(DEFAULT_RECURSION_LIMIT)
settings.register_profile("warpseal", deadline=None)
settings.load_profile("warpseal")
