from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SignatureRequest(_message.Message):
    __slots__ = ("message", "justification")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    JUSTIFICATION_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    justification: bytes
    def __init__(self, message: _Optional[bytes] = ..., justification: _Optional[bytes] = ...) -> None: ...

class SignatureResponse(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...
