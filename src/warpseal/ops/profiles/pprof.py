"""Encode stacks and their totals as the gzip-compressed protocol buffer of pprof.

Source of truth: the description of the format at github.com/google/pprof, `proto/profile.proto`.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass

from warpseal.pb.profile_pb2 import Profile, ValueType
from warpseal.runtime.stack_samples import Frame, StackTotal

_COMPRESSION_LEVEL = 6


@dataclass(frozen=True, slots=True)
class ProfileContents:
    """The content of a profile. count, amount, unit: names of the two values of each total, and the unit of the amount.

    started_ns: Unix time; duration_ns: 0 for the state of a moment; period: `amount` between two samples, 0 if
    everything is counted.
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
        self.profile = Profile()
        self._texts: dict[str, int] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._locations: dict[Frame, int] = {}
        self.text("")
        # Without this mapping, pprof looks for symbols in a binary.
        self.profile.mapping.add(
            id=1, filename=self.text("warpseal"), has_functions=True, has_filenames=True, has_line_numbers=True
        )

    def text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = len(self._texts)
            self.profile.string_table.append(text)
        return self._texts[text]

    def value_type(self, name: str, unit: str) -> ValueType:
        return ValueType(type=self.text(name), unit=self.text(unit))

    def location(self, frame: Frame) -> int:
        location_id = self._locations.get(frame)
        if location_id is not None:
            return location_id
        location_id = self._locations[frame] = len(self._locations) + 1
        location = self.profile.location.add(id=location_id, mapping_id=1)
        location.line.add(function_id=self._function(frame), line=frame.line)
        return location_id

    def _function(self, frame: Frame) -> int:
        key = (frame.function, frame.file, frame.first_line)
        function_id = self._functions.get(key)
        if function_id is not None:
            return function_id
        function_id = self._functions[key] = len(self._functions) + 1
        name = self.text(frame.function)
        self.profile.function.add(
            id=function_id, name=name, system_name=name, filename=self.text(frame.file), start_line=frame.first_line
        )
        return function_id
