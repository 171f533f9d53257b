"""Bodies of `/health` and `/ready`, as the OpenAPI document describes them; tests validate the answers of daemons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import field

from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner


class SigningHealth(Resource, frozen=True, gc=False, kw_only=True):
    """The check. timestamp: RFC 3339. error: why the daemon cannot sign."""

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
    """A validator of which no node is connected. node_ids: at most 50."""

    node_ids: tuple[str, ...]
    public_key: str
    weight: str
    connections: tuple[DisconnectedNode, ...] | UnsetType = UNSET


class ReadySubnet(Resource, frozen=True, gc=False, kw_only=True):
    """The connected weight of a subnet. missing, underfunded: the 50 heaviest of the counted ones."""

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
    """A database. url: without its password."""

    url: str
    up: bool


class UsageState(StoreState, frozen=True, gc=False, kw_only=True):
    """The metrics database. waiting_bytes: in memory, until the database is up."""

    waiting_bytes: int | UnsetType = UNSET


class FollowerState(Resource, frozen=True, gc=False, kw_only=True):
    """How far the daemon has read the P-Chain for L1 transactions; unknown fields are left out.

    off: it does not read it. first_height: all blocks from there to `height` were read. target_height: the end of the
    backfill. backfilled: 0 to 1. leader: whether this daemon reads for all that share the store. stopped: why it reads
    no more blocks. waiting_for: nodes or store.
    """

    off: bool | UnsetType = UNSET
    height: str | UnsetType = UNSET
    node_height: str | UnsetType = UNSET
    lag_blocks: int | UnsetType = UNSET
    first_height: str | UnsetType = UNSET
    target_height: str | UnsetType = UNSET
    backfilled: float | UnsetType = UNSET
    blocks_per_second: float | UnsetType = UNSET
    eta_seconds: int | UnsetType = UNSET
    leader: bool | UnsetType = UNSET
    stopped: str | UnsetType = UNSET
    stopped_at: str | UnsetType = UNSET
    waiting_for: str | UnsetType = UNSET


class IndexedChainState(Resource, frozen=True, gc=False, kw_only=True):
    """How far a chain is indexed. waiting: why it waits. stopped: why no more blocks are read.

    internal_height: of an EVM chain, the block up to which creations inside of transactions are complete. internal_gap:
    the first block that no node can trace.
    """

    height: str | UnsetType = UNSET
    node_height: str | UnsetType = UNSET
    lag_blocks: int | UnsetType = UNSET
    first_height: str | UnsetType = UNSET
    waiting: str | UnsetType = UNSET
    blocks_per_second: float | UnsetType = UNSET
    eta_seconds: int | UnsetType = UNSET
    stopped: str | UnsetType = UNSET
    stopped_at: str | UnsetType = UNSET
    internal_height: str | UnsetType = UNSET
    internal_gap: str | UnsetType = UNSET


class Readiness(Resource, frozen=True, gc=False, kw_only=True):
    """How much of each subnet's weight is connected, what is missing, and the state of what signing does not need.

    faults: why the daemon is not ready. degraded: what else does not work. store, follower: left out while the daemon
    starts. index: by chain, if this daemon has an index. usage: if it records the usage of RPC routes.
    """

    ready: bool
    subnets: tuple[ReadySubnet, ...]
    faults: tuple[str, ...] | UnsetType = UNSET
    degraded: tuple[str, ...] | UnsetType = UNSET
    store: StoreState | UnsetType = UNSET
    follower: FollowerState | UnsetType = UNSET
    index: Mapping[str, IndexedChainState] | UnsetType = UNSET
    usage: UsageState | UnsetType = UNSET
