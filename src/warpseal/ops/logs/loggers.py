"""The loggers that an operator can address, and their lines.

Each logger has a file, a level of its file and a level of the display.

Source of truth: avalanchego's `main`, `vm-factory` and chain loggers; the daemon adds one for each
package that logs. These names are not Python loggers: the chains share their code, and the field
`chain` of a record names its chain.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from math import isfinite
from pathlib import Path
from typing import Any, Final, TextIO

from msgspec import Struct

from warpseal.errors import CallRefused, StartupError
from warpseal.runtime.process import os_error_text
from warpseal.runtime.request_id import request_id

MAIN: Final = "main"
VM_FACTORY: Final = "vm-factory"
PACKAGE_LOGGERS: Final = (
    "aggregation",
    "api",
    "delivery",
    "events",
    "forwarding",
    "health",
    "index",
    "indexer",
    "l1",
    "peers",
    "prices",
    "profiles",
    "store",
    "upstream",
    "usage",
    "validators",
)
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
MAX_OLD_FILES: Final = 7
_UNSAFE_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_-]")
_PACKAGE: Final = "warpseal"
_OPS: Final = "ops"
_OPS_PACKAGES: Final = frozenset(("health", "profiles"))
_PLUGINS: Final = "plugins"
_FOLLOWER: Final = "warpseal.l1.follower"
_QUIET_LIBRARIES: Final = ("aiohttp", "asyncio", "uvicorn")
# The field `chain` of a record, and the primary alias that names the logger of that chain.
_CHAIN_ALIASES: Final = {"p-chain": "P", "x-chain": "X", "c-chain": "C"}

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

_SCALARS: Final = (str, int, float)
_LEVEL_NAMES: Final = {number: name for name, number in LEVELS.items()}
_STANDARD_FIELDS: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message",
    "asctime",
    "request_id",
}


class LogFormat(StrEnum):
    """The format of all log lines of a process."""

    TEXT = "text"
    JSON = "json"


class Levels(Struct, frozen=True):
    """The levels of one logger for its file and for the display; both are keys of LEVELS."""

    log: str
    display: str


class DaemonLoggers:
    """All loggers of this process.

    log_level: level of every logger until it is changed, a key of LEVELS.
    folder: folder of the log files; None: no files are written.
    suffix: text behind the file names of a process other than the daemon.
    """

    def __init__(
        self,
        log_level: str = "info",
        folder: Path | None = None,
        *,
        suffix: str = "",
        log_format: LogFormat = LogFormat.TEXT,
    ) -> None:
        self._default = Levels(log_level, log_level)
        self._levels = dict.fromkeys((MAIN, VM_FACTORY, *PACKAGE_LOGGERS), self._default)
        self._folder = folder
        self.suffix = suffix
        self.log_format = log_format
        self._handler: LogHandler | None = None

    def attach(self, stream: TextIO | None = None) -> None:
        """Install the handler of this process and set all levels.

        Raises StartupError if the folder cannot be used.
        """
        if self._folder is not None:
            _make_folder(self._folder)
        logging.addLevelName(TRACE, "TRACE")
        # No line contains these fields, and collecting them takes as long as writing the line.
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
        self._handler = LogHandler(self, stream or sys.stderr, self._folder)
        logging.getLogger().handlers = [self._handler]
        self._apply()

    def reopen(self) -> None:
        """Open the log files again, because another program may have moved or deleted them."""
        if self._handler is not None:
            count = self._handler.reopen_files()
            logging.getLogger(_PACKAGE).info("log files reopened", extra={"files": count})

    def add_chains(self, primary_aliases: Iterable[str]) -> None:
        """Add a logger for each chain."""
        for alias in primary_aliases:
            self._levels.setdefault(alias, self._default)
        self._apply()

    def levels(self, name: str = "") -> Mapping[str, Levels]:
        """Return the levels of one logger, or of all. Raises CallRefused."""
        return {matching: self._levels[matching] for matching in self._matching_names(name)}

    def set_levels(self, name: str, log_level: str | None, display_level: str | None) -> None:
        """Change the levels of one logger, or of all. Raises CallRefused before any change."""
        for matching in self._matching_names(name):
            before = self._levels[matching]
            self._levels[matching] = Levels(
                log=log_level or before.log, display=display_level or before.display
            )
        self._apply()

    def logger_name(self, record: logging.LogRecord) -> str:
        """Return the name of the logger that a record belongs to."""
        field = str(getattr(record, "chain", None))
        chain = "P" if record.name == _FOLLOWER else _CHAIN_ALIASES.get(field, field)
        if chain in self._levels:
            return chain
        root, _, path = record.name.partition(".")
        package = path.removeprefix(f"{_OPS}.").partition(".")[0]
        # The output of plugins has a Python logger with this name.
        if record.name == VM_FACTORY or (root == _PACKAGE and package == _PLUGINS):
            return VM_FACTORY
        return package if root == _PACKAGE and package in PACKAGE_LOGGERS else MAIN

    def thresholds(self, name: str) -> tuple[int, int]:
        """Return the lowest levels, as numbers, that are written to the file and displayed."""
        levels = self._levels[name]
        file_threshold = OFF if self._folder is None else LEVELS[levels.log]
        return file_threshold, LEVELS[levels.display]

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
            # The chains share the code of the packages, and each may have a lower level.
            threshold = self._lowest_threshold(package, *chains)
            logging.getLogger(f"{parent}.{package}").setLevel(threshold)
        for library in _QUIET_LIBRARIES:
            logging.getLogger(library).setLevel(max(self._lowest_threshold(MAIN), logging.WARNING))

    def _lowest_threshold(self, *names: str) -> int:
        return min(min(self.thresholds(name)) for name in names)


def _make_folder(folder: Path) -> None:
    """Make the folder of the log files. Raises StartupError if it cannot be used."""
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        reason = os_error_text(error)
        raise StartupError(f"log-dir {folder} cannot be created: {reason}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StartupError(
            f"log-dir {folder} is not writable: change its owner, or set another log-dir"
        )


class LogHandler(logging.Handler):
    """Writes each record to the display and to the file of its logger."""

    def __init__(self, loggers: DaemonLoggers, stream: TextIO, folder: Path | None) -> None:
        super().__init__()
        self._loggers = loggers
        self._folder = folder
        self._display = logging.StreamHandler(stream)
        self._files: dict[str, LogFile] = {}
        self._unwritable: set[str] = set()
        is_json = loggers.log_format is LogFormat.JSON
        self.setFormatter(JsonFormatter() if is_json else LineFormatter())
        self._display.setFormatter(self.formatter)
        self.addFilter(add_request_id)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the outputs whose levels allow it."""
        name = self._loggers.logger_name(record)
        to_file, displayed = self._loggers.thresholds(name)
        if record.levelno >= displayed:
            self._display.emit(record)
        if record.levelno >= to_file:
            self._use_file(name, lambda file: file.emit(record))

    def flush(self) -> None:
        """Flush the display."""
        self._display.flush()

    def close(self) -> None:
        """Close the log files."""
        for file in self._files.values():
            file.close()
        super().close()

    def reopen_files(self) -> int:
        """Open again the files that have been written to; return their number."""
        self.acquire()
        try:
            for name in self._files:
                self._use_file(name, LogFile.reopen)
            return len(self._files)
        finally:
            self.release()

    def _use_file(self, name: str, act: Callable[[LogFile], None]) -> None:
        """Write to a file; of the failures up to the next success the first is displayed."""
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = self._new_file(name)
        try:
            act(file)
            self._unwritable.discard(name)
        except OSError as error:
            if name not in self._unwritable:
                self._unwritable.add(name)
                self._display_failure(file, error)

    def _new_file(self, name: str) -> LogFile:
        assert self._folder is not None
        safe_name = _UNSAFE_CHARACTERS.sub("_", name)
        file = LogFile(self._folder / f"{safe_name}{self._loggers.suffix}.log")
        file.setFormatter(self.formatter)
        return file

    def _display_failure(self, file: LogFile, error: OSError) -> None:
        """Display a warning past the loggers, which would write it to a file as well."""
        warning = {
            "name": __name__,
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "log file cannot be written",
            "path": file.baseFilename,
            "reason": os_error_text(error),
        }
        self._display.emit(logging.makeLogRecord(warning))


