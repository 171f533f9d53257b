"""Progress of long work on standard error: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import Final, TextIO

from warpseal.cli.running_daemon import duration

_REDRAW_S: Final = 0.2
_LINE_EVERY_S: Final = 10.0
_BAR_WIDTH: Final = 24
_CLEAR_LINE: Final = "\r\x1b[K"


class ProgressDisplay:
    """Shows the last reported step of long work while it is entered.

    A thread draws, so that a step without reports, such as the page check of SQLite, shows that
    time passes, and a report costs no more than an assignment. The bar is removed at the end; a
    dumb terminal gets lines.

    writes_stdout: whether the command writes its output to standard output. Nothing is shown if
        standard output is a terminal.
    """

    def __init__(self, *, writes_stdout: bool = False) -> None:
        self._stream = sys.stderr
        self._is_bar = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_shown = not (writes_stdout and sys.stdout.isatty())
        self._interval_s = _REDRAW_S if self._is_bar else _LINE_EVERY_S
        self._step: tuple[str, int, int] | None = None
        self._began_at = 0.0
        self._is_drawn = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw_until_end, name="progress", daemon=True)

    def __enter__(self) -> ProgressDisplay:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        self._clear()

    def update(self, name: str, done: int = 0, total: int = 0) -> None:
        """Report a step.

        name: name of the step, such as `messages`.
        done: number of units that are finished.
        total: number of all units; 0 if it is not known.
        """
        is_new = self._step is None or self._step[0] != name
        self._step = name, done, total
        if is_new:
            self._began_at = time.monotonic()
            if self._is_bar:
                with self._lock:
                    self._draw()

    def print(self, line: str, stream: TextIO | None = None) -> None:
        """Print a line of output, by default to standard output, above the bar."""
        with self._lock:
            self._clear()
            print(line, file=stream, flush=self._is_bar)

    def _draw_until_end(self) -> None:
        while not self._ended.wait(self._interval_s):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if self._step is None or not self._is_shown:
            return
        elapsed_s = time.monotonic() - self._began_at
        if not self._is_bar:
            print(_describe(*self._step, elapsed_s), file=self._stream, flush=True)
            return
        columns = shutil.get_terminal_size().columns
        line = _bar(*self._step[1:]) + _describe(*self._step, elapsed_s)
        self._stream.write(_CLEAR_LINE + line[: max(1, columns - 1)])
        self._stream.flush()
        self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._is_drawn = False


def _bar(done: int, total: int) -> str:
    if not total:
        return ""
    filled = min(_BAR_WIDTH, _BAR_WIDTH * done // total)
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] "


def _describe(name: str, done: int, total: int, elapsed_s: float) -> str:
    if not total:
        count = f"{done:,}, " if done else ""
        return f"{name}: {count}{duration(elapsed_s)}"
    left = ""
    if 0 < done < total:
        left_s = elapsed_s * (total - done) / done
        left = f", {duration(left_s)} left"
    return f"{name}: {done:,} of {total:,}, {100 * done // total} %{left}"
