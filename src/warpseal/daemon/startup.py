"""Start of the services, once both ports listen: the network id, the identity, all services, the gates of the APIs.

The services of EVM chains and of the validators endpoints are last.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from warpseal import bls
from warpseal.api.data.contract_info import CONTRACTS_FOLDER, ContractInfoFolder
from warpseal.api.data.evm_chains import EvmChainServices
from warpseal.api.data.services import DataServices, EphemeralKeys
from warpseal.api.http.settings import NETWORK_NAMES
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.node.admin import CHAINS
from warpseal.api.node.app import NodeInterfaces
from warpseal.api.node.services import ValidatorsEndpoint
from warpseal.api.signing.endpoints import SigningServices
from warpseal.api.status.probe_bodies import BackgroundState, StoreState
from warpseal.config.keys import Config
from warpseal.daemon.ports import DaemonPorts
from warpseal.daemon.services import Services, build_forecasts, build_services, open_upstreams, register_samples
from warpseal.daemon.status import StatusSources
from warpseal.errors import CallRefused, StartupError
from warpseal.events.feed import EventFeed
from warpseal.index.settings import EVM_INDEX, PRIMARY_INDEX
from warpseal.indexer.status import IndexStatus
from warpseal.l1.follower import follower_state
from warpseal.metrics.registry import Metrics
from warpseal.metrics.samples import CertificateSample, HealthSample, IndexSample, UsageSample
from warpseal.node.chain_apis import ChainValidatorsClient
from warpseal.node.info import InfoClient
from warpseal.node.upstream import Upstream
from warpseal.ops.health.checks import validator_sets_check
from warpseal.peers.identity import lock_identity
from warpseal.peers.network import PeerNetwork
from warpseal.prices.sources import AvaxPrices, open_price_sources
from warpseal.resources.base import UNSET, or_unset
from warpseal.resources.text import NetworkText
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.locks import WorkerThreads
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.errors import StoreDown
from warpseal.store.locks import Leadership
from warpseal.store.url import OFF, StoreUrl
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.chain_validator_list import ChainValidatorList, LocalView, ValidatorRefresher
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.version import __version__
from warpseal.warp.ids import ChainID, SubnetID, id_text, node_id_text
from warpseal.warp.validator_set import Validator

if TYPE_CHECKING:
    from warpseal.daemon import evm_data
    from warpseal.daemon import usage as usage_recording
    from warpseal.events import webhooks
    from warpseal.index import database as index_database
    from warpseal.index import index as primary_index
    from warpseal.indexer import network as indexer_network
else:
    evm_data = LazyModule("warpseal.daemon.evm_data")
    usage_recording = LazyModule("warpseal.daemon.usage")
    webhooks = LazyModule("warpseal.events.webhooks")
    index_database = LazyModule("warpseal.index.database")
    primary_index = LazyModule("warpseal.index.index")
    indexer_network = LazyModule("warpseal.indexer.network")

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first_s=0.25, cap_s=5.0)
_QUORUM_CHECK_S: Final = 0.1
_QUORUM_WARNING_S: Final = 5.0
_REPEATED_LINE_S: Final = 60.0
_MAX_LOGGED_VALIDATORS: Final = 10
_WEBHOOK_POLL_S: Final = 2.0


async def start_services(config: Config, ports: DaemonPorts, start_indexer: Callable[[], None]) -> None:
    """Build all services, open the gates of the APIs, and run until cancelled. Raises StartupError.

    start_indexer: called once nothing is known that keeps the index process from starting.
    """
    contracts = config.peers.data_dir / CONTRACTS_FOLDER
    has_contracts = os.access(contracts, os.R_OK)
    contract_infos = ContractInfoFolder(contracts if has_contracts else None)
    # Forwarded calls are answered already, and their usage is recorded below: wait only if there is something to read.
    if has_contracts:
        await asyncio.to_thread(contract_infos.load)
    node_api, evm_api, metrics = ports.node_api, ports.evm_api, ports.metrics
    prices = open_price_sources(config.prices, config.peers.data_dir)
    async with prices as price_sources, open_upstreams(config, metrics, config.set_source) as upstreams:
        upstream = upstreams.upstream
        evm_api.open(upstream.view, upstream.info)
        recorder = node_api.usage
        # A daemon that records no usage does not load the package.
        recording = nullcontext() if recorder is None else usage_recording.recording_before_network(config, recorder)
        async with recording as flusher:
            nodes = [endpoint.display for endpoint in config.node.info_api]
            network_id = await _network_id(upstream.info, nodes, ports.signing, ports.data, ports.gateway_api.gate)
        log.debug("network id read", extra={"network_id": network_id})
        async with AsyncExitStack() as stack:
            identity = stack.enter_context(lock_identity(config.peers, network_id))
            log.debug("identity locked", extra={"folder": identity.folder})
            index_location = await _check_index(config, network_id, identity.folder)
            metrics_database, usage = None, None
            if config.records_usage or config.node.has_evm_index:
                database = usage_recording.open_metrics_database(config, identity.folder)
                metrics_database = await stack.enter_async_context(database)
            if metrics_database is not None and flusher is not None:
                usage = usage_recording.UsageRecording(config, flusher, metrics_database)
                # The end writes the rest.
                stack.push_async_callback(flusher.stop)
            index_status = IndexStatus()
            if index_location is not None:
                # Before any service that reads a validator set: a set of a node stays in the caches.
                index = await stack.enter_async_context(primary_index.Index(index_location, None, config.index))
                index_status.index = index
                if upstreams.indexed is not None:
                    upstreams.indexed.index = index
            evm_chains = EvmChainServices(node_api.aliases, contract_infos)
            evm_services = None
            if config.node.evm_chains or config.node.index_l1s_at is not None:
                build = evm_data.EvmDataServices
                evm_services = build(config, network_id, identity.folder, evm_api, upstreams, evm_chains)
            services = await stack.enter_async_context(
                build_services(config, upstreams, identity, network_id, metrics, evm_api.chains)
            )
            evm_api.open_signing(network_id, services.store.signing_blocks)
            # One thread: several would delay the event loop of signing by their number.
            forecasting = stack.enter_context(WorkerThreads(1, "forecast"))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            tasks.create_task(services.run(ports.background))
            # The nodes are asked for the validators while forecasts are loaded, which signing does not need.
            await asyncio.sleep(0)
            node_id = identity.identity.node_id
            names = NETWORK_NAMES.get(network_id)
            network = {"network": names[0]} if names else {}
            fields = {"version": __version__, **network, "network_id": network_id}
            log.info("daemon started", extra={**fields, "node_id": node_id_text(node_id), "bls_backend": bls.BACKEND})
            start_indexer()
            forecasts = build_forecasts(config, services, upstream.platform, lambda: index_status.index, forecasting)
            register_samples(metrics.samples, services, config, forecasts)
            samples, certificate = metrics.samples, identity.identity
            samples.register(IndexSample, index_status.samples)
            samples.register(CertificateSample, lambda: [CertificateSample(certificate.expires_at)])
            samples.register(HealthSample, lambda: [HealthSample(node_api.health.results())])
            samples.register(UsageSample, node_api.usage_samples)
            metrics.refresh = index_status.evm.refresh_if_old
            ports.status.open(StatusSources(network_id, node_id, bls.BACKEND, services, index_status, forecasts))

            def background() -> BackgroundState:
                store = services.store.status()
                return BackgroundState(
                    store=StoreState(url=store.url, up=store.is_up),
                    follower=follower_state(services.follower),
                    index=or_unset(index_status.states()),
                    usage=UNSET if usage is None else usage.state(),
                )

            signing_services = SigningServices(
                network_id=network_id,
                aggregate=services.aggregator.aggregate,
                l1_message=services.l1_messages.get,
                explain_l1_message=services.delivery.explain_l1,
                deliver=services.delivery.sign,
                deliver_l1_message=services.delivery.sign_l1,
                verify=services.preflight.check,
                first_signed=lambda: services.aggregator.first_signed,
                find_message=services.store.archive.find_message,
                primary_chains=partial(upstream.view.primary_chains, network_id),
                readiness=services.subnet_tracker.readiness,
                background=background,
                missing_connection=services.network.missing_connection,
                underfunded=services.underfunded,
                refresh_status=index_status.evm.refresh_if_old,
            )
            ports.signing.open(signing_services)
            node_monitor = node_api.open(services, upstream, node_id, index_status)
            if upstreams.indexed is not None:
                node_api.health.register(validator_sets_check(upstreams.indexed.comparison))
            if usage is not None:
                node_api.health.register(usage.check())
            services.store.confirm_start()

            feed = None if services.store.status().url == OFF else EventFeed(services.store.events)

            async def data_services() -> DataServices:
                prices = None
                if price_sources:
                    prices = AvaxPrices(await upstream.view.staking_asset(network_id), price_sources)
                return DataServices(
                    network_id=network_id,
                    chains=await upstream.view.primary_chains(network_id),
                    index=None,
                    node=upstream.view,
                    key_store=EphemeralKeys() if config.store.url == OFF else services.store.api_keys,
                    prices=prices,
                    aliases=node_api.aliases,
                    evm=evm_chains,
                    uptime_source=services.uptime,
                    metrics_database=metrics_database,
                    usage=None if usage is None else usage.source,
                    forecasts=forecasts,
                    events=feed,
                    signing_blocks=services.store.signing_blocks,
                    icm=None if evm_services is None else evm_services.build_obstacles(services),
                )

            def in_background(part: str, run: Callable[[], Awaitable[object]]) -> None:
                tasks.create_task(ports.background.keep_running(part, run))

            if index_status.index is not None:
                in_background("heights of the index", index_status.index.run)
            in_background("forecasts", forecasts.run)
            if evm_services is not None and config.node.has_evm_index and config.store.url != OFF:
                in_background("ICM messages", partial(evm_services.report_messages, services, ports.background))
            if usage is not None:
                in_background("usage", usage.run)
            peers, subnet_tracker = services.network, services.subnet_tracker
            in_background("log of quorums", partial(_log_first_quorums, peers, subnet_tracker, ports.status.uptime_s))
            in_background("log of missing quorums", partial(_log_missing_quorums, peers, subnet_tracker))
            in_background("names of chains", partial(node_api.add_primary_chains, upstream, network_id))
            in_background("gateway", partial(ports.gateway_api.run, network_id))
            in_background("checks of nodes", partial(node_monitor.run, node_api.health.trigger))
            serve_validators = partial(_serve_validators, config, node_api.interfaces, services, upstream)
            in_background("lists of validators", serve_validators)
            in_background("descriptions of contracts", contract_infos.run)
            if feed is not None:
                in_background("webhooks", partial(_send_webhooks, feed, services.leadership, config, metrics))
            open_data_api = partial(_open_data_api, ports, data_services, evm_services, config, index_status)
            in_background("Data API", open_data_api)


async def _network_id(info: InfoClient, nodes: Sequence[str], *gates: StartupGate[Any]) -> int:
    """Return the network id as soon as a node answers; a node that is down at start does not end the daemon.

    nodes: addresses for the log, which has one line a minute.
    """
    logged_at = -_REPEATED_LINE_S

    def on_failure(error: Exception, delay_s: float) -> None:
        nonlocal logged_at
        assert isinstance(error, NodeUnavailable)
        for gate in gates:
            gate.unavailable(error)
        now = asyncio.get_running_loop().time()
        if now - logged_at >= _REPEATED_LINE_S:
            logged_at = now
            fields = {"reason": str(error), "nodes": nodes, "next_try_s": round(delay_s, 1)}
            log.warning("network id request failed", extra=fields)

    return await Retrier(_BACKOFF, {NodeUnavailable: "nodes"}, on_failure).call(info.network_id)


async def _check_index(config: Config, network_id: int, folder: Path | None) -> StoreUrl | None:
    """Return the URL of the index, None if no primary chain is indexed.

    Raises StartupError for what the index process could not use.
    """
    if not config.indexer.chains and not config.node.has_evm_index:
        return None
    if config.indexer.chains and config.indexer.genesis_file is not None:
        # Without such a file, only the index process loads the codecs of the chains.
        await asyncio.to_thread(indexer_network.load_genesis, network_id, config.indexer.genesis_file)
    place = config.index.place
    places = [place(EVM_INDEX, chain.blockchain_id) for chain in config.node.indexed_evm_chains]
    places += [place(PRIMARY_INDEX)] if config.indexer.chains else []
    places += [place(EVM_INDEX)] if config.node.index_l1s_at is not None else []
    if folder is None and not all(index.url for index in places):
        raise StartupError(
            f"data-dir {config.peers.data_dir} is read-only, so there is no place for the index: "
            "make it writable, or set index-url"
        )
    return index_database.index_url(config.index, folder) if config.indexer.chains else None


async def _log_first_quorums(
    network: PeerNetwork, subnet_tracker: SubnetTracker, uptime_s: Callable[[], float]
) -> None:
    """Log the Primary Network and each configured subnet when its connected weight first reaches the quorum."""
    changed, reached = asyncio.Event(), set[SubnetID]()
    network.subscribe(lambda node_id, connected: changed.set())
    subnet_tracker.watch(changed.set)
    while len(reached) < len(subnets := subnet_tracker.readiness()):
        changed.clear()
        for subnet in subnets:
            validators = subnet_tracker.validators_of(subnet.subnet_id)
            if subnet.is_ready and validators is not None and subnet.subnet_id not in reached:
                reached.add(subnet.subnet_id)
                fields = {
                    "subnet_id": id_text(subnet.subnet_id),
                    "connected_weight": subnet.connected,
                    "required_weight": subnet.needed,
                    "connected_validators": len(validators.validators) - len(subnet.missing),
                    "validators": len(validators.validators),
                }
                log.info("first quorum reached", extra={**fields, "uptime_s": round(uptime_s(), 1)})
        await changed.wait()
        # Many validators connect at once after the start.
        await asyncio.sleep(_QUORUM_CHECK_S)


async def _log_missing_quorums(network: PeerNetwork, subnet_tracker: SubnetTracker) -> None:
    """Log once for each subnet which validators it misses if it has no quorum some seconds after the start.

    A subnet whose validators are not known then gets a line at once, and another one when they are.
    """
    logged_ids, is_first = set[SubnetID](), True
    while True:
        await asyncio.sleep(_QUORUM_WARNING_S)
        subnets = [subnet for subnet in subnet_tracker.readiness() if subnet.subnet_id not in logged_ids]
        for subnet in subnets:
            if subnet.shortfall is not None and (subnet.is_known or is_first):
                missing = [
                    _describe_missing(network, validator) for validator in subnet.missing[:_MAX_LOGGED_VALIDATORS]
                ]
                fields = {"missing_validators": len(subnet.missing), "heaviest_missing": missing}
                log.warning("no quorum after start", extra={"reason": subnet.shortfall, **fields})
        logged_ids |= {subnet.subnet_id for subnet in subnets if subnet.is_known}
        if all(subnet.is_known for subnet in subnets):
            return
        is_first = False


def _describe_missing(network: PeerNetwork, validator: Validator) -> str:
    """Return weight and connection of a validator, of its first node if it has several."""
    node_id = validator.node_ids[0]
    missing = network.missing_connection(node_id)
    if missing is None:
        state = "it is not dialed yet"
    else:
        untried = "the first dial has no result yet" if missing.address else "no address is known"
        state = (missing.last_error or untried) + (f", address {missing.address}" if missing.address else "")
    return f"{node_id_text(node_id)} with weight {validator.weight}: {state}"


async def _open_data_api(
    ports: DaemonPorts,
    data_services: Callable[[], Awaitable[DataServices]],
    evm_services: evm_data.EvmDataServices | None,
    config: Config,
    index_status: IndexStatus,
) -> None:
    """Open the Data API once the ids of the primary chains are known: at once on public networks."""
    gate = ports.data

    def on_failure(error: Exception, delay_s: float) -> None:
        assert isinstance(error, NodeUnavailable)
        gate.unavailable(error)

    services = await Retrier(_BACKOFF, {NodeUnavailable: "nodes"}, on_failure).call(data_services)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        if evm_services is not None:
            await stack.enter_async_context(evm_services.opened(services.chains))
            index_status.evm.indexes = evm_services.indexes
            tasks.create_task(ports.background.keep_running("L1s of a node", evm_services.find_l1s))
        index = index_status.index
        if index is not None:
            index.text = NetworkText(services.network_id, services.chains)
            services = replace(services, index=index, indexed=frozenset(config.indexer.chains))
        gate.open(services)
        # The indexes of EVM chains stay open.
        await asyncio.Event().wait()


async def _send_webhooks(feed: EventFeed, leadership: Leadership, config: Config, metrics: Metrics) -> None:
    """Send events to webhooks; the sender is loaded when this daemon leads and there is a webhook."""
    has_webhooks = False
    while not has_webhooks:
        await asyncio.sleep(_WEBHOOK_POLL_S)
        await leadership.wait_until_held()
        with suppress(StoreDown):
            has_webhooks = bool(await feed.log.exchange_webhooks())
    policy, report = config.data_api.webhook_policy, metrics.report_paused_webhooks
    await webhooks.WebhookSender(feed, leadership, policy, report_paused=report).run()


async def _serve_validators(config: Config, interfaces: NodeInterfaces, services: Services, upstream: Upstream) -> None:
    """Serve the validators of the configured chains, and of the chains of tracked subnets as soon as they are known."""
    local_view = LocalView(services.chains, services.current, services.network.is_connected, services.uptime.uptime)
    chains: dict[ChainID, ChainValidatorList] = {}

    def mount(chain_id: ChainID, nodes: ChainValidatorsClient) -> None:
        chain = chains[chain_id] = ChainValidatorList(chain_id, nodes, local_view)
        routes = ValidatorsEndpoint(chain, config.api).routes()
        try:
            interfaces.add(CHAINS + id_text(chain_id), routes, CHAINS + "{chain}")
        except CallRefused as error:
            # An operator gave the path to another endpoint.
            log.warning("validators of a chain cannot be served", extra={"reason": str(error)})

    def on_chain(chain_id: ChainID) -> None:
        if chain_id not in chains:
            mount(chain_id, ChainValidatorsClient(()))

    for chain_id, nodes in upstream.validators.items():
        mount(chain_id, nodes)
    refresher = ValidatorRefresher(
        services.chains, services.current, services.subnet_tracker, config.validators, on_chain
    )
    await refresher.run(tuple(chains.values()))