class LogFile(RotatingFileHandler):
    """A log file, rotated at MAX_FILE_BYTES.

    If another program moves or deletes the file, the next line opens it again. Methods raise
    OSError.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, maxBytes=MAX_FILE_BYTES, backupCount=MAX_OLD_FILES, encoding="utf-8", delay=True
        )

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None and self._is_moved():
            self.reopen()
        super().emit(record)

    def reopen(self) -> None:
        """Close the file, and open it again by its path."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.stream = self._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of logging
        """Raise the error of the operating system that is being handled."""
        error = sys.exception()
        if isinstance(error, OSError):
            raise error
        super().handleError(record)

    def _is_moved(self) -> bool:
        try:
            assert self.stream is not None
            return not os.path.samestat(os.stat(self.baseFilename), os.fstat(self.stream.fileno()))
        except FileNotFoundError:
            return True


class LineFormatter(logging.Formatter):
    """Formats `time LEVEL logger message key=value …`; values with spaces or control characters are
    JSON-quoted.

    The fields of a mapping are named `key.name`, items of a list are joined by commas, and None is
    left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        line = f"{_moment(record)} {level:5} {record.name} {escape_controls(record.getMessage())}"
        fields = "".join([_pairs(key, value) for key, value in _fields_of(record).items()])
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return line + fields + trace


class JsonFormatter(logging.Formatter):
    """Formats a JSON object: `time`, `level`, `logger`, `message`, the fields, and `trace` with a
    traceback.

    Its ASCII text escapes control characters, so that no peer or client can forge a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": _LEVEL_NAMES.get(record.levelno) or record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields_of(record).items():
            line.setdefault(key, plain_value(value))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


