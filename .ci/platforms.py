"""Writes a description of Linux on x86-64 for each supported Python into a folder, and prints the
arguments that name them to pex: the file of a release has wheels for all of these, also for
versions that the building machine lacks.

Wheels for glibc 2.28 and older are taken: Debian 10, RHEL 8, Ubuntu 20.04 and later.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from packaging import tags

MINOR_VERSIONS = (11, 12, 13, 14)
NEWEST_GLIBC, OLDEST_GLIBC = 28, 5
OLDER_NAMES = {17: "manylinux2014_x86_64", 12: "manylinux2010_x86_64", 5: "manylinux1_x86_64"}


def describe(minor: int) -> dict[str, object]:
    """Return the environment markers and the wheel tags of Python 3.`minor`, best first."""
    platforms = []
    for glibc in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{glibc}_x86_64")
        if glibc in OLDER_NAMES:
            platforms.append(OLDER_NAMES[glibc])
    platforms.append("linux_x86_64")
    own_tags = tags.cpython_tags((3, minor), platforms=platforms)
    general_tags = tags.compatible_tags((3, minor), f"cp3{minor}", platforms)
    markers = {
        "implementation_name": "cpython",
        "implementation_version": f"3.{minor}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"3.{minor}.0",
        "python_version": f"3.{minor}",
        "sys_platform": "linux",
    }
    wheel_tags = [str(tag) for tag in (*own_tags, *general_tags)]
    return {"marker_environment": markers, "compatible_tags": wheel_tags}


folder = Path(sys.argv[1])
for minor in MINOR_VERSIONS:
    file = folder / f"python-3.{minor}.json"
    file.write_text(json.dumps(describe(minor)))
    print(f"--complete-platform={file}")
