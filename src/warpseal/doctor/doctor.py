"""Checks whether this configuration can sign: nodes, store, validators, weight, clock, versions.

nodes.py compares the nodes and checks those of the gateway, and evm.py checks the nodes of indexed
EVM chains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from warpseal.bls import BACKEND
from warpseal.config.files import find_unusable_files
from warpseal.config.keys import Config
from warpseal.daemon.core import Core, Upstreams, open_core, open_upstreams
from warpseal.daemon.registries import Registries
from warpseal.daemon.validators import ValidatorNetwork, find_readers
from warpseal.doctor.evm import check_evm_indexes
from warpseal.doctor.nodes import check_gateway, check_heights, check_index_sets, compare_nodes
from warpseal.errors import StartupError
from warpseal.metrics.registry import Metrics
from warpseal.node.p_chain import P_CHAIN_PATHS
from warpseal.node.settings import NodeSettings
from warpseal.ops.health.checks import peer_checks, quorum_check, upgrade_check
from warpseal.ops.health.registry import Finding, Grade
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.runtime.process import running
from warpseal.store.access import open_read_only
from warpseal.store.engine import unusable_reason
from warpseal.store.eviction import measure
from warpseal.store.migrate import HEAD, find_quick_upgrades, read_version
from warpseal.store.store import STORE_NAME
from warpseal.store.url import OFF, StoreUrl, resolve_url
from warpseal.upstream.errors import NodeUnavailable, PublicFailure, RpcRefusal
from warpseal.upstream.identity import INFO_PATHS
from warpseal.upstream.node import open_session
from warpseal.upstream.pool import NodeResult
from warpseal.upstream.probe import EndpointResponse, probe_endpoint
from warpseal.warp.ids import PRIMARY_NETWORK

_POLL_S = 0.1


async def run_checks(config: Config, timeout_s: float) -> list[Finding]:
    """Run all checks, with an identity of their own: a daemon may run at the same time.

    timeout_s: bound of the time for connections to validators.
    """
    metrics = Metrics()
    backend = {"blsBackend": BACKEND}
    findings = [Finding(Grade.GOOD, f"the BLS backend is {BACKEND}", detail=backend)]
    for file in await asyncio.to_thread(list, find_unusable_files(config)):
        grade = Grade.BAD if file.is_fatal else Grade.WARNING
        findings.append(Finding(grade, file.reason, "correct the file, or name another one"))
    async with open_upstreams(config, metrics) as upstreams:
        info_responses, p_chain_responses = await _probe_endpoints(config.node)
        upstream = upstreams.upstream
        findings += _check_nodes("info-api", await upstream.info.probe(), info_responses)
        heights = await upstream.platform.probe()
        findings += _check_nodes("p-chain-api", heights, p_chain_responses)
        findings += check_heights(heights)
        try:
            network_id = await upstream.info.network_id()
        except NodeUnavailable:
            return findings
        detail = {"networkId": network_id}
        findings.append(Finding(Grade.GOOD, f"the network id is {network_id}", detail=detail))
        findings += await compare_nodes(
            config, upstream, heights, p_chain_responses, info_responses
        )
        findings.append(await _check_store(config, network_id))
        findings += await check_index_sets(config, network_id, upstream)
        findings += await check_evm_indexes(config, network_id, upstream.platform.blockchains_of)
        findings += await check_gateway(config, network_id)
        with TemporaryDirectory(prefix="warpseal-doctor-") as folder:
            own_config = _with_own_identity(config, Path(folder))
            # The parts of a daemon with this configuration, which has its store.
            readers = find_readers(config)
            return findings + await _check_peers(
                own_config, upstreams, network_id, timeout_s, readers
            )


async def _check_store(config: Config, network_id: int) -> Finding:
    """Read the store, which may belong to a running daemon."""
    folder = config.peers.data_dir / str(network_id)
    if config.store.url == OFF:
        return Finding(Grade.WARNING, "store-url is off", "signatures are lost at each restart")
    try:
        url = resolve_url(config.store.url, folder, STORE_NAME)
        assert url is not None
        if url.path is not None and not unusable_reason(url.path) and not url.path.exists():
            return Finding(Grade.GOOD, "no store yet: the first start creates it")
        return Finding(Grade.GOOD, await asyncio.to_thread(_describe_store, url))
    except StartupError as error:
        return Finding(Grade.BAD, str(error), "see docs/store.md")


def _describe_store(url: StoreUrl) -> str:
    with open_read_only(url) as connection:
        if find_quick_upgrades(connection, url.redacted):
            version = read_version(connection) or "none"
            return (
                f"the store {url.redacted} has schema version {version}: the daemon upgrades it to"
                f" {HEAD} at its start"
            )
        return f"the store {url.redacted} holds {measure(connection).signatures} signed messages"


async def _check_peers(
    config: Config,
    upstreams: Upstreams,
    network_id: int,
    timeout_s: float,
    readers: Sequence[str],
) -> list[Finding]:
    registries = Registries(config, DaemonLoggers(config.logs.level))
    async with AsyncExitStack() as stack:
        core = await stack.enter_async_context(open_core(registries, upstreams, network_id))
        validators = ValidatorNetwork(core)
        stack.callback(validators.activity.close)
        tracker, network = validators.subnet_tracker, validators.network
        async with running(_connect(core, validators)):
            await _until_connected(validators, timeout_s)
            subnet_ids = [subnet.subnet_id for subnet in tracker.readiness()]
            for subnet_id in subnet_ids:
                if subnet_id != PRIMARY_NETWORK:
                    with suppress(NodeUnavailable, RpcRefusal):
                        await validators.current.of(subnet_id)
            now = asyncio.get_running_loop().time
            checks = [quorum_check(subnet_id, tracker, lambda: network) for subnet_id in subnet_ids]
            checks += peer_checks(network, tracker, validators.current, config.peers, now)
            checks.append(upgrade_check(network, validators.upgrades, readers))
            findings: list[Finding] = []
            for check in checks:
                if check.findings is not None:
                    findings += check.findings()
            return findings


async def _connect(core: Core, validators: ValidatorNetwork) -> None:
    """Stay connected to the validators until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        validators.run(core, tasks)


