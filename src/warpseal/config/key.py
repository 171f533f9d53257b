"""What a configuration key is: its name, how it is read, and which room's setting it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from warpseal.config import values as v

MEBIBYTE: Final = 1024 * 1024
HOUR_S: Final = 3600.0
PORT: Final = v.integer(0, 65535)
COUNT: Final = v.integer(1, 10**9)
UNITS: Final = v.integer(0, 10**12)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the config file. target: "room.field" of Config.

    reference: the reference aggregator knows the key too, so its unprefixed environment name counts. node: avalanchego
    knows it too, so its environment name counts. secret: never shown, and no flag, which everybody on the machine could
    read.
    """

    name: str
    target: str
    parse: v.Parser[Any]
    help: str
    metavar: str = "N"
    reference: bool = False
    required: bool = False
    secret: bool = False
    node: bool = False
