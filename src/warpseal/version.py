"""The version of this program, and the revision that it was made of."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

# The only place that has it: packages, image and documents take it from here.
__version__: Final = "0.2.0"

_FOLDER: Final = Path(__file__).parent
_REVISION_FILE: Final = _FOLDER / "revision.txt"
"""Written by `make release`; a clone has none."""


def read_revision() -> str | None:
    """Return the Git commit of this program: of the release, or of the clone that it runs in.

    Returns None for a package that was built without a repository.
    """
    if _REVISION_FILE.exists():
        return _REVISION_FILE.read_text().strip()
    clone = _FOLDER.parent.parent
    if not (clone / ".git").exists():
        return None
    command = ("git", "-C", str(clone), "rev-parse", "HEAD")
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return output.stdout.strip()


def describe_version() -> str:
    """Return the line of `warpseal --version`."""
    revision = read_revision()
    if revision is None:
        return f"warpseal {__version__}"
    return f"warpseal {__version__} (revision {revision[:12]})"
