"""The output of plugin processes, written line by line and within bounds to the log `vm-factory`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

log: Final = logging.getLogger("vm-factory")


@dataclass(frozen=True, slots=True)
class OutputBounds:
    """Bounds of the logged output of one process; a longer line is truncated."""

    bytes: int = 64 * 1024
    lines: int = 1000
    line_bytes: int = 2048


class PluginOutput:
    """Log the output of one process; standard output and standard error share the bounds."""

    def __init__(self, plugin: str, bounds: OutputBounds) -> None:
        self._plugin = plugin
        self._line_bytes = bounds.line_bytes
        self._left_bytes = bounds.bytes
        self._left_lines = bounds.lines
        self._dropped_bytes = 0
        self._unfinished: dict[str, bytes] = {}

    def feed(self, stream: str, chunk: bytes) -> bool:
        """Log the lines that a chunk of a stream completes; return False once the bounds are reached."""
        if self.is_full:
            self._dropped_bytes += len(chunk)
            return False
        *lines, unfinished = (self._unfinished.pop(stream, b"") + chunk).split(b"\n")
        for line in lines:
            self._log_line(stream, line)
        if len(unfinished) > self._line_bytes:
            self._log_line(stream, unfinished)
        else:
            self._unfinished[stream] = unfinished
        return not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether the bounds are reached."""
        return self._left_bytes <= 0 or self._left_lines <= 0

    def end(self) -> None:
        """Log the unfinished lines and the number of dropped bytes."""
        for stream, line in self._unfinished.items():
            self._log_line(stream, line)
        self._unfinished.clear()
        if self._dropped_bytes:
            fields = {"plugin": self._plugin, "dropped_bytes": self._dropped_bytes}
            log.warning("plugin output truncated", extra=fields)

    def _log_line(self, stream: str, line: bytes) -> None:
        logged = b"" if self.is_full else line[: min(self._line_bytes, self._left_bytes)]
        self._dropped_bytes += len(line) - len(logged)
        if not logged:
            return
        self._left_bytes -= len(logged)
        self._left_lines -= 1
        log.info("%s", logged.decode(errors="replace").rstrip("\r"), extra={"plugin": self._plugin, "stream": stream})