async def _until_connected(validators: ValidatorNetwork, timeout_s: float) -> None:
    """Wait until every validator of the tracked subnets is connected, or until the timeout."""
    readiness = validators.subnet_tracker.readiness
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while any(not subnet.is_known or subnet.missing for subnet in readiness()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(_POLL_S)


async def _probe_endpoints(settings: NodeSettings) -> list[list[EndpointResponse]]:
    """Return the response of each base URL of info-api, and of p-chain-api."""
    timeout_s = settings.call_timeout_s
    async with open_session() as session:
        info_probes = [
            probe_endpoint(session, node, INFO_PATHS, "info.getNetworkID", timeout_s)
            for node in settings.info_api
        ]
        info_responses = await asyncio.gather(*info_probes)
        p_chain_probes = [
            probe_endpoint(session, node, P_CHAIN_PATHS, "platform.getHeight", timeout_s)
            for node in settings.p_chain_api
        ]
        return [info_responses, await asyncio.gather(*p_chain_probes)]


def _check_nodes(
    setting: str, results: Sequence[NodeResult[int]], responses: Sequence[EndpointResponse]
) -> Iterator[Finding]:
    for result, response in zip(results, responses, strict=True):
        where = f"{setting}[{result.position}] {result.display}"
        detail = {
            "setting": f"{setting}[{result.position}]",
            "status": response.status,
            "body": response.body,
        }
        if result.failure is not None:
            grade = Grade.BAD if len(results) == 1 else Grade.WARNING
            advice = (
                response.meaning or "is the node up, the URL right, and the key (if any) valid?"
            )
            if result.failure is PublicFailure.WRONG_NETWORK:
                advice = (
                    "it is of another network than the first node of info-api: name nodes of one"
                    " network"
                )
            yield Finding(grade, f"{where}: {result.failure} ({response})", advice, detail)
        else:
            yield Finding(Grade.GOOD, f"{where} answers: {response}", detail=detail)
    if len(results) > 1 and all(result.failure is not None for result in results):
        advice = "the daemon cannot work without one"
        yield Finding(Grade.BAD, f"no node of {setting} answers", advice)


def _with_own_identity(config: Config, folder: Path) -> Config:
    """Return a configuration with neither the identity nor the store of a daemon that runs."""
    peers = replace(config.peers, data_dir=folder, tls_cert_path=None, tls_key_path=None)
    return replace(config, peers=peers, store=replace(config.store, url=OFF))
