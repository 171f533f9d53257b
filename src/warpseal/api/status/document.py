"""The status document: what `/status.json` answers, the landing page shows, and `warpseal status`
prints.

Weights, heights and balances are decimal text, as in `/ready`; times are RFC 3339 in UTC, without
fractions. Fields that are not known, or do not apply, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec
from msgspec.structs import fields

from warpseal.resources.evm import describe_trace_gap
from warpseal.runtime.go_time import rfc3339

STATUS_PATH: Final = "/status.json"
MAX_VALIDATORS: Final = 5_000
"""Rows of validators in one document, over all subnets, the heaviest of each subnet first."""
MAX_MISSING: Final = 50
"""Missing validators that one subnet names."""
MAX_ROUTES: Final = 50
"""Forwarded routes in one document, the busiest first."""
MAX_METHODS: Final = 5
"""Methods that one route names, the busiest first."""
MAX_TOP_UPS: Final = 20
"""Top-ups that one forecast names."""
MAX_LOSSES: Final = 20
"""Losses of weight that one forecast names."""
MAX_LOSS_NODES: Final = 5
"""Nodes that one loss names."""
MAX_MISSING_UNPINNED: Final = 5
"""Missing validators of a subnet that only requests name, of which there may be hundreds."""

CONNECTED: Final = "connected"
INACTIVE: Final = "inactive"
NOT_TRACKED: Final = "not_tracked"


class MissingStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A validator that cannot sign now.

    state, reason, detail: the fields of ValidatorStatus.
    """

    node_ids: list[str]
    weight: str
    state: str
    reason: str | None = None
    detail: str | None = None


class SubnetStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The connected weight of a tracked subnet, as `/ready` shows it.

    is_known: its validators are known.
    is_pinned: the subnet is always tracked; other subnets are tracked while requests name them.
    missing: the heaviest of the `missing_validators`.
    keyless_weight: weight of inactive L1 validators and of legacy validators, which cannot sign.
    inactive: the heaviest of the `inactive_validators`.
    """

    subnet_id: str
    is_known: bool
    is_pinned: bool
    ready: bool
    connected_weight: str
    required_weight: str
    total_weight: str
    missing_validators: int
    missing: list[MissingStatus]
    keyless_weight: str = "0"
    inactive_validators: int = 0
    inactive: list[MissingStatus] = msgspec.field(default_factory=list)


class ValidatorStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A validator of a subnet: a key, which several nodes may hold.

    The connection is that of the first connected node.
    state: connected, dialing, waiting (for the next dial), no_address, not_tracked (this daemon
        itself), or inactive (an L1 validator without balance, whose key is in no set any more).
    reason: reason why it is not connected.
    detail: the reason in the words of the system.
    last_reply: time of its last reply to a signature request.
    validation_id, balance: ID and balance (nAVAX) of a validation of an L1.
    """

    subnet_id: str
    node_ids: list[str]
    weight: str
    state: str
    reason: str | None = None
    address: str | None = None
    connected_since: str | None = None
    disconnected_since: str | None = None
    next_try_at: str | None = None
    version: str | None = None
    latency_ms: float | None = None
    last_reply: str | None = None
    validation_id: str | None = None
    balance: str | None = None
    detail: str | None = None

    @property
    def key(self) -> str:
        """The row's identity, the same in every document."""
        return f"{self.subnet_id}/{self.node_ids[0]}"


class AggregationStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One finished aggregation.

    outcome: ok, cancelled, or the code of the error, whose text is the reason.

    stages_ms: validators, connect, collect, verify, total.
    """

    ended_at: str
    outcome: str
    stages_ms: Mapping[str, float]
    reason: str | None = None
    message_id: str | None = None
    signing_subnet_id: str | None = None
    height: str | None = None
    signed_weight: str | None = None
    required_weight: str | None = None
    total_weight: str | None = None


class AggregationMinute(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The aggregations that ended in one minute, counted by outcome; p50_ms, p95_ms: times of
    successful ones.
    """

    started_at: str
    outcomes: Mapping[str, int]
    p50_ms: float | None = None
    p95_ms: float | None = None


class NodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An upstream node when it was probed last.

    setting, position: its place in the configuration.
    address: scheme, host and port.
    behind_seconds: time for which another node has had blocks that this node does not have.
    disagrees: the node contradicted the nodes that agree in the last minute.
    """

    setting: str
    position: int
    is_up: bool
    address: str | None = None
    error: str | None = None
    height: str | None = None
    behind_seconds: int | None = None
    disagrees: bool = False


class ChainSummary(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A chain that the daemon reads.

    kind: follower, index; evm or gateway if calls are forwarded to its nodes.
    height: height of the last block that was read. For an EVM chain whose calls are forwarded, the
        highest block that a node has shown.
    blocks_per_second: rate of the last minute, of reading blocks or of an EVM chain's growth.
    lag_blocks, eta_seconds: blocks and time until the last block is read, or until the EVM node
        that lags most has the highest block.
    waiting_for: the unavailable nodes or store.
    chain_name: configured name, else an alias.
    waiting: reason why an indexed chain waits.
    stopped: reason why no more blocks are read.
    nodes_up, nodes: numbers of nodes of an EVM chain whose calls are forwarded.
    errors: errors of these nodes by their position.
    internal_height: the block of an indexed EVM chain up to which creations inside of transactions
        are complete, or "none".
    internal_gap: the first block that no node can trace.
    """

    kind: str
    name: str
    height: str | None = None
    node_height: str | None = None
    lag_blocks: int | None = None
    blocks_per_second: float | None = None
    eta_seconds: int | None = None
    waiting_for: str | None = None
    waiting: str | None = None
    stopped: str | None = None
    evm_chain_id: int | None = None
    nodes_up: int | None = None
    nodes: int | None = None
    errors: Mapping[str, str] | None = None
    internal_height: str | None = None
    internal_gap: str | None = None
    chain_name: str | None = None

    @property
    def index_notes(self) -> list[str]:
        """What the index of the chain lacks, and up to where it has internal creations."""
        notes = (
            [f"{self.lag_blocks} blocks behind"] if self.kind == "index" and self.lag_blocks else []
        )
        if self.internal_height is not None:
            is_traced = self.internal_height != "none"
            notes.append(
                f"internal creations up to {self.internal_height}"
                if is_traced
                else "no internal creations"
            )
        if self.internal_gap is not None:
            notes.append(describe_trace_gap(self.internal_gap))
        return notes


