"""Bodies of `/health` and `/ready`, and where parts of the daemon register fields of `/ready`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from msgspec import field

from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.resources.progress import FollowerState, IndexedChainState
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner


class SigningHealth(Resource, frozen=True, gc=False, kw_only=True):
    """The check.

    timestamp: RFC 3339.
    error: why the daemon cannot sign.
    """

    status: Literal["up", "down"]
    timestamp: str
    error: str | UnsetType = UNSET


class HealthDetails(Resource, frozen=True, gc=False, kw_only=True):
    """The checks by name, as the reference aggregator names them."""

    signing: SigningHealth = field(name="signature-aggregator-health")


class Health(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the daemon can sign: up with 200, down with 503."""

    status: Literal["up", "down"]
    details: HealthDetails


class DisconnectedValidator(Resource, frozen=True, gc=False, kw_only=True):
    """A validator of which no node is connected.

    node_ids: at most 50.
    """

    node_ids: tuple[str, ...]
    public_key: str
    weight: str
    connections: tuple[DisconnectedNode, ...] | UnsetType = UNSET


class ReadySubnet(Resource, frozen=True, gc=False, kw_only=True):
    """The connected weight of a subnet.

    missing, underfunded: the 50 heaviest of the counted ones.
    """

    subnet_id: str
    ready: bool
    connected_weight: str
    required_weight: str
    total_weight: str
    missing_validators: int
    missing: tuple[DisconnectedValidator, ...]
    underfunded_validators: int | UnsetType = UNSET
    underfunded: tuple[MissingSigner, ...] | UnsetType = UNSET
    advice: str | UnsetType = UNSET


class StoreState(Resource, frozen=True, gc=False, kw_only=True):
    """A database.

    url: without its password.
    """

    url: str
    up: bool


class UsageState(StoreState, frozen=True, gc=False, kw_only=True):
    """The metrics database.

    waiting_bytes: in memory, until the database is up.
    """

    waiting_bytes: int | UnsetType = UNSET


class BackgroundState(Resource, frozen=True, gc=False, kw_only=True):
    """The state of what signing does not need.

    index: by chain, if this daemon has an index.
    usage: if it records the usage of RPC routes.
    """

    store: StoreState
    follower: FollowerState
    index: Mapping[str, IndexedChainState] | UnsetType = UNSET
    usage: UsageState | UnsetType = UNSET


class Readiness(Resource, frozen=True, gc=False, kw_only=True):
    """How much of each subnet's weight is connected, what is missing, and the state of what signing
    does not need.

    faults: why the daemon is not ready.
    degraded: what else does not work.
    store, follower: left out while the daemon starts.
    index: by chain, if this daemon has an index.
    usage: if it records the usage of RPC routes.
    """

    ready: bool
    subnets: tuple[ReadySubnet, ...]
    faults: tuple[str, ...] | UnsetType = UNSET
    store: StoreState | UnsetType = UNSET
    follower: FollowerState | UnsetType = UNSET
    index: Mapping[str, IndexedChainState] | UnsetType = UNSET
    usage: UsageState | UnsetType = UNSET
    degraded: tuple[str, ...] | UnsetType = UNSET


class ReadyFields:
    """The fields of `/ready` about parts that signing does not need.

    refresh: function that reads the old ones again; it is called before a response.
    """

    def __init__(self) -> None:
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self._fields: dict[str, Callable[[], Any]] = {}

    def register(self, name: str, read: Callable[[], Any]) -> None:
        """Add a field of BackgroundState; `read` may return UNSET."""
        self._fields[name] = read

    def read(self) -> BackgroundState:
        """Return all fields."""
        return BackgroundState(**{name: read() for name, read in self._fields.items()})
