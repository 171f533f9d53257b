"""Checks whether this configuration can sign: nodes, store, validators, weight, clock, versions, open files.

It compares the nodes and those of the gateway (nodes.py), and checks those of indexed EVM chains (evm.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import to_builtins

from warpseal.bls import BACKEND
from warpseal.config.keys import Config
from warpseal.daemon.services import Services, Upstreams, build_services, open_upstreams
from warpseal.doctor.evm import check_evm_indexes
from warpseal.doctor.finding import Finding, Grade
from warpseal.doctor.nodes import check_gateway, check_heights, compare_nodes
from warpseal.errors import StartupError
from warpseal.metrics.registry import Metrics
from warpseal.node.p_chain import P_CHAIN_PATHS
from warpseal.node.settings import NodeSettings
from warpseal.peers.identity import lock_identity
from warpseal.runtime.process import running
from warpseal.store.access import open_read_only
from warpseal.store.engine import unusable_reason
from warpseal.store.migrate import HEAD, find_quick_upgrades, read_version
from warpseal.store.stats import measure
from warpseal.store.store import STORE_NAME
from warpseal.store.url import OFF, StoreUrl, resolve_url
from warpseal.upstream.errors import NodeFailure, NodeUnavailable, RpcRefusal
from warpseal.upstream.identity import INFO_PATHS
from warpseal.upstream.node import open_session
from warpseal.upstream.pool import NodeResult
from warpseal.upstream.probe import EndpointAnswer, probe_endpoint
from warpseal.validators.balances import UNDERFUNDED_ADVICE
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode
from warpseal.warp.validator_set import DEFAULT_QUORUM

CLOCK_TOLERANCE_S = 30.0
MAX_NAMED = 10
_POLL_S = 0.1

OPEN_PORT = "is the staking port of these validators open, and their public-ip right? Try manually-tracked-peers"
ADVICE = {
    "no_address": "no node knows their address: are they online? Try manually-tracked-peers",
    "private_address": "their only addresses are private: set allow-private-ips if you can reach them",
    "not_connected": OPEN_PORT,
    "wrong_identity": "another node answers at their address",
}


async def run_checks(config: Config, timeout_s: float) -> list[Finding]:
    """Run all checks; connecting to validators may take up to `timeout_s`.

    They use an identity of their own, so that they can run while a daemon runs.
    """
    metrics = Metrics()
    findings = [Finding(Grade.GOOD, f"the BLS backend is {BACKEND}", detail={"blsBackend": BACKEND})]
    async with open_upstreams(config, metrics) as upstreams:
        info_answers, p_chain_answers = await _probe_endpoints(config.node)
        findings += _check_nodes("info-api", await upstreams.upstream.info.probe(), info_answers)
        heights = await upstreams.upstream.platform.probe()
        findings += [*_check_nodes("p-chain-api", heights, p_chain_answers), *check_heights(heights)]
        try:
            network_id = await upstreams.upstream.info.network_id()
        except NodeUnavailable:
            return findings
        findings.append(Finding(Grade.GOOD, f"the network id is {network_id}", detail={"networkId": network_id}))
        findings += await compare_nodes(config, upstreams.upstream, heights, p_chain_answers, info_answers)
        findings.append(await _check_store(config, network_id))
        findings += await check_evm_indexes(config, network_id, upstreams.upstream.platform.blockchains_of)
        findings += await check_gateway(config, network_id)
        with TemporaryDirectory(prefix="warpseal-doctor-") as folder:
            return findings + await _check_peers(
                _with_own_identity(config, Path(folder)), upstreams, network_id, timeout_s
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
                f"the store {url.redacted} has schema version {version}: the daemon upgrades it to {HEAD} at its start"
            )
        return f"the store {url.redacted} holds {measure(connection).signatures} signed messages"


async def _check_peers(config: Config, upstreams: Upstreams, network_id: int, timeout_s: float) -> list[Finding]:
    async with AsyncExitStack() as stack:
        identity = stack.enter_context(lock_identity(config.peers, network_id))
        services = await stack.enter_async_context(build_services(config, upstreams, identity, network_id, Metrics()))
        async with running(services.run()):
            await _until_connected(services, timeout_s)
            findings = (_check_subnets(services), _check_clock(services), _check_versions(config, services))
            return [*chain.from_iterable(findings), *await _check_balances(services), *_check_files(services)]


async def _until_connected(services: Services, timeout_s: float) -> None:
    """Wait until every validator of the tracked subnets is connected, or until the timeout."""
    readiness = services.subnet_tracker.readiness
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while any(not subnet.is_known or subnet.missing for subnet in readiness()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(_POLL_S)


async def _probe_endpoints(settings: NodeSettings) -> list[list[EndpointAnswer]]:
    """Return what each base URL of info-api and of p-chain-api answers."""
    probes = (
        (settings.info_api, INFO_PATHS, "info.getNetworkID"),
        (settings.p_chain_api, P_CHAIN_PATHS, "platform.getHeight"),
    )
    async with open_session() as session:
        return [
            await asyncio.gather(
                *(probe_endpoint(session, node, paths, method, settings.call_timeout_s) for node in endpoints)
            )
            for endpoints, paths, method in probes
        ]


def _check_nodes(
    setting: str, results: Sequence[NodeResult[int]], answers: Sequence[EndpointAnswer]
) -> Iterator[Finding]:
    for result, answer in zip(results, answers, strict=True):
        where = f"{setting}[{result.position}] {result.display}"
        detail = {"setting": f"{setting}[{result.position}]", "status": answer.status, "body": answer.body}
        if result.failure is not None:
            grade = Grade.BAD if len(results) == 1 else Grade.WARNING
            advice = answer.meaning or "is the node up, the URL right, and the key (if any) valid?"
            if result.failure is NodeFailure.WRONG_NETWORK:
                advice = "it is of another network than the first node of info-api: name nodes of one network"
            yield Finding(grade, f"{where}: {result.failure} ({answer})", advice, detail)
        else:
            yield Finding(Grade.GOOD, f"{where} answers: {answer}", detail=detail)
    if len(results) > 1 and all(result.failure is not None for result in results):
        yield Finding(Grade.BAD, f"no node of {setting} answers", "the daemon cannot work without one")


def _check_subnets(services: Services) -> Iterator[Finding]:
    for subnet in services.subnet_tracker.readiness():
        name = f"subnet {id_text(subnet.subnet_id)}"
        if not subnet.is_known:
            yield Finding(Grade.BAD, f"{name}: its validator set is not known", "look at the p-chain-api nodes above")
            continue
        grade = Grade.BAD if subnet.connected < subnet.needed else Grade.WARNING if subnet.missing else Grade.GOOD
        share = 100 * subnet.connected / subnet.total if subnet.total else 0.0
        weights = f"weight {subnet.connected} of {subnet.needed} needed, total {subnet.total}"
        detail = {
            "subnetId": id_text(subnet.subnet_id),
            "connectedWeight": str(subnet.connected),
            "requiredWeight": str(subnet.needed),
            "totalWeight": str(subnet.total),
        }
        text = f"{name}: {share:.1f} % of the weight is connected, {DEFAULT_QUORUM} % are needed ({weights})"
        yield Finding(grade, text, detail=detail)
        yield from _check_missing(services, subnet)
        yield from _check_keyless(name, subnet)


def _check_missing(services: Services, subnet: SubnetReadiness) -> Iterator[Finding]:
    by_reason: dict[str, list[tuple[NodeID, int]]] = {}
    for validator in subnet.missing:
        for node_id in validator.node_ids:
            unreachable = services.network.unreachable(node_id, subnet.subnet_id)
            reason = "not_connected" if unreachable is None else unreachable.reason
            by_reason.setdefault(reason, []).append((node_id, validator.weight))
    for reason, nodes in by_reason.items():
        missing = [(*node, services.network.missing_connection(node[0])) for node in nodes]
        descriptions = ", ".join(_describe_missing(*node) for node in missing[:MAX_NAMED])
        more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
        text = f"{_counted(len(nodes))} missing ({reason}): {descriptions}{more}"
        validators = [
            {"nodeId": node_id_text(node_id), "weight": str(weight), **(to_builtins(connection) if connection else {})}
            for node_id, weight, connection in missing
        ]
        detail = {"subnetId": id_text(subnet.subnet_id), "reason": reason, "validators": validators}
        yield Finding(Grade.WARNING, text, ADVICE.get(reason, OPEN_PORT), detail)


def _describe_missing(node_id: NodeID, weight: int, connection: DisconnectedNode | None) -> str:
    details = [connection.address, connection.last_error] if connection is not None else []
    return f"{node_id_text(node_id)} ({', '.join((f'weight {weight}', *map(str, filter(None, details))))})"


async def _check_balances(services: Services) -> list[Finding]:
    """Name the L1 validators that are inactive or nearly drained."""
    findings = []
    for subnet in services.subnet_tracker.readiness():
        if subnet.subnet_id == PRIMARY_NETWORK:
            continue
        with suppress(NodeUnavailable, RpcRefusal):
            await services.current.of(subnet.subnet_id)
        underfunded = services.underfunded(subnet.subnet_id)
        if underfunded:
            descriptions = ", ".join(
                f"{member.node_ids[0]} (weight {member.weight}, {member.state})" for member in underfunded[:MAX_NAMED]
            )
            more = f" and {len(underfunded) - MAX_NAMED} more" if len(underfunded) > MAX_NAMED else ""
            text = f"subnet {id_text(subnet.subnet_id)}: L1 validators without enough balance: {descriptions}{more}"
            detail = {"subnetId": id_text(subnet.subnet_id), "underfunded": to_builtins(underfunded)}
            findings.append(Finding(Grade.WARNING, text, UNDERFUNDED_ADVICE, detail))
    return findings


def _check_keyless(name: str, subnet: SubnetReadiness) -> Iterator[Finding]:
    if subnet.keyless:
        share = 100 * subnet.keyless / subnet.total
        grade = Grade.BAD if share > 100 - DEFAULT_QUORUM else Grade.WARNING
        text = f"{name}: {share:.1f} % of the weight is inactive or has no BLS key, and cannot sign"
        advice = "remove legacy validators, and top up or remove L1 validators without balance, which are named below"
        yield Finding(grade, text, advice)


def _check_clock(services: Services) -> Iterator[Finding]:
    peers_offset_s = services.network.clock_offset_s
    if peers_offset_s is None:
        return
    offset_s = -peers_offset_s
    if abs(offset_s) > CLOCK_TOLERANCE_S:
        text = f"this machine's clock is {offset_s:+.0f} s from its peers' median; at 60 s they drop it"
        yield Finding(Grade.BAD, text, "set it right (NTP)")
    else:
        # A sum with 0.0 is never -0.0.
        shown_s = round(offset_s, 1) + 0.0
        yield Finding(Grade.GOOD, f"this machine's clock is {shown_s:+.1f} s from its peers' median")


def _check_versions(config: Config, services: Services) -> Iterator[Finding]:
    advertised = config.peers.advertised_version
    newer = [version for version in services.network.versions() if version > advertised]
    if newer:
        newest, ours = ".".join(map(str, max(newer))), ".".join(map(str, advertised))
        text = f"{_counted(len(newer))} of a newer version than the advertised {ours}, up to {newest}"
        yield Finding(Grade.WARNING, text, "raise advertised-version before the network asks for it")


def _check_files(services: Services) -> Iterator[Finding]:
    missing = sum(len(subnet.missing) for subnet in services.subnet_tracker.readiness())
    connections = missing + len(services.network.connected)
    needed = services.network.file_limit.needed_for(connections)
    if needed is not None:
        limit = services.network.file_limit.files
        yield Finding(Grade.BAD, f"{limit} files may be open, {needed} are needed", "raise the hard limit (ulimit -Hn)")


def _counted(count: int) -> str:
    return "1 validator is" if count == 1 else f"{count} validators are"


def _with_own_identity(config: Config, folder: Path) -> Config:
    """Return a configuration that takes nothing from a daemon that runs: neither its identity nor its store."""
    peers = replace(config.peers, data_dir=folder, tls_cert_path=None, tls_key_path=None)
    return replace(config, peers=peers, store=replace(config.store, url=OFF))
