from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class InitializeRequest(_message.Message):
    __slots__ = ("protocol_version", "addr")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDR_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    addr: str
    def __init__(self, protocol_version: _Optional[int] = ..., addr: _Optional[str] = ...) -> None: ...
