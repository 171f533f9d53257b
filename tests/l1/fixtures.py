"""A message service with a real store, over the nodes and validators of a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.integration.daemon import build_config, run_network
from warpseal.aggregation.interfaces import SigningCheck
from warpseal.aggregation.service import SignatureAggregator
from warpseal.config.keys import Config
from warpseal.forwarding.evm.forwarder import LoadChainConfig, forward_chain
from warpseal.forwarding.evm.logs import EvmLogClient
from warpseal.l1.context import L1Lookups
from warpseal.l1.errors import FollowerProgress
from warpseal.l1.interfaces import FindQuorum
from warpseal.l1.request import L1Request
from warpseal.l1.service import L1MessageService
from warpseal.l1.settings import L1Settings
from warpseal.messages.attestation import Attestation
from warpseal.metrics.registry import Metrics
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.peers.identity import lock_identity
from warpseal.peers.network import PeerNetwork
from warpseal.store.store import Store, open_store
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.node import open_session, open_sessions
from warpseal.validators.activity import L1Activity
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights, ProposedHeight
from warpseal.validators.set_cache import PublicKeyCache
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.warp.ids import ChainID, SubnetID, id_text
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan

OnSigned = Callable[[bytes, Attestation, int], None]

PLAN = Plan(validators=3, l1s=(L1Plan(validators=4, spare=2),), messages=0, height=20)


@dataclass
class L1Setup:
    """A running message service.

    store: a store in a folder of the test.
    follower: the progress that the follower reports.
    """

    network: SimulatedNetwork
    upstream: Upstream
    heights: ProposedHeight
    store: Store
    messages: L1MessageService
    sets: ValidatorSets
    peers: PeerNetwork
    aggregator: SignatureAggregator
    follower: dict[str, Any] = field(default_factory=dict)

    @property
    def l1(self) -> SubnetID:
        """The first L1 of the plan."""
        return next(
            subnet.subnet_id for subnet in self.network.subnets if subnet.conversion_id is not None
        )

    def count_signature_requests(self) -> int:
        """Return the number of signature requests that validators received."""
        return sum(validator.counts.app_requests for validator in self.network.validators)


def build_request(tx_id: bytes, **changes: Any) -> L1Request:
    """Return a request with a quorum of 67 percent."""
    return replace(L1Request(tx_id, 67, 0), **changes)


def allow_all(message: UnsignedMessage, subnet_id: SubnetID | None) -> None:
    """Allow every signature."""


async def unknown_quorum(_: ChainID) -> int | None:
    """Return that no chain has a quorum of its own."""
    return None


@asynccontextmanager
async def started_l1_service(
    folder: Path, plan: Plan = PLAN, settings: L1Settings | None = None, **options: Any
) -> AsyncIterator[L1Setup]:
    """Run a simulated network and the service over it, with options of `run_service`."""
    async with (
        run_network(plan) as network,
        run_service(network, folder, settings, **options) as running,
    ):
        yield running


@asynccontextmanager
async def run_service(
    network: SimulatedNetwork,
    folder: Path,
    settings: L1Settings | None = None,
    *,
    evm: bool = False,
    find_quorum: FindQuorum = unknown_quorum,
    on_signed: OnSigned | None = None,
    check_signing: SigningCheck = allow_all,
    call_timeout_s: float = 5.0,
) -> AsyncIterator[L1Setup]:
    """Run the service over a running network, with the store in the folder.

    evm: configure the network's EVM chains.
    find_quorum, on_signed, check_signing: functions of the lookups, the service, the aggregator.
    call_timeout_s: time after which a node that hangs counts as failed.
    """
    urls = [{"base-url": node.uri} for node in network.nodes]
    keys: dict[str, Any] = {"p-chain-api": urls, "info-api": urls}
    if evm:
        keys["evm-chains"] = evm_chains(network)
    config = build_config(network, folder, keys, node={"call_timeout_s": call_timeout_s})
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        upstream = connect_upstream(config.node, session)
        store = await stack.enter_async_context(open_store(config.store, folder))
        sessions = await stack.enter_async_context(open_sessions())
        forwarded = [
            forward_chain(chain, sessions, config.evm_rpc, _no_chain_config(chain))
            for chain in config.node.evm_chains
        ]
        claim = stack.enter_context(lock_identity(config.peers, network.network_id))
        executor = stack.enter_context(ThreadPoolExecutor(1, "verify"))
        peers = PeerNetwork(config.peers, claim, network.network_id, store.addresses)
        evm_logs = {
            chain.chain_id: EvmLogClient(chain.forwarder, timeout_s=5.0) for chain in forwarded
        }
        built = _build(
            config,
            upstream,
            evm_logs,
            store,
            peers,
            executor,
            settings or L1Settings(),
            find_quorum,
            on_signed,
            check_signing,
        )
        tasks = await stack.enter_async_context(_background())
        for service in (built.heights, peers, built.tracker):
            tasks.create_task(service.run())
        yield L1Setup(
            network,
            upstream,
            built.heights,
            store,
            built.messages,
            built.sets,
            peers,
            built.aggregator,
            built.follower,
        )


def evm_chains(network: SimulatedNetwork) -> list[dict[str, Any]]:
    """Return the `evm-chains` configuration of the chains of the L1s."""
    ids = [
        id_text(chain_id)
        for subnet in network.subnets[1:]
        for chain_id in network.state.chains_of(subnet.subnet_id)
    ]
    return [
        {"blockchain-id": raw_id, "rpc": [f"{network.node_uri}/ext/bc/{raw_id}/rpc"]}
        for raw_id in ids
    ]


def _no_chain_config(_: EvmChain) -> LoadChainConfig:
    async def load() -> None:
        return None

    return load


@dataclass
class _Built:
    heights: ProposedHeight
    tracker: SubnetTracker
    sets: ValidatorSets
    messages: L1MessageService
    aggregator: SignatureAggregator
    follower: dict[str, Any]


def _build(
    config: Config,
    upstream: Upstream,
    evm_logs: Mapping[ChainID, EvmLogClient],
    store: Store,
    peers: PeerNetwork,
    executor: ThreadPoolExecutor,
    settings: L1Settings,
    find_quorum: FindQuorum,
    on_signed: OnSigned | None,
    check_signing: SigningCheck,
) -> _Built:
    platform, network_id = upstream.platform, 88888
    heights = ProposedHeight(platform, poll_s=0.05)
    sets = ValidatorSets(platform, heights, PublicKeyCache(1_000), config.validators)
    chains, epochs = ChainLookup(platform), EpochHeights(upstream.proposervm)
    tracker = SubnetTracker(heights, sets, platform, upstream.info, peers, config.validators)
    aggregator = SignatureAggregator(
        network_id=network_id,
        settings=config.aggregation,
        heights=heights,
        epochs=epochs,
        sets=sets,
        chains=chains,
        peers=peers,
        tracker=tracker,
        activity=L1Activity(platform, chains),
        archive=store.archive,
        metrics=Metrics(),
        check_allowed=check_signing,
        executor=executor,
    )
    follower: dict[str, Any] = {}
    lookups = L1Lookups(
        upstream,
        store,
        chains,
        epochs,
        network_id,
        settings,
        evm=evm_logs,
        progress=lambda: FollowerProgress(**follower),
        find_quorum=find_quorum,
    )
    messages = L1MessageService(
        lookups,
        aggregator,
        store.archive,
        sets,
        heights,
        settings,
        config.aggregation,
        on_signed=on_signed,
    )
    return _Built(heights, tracker, sets, messages, aggregator, follower)


@asynccontextmanager
async def _background() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a group; its tasks are cancelled at the end of the block."""
    started: list[asyncio.Task[None]] = []

    class Group:
        def create_task(self, work: Any) -> None:
            started.append(asyncio.create_task(work))

    try:
        yield Group()  # type: ignore[misc]
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)
