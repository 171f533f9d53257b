from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AggregateSignaturesRequest(_message.Message):
    __slots__ = ("message", "justification", "signing_subnet_id", "quorum_percentage", "quorum_percentage_buffer", "p_chain_height", "destination_blockchain_id", "report")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    JUSTIFICATION_FIELD_NUMBER: _ClassVar[int]
    SIGNING_SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    QUORUM_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_PERCENTAGE_BUFFER_FIELD_NUMBER: _ClassVar[int]
    P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_BLOCKCHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    justification: bytes
    signing_subnet_id: str
    quorum_percentage: int
    quorum_percentage_buffer: int
    p_chain_height: int
    destination_blockchain_id: str
    report: bool
    def __init__(self, message: _Optional[bytes] = ..., justification: _Optional[bytes] = ..., signing_subnet_id: _Optional[str] = ..., quorum_percentage: _Optional[int] = ..., quorum_percentage_buffer: _Optional[int] = ..., p_chain_height: _Optional[int] = ..., destination_blockchain_id: _Optional[str] = ..., report: _Optional[bool] = ...) -> None: ...

class GetSignedMessageRequest(_message.Message):
    __slots__ = ("tx_hash", "message_id", "quorum_percentage", "quorum_percentage_buffer", "p_chain_height", "destination_blockchain_id", "report", "justification", "registration_tx_hash", "signing_subnet_id")
    TX_HASH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    QUORUM_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_PERCENTAGE_BUFFER_FIELD_NUMBER: _ClassVar[int]
    P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_BLOCKCHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    JUSTIFICATION_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_TX_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNING_SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    tx_hash: str
    message_id: str
    quorum_percentage: int
    quorum_percentage_buffer: int
    p_chain_height: int
    destination_blockchain_id: str
    report: bool
    justification: bytes
    registration_tx_hash: str
    signing_subnet_id: str
    def __init__(self, tx_hash: _Optional[str] = ..., message_id: _Optional[str] = ..., quorum_percentage: _Optional[int] = ..., quorum_percentage_buffer: _Optional[int] = ..., p_chain_height: _Optional[int] = ..., destination_blockchain_id: _Optional[str] = ..., report: _Optional[bool] = ..., justification: _Optional[bytes] = ..., registration_tx_hash: _Optional[str] = ..., signing_subnet_id: _Optional[str] = ...) -> None: ...

class SignedMessage(_message.Message):
    __slots__ = ("signed_message", "p_chain_height", "signing_subnet_id", "verifies_now", "report", "next", "superseded", "unchecked")
    SIGNED_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    SIGNING_SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIES_NOW_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    UNCHECKED_FIELD_NUMBER: _ClassVar[int]
    signed_message: bytes
    p_chain_height: int
    signing_subnet_id: str
    verifies_now: bool
    report: DestinationReport
    next: NextSignedMessage
    superseded: SupersededStatement
    unchecked: bool
    def __init__(self, signed_message: _Optional[bytes] = ..., p_chain_height: _Optional[int] = ..., signing_subnet_id: _Optional[str] = ..., verifies_now: _Optional[bool] = ..., report: _Optional[_Union[DestinationReport, _Mapping]] = ..., next: _Optional[_Union[NextSignedMessage, _Mapping]] = ..., superseded: _Optional[_Union[SupersededStatement, _Mapping]] = ..., unchecked: _Optional[bool] = ...) -> None: ...

