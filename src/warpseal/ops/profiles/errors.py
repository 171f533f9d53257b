"""Why there is no profile, in the node's words.

Source of truth: avalanchego `utils/profiler`; api-clients notes 6.3.
"""

from __future__ import annotations

import os
from pathlib import Path

from warpseal.errors.calls import CallRefused


class AlreadyRunning(CallRefused):
    """The CPU is being sampled; nothing changes."""

    def __init__(self) -> None:
        super().__init__("cpu profiler already running")


class NotRunning(CallRefused):
    """The CPU is not being sampled; nothing changes."""

    def __init__(self) -> None:
        super().__init__("cpu profiler doesn't exist")


class ProfileNotWritten(CallRefused):
    """The operating system does not let a file be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        super().__init__(f"open {path}: {reason}")
