"""Codecs of the chains' values, which follow from the annotations of dataclasses.

Source of truth: avalanchego `codec/reflectcodec`, `codec/linearcodec`, `utils/wrappers/packing.go`.
A codec reads and writes, so that one description serves both ways: reading what was written gives
the same value, and writing what was read gives the same bytes.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Struct

from warpseal.chains.ids import Address, AssetID, BlockID, TxID
from warpseal.warp.codec import CodecReader, MalformedMessage
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID

T = TypeVar("T")

_MAX_TEXT_BYTES: Final = 2**16 - 1
_COUNT_BYTES: Final = 4
_TYPE_ID_BYTES: Final = 4

# Fixed fields that are read at once, then the reading function of the variable field behind them.
# Either may be None.
_Step = tuple[struct.Struct | None, Callable[["ChainReader"], Any] | None]


class MalformedChainBytes(MalformedMessage):
    """The bytes of a block, a transaction or an output do not follow the format."""


class UnknownType(MalformedChainBytes):
    """A type id is not known, so the end of the value is not known either."""

    def __init__(self, offset: int, type_id: int, place: str) -> None:
        super().__init__(offset, f"{place} has the unknown type id {type_id}")
        self.type_id = type_id


class ChainReader(CodecReader):
    """The reader of chain bytes: it raises MalformedChainBytes."""

    __slots__ = ()
    error = MalformedChainBytes


class Codec(ABC, Generic[T]):
    """Reads and writes one kind of value.

    least_bytes: size of the shortest encoding; at least 0.
    """

    least_bytes: int

    @abstractmethod
    def read(self, reader: ChainReader) -> T:
        """Return the next value of the reader. Raises MalformedChainBytes."""

    @abstractmethod
    def write(self, value: T, out: bytearray) -> None:
        """Append the bytes of `value`. Raises ValueError if it does not fit the format."""

    def parse(self, raw: bytes) -> T:
        """Return the value whose bytes, codec version first, are exactly `raw`.

        Raises MalformedChainBytes, or its subclass UnknownType for an unknown type id.
        """
        reader = ChainReader(raw)
        reader.version()
        value = self.read(reader)
        reader.finish()
        return value


class Fixed(Codec[T]):
    """A value of fixed size. Runs of such values are read at once.

    format: the character that stands for the value in a `struct` layout.
    """

    format: str


class Unsigned(Fixed[int]):
    """A big-endian unsigned integer of 1, 4 or 8 bytes."""

    def __init__(self, size_bytes: int) -> None:
        self.format = {1: "B", 4: "I", 8: "Q"}[size_bytes]
        self.least_bytes = size_bytes

    def read(self, reader: ChainReader) -> int:
        return reader.unsigned(self.least_bytes, "integer")

    def write(self, value: int, out: bytearray) -> None:
        try:
            out += value.to_bytes(self.least_bytes, "big")
        except OverflowError:
            kind = f"an unsigned integer of {self.least_bytes} bytes"
            raise ValueError(f"{value} does not fit {kind}") from None


class FixedBytes(Fixed[bytes]):
    """Exactly `length` bytes."""

    def __init__(self, length: int) -> None:
        self.format = f"{length}s"
        self.least_bytes = length

    def read(self, reader: ChainReader) -> bytes:
        return reader.take(self.least_bytes, "bytes")

    def write(self, value: bytes, out: bytearray) -> None:
        if len(value) != self.least_bytes:
            raise ValueError(f"{len(value)} bytes where {self.least_bytes} are written")
        out += value


class SizedBytes(Codec[bytes]):
    """Bytes behind their own uint32 length."""

    least_bytes = _COUNT_BYTES

    def read(self, reader: ChainReader) -> bytes:
        return reader.take(reader.u32("length"), "bytes")

    def write(self, value: bytes, out: bytearray) -> None:
        write_count(len(value), out)
        out += value


class Text(Codec[str]):
    """UTF-8 behind a uint16 length in bytes.

    Other bytes are refused: the chains accept only ASCII in names.
    """

    least_bytes = 2

    def read(self, reader: ChainReader) -> str:
        raw = reader.take(reader.unsigned(2, "length of text"), "text")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MalformedChainBytes(reader.offset - len(raw), "text is not UTF-8") from None

    def write(self, value: str, out: bytearray) -> None:
        raw = value.encode()
        if len(raw) > _MAX_TEXT_BYTES:
            raise ValueError(f"a text of {len(raw)} bytes is longer than {_MAX_TEXT_BYTES}")
        out += len(raw).to_bytes(2, "big")
        out += raw


class ListOf(Codec[tuple[T, ...]]):
    """A uint32 count, then the elements.

    The count is checked against the bytes left before any is read.
    """

    least_bytes = _COUNT_BYTES

    def __init__(self, element: Codec[T], place: str) -> None:
        # An element of no bytes would make the count boundless.
        self._least_element_bytes = max(1, element.least_bytes)
        self.element = element
        self._read_element = element.read
        self._place = place

    def read(self, reader: ChainReader) -> tuple[T, ...]:
        count = reader.count(self._least_element_bytes, self._place)
        read = self._read_element
        if count == 1:
            return (read(reader),)
        return tuple([read(reader) for _ in range(count)])

    def write(self, value: tuple[T, ...], out: bytearray) -> None:
        write_count(len(value), out)
        for element in value:
            self.element.write(element, out)


class ListOfFixed(ListOf[T]):
    """A list of elements of fixed size, which are read at once."""

    def __init__(self, element: Fixed[T], place: str) -> None:
        super().__init__(element, place)
        self._layout = struct.Struct(f">{element.format}")

    def read(self, reader: ChainReader) -> tuple[T, ...]:
        layout = self._layout
        count = reader.count(layout.size, self._place)
        start = reader.offset
        reader.offset = end = start + count * layout.size
        if count == 1:
            return layout.unpack_from(reader.raw, start)
        return tuple([fields[0] for fields in layout.iter_unpack(reader.raw[start:end])])


class StructCodec(Codec[T]):
    """The fields of a struct in the order of their bytes, each with its codec."""

    def __init__(self, make: type[T], fields: Mapping[str, Codec[Any]]) -> None:
        self.name = make.__name__
        self.type = make
        self.fields = fields
        self.least_bytes = sum(codec.least_bytes for codec in fields.values())
        self._steps = tuple(_reading_steps(fields))

    def read(self, reader: ChainReader) -> T:
        values: list[Any] = []
        for layout, read in self._steps:
            if layout is not None:
                start = reader.offset
                end = start + layout.size
                if end > reader.size:
                    raise reader.truncated(layout.size, self.name)
                values += layout.unpack_from(reader.raw, start)
                reader.offset = end
            if read is not None:
                values.append(read(reader))
        return self.type(*values)

    def write(self, value: T, out: bytearray) -> None:
        for name, codec in self.fields.items():
            codec.write(getattr(value, name), out)


class Interface(Codec[T]):
    """A uint32 type id, then the struct that it names.

    place: description of the value in error texts.
    members: the structs that may stand here, by type id.
    registry: all types of the chain. Errors distinguish an unknown type from a type of the chain
        that cannot stand here.
    """

    def __init__(
        self, place: str, members: Mapping[int, StructCodec[Any]], registry: TypeRegistry
    ) -> None:
        self.members = members
        self._place = place
        self._registry = registry
        self._readers = {type_id: member.read for type_id, member in members.items()}
        self._by_type = {member.type: (type_id, member) for type_id, member in members.items()}
        self.least_bytes = _TYPE_ID_BYTES + min(member.least_bytes for member in members.values())

    def type_id_of(self, value: T) -> int:
        """Return the type id of a value.

        Raises ValueError if a value of its type cannot stand here.
        """
        return self._member(value)[0]

    def read(self, reader: ChainReader) -> T:
        start = reader.offset
        end = start + 4
        if end > reader.size:
            raise reader.truncated(4, f"type id of {self._place}")
        type_id = int.from_bytes(reader.raw[start:end], "big")
        read = self._readers.get(type_id)
        if read is None:
            raise self._registry.wrong_type(start, type_id, self._place)
        reader.offset = end
        value: T = read(reader)
        return value

    def write(self, value: T, out: bytearray) -> None:
        type_id, member = self._member(value)
        out += type_id.to_bytes(_TYPE_ID_BYTES, "big")
        member.write(value, out)

    def _member(self, value: T) -> tuple[int, StructCodec[Any]]:
        try:
            return self._by_type[type(value)]
        except KeyError:
            raise ValueError(f"{type(value).__name__} cannot be {self._place}") from None


class AsInterface(Struct, frozen=True):
    """Annotates a type whose bytes begin with a type id.

    place: description of the value in error texts.
    """

    place: str


class TypeRegistry:
    """The type ids of one chain, and the codecs of its dataclasses.

    The annotation of a field gives its codec: bytes behind their length, a text, an id, a tuple,
    another struct, or the codec in `Annotated`. With `AsInterface` it allows the types of the union
    that are registered.
    """

    def __init__(self, types: Mapping[int, type[Any] | str]) -> None:
        """Build the registry.

        types: the class of each type id; the name alone if the type has no codec.
        """
        self._types: Mapping[int, Any] = types
        self._structs: dict[Any, StructCodec[Any]] = {}

    def struct(self, make: type[T]) -> StructCodec[T]:
        """Return the codec of a struct, whose generic parameters are given."""
        if make not in self._structs:
            origin, args = get_origin(make) or make, get_args(make)
            fields: dict[str, Codec[Any]] = {}
            for name, hint in get_type_hints(origin, include_extras=True).items():
                is_generic = bool(getattr(hint, "__parameters__", ()))
                concrete_hint = hint[args] if is_generic else hint
                fields[name] = self._codec(concrete_hint, name.replace("_", " "))
            self._structs[make] = StructCodec(origin, fields)
        return self._structs[make]

    def interface(self, place: str, union: Any) -> Interface[Any]:
        """Return the codec of the registered types of a union, or of their base classes.

        place: description of the value in error texts.
        """
        allowed = get_args(union) or (union,)
        types = {type_id: make for type_id, make in self._types.items() if isinstance(make, type)}
        members: dict[int, StructCodec[Any]] = {}
        for type_id, make in types.items():
            if issubclass(make, allowed):
                members[type_id] = self.struct(make)
        return Interface(place, members, self)

    def wrong_type(self, offset: int, type_id: int, place: str) -> MalformedChainBytes:
        """Return the error for a type id that cannot stand at `offset`."""
        registered = self._types.get(type_id)
        if registered is None:
            return UnknownType(offset, type_id, place)
        name = registered if isinstance(registered, str) else registered.__name__
        return MalformedChainBytes(offset, f"{place} cannot be of type {type_id} ({name})")

    def _codec(self, hint: Any, place: str) -> Codec[Any]:
        arguments = get_args(hint)
        if get_origin(hint) is Annotated:
            mark = arguments[1]
            if isinstance(mark, Codec):
                return mark
            return self.interface(mark.place, arguments[0])
        if get_origin(hint) is tuple:
            element = self._codec(arguments[0], place)
            if isinstance(element, Fixed):
                return ListOfFixed(element, place)
            return ListOf(element, place)
        return _CODECS.get(hint) or self.struct(hint)


def write_count(count: int, out: bytearray) -> None:
    """Append a uint32 count or length. Raises ValueError if it does not fit."""
    if count >= 2**32:
        raise ValueError(f"{count} is more than a count of 4 bytes can say")
    out += count.to_bytes(_COUNT_BYTES, "big")


def _reading_steps(fields: Mapping[str, Codec[Any]]) -> list[_Step]:
    steps: list[_Step] = []
    run = ""
    for codec in fields.values():
        if isinstance(codec, Fixed):
            run += codec.format
            continue
        steps.append((struct.Struct(">" + run) if run else None, codec.read))
        run = ""
    if run:
        steps.append((struct.Struct(">" + run), None))
    return steps


U32: Final = Unsigned(4)
U64: Final = Unsigned(8)
ID: Final = FixedBytes(32)
SIZED: Final = SizedBytes()
TEXT: Final = Text()

Uint8: TypeAlias = Annotated[int, Unsigned(1)]
Uint32: TypeAlias = Annotated[int, U32]
Uint64: TypeAlias = Annotated[int, U64]
Bytes32: TypeAlias = Annotated[bytes, ID]

_CODECS: Final[Mapping[Any, Codec[Any]]] = {
    bytes: SIZED,
    str: TEXT,
    **dict.fromkeys((Address, NodeID), FixedBytes(20)),
    **dict.fromkeys((AssetID, BlockID, ChainID, SubnetID, TxID, ValidationID), ID),
}
