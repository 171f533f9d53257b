from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Message(_message.Message):
    __slots__ = ("compressed_zstd", "ping", "pong", "handshake", "peer_list", "app_request", "app_response", "app_gossip", "app_error", "get_peer_list")
    COMPRESSED_ZSTD_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    PEER_LIST_FIELD_NUMBER: _ClassVar[int]
    APP_REQUEST_FIELD_NUMBER: _ClassVar[int]
    APP_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    APP_GOSSIP_FIELD_NUMBER: _ClassVar[int]
    APP_ERROR_FIELD_NUMBER: _ClassVar[int]
    GET_PEER_LIST_FIELD_NUMBER: _ClassVar[int]
    compressed_zstd: bytes
    ping: Ping
    pong: Pong
    handshake: Handshake
    peer_list: PeerList
    app_request: AppRequest
    app_response: AppResponse
    app_gossip: AppGossip
    app_error: AppError
    get_peer_list: GetPeerList
    def __init__(self, compressed_zstd: _Optional[bytes] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., handshake: _Optional[_Union[Handshake, _Mapping]] = ..., peer_list: _Optional[_Union[PeerList, _Mapping]] = ..., app_request: _Optional[_Union[AppRequest, _Mapping]] = ..., app_response: _Optional[_Union[AppResponse, _Mapping]] = ..., app_gossip: _Optional[_Union[AppGossip, _Mapping]] = ..., app_error: _Optional[_Union[AppError, _Mapping]] = ..., get_peer_list: _Optional[_Union[GetPeerList, _Mapping]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("uptime",)
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    uptime: int
    def __init__(self, uptime: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("network_id", "my_time", "ip_addr", "ip_port", "upgrade_time", "ip_signing_time", "ip_node_id_sig", "tracked_subnets", "client", "supported_acps", "objected_acps", "known_peers", "ip_bls_sig", "all_subnets")
    NETWORK_ID_FIELD_NUMBER: _ClassVar[int]
    MY_TIME_FIELD_NUMBER: _ClassVar[int]
    IP_ADDR_FIELD_NUMBER: _ClassVar[int]
    IP_PORT_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_TIME_FIELD_NUMBER: _ClassVar[int]
    IP_SIGNING_TIME_FIELD_NUMBER: _ClassVar[int]
    IP_NODE_ID_SIG_FIELD_NUMBER: _ClassVar[int]
    TRACKED_SUBNETS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_ACPS_FIELD_NUMBER: _ClassVar[int]
    OBJECTED_ACPS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_PEERS_FIELD_NUMBER: _ClassVar[int]
    IP_BLS_SIG_FIELD_NUMBER: _ClassVar[int]
    ALL_SUBNETS_FIELD_NUMBER: _ClassVar[int]
    network_id: int
    my_time: int
    ip_addr: bytes
    ip_port: int
    upgrade_time: int
    ip_signing_time: int
    ip_node_id_sig: bytes
    tracked_subnets: _containers.RepeatedScalarFieldContainer[bytes]
    client: Client
    supported_acps: _containers.RepeatedScalarFieldContainer[int]
    objected_acps: _containers.RepeatedScalarFieldContainer[int]
    known_peers: BloomFilter
    ip_bls_sig: bytes
    all_subnets: bool
    def __init__(self, network_id: _Optional[int] = ..., my_time: _Optional[int] = ..., ip_addr: _Optional[bytes] = ..., ip_port: _Optional[int] = ..., upgrade_time: _Optional[int] = ..., ip_signing_time: _Optional[int] = ..., ip_node_id_sig: _Optional[bytes] = ..., tracked_subnets: _Optional[_Iterable[bytes]] = ..., client: _Optional[_Union[Client, _Mapping]] = ..., supported_acps: _Optional[_Iterable[int]] = ..., objected_acps: _Optional[_Iterable[int]] = ..., known_peers: _Optional[_Union[BloomFilter, _Mapping]] = ..., ip_bls_sig: _Optional[bytes] = ..., all_subnets: _Optional[bool] = ...) -> None: ...

class Client(_message.Message):
    __slots__ = ("name", "major", "minor", "patch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    major: int
    minor: int
    patch: int
    def __init__(self, name: _Optional[str] = ..., major: _Optional[int] = ..., minor: _Optional[int] = ..., patch: _Optional[int] = ...) -> None: ...

class BloomFilter(_message.Message):
    __slots__ = ("filter", "salt")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    filter: bytes
    salt: bytes
    def __init__(self, filter: _Optional[bytes] = ..., salt: _Optional[bytes] = ...) -> None: ...

class ClaimedIpPort(_message.Message):
    __slots__ = ("x509_certificate", "ip_addr", "ip_port", "timestamp", "signature", "tx_id")
    X509_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    IP_ADDR_FIELD_NUMBER: _ClassVar[int]
    IP_PORT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TX_ID_FIELD_NUMBER: _ClassVar[int]
    x509_certificate: bytes
    ip_addr: bytes
    ip_port: int
    timestamp: int
    signature: bytes
    tx_id: bytes
    def __init__(self, x509_certificate: _Optional[bytes] = ..., ip_addr: _Optional[bytes] = ..., ip_port: _Optional[int] = ..., timestamp: _Optional[int] = ..., signature: _Optional[bytes] = ..., tx_id: _Optional[bytes] = ...) -> None: ...

class PeerList(_message.Message):
    __slots__ = ("claimed_ip_ports",)
    CLAIMED_IP_PORTS_FIELD_NUMBER: _ClassVar[int]
    claimed_ip_ports: _containers.RepeatedCompositeFieldContainer[ClaimedIpPort]
    def __init__(self, claimed_ip_ports: _Optional[_Iterable[_Union[ClaimedIpPort, _Mapping]]] = ...) -> None: ...

class GetPeerList(_message.Message):
    __slots__ = ("known_peers", "all_subnets")
    KNOWN_PEERS_FIELD_NUMBER: _ClassVar[int]
    ALL_SUBNETS_FIELD_NUMBER: _ClassVar[int]
    known_peers: BloomFilter
    all_subnets: bool
    def __init__(self, known_peers: _Optional[_Union[BloomFilter, _Mapping]] = ..., all_subnets: _Optional[bool] = ...) -> None: ...

class AppRequest(_message.Message):
    __slots__ = ("chain_id", "request_id", "deadline", "app_bytes")
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    APP_BYTES_FIELD_NUMBER: _ClassVar[int]
    chain_id: bytes
    request_id: int
    deadline: int
    app_bytes: bytes
    def __init__(self, chain_id: _Optional[bytes] = ..., request_id: _Optional[int] = ..., deadline: _Optional[int] = ..., app_bytes: _Optional[bytes] = ...) -> None: ...

class AppResponse(_message.Message):
    __slots__ = ("chain_id", "request_id", "app_bytes")
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    APP_BYTES_FIELD_NUMBER: _ClassVar[int]
    chain_id: bytes
    request_id: int
    app_bytes: bytes
    def __init__(self, chain_id: _Optional[bytes] = ..., request_id: _Optional[int] = ..., app_bytes: _Optional[bytes] = ...) -> None: ...

class AppError(_message.Message):
    __slots__ = ("chain_id", "request_id", "error_code", "error_message")
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    chain_id: bytes
    request_id: int
    error_code: int
    error_message: str
    def __init__(self, chain_id: _Optional[bytes] = ..., request_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class AppGossip(_message.Message):
    __slots__ = ("chain_id", "app_bytes")
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    APP_BYTES_FIELD_NUMBER: _ClassVar[int]
    chain_id: bytes
    app_bytes: bytes
    def __init__(self, chain_id: _Optional[bytes] = ..., app_bytes: _Optional[bytes] = ...) -> None: ...