def plain_value(value: object) -> Any:
    """Return a value as JSON has it, so that none shows the notation of Python; bytes are hex."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return plain_value(value.value) if isinstance(value, Enum) else str(value)


def escape_controls(message: str) -> str:
    """Return the message with control characters escaped, so that no peer or client can forge a log
    line.
    """
    if message.isprintable():
        return message
    return "".join(map(_escape_control, message))


def _escape_control(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def add_request_id(record: logging.LogRecord) -> bool:
    """Note the request that is being served; a filter that lets every record pass."""
    record.request_id = request_id.get()
    return True


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
    current = getattr(record, "request_id", "")
    return {**fields, "request_id": current} if current else fields


def _pairs(key: str, value: object) -> str:
    """Return ` key=value`, or the pairs of the items of a value that has some."""
    if isinstance(value, _SCALARS):
        return f" {key}={_quoted(_text(value))}"
    plain = plain_value(value)
    if isinstance(plain, list):
        texts = [_text(item) for item in plain if isinstance(item, _SCALARS)]
        can_join = all(_is_plain(text) and "," not in text for text in texts)
        if can_join and len(texts) == len(plain):
            return _pairs(key, ",".join(texts))
        plain = {str(position): item for position, item in enumerate(plain)}
    if isinstance(plain, dict):
        return "".join([_pairs(f"{key}.{_quoted(name)}", item) for name, item in plain.items()])
    return "" if plain is None else _pairs(key, plain)


def _text(value: str | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _quoted(text: str) -> str:
    return text if _is_plain(text) else json.dumps(text)


def _is_plain(text: str) -> bool:
    return text.isprintable() and text != "" and not (" " in text or "=" in text or '"' in text)


def _moment(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(1)
def _second(created_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
