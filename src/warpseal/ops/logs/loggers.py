"""The loggers that an operator can address: each has a file, a file level and a display level.

Source of truth: avalanchego's `main`, `vm-factory` and chain loggers; the daemon adds one for each package that logs.
These names are not Python loggers: the chains share their code, and the field `chain` of a record names its chain.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, TextIO

from warpseal.errors import CallRefused, StartupError
from warpseal.runtime.request_id import request_id

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
_UNSAFE_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_-]")
_PACKAGE: Final = "warpseal"
_OPS: Final = "ops"
_OPS_PACKAGES: Final = frozenset(("health", "ipc", "profiles"))
_PLUGINS: Final = "plugins"
_FOLLOWER: Final = "warpseal.l1.follower.follower"
_QUIET_LIBRARIES: Final = ("aiohttp", "alembic", "asyncio", "uvicorn")
_STANDARD_FIELDS: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message",
    "asctime",
    "request_id",
}
# The field `chain` of a record, and the primary alias that names the logger of that chain.
_CHAIN_ALIASES: Final = {"p-chain": "P", "x-chain": "X", "c-chain": "C"}


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of one logger for its file and for the display; both are keys of LEVELS."""

    log: str
    display: str


class DaemonLoggers:
    """All loggers of this process. folder: the folder of the log files; None: no files are written.

    suffix: added to the file names of a process other than the daemon.
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
        self._handler: LogHandler | None = None

    def attach(self, stream: TextIO | None = None) -> None:
        """Install the handler of this process and set all levels. Raises StartupError if the folder cannot be used."""
        if self._folder is not None:
            try:
                self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            except OSError as error:
                raise StartupError(f"log-dir: cannot make the folder {self._folder}: {error.strerror}") from error
        logging.addLevelName(TRACE, "TRACE")
        # No line contains these fields, and collecting them takes as long as writing the line.
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
        self._handler = LogHandler(self, stream or sys.stderr, self._folder)
        logging.getLogger().handlers = [self._handler]
        self._apply()

    def add_chains(self, primary_aliases: Iterable[str]) -> None:
        """Add a logger for each chain."""
        for alias in primary_aliases:
            self._levels.setdefault(alias, self._default)
        self._apply()

    def levels(self, name: str = "") -> Mapping[str, Levels]:
        """Return the levels of one logger, or of all. Raises CallRefused."""
        return {logger_name: self._levels[logger_name] for logger_name in self._matching_names(name)}

    async def set_levels(self, name: str, log_level: str | None, display_level: str | None) -> None:
        """Change the levels of one logger, or of all. Raises CallRefused, and changes nothing then."""
        for logger_name in self._matching_names(name):
            now = self._levels[logger_name]
            self._levels[logger_name] = replace(now, log=log_level or now.log, display=display_level or now.display)
        self._apply()

    def logger_name(self, record: logging.LogRecord) -> str:
        """Return the name of the logger that a record belongs to."""
        field = str(getattr(record, "chain", None))
        chain = "P" if record.name == _FOLLOWER else _CHAIN_ALIASES.get(field, field)
        return chain if chain in self._levels else self._package_logger(record.name)

    def thresholds(self, name: str) -> tuple[int, int]:
        """Return the lowest levels, as numbers, that are written to the file and displayed."""
        levels = self._levels[name]
        return (LEVELS[levels.log] if self._folder is not None else OFF), LEVELS[levels.display]

    def _package_logger(self, python_logger: str) -> str:
        root, _, path = python_logger.partition(".")
        package = path.removeprefix(f"{_OPS}.").partition(".")[0]
        # The output of plugins has a Python logger with this name.
        if python_logger == VM_FACTORY or (root == _PACKAGE and package == _PLUGINS):
            return VM_FACTORY
        return package if root == _PACKAGE and package in PACKAGE_LOGGERS else MAIN

    def _matching_names(self, name: str) -> tuple[str, ...]:
        if name and name not in self._levels:
            raise CallRefused(f'logger with name "{name[:256]}" not found')
        return (name,) if name else tuple(sorted(self._levels))

    def _apply(self) -> None:
        """Set the levels of the Python loggers, so that a suppressed line costs nothing."""
        if self._handler is None:
            return
        chains = [name for name in self._levels if name not in (MAIN, VM_FACTORY, *PACKAGE_LOGGERS)]
        logging.getLogger().setLevel(self._lowest_threshold(MAIN))
        for logger in (VM_FACTORY, f"{_PACKAGE}.{_OPS}.{_PLUGINS}"):
            logging.getLogger(logger).setLevel(self._lowest_threshold(VM_FACTORY))
        for package in PACKAGE_LOGGERS:
            parent = f"{_PACKAGE}.{_OPS}" if package in _OPS_PACKAGES else _PACKAGE
            logging.getLogger(f"{parent}.{package}").setLevel(self._lowest_threshold(package, *chains))
        for library in _QUIET_LIBRARIES:
            logging.getLogger(library).setLevel(max(self._lowest_threshold(MAIN), logging.WARNING))

    def _lowest_threshold(self, *names: str) -> int:
        return min(min(self.thresholds(name)) for name in names)


class LogHandler(logging.Handler):
    """Write each record to the display and to the file of its logger."""

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
        """Write a record where the levels of its logger say."""
        name = self._loggers.logger_name(record)
        to_file, displayed = self._loggers.thresholds(name)
        if record.levelno >= displayed:
            self._display.emit(record)
        if record.levelno >= to_file:
            self._file_handler(name).emit(record)

    def flush(self) -> None:
        """Flush the display."""
        self._display.flush()

    def close(self) -> None:
        """Close the log files."""
        for file in self._files.values():
            file.close()
        super().close()

    def _file_handler(self, name: str) -> RotatingFileHandler:
        file = self._files.get(name)
        if file is None:
            assert self._folder is not None
            path = self._folder / f"{_UNSAFE_CHARACTERS.sub('_', name)}{self._loggers.suffix}.log"
            file = RotatingFileHandler(path, maxBytes=MAX_FILE_BYTES, backupCount=MAX_OLD_FILES, delay=True)
            file.setFormatter(self.formatter)
            self._files[name] = file
        return file


class LineFormatter(logging.Formatter):
    """Formats `time LEVEL logger message key=value …`; values with spaces or control characters are JSON-quoted."""

    def format(self, record: logging.LogRecord) -> str:
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        moment = f"{_second(int(record.created))}.{int(record.msecs):03d}Z"
        line = f"{moment} {level:5} {record.name} {escape_controls(record.getMessage())}"
        fields = "".join([f" {key}={_shown(value)}" for key, value in _fields_of(record).items()])
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return line + fields + trace


def escape_controls(message: str) -> str:
    """Return the message with control characters escaped, so that no peer or client can forge a log line."""
    if message.isprintable():
        return message
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)


def add_request_id(record: logging.LogRecord) -> bool:
    """Note the request that is being served; a filter that lets every record pass."""
    record.request_id = request_id.get()
    return True


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
    current = getattr(record, "request_id", "")
    return {**fields, "request_id": current} if current else fields


def _shown(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = text.isprintable() and text != "" and not (" " in text or "=" in text or '"' in text)
    return text if plain else json.dumps(text)


@lru_cache(1)
def _second(created_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))


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
"""From the most silent level to the most verbose one."""
