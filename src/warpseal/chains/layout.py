"""How structures and interface values are written: fields in order, a type id before a choice.

Source of truth: avalanchego `codec/reflectcodec/type_codec.go`, `codec/linearcodec/codec.go`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, TypeVar

from warpseal.chains.codec import Codec, Fixed
from warpseal.chains.cursor import Cursor, MalformedChainBytes, UnknownType

T = TypeVar("T")

_TYPE_ID_BYTES = 4

# A run of fixed fields that is read at once, then the codec of the variable field behind it; either may be missing.
_Part = tuple[Struct | None, Callable[[Cursor], Any] | None]


class Layout(Codec[T]):
    """The fields of a dataclass in the order of their bytes, each with its codec."""

    def __init__(self, make: type[T], **fields: Codec[Any]) -> None:
        """`fields` must name the dataclass's fields that it is made from, in their order."""
        names = [field.name for field in dataclasses.fields(make) if field.init]  # type: ignore[arg-type]
        if names != list(fields):
            raise TypeError(f"{make.__name__} has the fields {names}, its layout {list(fields)}")
        self.name = make.__name__
        self.type = make
        self.fields = dict(fields)
        self.least_bytes = sum(codec.least_bytes for codec in fields.values())
        self._parts = tuple(_parts(fields))

    def read(self, cursor: Cursor) -> T:
        values: list[Any] = []
        for run, read in self._parts:
            if run is not None:
                start = cursor.offset
                end = start + run.size
                if end > cursor.size:
                    raise cursor.short(run.size, self.name)
                values += run.unpack_from(cursor.raw, start)
                cursor.offset = end
            if read is not None:
                values.append(read(cursor))
        return self.type(*values)

    def write(self, value: T, out: bytearray) -> None:
        for name, codec in self.fields.items():
            codec.write(getattr(value, name), out)


class OneOf(Codec[T]):
    """A uint32 type id, then the structure that it names.

    what: the place, for errors. members: the layouts allowed there. names: every type id that the chain knows, so that
    a type that is known but not allowed there is told apart from an unknown one.
    """

    def __init__(self, what: str, members: Mapping[int, Layout[Any]], names: Mapping[int, str]) -> None:
        self.members = dict(members)
        self._what = what
        self._names = names
        self._readers = {type_id: layout.read for type_id, layout in members.items()}
        self._by_type = {layout.type: (type_id, layout) for type_id, layout in members.items()}
        self.least_bytes = _TYPE_ID_BYTES + min(layout.least_bytes for layout in members.values())

    def type_id_of(self, value: T) -> int:
        """Return the type id of a value of this place. Raises ValueError where it cannot stand there."""
        return self._member(value)[0]

    def read(self, cursor: Cursor) -> T:
        start = cursor.offset
        end = start + 4
        if end > cursor.size:
            raise cursor.short(4, f"type id of {self._what}")
        type_id = int.from_bytes(cursor.raw[start:end], "big")
        read = self._readers.get(type_id)
        if read is None:
            raise self._refusal(start, type_id)
        cursor.offset = end
        value: T = read(cursor)
        return value

    def write(self, value: T, out: bytearray) -> None:
        type_id, layout = self._member(value)
        out += type_id.to_bytes(_TYPE_ID_BYTES, "big")
        layout.write(value, out)

    def _member(self, value: T) -> tuple[int, Layout[Any]]:
        try:
            return self._by_type[type(value)]
        except KeyError:
            raise ValueError(f"{type(value).__name__} cannot be {self._what}") from None

    def _refusal(self, offset: int, type_id: int) -> MalformedChainBytes:
        name = self._names.get(type_id)
        if name is None:
            return UnknownType(offset, type_id, self._what)
        return MalformedChainBytes(offset, f"{self._what} cannot be of type {type_id} ({name})")


def _parts(fields: Mapping[str, Codec[Any]]) -> list[_Part]:
    parts: list[_Part] = []
    run = ""
    for codec in fields.values():
        if isinstance(codec, Fixed):
            run += codec.format
            continue
        parts.append((Struct(">" + run) if run else None, codec.read))
        run = ""
    if run:
        parts.append((Struct(">" + run), None))
    return parts
