"""How many files the process may have open, and how many connections that leaves room for."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

# Upstream nodes, front-door clients, listeners, logs and files, beside the peer connections.
RESERVED_FILES: Final = 256
# Where the hard limit is "unlimited", no system takes more than about this.
_UNLIMITED_FILES: Final = 1_048_576
_MACOS_FILES: Final = 10_240


@dataclass(frozen=True, slots=True)
class FileLimit:
    """The limit of open files in force."""

    files: int

    @property
    def connections(self) -> int:
        """Peer connections that fit beside everything else; half the files where there are very few."""
        return max(self.files - RESERVED_FILES, self.files // 2)

    def needed_for(self, connections: int) -> int | None:
        """Return the limit that so many connections need; None when this one suffices."""
        return None if connections <= self.connections else connections + RESERVED_FILES


def raise_file_limit() -> FileLimit:
    """Raise the soft limit of open files to the hard one, as far as the system lets us; return what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (_finite(hard), _MACOS_FILES):
        if soft != resource.RLIM_INFINITY and wanted > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (OSError, ValueError):
                continue
            break
    return FileLimit(_finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _finite(limit: int) -> int:
    return _UNLIMITED_FILES if limit == resource.RLIM_INFINITY else limit