class RouteUsage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Calls of a forwarded route since the start, by outcome as in endpoint 16.

    methods: calls of the busiest ones.
    """

    path: str
    requests: int
    invalid: int
    failed: int
    credits: int
    methods: Mapping[str, int]


class TopUpStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the balance of an L1 validator needs now, nAVAX."""

    node_id: str
    validation_id: str
    amount: str


class LossStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Validators that leave a subnet's quorum at the same time, and the weights after it.

    node_ids: NodeIDs of the first MAX_LOSS_NODES of the `validators`.
    """

    at: str
    validators: int
    node_ids: list[str]
    weight_lost: str
    active_weight: str
    required_weight: str
    total_weight: str


class ForecastStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The forecast of a tracked subnet at the chain time `as_of`.

    kind: l1, permissioned or primary.
    margin: active weight above the required one, over the total.
    answering_weight, answering_margin: weight and margin of validators that answered in the last
        day, left out if that is not known.
    first_loss_at, first_loss_weight: the first loss in the next ten years.
    quorum_impossible_at: time from which the active weight is below the required one.
    quorum_impossible_at_capacity: the same time if as many validators are active as the network's
        capacity.
    losses: the first MAX_LOSSES losses; omitted_losses counts the rest.
    top_ups: balances that keep the quorum for 30 days, `top_up_total` in all; omitted_top_ups
        counts those beyond MAX_TOP_UPS.
    can_be_kept: top-ups can keep the quorum.
    """

    subnet_id: str
    kind: str
    as_of: str
    total_weight: str
    required_weight: str
    active_weight: str
    margin: float
    can_be_kept: bool
    answering_weight: str | None = None
    answering_margin: float | None = None
    first_loss_at: str | None = None
    first_loss_weight: str | None = None
    quorum_impossible_at: str | None = None
    quorum_impossible_at_capacity: str | None = None
    losses: list[LossStatus] = msgspec.field(default_factory=list)
    omitted_losses: int = 0
    top_ups: list[TopUpStatus] = msgspec.field(default_factory=list)
    omitted_top_ups: int = 0
    top_up_total: str = "0"


class StatusDocument(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of the daemon at `time`.

    ready, faults, degraded: the fields of `/ready`.
    bls_backend, network_id, node_id, proposed_height: fields that are left out while the daemon
        starts.
    validators: the validators, heaviest first in each subnet; omitted_validators counts those
        beyond MAX_VALIDATORS.
    aggregations: the last aggregations, latest first.
    aggregation_minutes: the minutes of the last hour with aggregations, oldest first.
    usage: recorded usage, left out if it is not recorded.
    """

    version: str
    started_at: str
    time: str
    ready: bool
    bls_backend: str | None = None
    network_id: int | None = None
    network: str | None = None
    node_id: str | None = None
    proposed_height: str | None = None
    faults: list[str] = msgspec.field(default_factory=list)
    degraded: list[str] = msgspec.field(default_factory=list)
    subnets: list[SubnetStatus] = msgspec.field(default_factory=list)
    forecasts: list[ForecastStatus] = msgspec.field(default_factory=list)
    aggregations: list[AggregationStatus] = msgspec.field(default_factory=list)
    aggregation_minutes: list[AggregationMinute] = msgspec.field(default_factory=list)
    nodes: list[NodeStatus] = msgspec.field(default_factory=list)
    chains: list[ChainSummary] = msgspec.field(default_factory=list)
    usage: list[RouteUsage] = msgspec.field(default_factory=list)
    validators: list[ValidatorStatus] = msgspec.field(default_factory=list)
    omitted_validators: int = 0


class StatusSection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of the document that a part of the daemon declares, which the page does not show.

    Each field has an immutable default, which the document leaves out.
    """


def extend_document(sections: Iterable[type[StatusSection]]) -> type[StatusDocument]:
    """Return the class of the document with the fields of these sections behind its own."""
    declared = [
        (field.name, field.type, field.default) for section in sections for field in fields(section)
    ]
    document = msgspec.defstruct(
        StatusDocument.__name__,
        declared,
        bases=(StatusDocument,),
        namespace={"__doc__": StatusDocument.__doc__},
        frozen=True,
        rename="camel",
        omit_defaults=True,
    )
    return cast("type[StatusDocument]", document)


def utc_text(unix_s: float) -> str:
    """Return a moment in UTC, RFC 3339, in whole seconds."""
    return rfc3339(round(unix_s))
