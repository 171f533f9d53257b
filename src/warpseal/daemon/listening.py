"""`listening.json` in the data folder: where the daemon listens, for the commands that ask a
running daemon.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from warpseal.peers.data_dir import write_atomically
from warpseal.runtime.process import is_running

log = logging.getLogger(__name__)

LISTENING_NAME: Final = "listening.json"


class ListeningDaemon(msgspec.Struct, frozen=True):
    """The URLs of the API and of the metrics page for clients on this machine, and the process that
    serves them.
    """

    api: str
    metrics: str
    pid: int


@contextmanager
def listening_file(data_dir: Path, api_url: str, metrics_url: str) -> Iterator[None]:
    """Keep the file inside the block.

    Of several daemons on one data folder, the last one to start is in it.

    After the block the file names the daemon that it named before, if that one still runs: this one
    may have been refused because of it. Without a writable folder there is no file, and the daemon
    runs without it.
    """
    path, own = data_dir / LISTENING_NAME, ListeningDaemon(api_url, metrics_url, os.getpid())
    before = read_listening_daemon(data_dir)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, own)
    except OSError as error:
        log.info(
            "listening addresses not written", extra={"path": str(path), "reason": error.strerror}
        )
        yield
        return
    try:
        yield
    finally:
        if read_listening_daemon(data_dir) == own:
            with suppress(OSError):
                if before is not None and before.pid != own.pid and is_running(before.pid):
                    _write(path, before)
                else:
                    path.unlink()


def _write(path: Path, daemon: ListeningDaemon) -> None:
    write_atomically(path, msgspec.json.encode(daemon) + b"\n", mode=0o644)


def read_listening_daemon(data_dir: Path) -> ListeningDaemon | None:
    """Return the daemon that the file names, which may have been killed since; None without a
    usable file.
    """
    try:
        return msgspec.json.decode((data_dir / LISTENING_NAME).read_bytes(), type=ListeningDaemon)
    except (OSError, msgspec.MsgspecError):
        return None
