"""When the network's upgrades activate: as a node tells it, or as is known of the public networks.

Source of truth: avalanchego `upgrade/upgrade.go`, `api/info/service.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

_SUFFIX: Final = "Time"
_MAX_NAMES: Final = 100


@dataclass(frozen=True, slots=True)
class Upgrades:
    """Unix seconds by the upgrade's name in the node's spelling, such as "etna"; none where nobody tells."""

    times_s: Mapping[str, int]

    @property
    def etna_s(self) -> int | None:
        """When L1 transactions became possible; None where that is not known."""
        return self.times_s.get("etna")


def known_upgrades(network_id: int) -> Upgrades:
    """Return what is known of a public network; nothing of any other."""
    return _KNOWN.get(network_id, Upgrades({}))


def decode_upgrades(result: bytes) -> Upgrades:
    """Return the times in the result of info.upgrades. Raises ValueError."""
    told = msgspec.json.decode(result, type=dict[str, Any])
    if len(told) > _MAX_NAMES:
        raise ValueError(f"{len(told)} upgrades are more than there are")
    named = {name.removesuffix(_SUFFIX): value for name, value in told.items() if name.endswith(_SUFFIX)}
    return Upgrades({name: _unix_s(value) for name, value in named.items()})


def _unix_s(value: Any) -> int:
    moment = msgspec.convert(value, datetime)
    if moment.tzinfo is None:
        raise ValueError("a time without its zone")
    return int(moment.timestamp())


def _at(year: int, month: int, day: int, hour: int) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp())


_KNOWN: Final[Mapping[int, Upgrades]] = {
    1: Upgrades(
        {
            "banff": _at(2022, 10, 18, 16),
            "cortina": _at(2023, 4, 25, 15),
            "durango": _at(2024, 3, 6, 16),
            "etna": _at(2024, 12, 16, 17),
            "fortuna": _at(2025, 4, 8, 15),
            "granite": _at(2025, 11, 19, 16),
        }
    ),
    5: Upgrades(
        {
            "banff": _at(2022, 10, 3, 14),
            "cortina": _at(2023, 4, 6, 15),
            "durango": _at(2024, 2, 13, 16),
            "etna": _at(2024, 11, 25, 16),
            "fortuna": _at(2025, 3, 13, 15),
            "granite": _at(2025, 10, 29, 15),
        }
    ),
}
