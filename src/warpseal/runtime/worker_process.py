"""Worker processes: the first steps of each one, after which it never outlives its parent.

Each worker loads this module, which therefore imports little.
"""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def initialize_worker() -> None:
    """Let this process end with its parent, and leave the signals of a terminal to the parent.

    The parent handles these signals, and lets the current call end.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
