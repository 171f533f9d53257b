"""The loggers that an operator knows by name: one file and one display level each, both changed while the daemon runs.

Source of truth: avalanchego's `main`, `vm-factory` and chain loggers; ours add one for each room of the program. A
name is not a Python logger: chains share their code, so a line says by a field which chain it is about.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, TextIO

from warpseal.errors import CallRefused, StartupError
from warpseal.ops.logs.formatter import LineFormatter, add_request_id

MAIN: Final = "main"
VM_FACTORY: Final = "vm-factory"
PACKAGE_LOGGERS: Final = (
    "aggregation",
    "api",
    "evm_rpc",
    "health",
    "index",
    "indexer",
    "ipc",
    "l1",
    "node",
    "peers",
    "prices",
    "profiles",
    "store",
    "validators",
)
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
MAX_OLD_FILES: Final = 7
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
_PACKAGE: Final = "warpseal"
_OPERATIONS: Final = "ops."
_PLUGINS: Final = "plugins"
_FOLLOWER: Final = "warpseal.l1.follower.follower"
_QUIET_LIBRARIES: Final = ("aiohttp", "alembic", "asyncio", "uvicorn")
# How lines about a chain name it, and the primary alias by which its logger goes.
_CHAINS: Final = {"p-chain": "P", "x-chain": "X", "c-chain": "C"}


@dataclass(frozen=True, slots=True)
class Levels:
    """Keys of LEVELS: what goes to the file, and what is displayed."""

    log: str
    display: str

    @property
    def log_level(self) -> str:
        """The level of the file, in upper case."""
        return self.log.upper()

    @property
    def display_level(self) -> str:
        """The level of the display, in upper case."""
        return self.display.upper()


class DaemonLoggers:
    """All loggers of this process. folder: where the files are; None: nothing is written to files.

    suffix: follows the names of files of a process that is not the daemon itself.
    """

    def __init__(
        self,
        log_level: str = "info",
        display_level: str | None = None,
        folder: Path | None = None,
        *,
        suffix: str = "",
    ) -> None:
        self._default = Levels(log_level, display_level or log_level)
        self._levels = dict.fromkeys((MAIN, VM_FACTORY, *PACKAGE_LOGGERS), self._default)
        self._folder = folder
        self.suffix = suffix
        self._outlet: LogHandler | None = None

    def attach(self, stream: TextIO | None = None) -> None:
        """Make this what the process logs through. Raises StartupError where the folder cannot be used."""
        if self._folder is not None:
            try:
                self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            except OSError as error:
                raise StartupError(f"log-dir: cannot make the folder {self._folder}: {error.strerror}") from error
        logging.addLevelName(TRACE, "TRACE")
        # No line tells of these, and asking the system for them takes as long as writing it.
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
        self._outlet = LogHandler(self, stream or sys.stderr, self._folder)
        logging.getLogger().handlers = [self._outlet]
        self._apply()

    def know_chains(self, primary_aliases: Iterable[str]) -> None:
        """Have a logger for each of these chains from now on."""
        for alias in primary_aliases:
            self._levels.setdefault(alias, self._default)
        self._apply()

    def levels(self, name: str = "") -> Mapping[str, Levels]:
        """Return the levels of one logger, or of all. Raises CallRefused."""
        return {logger_name: self._levels[logger_name] for logger_name in self._named(name)}

    async def set_levels(self, name: str, log_level: str | None, display_level: str | None) -> None:
        """Change the levels of one logger, or of all. Raises CallRefused, and changes nothing then."""
        for logger_name in self._named(name):
            now = self._levels[logger_name]
            self._levels[logger_name] = replace(now, log=log_level or now.log, display=display_level or now.display)
        self._apply()

    def name_of(self, record: logging.LogRecord) -> str:
        """Return the logger that a line belongs to."""
        about = getattr(record, "chain", None)
        chain = "P" if record.name == _FOLLOWER else _CHAINS.get(str(about), str(about))
        return chain if chain in self._levels else self._room_of(record.name)

    def numbers(self, name: str) -> tuple[int, int]:
        """Return from which numbers on lines go to the file, and are displayed."""
        levels = self._levels[name]
        return (LEVELS[levels.log] if self._folder is not None else OFF), LEVELS[levels.display]

    def _room_of(self, logger: str) -> str:
        package, _, rest = logger.partition(".")
        room = rest.removeprefix(_OPERATIONS).partition(".")[0]
        # What plugins print has a Python logger of that very name.
        if logger == VM_FACTORY or (package == _PACKAGE and room == _PLUGINS):
            return VM_FACTORY
        return room if package == _PACKAGE and room in PACKAGE_LOGGERS else MAIN

    def _named(self, name: str) -> tuple[str, ...]:
        if name and name not in self._levels:
            raise CallRefused(f'logger with name "{name[:256]}" not found')
        return (name,) if name else tuple(sorted(self._levels))

    def _apply(self) -> None:
        """Set the levels of Python's loggers, so that suppressed lines cost nothing."""
        if self._outlet is None:
            return
        chains = [name for name in self._levels if name not in (MAIN, VM_FACTORY, *PACKAGE_LOGGERS)]
        logging.getLogger().setLevel(self._least(MAIN))
        for logger in (VM_FACTORY, f"{_PACKAGE}.{_PLUGINS}"):
            logging.getLogger(logger).setLevel(self._least(VM_FACTORY))
        for room in PACKAGE_LOGGERS:
            logging.getLogger(f"{_PACKAGE}.{room}").setLevel(self._least(room, *chains))
        for library in _QUIET_LIBRARIES:
            logging.getLogger(library).setLevel(max(self._least(MAIN), logging.WARNING))

    def _least(self, *names: str) -> int:
        return min(min(self.numbers(name)) for name in names)


class LogHandler(logging.Handler):
    """Where all lines leave the process."""

    def __init__(self, loggers: DaemonLoggers, stream: TextIO, folder: Path | None) -> None:
        super().__init__()
        self._loggers = loggers
        self._folder = folder
        self._display = logging.StreamHandler(stream)
        self._files: dict[str, RotatingFileHandler] = {}
        self.setFormatter(LineFormatter())
        self._display.setFormatter(self.formatter)
        self.addFilter(add_request_id)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line to where its logger writes it."""
        name = self._loggers.name_of(record)
        to_file, displayed = self._loggers.numbers(name)
        if record.levelno >= displayed:
            self._display.emit(record)
        if record.levelno >= to_file:
            self._file(name).emit(record)

    def flush(self) -> None:
        """Write out what waits."""
        self._display.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        super().close()

    def _file(self, name: str) -> RotatingFileHandler:
        file = self._files.get(name)
        if file is None:
            assert self._folder is not None
            path = self._folder / f"{_UNFIT.sub('_', name)}{self._loggers.suffix}.log"
            file = RotatingFileHandler(path, maxBytes=MAX_FILE_BYTES, backupCount=MAX_OLD_FILES, delay=True)
            file.setFormatter(self.formatter)
            self._files[name] = file
        return file


TRACE: Final = 15
VERBO: Final = 1
OFF: Final = logging.CRITICAL + 10

LEVELS: Final[Mapping[str, int]] = {
    "off": OFF,
    "fatal": logging.CRITICAL,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "trace": TRACE,
    "debug": logging.DEBUG,
    "verbo": VERBO,
}
"""Most silent first."""
