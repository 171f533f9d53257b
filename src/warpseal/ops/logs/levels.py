"""How much a log says: the reference's level names, and what they are to Python.

Source of truth: avalanchego `utils/logging/level.go`. Its TRACE says less than its DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

TRACE: Final = 15
VERBO: Final = 1
OFF: Final = logging.CRITICAL + 10

LEVELS: Final[Mapping[str, int]] = {
    "off": OFF,
    "fatal": logging.CRITICAL,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "trace": TRACE,
    "debug": logging.DEBUG,
    "verbo": VERBO,
}
"""Most silent first."""
