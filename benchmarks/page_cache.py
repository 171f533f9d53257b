"""The operating system's page cache of some files: emptied again and again, so that only a
program's own cache counts.

Linux only: posix_fadvise(2) drops pages that are written back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_EVERY_S: Final = 0.05


def drop(paths: Iterable[Path], *, write_back: bool = True) -> None:
    """Drop the pages of files.

    write_back: pages that are not on the disk yet are written before.
    """
    for path in paths:
        with suppress(FileNotFoundError):
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if write_back:
                    os.fdatasync(opened)
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(opened)


@contextmanager
def dropped(folder: Path) -> Iterator[None]:
    """Drop those of all files of a folder twenty times a second until the block ends."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(_EVERY_S):
            drop(folder.iterdir(), write_back=False)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
