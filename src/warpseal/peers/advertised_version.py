"""The avalanchego release that handshakes advertise. Pure.

Source of truth: avalanchego `version/compatibility.go`. A node refuses a peer whose release is older than the lowest
compatible one, which an upgrade raises, or has a newer major number; any other newer release it only logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from warpseal.protocol.handshake import DEFAULT_VERSION, Version

# A third of the peers cannot be a few that claim what no node runs.
_NEWER_SHARE: Final = 1 / 3
_MAJOR_SHARE: Final = 2 / 3


class AdvertisedVersion:
    """The release of the setting, else the newest that the nodes run: it is never lowered."""

    def __init__(self, setting: Version | None) -> None:
        self.current = setting or DEFAULT_VERSION
        self._is_setting = setting is not None

    def learn(self, nodes: Sequence[Version], peers: Sequence[Version]) -> bool:
        """Advertise a newer release that a configured node or a third of the peers runs; return whether it is new.

        A newer major number needs a configured node, and two thirds of the connected peers: the others refuse it.
        """
        if self._is_setting:
            return False
        is_new_major = [version[0] > self.current[0] for version in peers]
        candidates = [version for version in nodes if version[0] == self.current[0]]
        if sum(is_new_major) >= _MAJOR_SHARE * len(peers):
            candidates += nodes
        same_major = sorted((version for version in peers if version[0] == self.current[0]), reverse=True)
        if same_major:
            candidates.append(same_major[int(_NEWER_SHARE * len(same_major))])
        newest = max(candidates, default=self.current)
        if newest <= self.current:
            return False
        self.current = newest
        return True