class DestinationReport(_message.Message):
    __slots__ = ("destination_blockchain_id", "signing_subnet_id", "signed_by", "p_chain_height", "p_chain_height_source", "quorum", "heights", "epoch", "verifies_now", "serves_next", "advice")
    class Quorum(_message.Message):
        __slots__ = ("percentage", "source")
        PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
        SOURCE_FIELD_NUMBER: _ClassVar[int]
        percentage: int
        source: str
        def __init__(self, percentage: _Optional[int] = ..., source: _Optional[str] = ...) -> None: ...
    class WeightAtHeight(_message.Message):
        __slots__ = ("epoch", "p_chain_height", "signed_weight", "required_weight", "total_weight", "verifies")
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
        SIGNED_WEIGHT_FIELD_NUMBER: _ClassVar[int]
        REQUIRED_WEIGHT_FIELD_NUMBER: _ClassVar[int]
        TOTAL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
        VERIFIES_FIELD_NUMBER: _ClassVar[int]
        epoch: str
        p_chain_height: int
        signed_weight: int
        required_weight: int
        total_weight: int
        verifies: bool
        def __init__(self, epoch: _Optional[str] = ..., p_chain_height: _Optional[int] = ..., signed_weight: _Optional[int] = ..., required_weight: _Optional[int] = ..., total_weight: _Optional[int] = ..., verifies: _Optional[bool] = ...) -> None: ...
    class Epoch(_message.Message):
        __slots__ = ("number", "start_time", "p_chain_height", "sealed_from")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        START_TIME_FIELD_NUMBER: _ClassVar[int]
        P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
        SEALED_FROM_FIELD_NUMBER: _ClassVar[int]
        number: int
        start_time: int
        p_chain_height: int
        sealed_from: int
        def __init__(self, number: _Optional[int] = ..., start_time: _Optional[int] = ..., p_chain_height: _Optional[int] = ..., sealed_from: _Optional[int] = ...) -> None: ...
    class Advice(_message.Message):
        __slots__ = ("pinned_height", "needed_height", "blocks_before", "not_before", "text")
        PINNED_HEIGHT_FIELD_NUMBER: _ClassVar[int]
        NEEDED_HEIGHT_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_BEFORE_FIELD_NUMBER: _ClassVar[int]
        NOT_BEFORE_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        pinned_height: int
        needed_height: int
        blocks_before: int
        not_before: int
        text: str
        def __init__(self, pinned_height: _Optional[int] = ..., needed_height: _Optional[int] = ..., blocks_before: _Optional[int] = ..., not_before: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
    DESTINATION_BLOCKCHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNING_SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNED_BY_FIELD_NUMBER: _ClassVar[int]
    P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    P_CHAIN_HEIGHT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    HEIGHTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERIFIES_NOW_FIELD_NUMBER: _ClassVar[int]
    SERVES_NEXT_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    destination_blockchain_id: str
    signing_subnet_id: str
    signed_by: str
    p_chain_height: int
    p_chain_height_source: str
    quorum: DestinationReport.Quorum
    heights: _containers.RepeatedCompositeFieldContainer[DestinationReport.WeightAtHeight]
    epoch: DestinationReport.Epoch
    verifies_now: bool
    serves_next: bool
    advice: DestinationReport.Advice
    def __init__(self, destination_blockchain_id: _Optional[str] = ..., signing_subnet_id: _Optional[str] = ..., signed_by: _Optional[str] = ..., p_chain_height: _Optional[int] = ..., p_chain_height_source: _Optional[str] = ..., quorum: _Optional[_Union[DestinationReport.Quorum, _Mapping]] = ..., heights: _Optional[_Iterable[_Union[DestinationReport.WeightAtHeight, _Mapping]]] = ..., epoch: _Optional[_Union[DestinationReport.Epoch, _Mapping]] = ..., verifies_now: _Optional[bool] = ..., serves_next: _Optional[bool] = ..., advice: _Optional[_Union[DestinationReport.Advice, _Mapping]] = ...) -> None: ...

class NextSignedMessage(_message.Message):
    __slots__ = ("p_chain_height", "predicted", "signed_message", "error")
    P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    SIGNED_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    p_chain_height: int
    predicted: bool
    signed_message: bytes
    error: str
    def __init__(self, p_chain_height: _Optional[int] = ..., predicted: _Optional[bool] = ..., signed_message: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class SupersededStatement(_message.Message):
    __slots__ = ("registered", "nonce", "weight", "by_tx_hash", "p_chain_height", "message", "justification")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BY_TX_HASH_FIELD_NUMBER: _ClassVar[int]
    P_CHAIN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    JUSTIFICATION_FIELD_NUMBER: _ClassVar[int]
    registered: bool
    nonce: int
    weight: int
    by_tx_hash: str
    p_chain_height: int
    message: bytes
    justification: bytes
    def __init__(self, registered: _Optional[bool] = ..., nonce: _Optional[int] = ..., weight: _Optional[int] = ..., by_tx_hash: _Optional[str] = ..., p_chain_height: _Optional[int] = ..., message: _Optional[bytes] = ..., justification: _Optional[bytes] = ...) -> None: ...

class ListenEventsRequest(_message.Message):
    __slots__ = ("cursor", "types", "source_blockchain_id", "destination_blockchain_id", "subnet_id")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_BLOCKCHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_BLOCKCHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    types: _containers.RepeatedScalarFieldContainer[str]
    source_blockchain_id: str
    destination_blockchain_id: str
    subnet_id: str
    def __init__(self, cursor: _Optional[str] = ..., types: _Optional[_Iterable[str]] = ..., source_blockchain_id: _Optional[str] = ..., destination_blockchain_id: _Optional[str] = ..., subnet_id: _Optional[str] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("cursor", "events")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, cursor: _Optional[str] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("cursor", "type", "time", "source_blockchain_id", "destination_blockchain_id", "subnet_id", "message_id", "data")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_BLOCKCHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_BLOCKCHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    type: str
    time: int
    source_blockchain_id: str
    destination_blockchain_id: str
    subnet_id: str
    message_id: str
    data: str
    def __init__(self, cursor: _Optional[str] = ..., type: _Optional[str] = ..., time: _Optional[int] = ..., source_blockchain_id: _Optional[str] = ..., destination_blockchain_id: _Optional[str] = ..., subnet_id: _Optional[str] = ..., message_id: _Optional[str] = ..., data: _Optional[str] = ...) -> None: ...
