"""The interfaces of other packages that the aggregation needs.

Each names the class that implements and documents it. The tests implement each of them in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from warpseal.bls import PublicKey
from warpseal.node.p_chain import CurrentValidation, Subnet
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.requests import PeerResponse
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import ChainID, MessageID, NodeID, SubnetID, ValidationID
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.quorum_shortfall import DisconnectedNode, QuorumShortfall
from warpseal.warp.validator_set import CanonicalValidatorSet

SigningCheck = Callable[[UnsignedMessage, SubnetID | None], None]
"""Raises an error if no signature of a message by a subnet (None: by any subnet) may leave."""
ShortfallListener = Callable[[UnsignedMessage, QuorumShortfall], None]
"""Takes the shortfall of a round that ended without the quorum of a caller."""


class SentRequest(Protocol):
    """A request that was sent to many nodes (`protocol.requests.PeerRequest`)."""

    def extend(self, deadline: float) -> None: ...
    def close(self) -> None: ...


class PeerClient(Protocol):
    """The peer network (`peers.network.PeerNetwork`).

    Deadlines are times of the event loop's clock.
    """

    def is_connected(self, node_id: NodeID) -> bool: ...
    def is_congested(self, node_id: NodeID) -> bool: ...
    def unreachable(self, node_id: NodeID, subnet_id: SubnetID) -> Unreachable | None: ...
    def missing_connection(self, node_id: NodeID) -> DisconnectedNode | None: ...
    def running_s(self) -> float: ...
    def redial_soon(self, node_ids: Iterable[NodeID]) -> float | None: ...
    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]: ...
    def ask(
        self,
        node_ids: Iterable[NodeID],
        chain_id: ChainID,
        app_bytes: bytes,
        *,
        deadline: float,
        is_reask: bool,
        on_response: Callable[[PeerResponse], None],
    ) -> SentRequest: ...


class ProposedHeightSource(Protocol):
    """The proposed height (`validators.heights.ProposedHeight`)."""

    @property
    def is_fresh(self) -> bool: ...
    def current(self) -> int: ...
    async def first(self) -> int: ...


class EpochSource(Protocol):
    """The epochs of chains (`validators.heights.EpochHeights`)."""

    async def any_at(self, height: int, chain_ids: Iterable[ChainID]) -> bool: ...


class SubnetTracking(Protocol):
    """Connections to the validators of subnets (`validators.subnet_tracker.SubnetTracker`)."""

    def track(
        self, subnet_id: SubnetID, validators: CanonicalValidatorSet
    ) -> AbstractContextManager[None]: ...


class ValidatorSetSource(Protocol):
    """Canonical validator sets (`validators.sets.ValidatorSets`). `keys_of` is thread-safe."""

    async def at(
        self, subnet_id: SubnetID, height: int, *, is_chosen: bool, epoch: bool = False
    ) -> CanonicalValidatorSet: ...
    def cached_set(self, subnet_id: SubnetID, height: int) -> CanonicalValidatorSet | None: ...
    def keys_of(self, validators: CanonicalValidatorSet) -> Sequence[PublicKey]: ...


class SubnetLookup(Protocol):
    """Finds the subnet of a chain (`validators.chains.ChainLookup`).

    Raises UnknownChain, NodeUnavailable.
    """

    async def subnet_of(self, chain_id: ChainID) -> SubnetID: ...


class ChainSource(SubnetLookup, Protocol):
    """Chains and subnets (`validators.chains.ChainLookup`)."""

    def cached_subnet_of(self, chain_id: ChainID) -> SubnetID | None: ...
    async def subnet(self, subnet_id: SubnetID) -> Subnet: ...
    async def subnet_of_validation(self, validation_id: ValidationID) -> SubnetID | None: ...
    async def blockchains_of(self, subnet_id: SubnetID) -> Sequence[ChainID]: ...


class ActivitySource(Protocol):
    """The inactive validators of an L1 (`validators.activity.L1Activity`).

    The underfunded ones include validators with little balance left.
    """

    def watch(self, subnet_id: SubnetID) -> AbstractContextManager[None]: ...
    def inactive(self, subnet_id: SubnetID) -> frozenset[NodeID]: ...
    def underfunded(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...] | None: ...
    def current(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...]: ...
    def is_ready(self, subnet_id: SubnetID) -> bool: ...
    async def ready(self, subnet_id: SubnetID) -> None: ...


class AggregationMetrics(Protocol):
    """Metrics of the aggregation (`metrics.registry.Metrics`)."""

    def observe_aggregation(
        self, outcome: str, stages: Mapping[str, float], trace_id: str = ""
    ) -> None: ...
    def count_bad_share(self, node_ids: Iterable[str]) -> None: ...
    def count_reissued_message(self) -> None: ...


class ShareArchive(Protocol):
    """The shares and signatures of earlier rounds (`store.archive.Archive`).

    A broken store raises nothing here.
    """

    def may_hold(self, message_id: MessageID) -> bool: ...
    async def load(self, message_id: MessageID) -> ArchiveEntry: ...
    def store_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None: ...
    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None: ...
    def store_signature(
        self, message: UnsignedMessage, signed: StoredSignature, signing_subnet_id: SubnetID
    ) -> Awaitable[None]: ...
    def pin(self, message: UnsignedMessage) -> None: ...
    async def unverified(
        self, limit: int
    ) -> Sequence[tuple[UnsignedMessage, Sequence[StoredShare]]]: ...
    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None: ...
