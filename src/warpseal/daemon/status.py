"""Collects the status document from the running services."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.api.http.settings import NETWORK_NAMES
from warpseal.api.status.document import (
    INACTIVE,
    MAX_LOSS_NODES,
    MAX_LOSSES,
    MAX_METHODS,
    MAX_MISSING,
    MAX_MISSING_UNPINNED,
    MAX_ROUTES,
    MAX_TOP_UPS,
    MAX_VALIDATORS,
    NOT_TRACKED,
    AggregationMinute,
    AggregationStatus,
    ChainSummary,
    ForecastStatus,
    LossStatus,
    MissingStatus,
    NodeStatus,
    RouteUsage,
    StatusDocument,
    SubnetStatus,
    TopUpStatus,
    ValidatorStatus,
    utc_text,
)
from warpseal.ops.health.chains import P_CHAIN_API
from warpseal.peers.statistics import PeerStatus
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.runtime.lazy import LazyModule
from warpseal.version import __version__
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.validator_set import DEFAULT_QUORUM, Validator, required_weight

if TYPE_CHECKING:
    from warpseal.aggregation.service import AggregationRecord, MinuteCounts
    from warpseal.api.status.probes import ProbeEndpoints
    from warpseal.config.keys import Config
    from warpseal.daemon.forwarding_api import EvmApi
    from warpseal.daemon.node_api import NodeApi
    from warpseal.daemon.services import Services
    from warpseal.indexer.status import IndexStatus
    from warpseal.metrics.samples import IndexSample
    from warpseal.node.p_chain import CurrentValidation
    from warpseal.upstream.pool import NodePool
    from warpseal.usage import response_times
    from warpseal.usage.recorder import MethodUsage
    from warpseal.validators.forecast.outlook import Course
    from warpseal.validators.forecast.service import ForecastService, SubnetForecast
    from warpseal.validators.subnet_tracker import SubnetReadiness
else:
    response_times = LazyModule("warpseal.usage.response_times")

_ROWS_PER_TURN: Final = 100
_PRIMARY_ALIASES: Final = tuple(names[0] for names in PRIMARY_NAMES.values())
_MAX_CACHED_NAMES: Final = 16_384
# Beyond this the wall clock was set.
_CLOCK_STEP_S: Final = 1.0

_node_text: Final = lru_cache(_MAX_CACHED_NAMES)(node_id_text)
_id_text: Final = lru_cache(_MAX_CACHED_NAMES)(id_text)


class StatusSources(Struct, frozen=True):
    """The parts of the daemon that the document describes, once they run."""

    network_id: int
    node_id: NodeID
    bls_backend: str
    services: Services
    index_status: IndexStatus
    forecasts: ForecastService


class DaemonStatus:
    """Collects from the start; facts of the services come after `open`. unix_clock: Unix seconds."""

    def __init__(
        self,
        config: Config,
        probes: ProbeEndpoints,
        node_api: NodeApi,
        evm_api: EvmApi,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._pinned = frozenset((PRIMARY_NETWORK, *config.validators.tracked_subnet_ids))
        self._chain_names = {id_text(chain.blockchain_id): chain.info.chain_name for chain in config.node.evm_chains}
        self._probes = probes
        self._node_api = node_api
        self._evm_api = evm_api
        self._unix_clock = unix_clock
        self._started_at = unix_clock()
        self._sources: StatusSources | None = None
        self._offset_s = 0.0

    def uptime_s(self) -> float:
        """Return the seconds since the start."""
        return self._unix_clock() - self._started_at

    def open(self, sources: StatusSources) -> None:
        """Add the facts of the services."""
        self._sources = sources

    async def collect(self, *, with_addresses: bool) -> StatusDocument:
        """Return the document; other callbacks of the event loop run in between.

        with_addresses: include the addresses of validators and of upstream nodes.
        """
        self._update_offset()
        sources = self._sources
        if sources is not None:
            await sources.index_status.evm.refresh_if_old()
        readiness: list[SubnetReadiness] = []
        subnets: list[SubnetStatus] = []
        validators: list[ValidatorStatus] = []
        count = 0
        if sources is not None:
            describe = PeerDescriber(sources, self._moment, with_addresses=with_addresses)
            members = []
            for subnet in sources.services.subnet_tracker.all_readiness():
                readiness.append(subnet)
                members.append(describe.members(subnet.subnet_id))
                await asyncio.sleep(0)
            count = sum(map(len, members))
            for subnet, listed, row_limit in zip(
                readiness, members, share_limits(list(map(len, members)), MAX_VALIDATORS), strict=True
            ):
                validators += await describe.rows(subnet.subnet_id, listed[:row_limit])
                is_pinned = subnet.subnet_id in self._pinned
                limit = MAX_MISSING if is_pinned else MAX_MISSING_UNPINNED
                missing = await describe.rows(subnet.subnet_id, subnet.missing[:limit])
                inactive = [member for member in listed if not isinstance(member, Validator)]
                subnets.append(_subnet(subnet, missing, inactive, limit, is_pinned=is_pinned))
        reasons = self._probes.reasons()
        height = None if sources is None else sources.services.heights.last
        recent = () if sources is None else tuple(sources.services.aggregator.recent)
        return StatusDocument(
            version=__version__,
            started_at=utc_text(self._started_at),
            time=utc_text(self._unix_clock()),
            ready=not reasons,
            bls_backend=None if sources is None else sources.bls_backend,
            network_id=None if sources is None else sources.network_id,
            network=None if sources is None else NETWORK_NAMES.get(sources.network_id, (None,))[0],
            node_id=None if sources is None else _node_text(sources.node_id),
            proposed_height=None if height is None else str(height),
            faults=reasons,
            degraded=self._node_api.health.degraded(),
            subnets=subnets,
            forecasts=[] if sources is None else list(map(forecast_status, sources.forecasts.latest())),
            aggregations=[_aggregation(record) for record in reversed(recent)],
            aggregation_minutes=[]
            if sources is None
            else list(map(_minute, sources.services.aggregator.last_hour.minutes(self._unix_clock()))),
            nodes=list(self._nodes(with_addresses=with_addresses)),
            chains=[replace(chain, chain_name=self._chain_name(chain.name)) for chain in self._chains(sources)],
            usage=[] if self._node_api.usage is None else route_usage(self._node_api.usage.since_start),
            validators=validators,
            omitted_validators=count - len(validators),
        )

    def _update_offset(self) -> None:
        """Keep the difference between the wall clock and the loop's clock, so that equal moments have equal texts."""
        offset_s = self._unix_clock() - asyncio.get_running_loop().time()
        if abs(offset_s - self._offset_s) > _CLOCK_STEP_S:
            self._offset_s = offset_s

    def _moment(self, loop_time: float | None) -> str | None:
        return utc_text(loop_time + self._offset_s) if loop_time is not None and isfinite(loop_time) else None

    def _nodes(self, *, with_addresses: bool) -> Iterator[NodeStatus]:
        monitor = self._node_api.node_monitor
        if monitor is None:
            return
        for setting, results in monitor.results.items():
            for result in results:
                has_height = setting == P_CHAIN_API and result.value is not None
                yield NodeStatus(
                    setting=setting,
                    position=result.position,
                    is_up=result.failure is None,
                    address=result.display if with_addresses else None,
                    error=None if result.failure is None else result.failure.value,
                    height=str(result.value) if has_height else None,
                    behind_seconds=int(monitor.behind_s(result.position)) or None if has_height else None,
                    disagrees=result.disagrees,
                )

    def _chains(self, sources: StatusSources | None) -> Iterator[ChainSummary]:
        if sources is not None:
            if not sources.services.follower.is_off:
                follower = sources.services.follower.progress()
                yield ChainSummary(
                    kind="follower",
                    name="p-chain",
                    height=_text(follower.height),
                    node_height=_text(follower.node_height),
                    lag_blocks=follower.lag_blocks,
                    blocks_per_second=_rate(follower.blocks_per_s),
                    eta_seconds=_whole(follower.eta_s),
                    waiting_for=follower.waiting_for,
                    stopped=follower.stopped,
                )
            yield from map(_indexed_chain, sources.index_status.samples())
        for chain in self._evm_api.chains:
            evm_id = None if chain.pool.identity.expected is None else chain.pool.identity.expected.chain_id
            yield _forwarded_chain("evm", _id_text(chain.chain_id), chain.pool, evm_id)
        for name, pool in self._node_api.gateway_pools.items():
            yield _forwarded_chain("gateway", name, pool)

    def _chain_name(self, chain: str) -> str | None:
        """Return the configured name of a blockchain id, else its first alias."""
        name = self._chain_names.get(chain)
        if name is not None:
            return name
        chain_id = self._node_api.aliases.find(chain)
        aliases = self._node_api.aliases.aliases_of(chain_id) if chain_id is not None else ()
        if aliases and aliases[0] in _PRIMARY_ALIASES:
            return f"{aliases[0]}-Chain"
        return next((alias for alias in aliases if alias != chain), None)


