"""What the aggregation needs of other packages. The tests implement each protocol in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from warpseal.bls import PublicKey
from warpseal.errors import MissingConnection
from warpseal.node.p_chain import CurrentValidation, Subnet
from warpseal.peers.dial_schedule import Reachability
from warpseal.protocol.requests import PeerResponse
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import ChainID, MessageID, NodeID, SubnetID, ValidationID
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet

IsEpochHeight = Callable[[int, Iterable[ChainID]], Awaitable[bool]]
"""Returns whether a height is the current epoch height of one of these chains."""
TrackSubnet = Callable[[SubnetID, CanonicalValidatorSet], AbstractContextManager[None]]
"""Stays connected to the validators of a subnet inside the block and for a while longer."""


class SentRequest(Protocol):
    """A request that was sent to many nodes."""

    def extend(self, deadline: float) -> None:
        """Accept responses until `deadline` if that is later than the deadline that it was sent with."""

    def close(self) -> None:
        """Accept no more responses, and send nothing more."""


class PeerClient(Protocol):
    """The peer network. Deadlines are times of the event loop's clock."""

    def is_connected(self, node_id: NodeID) -> bool:
        """Return whether a node may be asked now."""

    def is_congested(self, node_id: NodeID) -> bool:
        """Return whether a connected node answers, and has more requests queued than it will answer soon."""

    def reachability(self, node_id: NodeID, subnet_id: SubnetID, deadline: float) -> Reachability:
        """Return whether a node can be reached before a deadline."""

    def missing_connection(self, node_id: NodeID) -> MissingConnection | None:
        """Return why a node is not connected; None if it is connected, or if nothing is known of it."""

    def running_s(self) -> float:
        """Return for how many seconds connections have been made."""

    def redial_soon(self, node_ids: Iterable[NodeID]) -> float | None:
        """Dial nodes again as soon as the backoff rules allow; return the time of the earliest dial."""

    def ask(
        self,
        node_ids: Iterable[NodeID],
        chain_id: ChainID,
        app_bytes: bytes,
        *,
        deadline: float,
        is_reask: bool,
        on_response: Callable[[PeerResponse], None],
    ) -> SentRequest:
        """Send one request to many nodes; `on_response` is called for each response."""

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        """Call `listener` when a node connects, disconnects or a dial fails, until the returned function is called."""


class ProposedHeightSource(Protocol):
    """The proposed height."""

    def current(self) -> int:
        """Return it. Raises NodeUnavailable."""

    async def first(self) -> int:
        """Return it; wait for the first poll. Raises NodeUnavailable."""


class ValidatorSetSource(Protocol):
    """Canonical validator sets."""

    async def at(self, subnet_id: SubnetID, height: int, *, named: bool, epoch: bool = False) -> CanonicalValidatorSet:
        """Return a set. Raises HeightTooOld, HeightTooNew, NodeUnavailable."""

    def keys_of(self, validators: CanonicalValidatorSet) -> Sequence[PublicKey]:
        """Return the parsed keys of a set, in canonical order; thread-safe."""


class ChainSource(Protocol):
    """Chains and subnets."""

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        """Return the subnet that validates a chain. Raises UnknownChain, NodeUnavailable."""

    async def subnet(self, subnet_id: SubnetID) -> Subnet:
        """Return a subnet as the P-Chain records it. Raises UnknownSubnet, NodeUnavailable."""

    async def subnet_of_validation(self, validation_id: ValidationID) -> SubnetID | None:
        """Return the L1 of a validation that exists, else None. Raises NodeUnavailable."""

    async def blockchains_of(self, subnet_id: SubnetID) -> Sequence[ChainID]:
        """Return the chains that a subnet validates. Raises NodeUnavailable."""


class ActivitySource(Protocol):
    """The inactive validators of an L1, those with little balance left included."""

    def watch(self, subnet_id: SubnetID) -> AbstractContextManager[None]:
        """Keep them up to date inside the block."""

    def inactive(self, subnet_id: SubnetID) -> frozenset[NodeID]:
        """Return the inactive nodes as known now."""

    def underfunded(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...] | None:
        """Return the validations that are inactive or nearly drained; None if they are not known."""

    async def ready(self, subnet_id: SubnetID) -> None:
        """Return when they are known, or cannot be."""


class AggregationMetrics(Protocol):
    """Metrics of the aggregation."""

    def observe_aggregation(self, outcome: str, stages: Mapping[str, float]) -> None:
        """Count an aggregation, failed or not; stages: seconds by stage, "total" is all of it."""

    def count_bad_share(self, node_ids: Iterable[str]) -> None:
        """Count a bad share for the nodes of its key."""


class ShareArchive(Protocol):
    """What was signed before. No method raises because a store is broken."""

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        """Return what is stored of a message; after a second at most, and nothing while the store is down."""

    def store_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None:
        """Store shares of keys of the signing set, soon.

        The first share of a key stays until it is rejected; a verified one marks its equal and replaces a candidate.
        """

    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Delete a share that was found bad, if it is exactly these bytes; in order with `store_shares`."""

    async def store_signature(self, message: UnsignedMessage, signed: StoredSignature) -> None:
        """Return when it is committed; after a second at most, at once while the store is down.

        It is stored though the wait is cancelled.
        """

    def pin(self, message: UnsignedMessage) -> None:
        """Never evict what is stored of a message, now and later."""

    async def unverified(self, limit: int) -> Sequence[tuple[UnsignedMessage, Sequence[StoredShare]]]:
        """Return at most `limit` unverified shares of pinned messages."""

    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Mark a share as verified alone, if it is exactly these bytes."""


@dataclass(frozen=True, slots=True)
class AggregationDeps:
    """All of the above. archive: what was signed before."""

    peers: PeerClient
    heights: ProposedHeightSource
    sets: ValidatorSetSource
    chains: ChainSource
    is_epoch_height: IsEpochHeight
    activity: ActivitySource
    track: TrackSubnet
    metrics: AggregationMetrics
    archive: ShareArchive
