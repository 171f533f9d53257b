"""Who may sign at which height, and the connections to them: heights, sets, subnets, peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from warpseal.config.keys import Config
from warpseal.daemon.core import Core
from warpseal.daemon.peer_status import describe_validators
from warpseal.daemon.quorum_log import log_first_quorums, log_missing_quorums
from warpseal.daemon.registries import StatusRequest
from warpseal.daemon.upgrade_log import log_upgrades
from warpseal.metrics.samples import (
    NetworkSample,
    Sample,
    SubnetSample,
    ValidatorSample,
    metric,
)
from warpseal.node.info import UpgradeWatch
from warpseal.ops.health.checks import peer_checks, upgrade_check, validator_sets_check
from warpseal.peers.network import PeerNetwork
from warpseal.store.url import OFF
from warpseal.validators.activity import L1Activity
from warpseal.validators.chain_validator_list import CurrentValidations
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights, ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import SetSource
from warpseal.validators.subnet_tracker import SubnetReadiness, SubnetTracker
from warpseal.validators.uptime.recorder import UptimeRecorder
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner

# Two epochs of mainnet: the P-Chain height of an older one may be of no use.
_LAST_EPOCH_S: Final = 600.0


class HeightSample(Sample, frozen=True):
    """The proposed height of the P-Chain."""

    proposed_height: int | None = metric(
        None,
        "warpseal_proposed_height",
        "Latest proposed P-Chain height; absent while none is known",
    )


class ValidatorNetwork:
    """The lookups of validators, and the connections to them. Nothing runs before `run`."""

    def __init__(self, core: Core) -> None:
        config, settings, upstream, platform = (
            core.config,
            core.config.validators,
            core.upstream,
            core.platform,
        )
        self._indexed = indexed = core.upstreams.indexed
        self.chains = ChainLookup(platform, has_index=indexed is not None)
        self.heights = ProposedHeight(
            platform,
            poll_s=settings.height_poll_s,
            stale_after_s=settings.height_stale_after_s,
            read_index=None if indexed is None else indexed.newest_height,
        )
        self.epochs = EpochHeights(
            upstream.proposervm,
            last_reply_s=0.0 if indexed is None else _LAST_EPOCH_S,
            newest_height=self.heights.latest,
        )
        self.sets = ValidatorSets(
            platform, self.heights, core.upstreams.keys, settings, executor=core.upstreams.decoding
        )
        if indexed is not None:
            indexed.comparison.on_wrong_set = self.sets.forget
        self.network = PeerNetwork(
            config.peers, core.identity, core.network_id, core.store.addresses
        )
        self.upgrades = UpgradeWatch(
            upstream.info,
            self.network.record_upgrade_time,
            lambda: self.network.unknown_upgrade_time() is not None,
        )
        node_id = core.identity.identity.node_id
        self.uptime = UptimeRecorder(self.network, core.store.observed, node_id, config.uptime)
        self.current = CurrentValidations(
            platform,
            self.uptime.watch,
            ttl_s=2 * settings.current_refresh_s,
            min_balance_navax=settings.min_balance_navax,
        )
        self.subnet_tracker = SubnetTracker(
            self.heights, self.sets, platform, upstream.info, self.network, settings
        )
        self.activity = L1Activity(
            platform,
            self.chains,
            refresh_s=settings.activity_refresh_s,
            min_balance_navax=settings.min_balance_navax,
        )

    def run(self, core: Core, tasks: asyncio.TaskGroup) -> None:
        """Follow the P-Chain and stay connected. An error in what signing needs ends the daemon."""
        for needed in (self.heights, self.network, self.subnet_tracker):
            tasks.create_task(needed.run())
        core.keep_running(tasks, "observed uptimes", self.uptime.run)
        core.keep_running(tasks, "releases of the nodes", self.upgrades.run)
        if self._indexed is not None:
            core.keep_running(tasks, "comparison of validator sets", self._indexed.run)

    def check_sets(self, subnet_id: SubnetID) -> None:
        """Raise an error if index and nodes have different sets of a subnet, so that nothing is
        signed.
        """
        if self._indexed is not None:
            self._indexed.comparison.check(subnet_id)

    def is_unreachable(self, node_id: NodeID, subnet_id: SubnetID) -> bool:
        """Return whether a node of a subnet is known not to answer."""
        if self.subnet_tracker.validators_of(subnet_id) is None:
            return False
        missing = self.network.missing_connection(node_id)
        if missing is None:
            # Connected after its observation was read, or not wanted at the proposed height.
            return self.network.heard_at(node_id) is None
        return bool(missing.last_error) or self.network.unreachable(node_id, subnet_id) is not None

    def readiness(self) -> Sequence[SubnetReadiness]:
        """Return the connected weight of the Primary Network and of each tracked subnet."""
        return self.subnet_tracker.readiness()

    def missing_connection(self, node_id: NodeID) -> DisconnectedNode | None:
        """Return why a tracked node is not connected; None for a connected node."""
        return self.network.missing_connection(node_id)

    def underfunded(self, subnet_id: SubnetID) -> tuple[MissingSigner, ...]:
        """Return the L1 validators of a tracked subnet that are inactive or nearly drained, as far
        as known.
        """
        return self.current.underfunded(subnet_id)


def find_readers(config: Config) -> tuple[str, ...]:
    """Return the parts of a daemon that read blocks, and so stop at one that they cannot decode."""
    readers: list[str] = []
    if config.follower.follow_p_chain and config.store.url != OFF:
        readers.append(
            "the follower of the P-Chain (then no L1 message is signed ahead, and the removal of a"
            " validator that registers later needs its registration in the request)"
        )
    for chain in config.indexer.chains:
        readers.append(f"the index of the {chain.name}-Chain")
    if config.node.has_evm_index:
        readers.append("the index of an EVM chain")
    if config.set_source is SetSource.INDEX:
        readers.append("signing, since validator-sets is index")
    return tuple(readers)


@asynccontextmanager
async def open_validators(core: Core, tasks: asyncio.TaskGroup) -> AsyncIterator[ValidatorNetwork]:
    """Follow the P-Chain, and stay connected to the validators of the tracked subnets."""
    validators = ValidatorNetwork(core)
    network, tracker = validators.network, validators.subnet_tracker
    pinned = frozenset((PRIMARY_NETWORK, *core.config.validators.tracked_subnet_ids))

    async def status(request: StatusRequest) -> Mapping[str, Any]:
        height = validators.heights.last
        rows = await describe_validators(request, network, tracker, validators.current, pinned)
        return {"proposed_height": None if height is None else str(height), **rows}

    core.status.register(status)
    _register_samples(core, validators)
    now = asyncio.get_running_loop().time
    upgrades = upgrade_check(network, validators.upgrades, find_readers(core.config))
    core.health.register(
        *peer_checks(network, tracker, validators.current, core.config.peers, now), upgrades
    )
    if core.upstreams.indexed is not None:
        core.health.register(validator_sets_check(core.upstreams.indexed.comparison))
    network.subscribe(lambda node_id, connected: core.health.trigger())
    validators.heights.watch(core.health.trigger)
    tracker.watch(core.health.trigger)
    validators.run(core, tasks)
    core.keep_running(
        tasks,
        "log of quorums",
        lambda: log_first_quorums(network, tracker, core.registries.uptime_s),
    )
    core.keep_running(tasks, "log of upgrades", lambda: log_upgrades(upgrades))
    core.keep_running(
        tasks, "log of missing quorums", lambda: log_missing_quorums(network, tracker)
    )
    try:
        yield validators
    finally:
        validators.activity.close()


def _register_samples(core: Core, validators: ValidatorNetwork) -> None:
    network, samples, request_timeout_s = (
        validators.network,
        core.metrics.samples,
        core.config.peers.slot_timeout_s,
    )
    samples.register(ValidatorSample, lambda: _validators(network))
    samples.register(SubnetSample, lambda: _subnets(validators.subnet_tracker))
    samples.register(
        NetworkSample, lambda: [_network(network, validators.upgrades, request_timeout_s)]
    )
    samples.register(HeightSample, lambda: [HeightSample(validators.heights.last)])


def _validators(network: PeerNetwork) -> Iterator[ValidatorSample]:
    for node_id, peer in list(network.statistics.items()):
        counts = (peer.requests, peer.responses, peer.errors, peer.refused)
        yield ValidatorSample(node_id_text(node_id), *counts, peer.latency_s)


def _subnets(subnet_tracker: SubnetTracker) -> Iterator[SubnetSample]:
    for subnet in subnet_tracker.all_readiness():
        yield SubnetSample(id_text(subnet.subnet_id), subnet.connected, subnet.total)


def _network(
    network: PeerNetwork, upgrades: UpgradeWatch, request_timeout_s: float
) -> NetworkSample:
    versions, totals, advertised = network.versions(), network.totals, network.advertised_version
    return NetworkSample(
        connections=len(network.connected),
        dials=totals.dials,
        dial_failures=dict(totals.dial_failures),
        endings=dict(totals.disconnects),
        newer_peers=sum(version > advertised for version in versions),
        newest_version=".".join(map(str, max(versions, default=()))),
        untested_upgrades=upgrades.untested(),
        clock_offset_s=network.clock_offset_s,
        requests=totals.requests,
        pending=sum(connection.outstanding for connection in network.connected.values()),
        unanswered=totals.timeouts,
        request_timeout_s=request_timeout_s,
    )
