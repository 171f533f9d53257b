"""The versions of avalanchego that simulated nodes run, and what each version lacks.

Source of truth: avalanchego RELEASES.md and version/compatibility.json; for NEXT_VERSION the
methods that log "deprecated API called".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Version = tuple[int, int, int]

NEWEST_VERSION: Final[Version] = (1, 15, 3)
NEXT_VERSION: Final[Version] = (1, 15, 4)
"""A release to come, without any method that is deprecated today."""
VERSIONS: Final[Mapping[str, Version]] = {
    "1.14.1": (1, 14, 1),
    "1.15.0": (1, 15, 0),
    "1.15.3": NEWEST_VERSION,
    "next": NEXT_VERSION,
}
DEPRECATED_METHODS: Final = (
    *(
        "platform.getBalance",
        "platform.getBlockchains",
        "platform.getRewardUTXOs",
        "platform.getStake",
    ),
    *(
        "platform.getSubnets",
        "avm.getAllBalances",
        "avm.getBalance",
        "avm.getTxStatus",
        "info.getTxFee",
    ),
)
# The first release without each method.
_REMOVED_IN: Final[Mapping[str, Version]] = {
    "avax.getAtomicTxStatus": (1, 15, 2),
    **dict.fromkeys(DEPRECATED_METHODS, NEXT_VERSION),
}
_PLUGIN_VERSIONS: Final = (((1, 15, 2), 47), ((1, 15, 0), 46), ((1, 14, 2), 45), ((1, 14, 0), 44))


@dataclass(frozen=True, slots=True)
class Release:
    """A release that a validator or a node runs.

    minimum: the oldest version of a peer that it accepts (avalanchego `version/compatibility.go`).
    upgrade: name of the upgrade that it brings, whose time is in `SimState.fork_times`; "": none.
    minimum_after: the oldest version of a peer that it accepts from that time on.
    """

    version: Version
    minimum: Version
    upgrade: str = ""
    minimum_after: Version = (0, 0, 0)

    @property
    def text(self) -> str:
        """The version as nodes write it, such as 1.15.3."""
        return ".".join(map(str, self.version))


def lacks(version: Version, method: str) -> bool:
    """Return whether a version no longer has a method."""
    return method in _REMOVED_IN and version >= _REMOVED_IN[method]


def plugin_version(version: Version) -> int:
    """Return the version of the plugin protocol (RPCChainVM) of a version since 1.14.0."""
    return next(number for first, number in _PLUGIN_VERSIONS if version >= first)
