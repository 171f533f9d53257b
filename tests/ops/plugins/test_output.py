"""Plugin output is logged line by line, for any chunking, and within the bounds."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.ops.plugins.probe import PluginOutput
from warpseal.ops.settings import OutputBounds

BOUNDS = OutputBounds(bytes=200, lines=10, line_bytes=30)


class RecordingHandler(logging.Handler):
    """Keeps the texts of log records, and the reported number of dropped bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self.lines.append(record.getMessage())
        self.dropped += getattr(record, "dropped_bytes", 0)


def log_chunks(chunks: list[bytes], bounds: OutputBounds = BOUNDS) -> RecordingHandler:
    """Log chunks of standard output; return the handler that recorded the lines."""
    handler, log = RecordingHandler(), logging.getLogger("vm-factory")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        output = PluginOutput("vm", bounds)
        for chunk in chunks:
            output.feed("stdout", chunk)
        output.end()
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    return handler


@given(st.lists(st.text("abc", min_size=1, max_size=10), max_size=6), st.integers(1, 7))
def test_lines_survive_any_chunking(lines: list[str], size: int) -> None:
    raw = "\n".join(lines).encode()
    assert log_chunks([raw[at : at + size] for at in range(0, len(raw), size)]).lines == lines


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_output_stays_within_the_bounds_and_dropped_bytes_are_reported(chunks: list[bytes]) -> None:
    output = log_chunks(chunks)
    kept_bytes = sum(map(len, output.lines))
    assert len(output.lines) <= BOUNDS.lines
    assert all(len(line) <= BOUNDS.line_bytes for line in output.lines)
    assert kept_bytes <= BOUNDS.bytes
    total_bytes = sum(len(chunk) for chunk in chunks)
    assert kept_bytes + output.dropped <= total_bytes


@pytest.mark.parametrize("raw", [b"x" * 10_000, b"x\n" * 10_000, b"\n" * 10_000, b"\xff" * 10_000])
def test_a_flood_of_any_kind_leaves_a_few_lines(raw: bytes) -> None:
    assert len(log_chunks([raw] * 3).lines) <= BOUNDS.lines


def test_both_streams_keep_their_lines_apart(caplog: pytest.LogCaptureFixture) -> None:
    output = PluginOutput("vm", BOUNDS)
    with caplog.at_level(logging.INFO, "vm-factory"):
        output.feed("stdout", b"one ")
        output.feed("stderr", b"two ")
        output.feed("stdout", b"line\r\n")
        output.feed("stderr", b"lines\n")
        output.end()
    assert caplog.messages == ["one line", "two lines"]
