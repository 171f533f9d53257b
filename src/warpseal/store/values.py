"""What the store keeps and gives back: values of plain bytes, numbers and text, without any SQL in them.

Source of truth for origins: `L1ValidatorRegistrationJustification`, as `warp/justification.py` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from warpseal.warp.ids import NodeID, SubnetID, ValidationID
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import RegisterL1Validator, bootstrap_validation_id


@dataclass(frozen=True, slots=True)
class StoredShare:
    """One validator's signature (96 bytes) by its key (48 bytes).

    verified: checked alone; else a candidate, decoded or checked inside a sum at most.
    """

    public_key: bytes
    signature: bytes
    verified: bool


@dataclass(frozen=True, slots=True)
class StoredSignature:
    """An aggregate (96 bytes) and exactly whose keys (48 bytes each) it is of, in the order given."""

    public_keys: tuple[bytes, ...]
    signature: bytes


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """What is kept of one message; signatures newest first. is_unread: there may be more, which could not be read."""

    signatures: tuple[StoredSignature, ...] = ()
    shares: tuple[StoredShare, ...] = ()
    is_incomplete: bool = False


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Consecutive blocks of a chain that were read, from `low` to `high`, both included.

    low_parent_id: the id that block `low` names as its parent; high_block_id: the id of block `high`.
    """

    low: int
    high: int
    low_parent_id: bytes
    high_block_id: bytes


@dataclass(frozen=True, slots=True)
class L1Transaction:
    """A transaction about an L1 that the P-Chain accepted.

    position: within its block, from 0. time: of the block, Unix seconds. kind: the name of its type,
    such as "RegisterL1ValidatorTx". raw: the signed bytes.
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


@dataclass(frozen=True, slots=True)
class BootstrapOrigin:
    """A validation that began with the conversion of its subnet; index: among the initial validators."""

    subnet_id: SubnetID
    index: int

    @property
    def validation_id(self) -> ValidationID:
        """The validation that this is the origin of."""
        return bootstrap_validation_id(self.subnet_id, self.index)

    @property
    def justification(self) -> bytes:
        """The proof's bytes, as a signer of "not registered" asks for it."""
        return L1ValidatorRegistrationJustification.bootstrap(self.subnet_id, self.index).raw


@dataclass(frozen=True, slots=True)
class RegistrationOrigin:
    """A validation that began with a registration; payload: the bytes of its RegisterL1Validator message.

    The properties raise MalformedMessage where `payload` is none.
    """

    payload: bytes

    @property
    def subnet_id(self) -> SubnetID:
        """The L1 that the validator was registered for."""
        return RegisterL1Validator.parse(self.payload).subnet_id

    @property
    def validation_id(self) -> ValidationID:
        """The validation that this is the origin of."""
        return RegisterL1Validator.parse(self.payload).validation_id

    @property
    def justification(self) -> bytes:
        """The proof's bytes, as a signer of "not registered" asks for it."""
        return L1ValidatorRegistrationJustification.registered(RegisterL1Validator.parse(self.payload)).raw


Origin = BootstrapOrigin | RegistrationOrigin


@dataclass(frozen=True, slots=True)
class EagerTask:
    """An L1 transaction that is to be aggregated unasked, not before `due_at_unix_s`; attempts: so far."""

    tx_id: bytes
    due_at_unix_s: float
    attempts: int


class AddressKind(StrEnum):
    """Why an address is remembered: the node answered there, or the node signed it."""

    WORKED = "worked"
    SIGNED = "signed"


@dataclass(frozen=True, slots=True)
class AddressRow:
    """Where a node may be reached; ip: text. At most one row per node and kind.

    worked_at: Unix time at which it answered there, 0 for "signed". signed_at: Unix seconds of the signature,
    for "worked" of the newest one known then, 0 for none.
    """

    node_id: NodeID
    kind: AddressKind
    ip: str
    port: int
    worked_at: float
    signed_at: int


@dataclass(frozen=True, slots=True)
class StoreContents:
    """How much is kept, counted one by one. size_bytes: on disk; evictable_bytes: of it, what may go, about."""

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


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store is, without asking it. url: without secrets; "off" when nothing is kept.

    reason, down_since_unix_s: of a store that is down. waiting_writes, waiting_bytes: in memory, not committed yet;
    dropped_writes: given up for want of memory while it was down. size_bytes, evictable_bytes: as of the latest
    half minute, 0 before; evicted: messages and addresses deleted since the start.
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


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """Counters of one validation (id of 32 bytes), in milliseconds. first_at, seen_at: unix seconds.

    first_at: when it was first watched; seen_at: when it was last known to be under way.
    """

    validation_id: bytes
    node_id: NodeID
    first_at: int
    seen_at: int
    observed_ms: int
    connected_ms: int


@dataclass(frozen=True, slots=True)
class HourRow:
    """One hour of one node, in milliseconds. hour: hours since 1970."""

    hour: int
    node_id: NodeID
    observed_ms: int
    connected_ms: int


@dataclass(frozen=True, slots=True)
class StoredUptime:
    """What a process begins with. met: nodes that were observed lately."""

    validations: tuple[ValidationRow, ...] = ()
    hours: tuple[HourRow, ...] = ()
    met: frozenset[NodeID] = frozenset()
