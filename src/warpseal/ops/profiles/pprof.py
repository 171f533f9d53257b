"""The file format of pprof.

Source of truth: `proto/profile.proto` of github.com/google/pprof.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from warpseal.ops.profiles.stacks import Frame, StackTotal
from warpseal.pb import profile_pb2

NANOSECONDS: Final = "nanoseconds"
_COMPRESSION_LEVEL: Final = 6


class ProfileContents(Struct, frozen=True):
    """The content of a profile.

    count, amount: names of the two values of each total.
    unit: unit of the amount.
    started_ns: Unix time at which sampling started.
    duration_ns: duration of the sampling, 0 for the state of a moment.
    period: amount between two samples, 0 if nothing is sampled.
    """

    count: str
    amount: str
    unit: str
    totals: Iterable[StackTotal]
    started_ns: int
    duration_ns: int = 0
    period: int = 0


def encode(contents: ProfileContents) -> bytes:
    """Return the profile in the file format of pprof."""
    writer = _Writer()
    profile = writer.profile
    amount = writer.value_type(contents.amount, contents.unit)
    profile.sample_type.extend((writer.value_type(contents.count, "count"), amount))
    profile.period_type.CopyFrom(amount)
    profile.period = contents.period
    profile.default_sample_type = writer.text(contents.amount)
    profile.time_nanos = contents.started_ns
    profile.duration_nanos = contents.duration_ns
    for total in contents.totals:
        sample = profile.sample.add()
        sample.location_id.extend(map(writer.location, total.stack))
        sample.value.extend((total.count, total.amount))
    return gzip.compress(profile.SerializeToString(), _COMPRESSION_LEVEL, mtime=0)


class _Writer:
    """A profile under construction; each text, function and location is stored once."""

    def __init__(self) -> None:
        self.profile = profile_pb2.Profile()
        self._texts: dict[str, int] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._locations: dict[Frame, int] = {}
        self.text("")
        # Without this mapping, pprof looks for symbols in a binary.
        self.profile.mapping.add(
            id=1,
            filename=self.text("warpseal"),
            has_functions=True,
            has_filenames=True,
            has_line_numbers=True,
        )

    def text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = len(self._texts)
            self.profile.string_table.append(text)
        return self._texts[text]

    def value_type(self, name: str, unit: str) -> profile_pb2.ValueType:
        return profile_pb2.ValueType(type=self.text(name), unit=self.text(unit))

    def location(self, frame: Frame) -> int:
        if frame not in self._locations:
            self._locations[frame] = len(self._locations) + 1
            location = self.profile.location.add(id=self._locations[frame], mapping_id=1)
            location.line.add(function_id=self._function(frame), line=frame.line)
        return self._locations[frame]

    def _function(self, frame: Frame) -> int:
        key = (frame.function, frame.file, frame.first_line)
        if key not in self._functions:
            self._functions[key] = number = len(self._functions) + 1
            name, file = self.text(frame.function), self.text(frame.file)
            self.profile.function.add(
                id=number, name=name, system_name=name, filename=file, start_line=frame.first_line
            )
        return self._functions[key]
