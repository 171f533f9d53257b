"""Signed messages and shares as JSON Lines: a record a line, after a line that names the format.

Source of truth: docs/store.md, "Export and import". Bytes are hex, with or without 0x; ids may also
be base58-check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import MalformedID, MessageID, parse_id
from warpseal.warp.message import SIGNATURE_BYTES, UnsignedMessage
from warpseal.warp.validator_set import PUBLIC_KEY_BYTES

NumberedLines = Iterator[tuple[int, bytes | None]]
"""Lines with their numbers, from 1; None for a line that is too long."""

FORMAT: Final = "warpseal-store"
VERSION: Final = 1
# A signature names all its keys, of which 40,000 fit.
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = 128 * 1024
# The top bits of a point: it is compressed; it is the point at infinity.
_COMPRESSED_FLAG: Final = 0x80
_POINT_FLAGS: Final = _COMPRESSED_FLAG | 0x40


class BadLine(ValueError):
    """A line that is skipped; the text is the reason."""


class MessageLine(Struct, frozen=True):
    """A message; the lines after it belong to it.

    for_ever: whether the message is never evicted.
    """

    message: UnsignedMessage
    for_ever: bool


class SignedLine(Struct, frozen=True):
    """A share or an aggregate signature of a message, which is given by its id or in full."""

    message: UnsignedMessage | MessageID
    signed: StoredShare | StoredSignature


class _Record(msgspec.Struct, rename="camel"):
    type: str | None = None
    format: str | None = None
    version: int | None = None
    network_id: int | None = None
    message_id: str | None = None
    unsigned_message: str | None = None
    for_ever: bool = False
    public_key: str | None = None
    public_keys: list[str] | None = None
    signature: str | None = None
    verified: bool = False


_DECODER: Final = msgspec.json.Decoder(_Record)


def header_line(schema_version: str, network_id: int | None) -> bytes:
    """Return the first line of an export.

    network_id: network of the messages; None for an empty store.
    """
    network = {} if network_id is None else {"networkId": network_id}
    return _encode(format=FORMAT, version=VERSION, schemaVersion=schema_version, **network)


def message_line(message: UnsignedMessage, *, for_ever: bool) -> bytes:
    """Return the line of a message."""
    return _encode(
        type="message", messageId=message.id, unsignedMessage=message.raw, forEver=for_ever
    )


def share_line(message_id: MessageID, share: StoredShare) -> bytes:
    """Return the line of a share."""
    fields = {
        "publicKey": share.public_key,
        "signature": share.signature,
        "verified": share.verified,
    }
    return _encode(type="share", messageId=message_id, **fields)


def signature_line(message_id: MessageID, signed: StoredSignature) -> bytes:
    """Return the line of a signed message."""
    keys = [_hex(key) for key in signed.public_keys]
    return _encode(
        type="signature", messageId=message_id, publicKeys=keys, signature=signed.signature
    )


def numbered_lines(file: BinaryIO) -> NumberedLines:
    """Yield each line that is not blank with its number, from 1.

    A line longer than MAX_LINE_BYTES is yielded as None.
    """
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif raw.strip():
            yield number, raw


def open_lines(file: BinaryIO) -> tuple[int | None, NumberedLines]:
    """Return the network id of a file, and the lines after the first.

    The network id is that of the first line or of the first message; None if neither has it.
    Raises BadLine.
    """
    lines = numbered_lines(file)
    _, first = next(lines, (1, b""))
    network_id = read_header(first)
    seconds = list(islice(lines, 1))
    if network_id is None and seconds:
        with suppress(BadLine):
            message = read_line(seconds[0][1]).message
            if isinstance(message, UnsignedMessage):
                network_id = message.network_id
    return network_id, chain(seconds, lines)


def read_header(raw: bytes | None) -> int | None:
    """Return the network id of the first line.

    Raises BadLine if the file has another format or a newer version.
    """
    try:
        record = _record(raw)
    except BadLine:
        record = _Record()
    if record.format != FORMAT or record.version is None:
        raise BadLine(
            f'not such a file: it begins with {{"format":"{FORMAT}","version":{VERSION}}}'
        )
    if record.version != VERSION:
        raise BadLine(
            f"the file is of version {record.version}; this program knows version {VERSION}"
        )
    return record.network_id


def read_line(raw: bytes | None) -> MessageLine | SignedLine:
    """Parse a line after the first; signatures are not verified here. Raises BadLine."""
    record = _record(raw)
    if record.type == "message":
        return MessageLine(_full_message(record), record.for_ever)
    if record.type == "share":
        key = _point("publicKey", record.public_key, PUBLIC_KEY_BYTES)
        return SignedLine(_message(record), StoredShare(key, _signature(record), record.verified))
    if record.type == "signature":
        keys = tuple(
            _point("publicKey", text, PUBLIC_KEY_BYTES) for text in record.public_keys or ()
        )
        if not keys or len(set(keys)) != len(keys):
            raise BadLine("publicKeys: the keys of the signers, each once, are needed")
        return SignedLine(_message(record), StoredSignature(keys, _signature(record)))
    raise BadLine('type: expected "message", "share" or "signature"')


def _record(raw: bytes | None) -> _Record:
    if raw is None:
        raise BadLine(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        return _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLine(f"not a record: {error}") from None


def _message(record: _Record) -> UnsignedMessage | MessageID:
    if record.unsigned_message is not None:
        return _full_message(record)
    if record.message_id is None:
        raise BadLine("messageId or unsignedMessage is needed")
    return _message_id(record.message_id)


def _full_message(record: _Record) -> UnsignedMessage:
    raw = _bytes("unsignedMessage", record.unsigned_message)
    if len(raw) > MAX_MESSAGE_BYTES:
        raise BadLine(f"unsignedMessage: longer than {MAX_MESSAGE_BYTES} bytes")
    try:
        message = UnsignedMessage.parse(raw)
    except MalformedMessage as error:
        raise BadLine(f"unsignedMessage: {error}") from None
    if record.message_id is not None and _message_id(record.message_id) != message.id:
        raise BadLine("messageId is not that of unsignedMessage")
    return message


def _message_id(text: str) -> MessageID:
    try:
        return MessageID(parse_id(text))
    except MalformedID as error:
        raise BadLine(f"messageId: {error}") from None


def _signature(record: _Record) -> bytes:
    return _point("signature", record.signature, SIGNATURE_BYTES)


def _point(name: str, text: str | None, length: int) -> bytes:
    """Return the bytes of a compressed point, which is not decoded."""
    raw = _bytes(name, text)
    if len(raw) != length:
        raise BadLine(f"{name}: {len(raw)} bytes, not {length}")
    if raw[0] & _POINT_FLAGS != _COMPRESSED_FLAG:
        raise BadLine(f"{name}: not a compressed point other than infinity")
    return raw


def _bytes(name: str, text: str | None) -> bytes:
    if text is None:
        raise BadLine(f"{name} is needed")
    try:
        raw = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise BadLine(f"{name}: not hex") from None
    return raw


def _encode(**fields: Any) -> bytes:
    """Encode a record; bytes become hex."""
    record = {
        name: _hex(value) if isinstance(value, bytes) else value for name, value in fields.items()
    }
    return msgspec.json.encode(record) + b"\n"


def _hex(raw: bytes) -> str:
    return "0x" + raw.hex()
