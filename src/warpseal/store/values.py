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

    verified: checked alone; otherwise a candidate, which was at most decoded or checked in a sum.
    """

    public_key: bytes
    signature: bytes
    verified: bool


class StoredSignature(Struct, frozen=True):
    """An aggregate signature (96 bytes) and the keys of its signers (48 bytes each), in the given
    order.
    """

    public_keys: tuple[bytes, ...]
    signature: bytes


class ArchiveEntry(Struct, frozen=True):
    """The stored signatures, newest first, and shares of one message.

    is_incomplete: they could not all be read.
    """

    signatures: tuple[StoredSignature, ...] = ()
    shares: tuple[StoredShare, ...] = ()
    is_incomplete: bool = False


class BlockRange(Struct, frozen=True):
    """Consecutive blocks of a chain that were read, from `low` to `high`, both included.

    low_parent_id: the id that block `low` names as its parent; high_block_id: the id of block
        `high`.
    """

    low: int
    high: int
    low_parent_id: bytes
    high_block_id: bytes


class L1Transaction(Struct, frozen=True):
    """A transaction about an L1 that the P-Chain accepted.

    position: within its block, from 0.
    time: time of the block, Unix seconds.
    kind: the name of its type, such as "RegisterL1ValidatorTx".
    raw: the signed bytes.
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
    """A validation that began with the conversion of its subnet; index: among the initial
    validators.
    """

    subnet_id: SubnetID
    index: int

    @property
    def validation_id(self) -> ValidationID:
        """The validation with this origin."""
        return bootstrap_validation_id(self.subnet_id, self.index)

    @property
    def justification(self) -> bytes:
        """The bytes of the proof that a signer of "not registered" needs."""
        return L1ValidatorRegistrationJustification.bootstrap(self.subnet_id, self.index).raw


class RegistrationOrigin(Struct, frozen=True):
    """A validation that began with a registration; payload: the bytes of its RegisterL1Validator
    message.

    The properties raise MalformedMessage if `payload` is malformed.
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
    """A message to be signed without a request, not before `due_at_unix_s`; attempts: so far.

    key: the id of the L1 transaction, or of the ICM message as its messenger counts it.
    """

    key: bytes
    due_at_unix_s: float
    attempts: int


class IcmTask(EagerTask, frozen=True):
    """The unsigned bytes of an ICM message, until it is received or a time has come."""

    source: ChainID
    destination: ChainID
    message: bytes
    ends_at_unix_s: float


class AddressKind(StrEnum):
    """Why an address is stored: the node answered there, or the node signed it."""

    WORKED = "worked"
    SIGNED = "signed"


class AddressRow(Struct, frozen=True):
    """Where a node may be reached; ip: text. At most one row per node and kind.

    worked_at: Unix time at which it answered there, 0 for "signed".
    signed_at: Unix seconds of the signature, for "worked" of the newest one known then, 0 for none.
    """

    node_id: NodeID
    kind: AddressKind
    ip: str
    port: int
    worked_at: float
    signed_at: int


class StoreContents(Struct, frozen=True):
    """The numbers of stored rows.

    size_bytes: on disk; evictable_bytes: the approximate part that may be evicted.
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

    url: without secrets; "off" if the store is off.

    reason, down_since_unix_s: of a store that is down.
    waiting_writes, waiting_bytes: in memory, not committed yet;
    dropped_writes: dropped for want of memory while it was down.
    size_bytes, evictable_bytes: at most about half a minute old, 0 before; evicted: messages and
        addresses deleted since the start.
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
    """Counters of one validation (id of 32 bytes), in milliseconds. Times are Unix seconds.

    first_at: when it was first observed; seen_at: when it was last known to be active.
    """

    validation_id: bytes
    node_id: NodeID
    first_at: int
    seen_at: int
    observed_ms: int
    connected_ms: int


class HourRow(Struct, frozen=True):
    """One hour of one node, in milliseconds.

    hour: hours since 1970.
    """

    hour: int
    node_id: NodeID
    observed_ms: int
    connected_ms: int


class StoredUptime(Struct, frozen=True):
    """The uptime with which a process starts.

    recent_nodes: nodes that were observed lately.
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

    Ids of subnets and chains are base58-check, that of a Warp message is hex.

    type: an EventType, or of a newer daemon on the same store.
    time: Unix seconds.
    subnet_id: the L1, or the subnet that signs.
    data: a JSON object; its keys depend on the type.
    """

    type: str
    time: int
    source_blockchain_id: str | UnsetType = UNSET
    destination_blockchain_id: str | UnsetType = UNSET
    subnet_id: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    data: Any


class SigningBlockKind(StrEnum):
    """What a message has in common with a signing block."""

    SOURCE_CHAIN = "source-chain"
    DESTINATION = "destination"
    SENDER = "sender"
    MESSAGE_ID = "message-id"


class SigningBlock(Struct, frozen=True, rename="camel"):
    """A rule of the operator: messages with this value are not signed. createdAt: Unix seconds.

    value: a blockchain id in base58-check, or the hex of an address or a message id, with 0x and in
        lower case.
    """

    kind: SigningBlockKind
    value: str
    reason: str
    created_at: int
