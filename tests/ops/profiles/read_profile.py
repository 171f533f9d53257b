"""Profiles as a reader of the protocol buffer sees them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
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

    @property
    def default_amount(self) -> str:
        """Return the name of the value that pprof shows first."""
        return self.raw.string_table[self.raw.default_sample_type]

    def amount_of(self, function: str) -> int:
        """Return the sum of the amounts of all stacks that have a function.

        function: end of its name.
        """
        return sum(sample.amount for sample in self._samples_of(function))

    def count_of(self, function: str) -> int:
        """Return the sum of the counts of these stacks."""
        return sum(sample.count for sample in self._samples_of(function))

    def _samples_of(self, function: str) -> Iterator[Sample]:
        for sample in self.samples:
            if any(name.endswith(function) for name in sample.functions):
                yield sample


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
