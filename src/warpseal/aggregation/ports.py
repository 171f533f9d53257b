"""What the aggregation needs of other rooms, no more: what stands behind may be the real thing or a test's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from warpseal.bls import PublicKey
from warpseal.node.platform import Subnet
from warpseal.peers.reachability import Reachability
from warpseal.peers.request_fanout import PeerResponse
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import ChainID, MessageID, NodeID, SubnetID
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet


class OpenAsk(Protocol):
    """A request that was sent to many."""

    def extend(self, deadline: float) -> None:
        """Take answers until `deadline` where that is later than the one it was sent with."""

    def close(self) -> None:
        """Leave: no more answers, and nothing more is written."""


class Peers(Protocol):
    """The peer network. Deadlines are times of the event loop's clock."""

    def is_connected(self, node_id: NodeID) -> bool:
        """Tell whether a node may be asked now."""
        ...

    def reachability(self, node_id: NodeID, subnet_id: SubnetID, deadline: float) -> Reachability:
        """Return whether a node can be reached before a deadline."""
        ...

    def redial_soon(self, node_ids: Iterable[NodeID]) -> float | None:
        """Pull redials forward; return the moment of the earliest."""
        ...

    def ask(
        self,
        node_ids: Iterable[NodeID],
        chain_id: ChainID,
        app_bytes: bytes,
        *,
        deadline: float,
        is_reask: bool,
        on_response: Callable[[PeerResponse], None],
    ) -> OpenAsk:
        """Send one request to many; answers go to `on_response`, one call each."""
        ...

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        """Tell `listener` who is connected or not any more, until the returned function is called."""
        ...


class Heights(Protocol):
    """The proposed height."""

    def current(self) -> int:
        """Return it. Raises NodeUnavailable."""
        ...

    async def first(self) -> int:
        """Return it, waiting for the first poll. Raises NodeUnavailable."""
        ...


class Sets(Protocol):
    """Canonical validator sets."""

    async def at(self, subnet_id: SubnetID, height: int, *, named: bool, epoch: bool = False) -> CanonicalValidatorSet:
        """Return a set. Raises HeightTooOld, HeightTooNew, NodeUnavailable."""
        ...

    def keys_of(self, validators: CanonicalValidatorSet) -> Sequence[PublicKey]:
        """Return the parsed keys of a set, in canonical order; from any thread."""
        ...


class Chains(Protocol):
    """Chains and subnets."""

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        """Return the subnet that validates a chain. Raises UnknownChain, NodeUnavailable."""
        ...

    async def subnet(self, subnet_id: SubnetID) -> Subnet:
        """Return what is recorded of a subnet. Raises UnknownSubnet, NodeUnavailable."""
        ...

    async def blockchains_of(self, subnet_id: SubnetID) -> Sequence[ChainID]:
        """Return the chains that a subnet validates. Raises NodeUnavailable."""
        ...


class Epochs(Protocol):
    """Epoch heights of chains."""

    async def any_at(self, height: int, chain_ids: Iterable[ChainID]) -> bool:
        """Tell whether a height is the current epoch height of one of these chains."""
        ...


class Activity(Protocol):
    """Which validators of an L1 are inactive or nearly drained."""

    def watch(self, subnet_id: SubnetID) -> AbstractContextManager[None]:
        """Keep it fresh inside the block."""
        ...

    def reluctant(self, subnet_id: SubnetID) -> frozenset[NodeID]:
        """Return the reluctant nodes as known now."""
        ...

    async def ready(self, subnet_id: SubnetID) -> None:
        """Wait until they are known, or cannot be."""
        ...


class Followed(Protocol):
    """The subnets whose validators are connected to."""

    def use(self, subnet_id: SubnetID, validators: CanonicalValidatorSet) -> AbstractContextManager[None]:
        """Follow a subnet inside the block and for a while longer."""
        ...


class Metrics(Protocol):
    """What the aggregation reports as it happens."""

    def observe_aggregation(self, outcome: str, stages: Mapping[str, float]) -> None:
        """Note one aggregation, failed ones too; seconds by stage, the whole of it under "total"."""

    def count_bad_share(self, node_ids: Iterable[str]) -> None:
        """Count a bad share against the nodes of its key."""


class Archive(Protocol):
    """What was signed before, and what is kept of it. Nothing here ever raises because a store is broken."""

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        """Return what is kept of a message; after a second at most, and nothing while the store is down."""
        ...

    def keep_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None:
        """Keep shares of keys of the signing set, soon.

        Of a key the first stands until it is rejected; a verified one marks its equal and replaces a candidate.
        """

    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Delete a share that was found bad, if it is these very bytes; in order with `keep_shares`."""

    async def keep_signature(self, message: UnsignedMessage, signed: StoredSignature) -> None:
        """Return when it is committed; after a second at most, at once while the store is down.

        Cancelling the wait withdraws nothing.
        """

    def keep_for_ever(self, message: UnsignedMessage) -> None:
        """Never evict what is kept of a message, now and later."""

    async def unverified(self, limit: int) -> Sequence[tuple[UnsignedMessage, Sequence[StoredShare]]]:
        """Return candidates of messages kept for ever, at most `limit` shares."""
        ...

    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Note that a share was verified alone, if it is these very bytes."""
