"""Warns of what an operator can mend: a wrong clock, too few open files, an advertised version that grows old."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from warpseal.peers.clock import PeerClocks
from warpseal.peers.file_limit import FileLimit
from warpseal.protocol.handshake import Version

_WARNINGS_APART_S: Final = 600.0
# A lone peer that claims some version from the future is no reason to upgrade.
_TELLING_SHARE: Final = 1 / 3

log = logging.getLogger(__name__)


class Watch:
    """Says each thing at most every ten minutes. tolerance_s: clock offset from the peers' median to warn above."""

    def __init__(self, clocks: PeerClocks, advertised: Version, tolerance_s: float) -> None:
        self._clocks = clocks
        self._advertised = advertised
        self._tolerance_s = tolerance_s
        self._said_at: dict[str, float] = {}

    def check_clock(self, unix_s: float, now: float) -> bool:
        """Warn when our clock is wrong. Returns whether it is right, as far as is known."""
        offset_s = self._clocks.median_offset_s(unix_s, now)
        if offset_s is None or abs(offset_s) <= self._tolerance_s:
            return True
        self._say(
            now, "this machine's clock is %+.0f s from the peers' median; nodes drop who is off by 60 s", -offset_s
        )
        return False

    def check_room(self, limit: FileLimit, max_connections: int, wanted: int, now: float) -> bool:
        """Warn when not all wanted nodes can be connected at once. Returns whether they can."""
        needed = limit.needed_for(wanted)
        if needed is not None:
            self._say(now, "the limit of open files is %d; %d peers need %d (ulimit -n)", limit.files, wanted, needed)
        elif wanted > max_connections:
            self._say(now, "max-connections is %d; %d peers are wanted", max_connections, wanted)
        return wanted <= min(max_connections, limit.connections)

    def check_versions(self, versions: Iterable[Version], now: float) -> bool:
        """Warn when many peers run something newer than we advertise. Returns whether few do."""
        running = list(versions)
        newer = [version for version in running if version > self._advertised]
        if not newer or len(newer) < _TELLING_SHARE * len(running):
            return True
        self._say(
            now,
            "%d of %d peers run a newer version than the advertised %s, up to %s: see advertised-version",
            len(newer),
            len(running),
            version_text(self._advertised),
            version_text(max(newer)),
        )
        return False

    def _say(self, now: float, template: str, *values: object) -> None:
        if now - self._said_at.get(template, float("-inf")) >= _WARNINGS_APART_S:
            self._said_at[template] = now
            log.warning(template, *values)


def version_text(version: Version) -> str:
    """Return "major.minor.patch"."""
    return ".".join(map(str, version))