class PeerDescriber:
    """Describes the validators of subnets and the connections to them. moment: the text of a time of the loop."""

    def __init__(
        self, sources: StatusSources, moment: Callable[[float | None], str | None], *, with_addresses: bool
    ) -> None:
        self._network = sources.services.network
        self._subnet_tracker = sources.services.subnet_tracker
        self._current = sources.services.current
        self._moment = moment
        self._with_addresses = with_addresses

    def members(self, subnet_id: SubnetID) -> list[Validator | CurrentValidation]:
        """Return the validators of a subnet, heaviest first, and the inactive ones of an L1, which are in no set."""
        validator_set = self._subnet_tracker.validators_of(subnet_id)
        validators = validator_set.validators if validator_set is not None else ()
        members: list[Validator | CurrentValidation] = [*validators]
        inactive = [paid for paid in self._paying(subnet_id).values() if not paid.is_active]
        if inactive:
            keyed = {node_id for validator in validators for node_id in validator.node_ids}
            members += [validation for validation in inactive if validation.node_id not in keyed]
        return sorted(members, key=lambda member: member.weight, reverse=True)

    async def rows(
        self, subnet_id: SubnetID, members: Sequence[Validator | CurrentValidation]
    ) -> list[ValidatorStatus]:
        """Return the rows of these validators; other callbacks run in between."""
        name, paying = _id_text(subnet_id), self._paying(subnet_id)
        rows = []
        for position, member in enumerate(members):
            if position % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
            rows.append(self._row(name, member, paying) if isinstance(member, Validator) else _inactive(name, member))
        return rows

    def _paying(self, subnet_id: SubnetID) -> dict[NodeID, CurrentValidation]:
        """Return the validations of an L1. A node may also have a permissioned one."""
        validations = self._current.latest(subnet_id)
        return {validation.node_id: validation for validation in validations or () if validation.is_l1}

    def _row(self, subnet: str, validator: Validator, paying: Mapping[NodeID, CurrentValidation]) -> ValidatorStatus:
        node_id = next(filter(self._network.is_connected, validator.node_ids), validator.node_ids[0])
        peer = self._network.status(node_id) or PeerStatus(NOT_TRACKED)
        validation = paying.get(node_id)
        return ValidatorStatus(
            subnet_id=subnet,
            node_ids=[_node_text(holder) for holder in validator.node_ids],
            weight=str(validator.weight),
            state=peer.stage,
            reason=peer.failure,
            address=peer.address if self._with_addresses else None,
            connected_since=self._moment(peer.connected_at),
            disconnected_since=self._moment(peer.disconnected_at),
            next_try_at=self._moment(peer.next_dial_at),
            version=peer.version,
            latency_ms=None if peer.latency_s is None else round(peer.latency_s * 1_000, 1),
            last_reply=self._moment(peer.responded_at),
            validation_id=None if validation is None else _id_text(validation.validation_id),
            balance=None if validation is None else str(validation.balance),
            # It may quote the address.
            detail=peer.detail if self._with_addresses else None,
        )


