"""Log lines: one line per event, fields that programs can read, and the id of the request."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tests.integration.process import ABSENT_NODES
from warpseal.cli.main import main
from warpseal.cli.process import run_daemon, set_up_logging
from warpseal.ops.logs.loggers import LEVELS, JsonFormatter, LineFormatter, LogFormat
from warpseal.ops.settings import LogSettings
from warpseal.runtime.request_id import request_id


class Color(Enum):
    RED = "red"


# Field -> what its values are in a line of text, and in one of JSON.
PLAIN: list[tuple[object, str, object]] = [
    (
        {"refused": 10, "not connected": 2},
        ' field.refused=10 field."not connected"=2',
        {"refused": 10, "not connected": 2},
    ),
    (("NodeID-a", "NodeID-b"), " field=NodeID-a,NodeID-b", ["NodeID-a", "NodeID-b"]),
    (["a, b", "c"], ' field.0="a, b" field.1=c', ["a, b", "c"]),
    ([{"code": 1}, ["x"]], " field.0.code=1 field.1=x", [{"code": 1}, ["x"]]),
    (None, "", None),
    (True, " field=true", True),
    (Path("/var/lib"), " field=/var/lib", "/var/lib"),
    (b"\x01\xff", " field=01ff", "01ff"),
    (Color.RED, " field=red", "red"),
    (0.25, " field=0.25", 0.25),
    (float("inf"), " field=inf", "inf"),
    (ValueError("two words"), ' field="two words"', "two words"),
]


def make_record(
    message: str, *args: object, level: int = logging.INFO, **fields: object
) -> logging.LogRecord:
    record = logging.LogRecord("warpseal.x", level, "f.py", 1, message, args, None)
    vars(record).update(fields)
    return record


def line(message: str, *args: object, **fields: Any) -> str:
    return LineFormatter().format(make_record(message, *args, **fields))


@pytest.mark.parametrize(("value", "text", "in_json"), PLAIN)
def test_no_value_of_a_field_shows_the_notation_of_python(
    value: object, text: str, in_json: object
) -> None:
    record = make_record("event", field=value)
    assert LineFormatter().format(record).endswith(f" warpseal.x event{text}")
    assert json.loads(JsonFormatter().format(record))["field"] == in_json


def test_a_json_line_has_time_level_logger_message_fields_and_the_traceback() -> None:
    record = make_record(
        "dialled %s\n\u2028INFO forged", "a", level=logging.CRITICAL, request_id="id-1", share=0.5
    )
    try:
        raise ValueError("the reason")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()
    content = json.loads(text)
    assert list(content) == ["time", "level", "logger", "message", "share", "request_id", "trace"]
    assert len(content["time"]) == len("2024-01-01T00:00:00.000Z")
    assert (content["level"], content["logger"]) == ("fatal", "warpseal.x")
    assert content["message"] == "dialled a\n\u2028INFO forged"
    assert (content["share"], content["request_id"]) == (0.5, "id-1")
    assert content["trace"].endswith("ValueError: the reason")


def test_the_setting_makes_every_line_a_json_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    set_up_logging(LogSettings("info", folder=tmp_path, format=LogFormat.JSON))
    logging.getLogger("uvicorn").warning("of a library")
    logging.getLogger("warpseal.test").info("ours", extra={"counts": {"refused": 10}})
    displayed = stream.getvalue()
    assert (tmp_path / "main.log").read_text() == displayed
    library, ours = map(json.loads, displayed.splitlines())
    assert (library["level"], library["logger"]) == ("warn", "uvicorn")
    assert ours["counts"] == {"refused": 10}


def test_a_line_has_time_level_logger_message_and_fields() -> None:
    text = line(
        "the network is known",
        network_id=5,
        share=0.5,
        why="two words",
        empty="",
        quote='a"b',
        eq="a=b",
    )
    time, level, logger, *rest = text.split(" ", 3)
    assert len(time) == len("2024-01-01T00:00:00.000Z")
    assert time.endswith("Z")
    assert (level, logger) == ("INFO", "")
    assert (
        rest[0] == 'warpseal.x the network is known network_id=5 share=0.5 why="two words" empty=""'
        ' quote="a\\"b" eq="a=b"'
    )


@pytest.mark.parametrize(
    "bad", ["\n", "\r", "\x1b[31m", "\x00", "\x9b", "\u2028", "\u202e", "\ud800"]
)
def test_no_foreign_character_can_forge_or_hide_a_log_line(bad: str) -> None:
    for text in (line(f"peer said {bad}INFO forged"), line("peer said", text=f"{bad}INFO forged")):
        assert len(text.splitlines()) == 1
        assert text.isprintable()
        text.encode()
        assert "INFO forged" in text


def test_arguments_of_a_log_message_are_escaped() -> None:
    assert line("dialled %s", "a\nb").endswith("dialled a\\nb")


def test_a_traceback_follows_on_separate_lines() -> None:
    try:
        raise ValueError("the reason")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f.py", 1, "a fault", (), (type(error), error, error.__traceback__)
        )
    first, *rest = LineFormatter().format(record).splitlines()
    assert first.endswith("a fault")
    assert rest[-1] == "ValueError: the reason"


def test_only_log_lines_of_a_request_carry_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    set_up_logging(LogSettings("info"))
    log = logging.getLogger("warpseal.test")
    log.info("before")
    token = request_id.set("id-1")
    try:
        log.info("inside", extra={"signers": 3})
        log.debug("not shown")
    finally:
        request_id.reset(token)
    before, inside = stream.getvalue().splitlines()
    assert before.endswith("warpseal.test before")
    assert inside.endswith("warpseal.test inside signers=3 request_id=id-1")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("off", []),
        ("fatal", ["FATAL"]),
        ("error", ["FATAL", "ERROR"]),
        ("warn", ["FATAL", "ERROR", "WARNING"]),
        ("info", ["FATAL", "ERROR", "WARNING", "INFO"]),
        ("trace", ["FATAL", "ERROR", "WARNING", "INFO", "TRACE"]),
        ("debug", ["FATAL", "ERROR", "WARNING", "INFO", "TRACE", "DEBUG"]),
        ("verbo", ["FATAL", "ERROR", "WARNING", "INFO", "TRACE", "DEBUG", "Level 1"]),
    ],
)
def test_log_levels_of_the_reference_silence_the_same_lines(
    name: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    set_up_logging(LogSettings(name))
    for level in (50, 40, 30, 20, 15, 10, 1):
        logging.getLogger("warpseal.test").log(level, "x")
    levels = [
        line.split(" ", 1)[1].split(" warpseal")[0].strip()
        for line in stream.getvalue().splitlines()
    ]
    assert levels == expected
    assert list(LEVELS) == ["off", "fatal", "error", "warn", "info", "trace", "debug", "verbo"]


# At low priority the process of these tests would keep it for all that follow.
LEAST = (
    *ABSENT_NODES,
    "--index-low-priority",
    "false",
)


@pytest.fixture
def json_file(tmp_path: Path) -> str:
    """A config file whose only right key is the format of the log."""
    file = tmp_path / "config.json"
    file.write_text('{"log-format": "json", "api-port": "x"}')
    return str(file)


@pytest.mark.parametrize("command", [("serve",), ("index", "run")])
@pytest.mark.parametrize(
    ("arguments", "code", "event", "words"),
    [
        (
            ("--config", "FILE"),
            1,
            "cannot start",
            "api-port: expected a number, found 'x' (file FILE)",
        ),
        (("--config=FILE", "--api-prt", "1"), 2, "wrong usage", "did you mean --api-port?"),
        (
            ("--log-format", "json", "--api-prt", "1"),
            2,
            "wrong usage",
            "unrecognized arguments: --api-prt 1",
        ),
        (
            ("--log-format=json", "--config", "nosuch.json"),
            1,
            "cannot start",
            "nosuch.json: cannot be read",
        ),
        (
            ("--log-format=json", "--api-port"),
            2,
            "wrong usage",
            "argument --api-port: expected one argument",
        ),
        (
            ("--log-format=json", *LEAST, "--log-dir", "/dev/null/x"),
            1,
            "cannot start",
            "log-dir /dev/null/x cannot be",
        ),
    ],
)
def test_a_start_that_is_refused_prints_one_line_of_json(
    command: tuple[str, ...],
    arguments: tuple[str, ...],
    code: int,
    event: str,
    words: str,
    json_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main((*command, *(argument.replace("FILE", json_file) for argument in arguments))) == code
    )
    output = capsys.readouterr()
    (text,) = output.err.splitlines()
    content = json.loads(text)
    assert (content["level"], content["message"], output.out) == ("fatal", event, "")
    assert words.replace("FILE", json_file) in content["reason"]


def test_another_command_prints_its_errors_as_text(
    json_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("index", "status", "--config", json_file)) == 1
    assert capsys.readouterr().err.startswith("warpseal: the configuration has ")


def fail_in_a_thread() -> None:
    raise ValueError("in a thread")


class FailsAtItsEnd:
    def __del__(self) -> None:
        raise ValueError("at its end")


async def fail_everywhere() -> None:
    thread = threading.Thread(target=fail_in_a_thread, name="worker")
    thread.start()
    thread.join()
    warnings.warn("an old call", DeprecationWarning, stacklevel=1)
    FailsAtItsEnd()
    raise ValueError("at last")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("log_format", list(LogFormat))
def test_warnings_and_errors_that_nothing_catches_are_lines_of_the_log(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = warnings.showwarning, threading.excepthook, sys.unraisablehook
    try:
        loggers = set_up_logging(LogSettings(format=log_format))
        assert run_daemon(fail_everywhere(), loggers) == 1
    finally:
        root.handlers, root.level = handlers, level
    assert (warnings.showwarning, threading.excepthook, sys.unraisablehook) == before
    text = capsys.readouterr().err
    events = [
        "internal error, a thread ends",
        "warning of Python",
        "internal error, ignored",
        "internal error, the",
    ]
    if log_format is LogFormat.TEXT:
        assert [event for event in events if f" warpseal.cli.process {event}" in text] == events
        return
    lines = [json.loads(line) for line in text.splitlines()]
    assert [
        line["message"].startswith(event) for line, event in zip(lines, events, strict=True)
    ] == [True] * 4
    in_thread, warning, at_end, last = lines
    assert (in_thread["thread_name"], warning["reason"], last["level"]) == (
        "worker",
        "an old call",
        "fatal",
    )
    assert [
        error in line["trace"]
        for error, line in (("in a thread", in_thread), ("at its end", at_end))
    ] == [True] * 2
    assert "ValueError: at last" in last["trace"]
