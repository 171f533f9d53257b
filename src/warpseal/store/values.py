"""The values that the store writes and loads: plain bytes, numbers and text, without SQL.

Source of truth for origins: `L1ValidatorRegistrationJustification`, as `warp/justification.py`
reads it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import RegisterL1Validator, bootstrap_validation_id


class StoredShare(Struct, frozen=True):
    """One validator's signature (96 bytes) by its key (48 bytes).

    verified: whether the share was checked alone. Other shares are candidates, which were at most
        decoded or checked in a sum.
    """

    public_key: bytes
    signature: bytes
    verified: bool


class StoredSignature(Struct, frozen=True):
    """An aggregate signature (96 bytes), and the keys of its signers (48 bytes each)."""

    public_keys: tuple[bytes, ...]
    signature: bytes


class ArchiveEntry(Struct, frozen=True):
    """The stored signatures, newest first, and shares of one message.

    is_incomplete: whether some of them could not be read.
    """

    signatures: tuple[StoredSignature, ...] = ()
    shares: tuple[StoredShare, ...] = ()
    is_incomplete: bool = False


class BlockRange(Struct, frozen=True):
    """Consecutive blocks of a chain that were read, from `low` to `high`, both included.

    low_parent_id: id that block `low` names as its parent.
    high_block_id: id of block `high`.
    """

    low: int
    high: int
    low_parent_id: bytes
    high_block_id: bytes


class L1Transaction(Struct, frozen=True):
    """A transaction about an L1 that the P-Chain accepted.

    position: place within its block, from 0.
    time: time of the block, Unix seconds.
    kind: name of its type, such as "RegisterL1ValidatorTx".
    raw: bytes of the signed transaction.
    """

    tx_id: bytes
    height: int
    position: int
    block_id: bytes
    time: int
    kind: str
    raw: bytes
    subnet_id: SubnetID | None = None
    validation_id: ValidationID | None = None


class BootstrapOrigin(Struct, frozen=True):
    """A validation that began with the conversion of its subnet.

    index: place among the initial validators.
    """

    subnet_id: SubnetID
    index: int

    @property
    def validation_id(self) -> ValidationID:
        """The id of the validation with this origin."""
        return bootstrap_validation_id(self.subnet_id, self.index)

    @property
    def justification(self) -> bytes:
        """The bytes of the proof that a signer of "not registered" needs."""
        return L1ValidatorRegistrationJustification.bootstrap(self.subnet_id, self.index).raw


class RegistrationOrigin(Struct, frozen=True):
    """A validation that began with a registration.

    payload: bytes of its RegisterL1Validator message; the properties raise MalformedMessage if they
        are malformed.
    """

    payload: bytes

    @property
    def subnet_id(self) -> SubnetID:
        """The L1 that the validator was registered for."""
        return RegisterL1Validator.parse(self.payload).subnet_id

    @property
    def validation_id(self) -> ValidationID:
        """The validation with this origin."""
        return RegisterL1Validator.parse(self.payload).validation_id

    @property
    def justification(self) -> bytes:
        """The bytes of the proof that a signer of "not registered" needs."""
        return L1ValidatorRegistrationJustification.registered(
            RegisterL1Validator.parse(self.payload)
        ).raw


Origin = BootstrapOrigin | RegistrationOrigin


class EagerTask(Struct, frozen=True):
    """A message to be signed without a request, not before `due_at_unix_s`.

    key: id of the L1 transaction, or the id that the messenger contract gave to the ICM message.
    attempts: number of attempts that were made.
    """

    key: bytes
    due_at_unix_s: float
    attempts: int


class IcmTask(EagerTask, frozen=True):
    """An ICM message to be signed until it is received, or until `ends_at_unix_s`.

    message: bytes of the unsigned message.
    """

    source: ChainID
    destination: ChainID
    message: bytes
    ends_at_unix_s: float


class AddressKind(StrEnum):
    """Why an address is stored: the node answered there, or the node signed it."""

    WORKED = "worked"
    SIGNED = "signed"


class AddressRow(Struct, frozen=True):
    """An address at which a node may be reached; a node has at most one row of each kind.

    worked_at: Unix time at which the node answered there; 0 for "signed".
    signed_at: Unix time of the signature; for "worked" that of the newest signed address at that
        time, 0 without one.
    """

    node_id: NodeID
    kind: AddressKind
    ip: str
    port: int
    worked_at: float
    signed_at: int


class StoreContents(Struct, frozen=True):
    """The numbers of stored rows.

    size_bytes: size on disk.
    evictable_bytes: approximate size of the rows that may be evicted.
    """

    messages: int = 0
    messages_for_ever: int = 0
    shares: int = 0
    shares_verified: int = 0
    signatures: int = 0
    addresses: int = 0
    origins: int = 0
    l1_transactions: int = 0
    eager_tasks: int = 0
    size_bytes: int = 0
    evictable_bytes: int = 0


class StoreStatus(Struct, frozen=True):
    """The status of the store.

    url: url without secrets; "off" if the store is off.
    reason, down_since_unix_s: reason why the store is down, and time since when.
    waiting_writes, waiting_bytes: writes in memory that are not committed yet.
    dropped_writes: number of writes that did not fit into memory while the store was down.
    size_bytes, evictable_bytes: sizes that are at most about half a minute old; 0 at first.
    evicted: number of messages and addresses that were deleted since the start.
    """

    url: str
    is_up: bool
    schema_version: str | None = None
    reason: str | None = None
    down_since_unix_s: float | None = None
    waiting_writes: int = 0
    waiting_bytes: int = 0
    dropped_writes: int = 0
    size_bytes: int = 0
    evictable_bytes: int = 0
    evicted: int = 0


class ValidationRow(Struct, frozen=True):
    """The counters of one validation (id of 32 bytes), in milliseconds.

    first_at, seen_at: Unix times at which the validation was first observed, and last active.
    """

    validation_id: bytes
    node_id: NodeID
    first_at: int
    seen_at: int
    observed_ms: int
    connected_ms: int


class HourRow(Struct, frozen=True):
    """The counters of one node in one hour, in milliseconds.

    hour: number of hours since 1970.
    """

    hour: int
    node_id: NodeID
    observed_ms: int
    connected_ms: int


class StoredUptime(Struct, frozen=True):
    """The uptime with which a process starts.

    recent_nodes: nodes that were observed in the last hours.
    """

    validations: tuple[ValidationRow, ...] = ()
    hours: tuple[HourRow, ...] = ()
    recent_nodes: frozenset[NodeID] = frozenset()


class EventType(StrEnum):
    """The types of events."""

    MESSAGE_SIGNED = "message_signed"
    QUORUM_IMPOSSIBLE = "quorum_impossible"
    VALIDATOR_MISSING = "validator_missing"
    L1_TRANSACTION_SIGNED = "l1_transaction_signed"
    L1_HALTS_SOON = "l1_halts_soon"
    ICM_SENT = "icm_sent"
    ICM_RECEIVED = "icm_received"
    ICM_EXECUTED = "icm_executed"
    ICM_FAILED = "icm_failed"


class Event(Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """An event as readers get it.

    Ids of subnets and chains are base58-check, the id of a Warp message is hex.

    type: an EventType, or a type of a newer daemon on the same store.
    time: Unix seconds.
    subnet_id: id of the L1, or of the subnet that signs.
    data: JSON object whose keys depend on the type.
    """

    type: str
    time: int
    source_blockchain_id: str | UnsetType = UNSET
    destination_blockchain_id: str | UnsetType = UNSET
    subnet_id: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    data: Any


class SigningBlockKind(StrEnum):
    """The property by which a signing block selects messages."""

    SOURCE_CHAIN = "source-chain"
    DESTINATION = "destination"
    SENDER = "sender"
    MESSAGE_ID = "message-id"


class SigningBlock(Struct, frozen=True, rename="camel"):
    """A rule of the operator: messages with this value are not signed.

    value: blockchain id in base58-check, or the hex of an address or a message id, with 0x and in
        lower case.
    created_at: Unix seconds.
    """

    kind: SigningBlockKind
    value: str
    reason: str
    created_at: int
