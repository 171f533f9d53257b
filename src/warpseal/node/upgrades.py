"""Watches the releases that the configured nodes run, and the upgrades of the network that they know.

Source of truth: avalanchego `upgrade/upgrade.go`, `api/info/service.go`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from warpseal.ledger.params import UNSCHEDULED_S
from warpseal.node.info import InfoClient
from warpseal.protocol.handshake import Version
from warpseal.upstream.errors import NodeUnavailable

TESTED_UPGRADES: Final = frozenset(
    {
        *(f"apricotPhase{phase}" for phase in ("1", "2", "3", "4", "5", "6", "Pre6", "Post6")),
        *("banff", "cortina", "durango", "etna", "fortuna", "granite", "helicon"),
    }
)
"""The upgrades that this version of Warpseal was tested with, in the node's spelling."""

AHEAD_S: Final = 30 * 86_400
_INTERVAL_S: Final = 3_600.0
_RETRY_S: Final = 60.0
_RELEASE: Final = re.compile(r"[\w-]+/(\d{1,5})\.(\d{1,5})\.(\d{1,5})", re.ASCII)


class UpgradeWatch:
    """Asks the nodes every hour. on_releases: gets the releases of the nodes, and the time of the latest upgrade."""

    def __init__(
        self,
        info: InfoClient,
        on_releases: Callable[[tuple[Version, ...], int], None],
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._info = info
        self._on_releases = on_releases
        self._unix_clock = unix_clock
        self._times: Mapping[str, int] = {}

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            is_current = await self.ask()
            await asyncio.sleep(_INTERVAL_S if is_current else _RETRY_S)

    async def ask(self) -> bool:
        """Ask once; return whether a node answered."""
        try:
            times = await self._info.upgrades()
        except NodeUnavailable:
            return False
        # A node that refuses the call knows none.
        self._times = {**self._times, **times}
        versions = [result.value for result in await self._info.versions()]
        releases = tuple(filter(None, (parse_release(text) for text in versions if text is not None)))
        scheduled = (unix_s for unix_s in self._times.values() if unix_s < UNSCHEDULED_S)
        self._on_releases(releases, max(scheduled, default=0))
        return True

    def untested(self) -> Mapping[str, int]:
        """Return the times of the upgrades that were not tested, past ones and those of the next 30 days, by name."""
        until_s = self._unix_clock() + AHEAD_S
        return {
            name: unix_s for name, unix_s in self._times.items() if name not in TESTED_UPGRADES and unix_s <= until_s
        }


def parse_release(text: str) -> Version | None:
    """Return the numbers of a release, such as "avalanchego/1.15.0"; None of any other text."""
    release = _RELEASE.match(text)
    return None if release is None else (int(release[1]), int(release[2]), int(release[3]))
