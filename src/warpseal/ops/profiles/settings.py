"""Settings of profiles; docs/node-interfaces.md says what they show and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warpseal.runtime.settings import Group, integer, optional_path, setting


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """profile_dir: None is the folder `profiles` in the daemon's own; made when needed."""

    profile_dir: Path | None = setting(
        None,
        "profile-dir",
        optional_path,
        "folder of profiles; unset: profiles in data-dir",
        "DIR",
        group=Group.LOGS,
        is_node=True,
    )
    memory_frames: int = setting(
        0,
        "memory-profile-frames",
        integer(0, 100),
        "stack frames recorded of each allocation, which is costly; 0: memory profiles by type only",
        group=Group.LOGS,
    )

    def folder(self, data_dir: Path) -> Path:
        """Return the folder of the profiles."""
        return self.profile_dir or data_dir / "profiles"
