"""Every default, unit and bound of profiles; docs/node-interfaces.md tells what they show and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """What an operator may set about profiles.

    profile_dir: None is the folder `profiles` in the daemon's own; made when needed. memory_frames: how many calls of
    each allocation are kept from the start on; 0: none, and memory is told by type.
    """

    profile_dir: Path | None = None
    memory_frames: int = 0

    def folder(self, data_dir: Path) -> Path:
        """Return where profiles are written."""
        return self.profile_dir or data_dir / "profiles"