def share_limits(sizes: Sequence[int], total: int) -> list[int]:
    """Return how many of its rows each part may show: all of small parts, and equal shares of the rest of `total`."""
    limits = [0] * len(sizes)
    remaining = total
    for done, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        limits[place] = min(sizes[place], remaining // (len(sizes) - done))
        remaining -= limits[place]
    return limits


def _subnet(
    subnet: SubnetReadiness,
    missing: Sequence[ValidatorStatus],
    inactive: Sequence[CurrentValidation],
    limit: int,
    *,
    is_pinned: bool,
) -> SubnetStatus:
    """Return the status of a subnet. limit: named inactive validators."""
    return SubnetStatus(
        subnet_id=_id_text(subnet.subnet_id),
        is_known=subnet.is_known,
        is_pinned=is_pinned,
        ready=subnet.is_ready,
        connected_weight=str(subnet.connected),
        required_weight=str(subnet.needed),
        total_weight=str(subnet.total),
        missing_validators=len(subnet.missing),
        missing=[MissingStatus(row.node_ids, row.weight, row.state, row.reason, row.detail) for row in missing],
        keyless_weight=str(subnet.keyless),
        inactive_validators=len(inactive),
        inactive=[
            MissingStatus([_node_text(validation.node_id)], str(validation.weight), INACTIVE)
            for validation in inactive[:limit]
        ],
    )


def _inactive(subnet: str, validation: CurrentValidation) -> ValidatorStatus:
    return ValidatorStatus(
        subnet_id=subnet,
        node_ids=[_node_text(validation.node_id)],
        weight=str(validation.weight),
        state=INACTIVE,
        validation_id=_id_text(validation.validation_id),
        balance=str(validation.balance),
    )


def _aggregation(record: AggregationRecord) -> AggregationStatus:
    stages_ms = {stage: round(seconds * 1_000, 1) for stage, seconds in record.stages.items()}
    outcome = (utc_text(record.ended_at), record.outcome, stages_ms, record.reason or None)
    if record.message_id is None or record.signing_subnet_id is None:
        return AggregationStatus(*outcome)
    return AggregationStatus(
        *outcome,
        message_id=_id_text(record.message_id),
        signing_subnet_id=_id_text(record.signing_subnet_id),
        height=_text(record.height),
        signed_weight=str(record.signed_weight),
        required_weight=str(record.required_weight),
        total_weight=str(record.total_weight),
    )


def _minute(minute: MinuteCounts) -> AggregationMinute:
    p50_ms, p95_ms = (round(response_times.percentile_ms(minute.times, percent), 1) for percent in (50, 95))
    times = {"p50_ms": p50_ms, "p95_ms": p95_ms} if minute.times else {}
    return AggregationMinute(utc_text(minute.start_s), dict(minute.outcomes), **times)


def _indexed_chain(sample: IndexSample) -> ChainSummary:
    is_comparable = sample.height is not None and sample.node_height is not None
    return ChainSummary(
        kind="index",
        name=sample.chain,
        height=_text(sample.height),
        node_height=_text(sample.node_height),
        lag_blocks=max(0, (sample.node_height or 0) - (sample.height or 0)) if is_comparable else None,
        blocks_per_second=_rate(sample.rate),
        eta_seconds=_whole(sample.eta_s),
        waiting=sample.waiting or None,
        stopped=sample.stopped,
        evm_chain_id=sample.evm_chain_id,
        internal_height=None if sample.evm_chain_id is None else _text(sample.traced_height) or "none",
        internal_gap=_text(sample.trace_gap),
    )


def _forwarded_chain(kind: str, name: str, pool: NodePool[Any], evm_chain_id: int | None = None) -> ChainSummary:
    failures, growth = pool.failures(), pool.head_growth()
    return ChainSummary(
        kind=kind,
        name=name,
        height=str(pool.highest) if pool.highest else None,
        lag_blocks=growth.lag_blocks,
        blocks_per_second=_rate(growth.blocks_s),
        eta_seconds=_whole(growth.eta_s),
        evm_chain_id=evm_chain_id,
        nodes_up=sum(node.is_verified and node.failure is None for node in pool.nodes),
        nodes=len(pool.nodes),
        errors={str(position): reason for position, reason in sorted(failures.items())} or None,
    )


def route_usage(since_start: Mapping[tuple[str, str], MethodUsage]) -> list[RouteUsage]:
    """Return the usage of the busiest routes. since_start: by path and method."""
    routes: defaultdict[str, dict[str, MethodUsage]] = defaultdict(dict)
    for (path, method), usage in since_start.items():
        routes[path][method] = usage
    rows = []
    for path, methods in routes.items():
        busiest = sorted(methods, key=lambda method: methods[method].requests, reverse=True)
        rows.append(
            RouteUsage(
                path=path,
                requests=sum(usage.requests for usage in methods.values()),
                invalid=sum(usage.invalid for usage in methods.values()),
                failed=sum(usage.failed for usage in methods.values()),
                credits=sum(usage.credits for usage in methods.values()),
                methods={method: methods[method].requests for method in busiest[:MAX_METHODS]},
            )
        )
    return sorted(rows, key=lambda row: row.requests, reverse=True)[:MAX_ROUTES]


def forecast_status(forecast: SubnetForecast) -> ForecastStatus:
    """Return the forecast of a tracked subnet for the status."""
    outlook, today = forecast.outlook, forecast.outlook.today
    first_loss = today.losses[0] if today.losses else None
    nodes = {row.validator.id: row.validator.node_id for row in outlook.validators}
    losses = [
        LossStatus(
            at=utc_text(loss.at_s),
            validators=len(loss.ids),
            node_ids=[node_id_text(nodes[name]) for name in loss.ids[:MAX_LOSS_NODES]],
            weight_lost=str(loss.weight_lost),
            active_weight=str(loss.active_weight),
            required_weight=str(required_weight(loss.total_weight, DEFAULT_QUORUM)),
            total_weight=str(loss.total_weight),
        )
        for loss in today.losses[:MAX_LOSSES]
    ]
    top_ups = [
        TopUpStatus(node_id_text(nodes[top_up.validation_id]), id_text(top_up.validation_id), str(top_up.amount_navax))
        for top_up in (today.top_ups or ())[:MAX_TOP_UPS]
    ]
    return ForecastStatus(
        subnet_id=id_text(forecast.subnet_id),
        kind=forecast.kind.value,
        as_of=utc_text(outlook.as_of_s),
        total_weight=str(outlook.total_weight),
        required_weight=str(outlook.required_weight),
        active_weight=str(outlook.active_weight),
        answering_weight=str(outlook.answering_weight) if forecast.is_answering_known else None,
        margin=float(outlook.margin),
        can_be_kept=today.top_ups is not None,
        answering_margin=float(outlook.answering_margin) if forecast.is_answering_known else None,
        first_loss_at=None if first_loss is None else utc_text(first_loss.at_s),
        first_loss_weight=None if first_loss is None else str(first_loss.weight_lost),
        quorum_impossible_at=_impossible_at(today),
        quorum_impossible_at_capacity=None if outlook.at_capacity is None else _impossible_at(outlook.at_capacity),
        losses=losses,
        omitted_losses=max(0, len(today.losses) - MAX_LOSSES),
        top_ups=top_ups,
        omitted_top_ups=max(0, len(today.top_ups or ()) - MAX_TOP_UPS),
        top_up_total=str(today.top_up_total_navax),
    )


def _impossible_at(course: Course) -> str | None:
    return None if course.quorum_impossible_at_s is None else utc_text(course.quorum_impossible_at_s)


def _text(height: int | None) -> str | None:
    return None if height is None else str(height)


def _rate(blocks_s: float | None) -> float | None:
    return None if blocks_s is None else round(blocks_s, 1)


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)
