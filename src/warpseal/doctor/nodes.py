"""Compares the nodes with each other and with the index, and checks the nodes of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from random import Random
from typing import Final, TypeVar

from msgspec import Struct

from warpseal.config.keys import Config
from warpseal.forwarding.primary.gateway import build_gateway
from warpseal.index.database import index_url
from warpseal.index.validator_sets import sample_sets
from warpseal.indexer.verify import SnapshotReader, compare_set
from warpseal.node.chain_apis import ChainApi, api_endpoint
from warpseal.node.p_chain import compare_subnets
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import Upstream
from warpseal.ops.health.chains import INFO_API, P_CHAIN_API
from warpseal.ops.health.registry import Finding, Grade
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.process import error_words
from warpseal.store.errors import StoreDown
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import CallFailure, NodeUnavailable, RpcRefusal
from warpseal.upstream.node import open_session, open_sessions
from warpseal.upstream.pool import NodePool, NodeResult, PoolNode
from warpseal.upstream.probe import EndpointResponse, probe_endpoint
from warpseal.upstream.replies import (
    Compare,
    Reply,
    classify_replies,
    compare_fixed,
    contradict,
    make_digest,
)
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID, id_text

MAX_LAGGING_BLOCKS: Final = 5
# Blocks whose time is further ahead are refused (avalanchego vms/proposervm, maxSkew).
_MAX_NODE_SKEW_S: Final = 10.0
_TIMEOUT_S: Final = 30.0
_HEIGHT_TIMEOUT_S: Final = 3.0
_GATEWAY_ADVICE: Final = (
    "is the node up, of the same network, the base URL right, and the key (if any) valid?"
)
_NO_HEIGHT: Final = (
    "calls of this chain fail there: the node is not bootstrapped, or does not serve its RPC"
)
_BEHIND: Final = "it is called only if no other node is up; it may still be bootstrapping"
_MAX_PROBES: Final = 16
_MAX_NAMED: Final = 10
_SAMPLED_SETS: Final = 3
_WRONG_SET: Final = (
    "compare with a node that you trust: if the index is wrong, delete it, so that all blocks are"
    " indexed again; else remove the node"
)
_NOT_FOUND: Final = 404

T = TypeVar("T")


async def compare_nodes(
    config: Config,
    upstream: Upstream,
    heights: Sequence[NodeResult[int]],
    p_chain_responses: Sequence[EndpointResponse],
    info_responses: Sequence[EndpointResponse],
) -> list[Finding]:
    """Compare all configured nodes.

    heights: heights of the nodes of p-chain-api.
    p_chain_responses, info_responses: responses of the nodes of each list to a first call.
    """
    nodes = config.node
    clocks = {
        f"{P_CHAIN_API}[{position}]": response
        for position, response in enumerate(p_chain_responses)
    }
    for position, response in enumerate(info_responses):
        if nodes.info_api[position] not in nodes.p_chain_api:
            clocks[f"{INFO_API}[{position}]"] = response
    findings = [*_check_quorum(nodes, heights), *_check_clocks(clocks)]
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            results = await asyncio.gather(
                _compare_sets(config, upstream, heights),
                _compare_versions(upstream),
                _find_missing_chains(config, upstream),
            )
    except TimeoutError:
        text = f"the nodes were not compared within {_TIMEOUT_S:g} s"
        return [*findings, Finding(Grade.WARNING, text, "a node is slow: see above, and try again")]
    return findings + [finding for result in results for finding in result]


def check_heights(results: Sequence[NodeResult[int]]) -> Iterator[Finding]:
    """Name the nodes that are far from the others.

    Three or more nodes are compared with the height in the middle, two nodes with the higher one.
    """
    heights = sorted(result.value for result in results if result.value is not None)
    if not heights:
        return
    reference = heights[len(heights) // 2] if len(heights) > 2 else heights[-1]
    for result in results:
        if result.value is None:
            continue
        name, lag = f"{P_CHAIN_API}[{result.position}]", reference - result.value
        if lag > MAX_LAGGING_BLOCKS:
            text = f"{name} is {lag} blocks behind the others"
            yield Finding(Grade.WARNING, text, "it may still be bootstrapping")
        elif -lag > MAX_LAGGING_BLOCKS:
            text = f"{name} is {-lag} blocks ahead of the others"
            advice = "either they do not keep up, or it reports a wrong height"
            yield Finding(Grade.WARNING, text, advice)


def _check_quorum(settings: NodeSettings, heights: Sequence[NodeResult[int]]) -> Iterator[Finding]:
    quorum, up = settings.p_chain_quorum, sum(result.value is not None for result in heights)
    setting = f"p-chain-quorum is {quorum}"
    if quorum > up:
        text = f"{setting}, and {up} of {len(heights)} nodes of {P_CHAIN_API} answer"
        advice = "start the others, or add nodes: new validator sets cannot be used"
        yield Finding(Grade.BAD, text, advice)
    elif quorum == up > 1:
        text = f"{setting}, and only {up} nodes of {P_CHAIN_API} answer"
        advice = "if one of them fails, new validator sets cannot be used: add a node"
        yield Finding(Grade.WARNING, text, advice)


def _check_clocks(responses: Mapping[str, EndpointResponse]) -> Iterator[Finding]:
    offsets = {
        name: response.clock_offset_s
        for name, response in responses.items()
        if response.clock_offset_s is not None
    }
    wrong = {
        name: offset_s for name, offset_s in offsets.items() if abs(offset_s) > _MAX_NODE_SKEW_S
    }
    for name, offset_s in wrong.items():
        text = (
            f"the clock of {name} is {offset_s:+.0f} s from this machine's, as its HTTP Date says"
        )
        advice = (
            f"set it, or this machine's, right (NTP): nodes refuse blocks {_MAX_NODE_SKEW_S:g} s"
            " ahead of their clock"
        )
        detail = {"node": name, "clockOffsetSeconds": round(offset_s)}
        yield Finding(Grade.WARNING, text, advice, detail)
    if len(offsets) > 1 and not wrong:
        farthest_s = max(offsets.values(), key=abs)
        text = f"the clocks of the nodes are at most {abs(farthest_s):.0f} s from this machine's"
        yield Finding(Grade.GOOD, text, detail={"clockOffsetSeconds": round(farthest_s)})


async def _compare_sets(
    config: Config, upstream: Upstream, heights: Sequence[NodeResult[int]]
) -> list[Finding]:
    """Compare validator sets at one height, and the conversions of subnets.

    All nodes that keep up have the height.
    """
    node_heights = [result.value for result in heights if result.value is not None]
    descending_heights = sorted(node_heights, reverse=True)
    if len(descending_heights) < 2:
        return []
    # A single forged height is not the second highest.
    height = min(
        candidate
        for candidate in descending_heights
        if descending_heights[1] - candidate <= MAX_LAGGING_BLOCKS
    )
    platform, tracked = upstream.platform, config.validators.tracked_subnet_ids
    subnet_ids = list(dict.fromkeys((PRIMARY_NETWORK, *tracked)))
    sets = await asyncio.gather(
        *(platform.validators_at_each(subnet_id, height) for subnet_id in subnet_ids)
    )
    records = await asyncio.gather(*(platform.subnet_each(subnet_id) for subnet_id in tracked))
    findings: list[Finding] = []
    for subnet_id, results in zip(subnet_ids, sets, strict=True):
        subject = f"the validators of {_subnet_name(subnet_id)} at height {height}"
        findings += _compare(config.node, subject, results, compare_fixed, subnet_id)
    for subnet_id, records_of_nodes in zip(tracked, records, strict=True):
        subject = f"the conversion of {_subnet_name(subnet_id)}"
        findings += _compare(config.node, subject, records_of_nodes, compare_subnets, subnet_id)
    compared = min(sum(result.value is not None for result in results) for results in sets)
    if not findings and compared > 1:
        counted = f"{len(subnet_ids)} subnet{'s' if len(subnet_ids) > 1 else ''}"
        text = (
            f"{compared} nodes of {P_CHAIN_API} agree about the validators of {counted} at height"
            f" {height}"
        )
        findings.append(Finding(Grade.GOOD, text, detail={"height": str(height)}))
    return findings


def _compare(
    settings: NodeSettings,
    subject: str,
    results: Sequence[NodeResult[T]],
    compare: Compare[T],
    subnet_id: SubnetID,
) -> Iterator[Finding]:
    """Yield a finding if nodes contradict each other; it names the nodes in the minority."""
    replies = [
        Reply(result.position, result.value) for result in results if result.value is not None
    ]
    classes = sorted(classify_replies(replies, compare), key=len, reverse=True)
    if not any(
        contradict(first[0], second[0], compare) for first, second in combinations(classes, 2)
    ):
        return
    positions = [[reply.position for reply in members] for members in classes]
    digests = [make_digest(members[0].value) for members in classes]
    pairs = list(zip(digests, positions, strict=True))
    said = "; ".join(f"{digest}: {_names(members)}" for digest, members in pairs)
    entries = [{"positions": members, "digest": digest} for digest, members in pairs]
    detail = {"subnetId": id_text(subnet_id), "classes": entries}
    is_enough = settings.p_chain_quorum <= len(classes[0])
    grade = Grade.WARNING if is_enough else Grade.BAD
    if len(classes[0]) == len(classes[1]):
        advice = "compare them with a node that you trust, and remove those that are wrong"
        if len(replies) == 2:
            advice += "; a third node shows which one it is"
        yield Finding(grade, f"the nodes disagree about {subject} ({said})", advice, detail)
        return
    others = [position for members in positions[1:] for position in members]
    verb, pronoun = ("contradicts", "it") if len(others) == 1 else ("contradict", "them")
    way = " from p-chain-api" if settings.p_chain_quorum > 1 else ", or set p-chain-quorum: 2"
    advice = f"if a node that you trust agrees with the others, remove {pronoun}{way}"
    text = f"{_names(others)} {verb} the other nodes about {subject} ({said})"
    yield Finding(grade, text, advice, detail)


async def check_index_sets(config: Config, network_id: int, upstream: Upstream) -> list[Finding]:
    """Compare validator sets of the index with those of the nodes.

    They are the last set of the Primary Network, and some that are drawn at random.
    """
    if PrimaryChain.P not in config.indexer.chains:
        return []
    url = index_url(config.index, config.peers.data_dir / str(network_id))
    if url.path is not None and not url.path.exists():
        return []
    index = SnapshotReader(url, config.index)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            samples = await index.read(partial(sample_sets, count=_SAMPLED_SETS, random=Random()))
            results = [await compare_set(upstream, index, *sample) for sample in samples]
    except (StoreDown, TimeoutError) as error:
        text = (
            "the validator sets of the index were not compared with those of the nodes:"
            f" {error_words(error)}"
        )
        return [Finding(Grade.WARNING, text, "try again, or run `warpseal index verify`")]
    finally:
        index.close()
    findings: list[Finding] = []
    for result in results:
        if result.difference:
            text = f"the index and the nodes disagree about the {result.subject}"
            findings.append(Finding(Grade.BAD, f"{text}: {result.difference}", _WRONG_SET))
    compared = sum(result.is_compared for result in results)
    if compared and not findings:
        text = f"{compared} validator sets of the index are those of the nodes"
        findings.append(Finding(Grade.GOOD, text))
    elif results and not compared:
        text = "no validator set of the index was compared with those of the nodes"
        advice = "does a node of p-chain-api serve platform.getValidatorsAt?"
        findings.append(Finding(Grade.WARNING, f"{text}: {results[0].reason}", advice))
    return findings


async def _compare_versions(upstream: Upstream) -> list[Finding]:
    versions = {
        f"{INFO_API}[{result.position}]": result.value
        for result in await upstream.info.versions()
        if result.value is not None
    }
    if len(versions) < 2:
        return []
    detail = {"versions": versions}
    if len(set(versions.values())) == 1:
        text = f"{len(versions)} nodes of {INFO_API} run {next(iter(versions.values()))}"
        return [Finding(Grade.GOOD, text, detail=detail)]
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    advice = "update the older ones: a node that is too old stops at a network upgrade"
    return [Finding(Grade.WARNING, f"the nodes run different versions: {said}", advice, detail)]


class _ProposerVM(Struct, frozen=True):
    """The proposervm API of a chain at one node.

    name: place of the node in the settings.
    """

    chain_id: ChainID
    name: str
    endpoint: NodeEndpoint
    path: str


async def _find_missing_chains(config: Config, upstream: Upstream) -> list[Finding]:
    """Find the chains of tracked subnets, and the configured EVM chains, that nodes do not run."""
    settings = config.node
    chain_ids = [chain.blockchain_id for chain in settings.evm_chains]
    for subnet_id in config.validators.tracked_subnet_ids:
        with suppress(NodeUnavailable, RpcRefusal):
            chain_ids += await upstream.platform.blockchains_of(subnet_id)
    apis = [api for chain_id in dict.fromkeys(chain_ids) for api in _apis_of(settings, chain_id)]
    limit = asyncio.Semaphore(_MAX_PROBES)
    async with open_session() as session:

        async def probe(api: _ProposerVM) -> EndpointResponse:
            async with limit:
                method = "proposervm.getProposedHeight"
                return await probe_endpoint(
                    session, api.endpoint, (api.path,), method, settings.call_timeout_s
                )

        responses = await asyncio.gather(*map(probe, apis))
    runs: dict[ChainID, dict[str, bool]] = {}
    for api, response in zip(apis, responses, strict=True):
        if response.status is not None:
            runs.setdefault(api.chain_id, {})[api.name] = response.status != _NOT_FOUND
    return list(_report_chains(runs))


def _apis_of(settings: NodeSettings, chain_id: ChainID) -> Iterator[_ProposerVM]:
    endpoints = [
        (f"{P_CHAIN_API}[{position}]", node) for position, node in enumerate(settings.p_chain_api)
    ]
    endpoints += [
        (f"{INFO_API}[{position}]", node)
        for position, node in enumerate(settings.info_api)
        if node not in settings.p_chain_api
    ]
    path = f"/ext/bc/{id_text(chain_id)}/{ChainApi.PROPOSERVM.value}"
    for name, node in endpoints:
        yield _ProposerVM(chain_id, name, node, path)
    for place, chain in enumerate(settings.evm_chains):
        if chain.blockchain_id != chain_id:
            continue
        for position, rpc in enumerate(chain.rpc):
            endpoint = api_endpoint(rpc, ChainApi.PROPOSERVM)
            if endpoint is not None:
                yield _ProposerVM(chain_id, f"evm-chains[{place}].rpc[{position}]", endpoint, "")


def _report_chains(runs: Mapping[ChainID, Mapping[str, bool]]) -> Iterator[Finding]:
    everywhere = [chain_id for chain_id, nodes in runs.items() if all(nodes.values())]
    if everywhere:
        counted = f"{len(everywhere)} chain{'s' if len(everywhere) > 1 else ''}"
        text = (
            f"every node has the proposervm API of {counted} (of tracked subnets and of evm-chains)"
        )
        yield Finding(Grade.GOOD, text, detail={"blockchainIds": list(map(id_text, everywhere))})
    for chain_id, nodes in runs.items():
        has_it = [name for name, has_api in nodes.items() if has_api]
        lacks_it = [name for name, has_api in nodes.items() if not has_api]
        detail = {"blockchainId": id_text(chain_id), "nodes": has_it, "nodesWithout": lacks_it}
        if not has_it:
            text = (
                f"no configured node has the proposervm API of chain {id_text(chain_id)}"
                f" ({_shorten(lacks_it)})"
            )
            advice = (
                "its epochs are not known, so its messages are signed at the proposed height: name"
                " a node of the L1 in info-api, or its RPC URL in evm-chains"
            )
            yield Finding(Grade.WARNING, text, advice, detail)
        elif lacks_it:
            where = f"is on {_shorten(has_it)}, not on {_shorten(lacks_it)}"
            text = f"the proposervm API of chain {id_text(chain_id)} {where}"
            nodes_text = "one of these" if len(has_it) > 1 else has_it[0]
            advice = f"its epochs are known as long as {nodes_text} answers"
            yield Finding(Grade.GOOD, text, advice, detail)


def _names(positions: Iterable[int]) -> str:
    return ", ".join(f"{P_CHAIN_API}[{position}]" for position in positions)


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _subnet_name(subnet_id: SubnetID) -> str:
    return "the Primary Network" if subnet_id == PRIMARY_NETWORK else f"subnet {id_text(subnet_id)}"


async def check_gateway(config: Config, network_id: int) -> list[Finding]:
    """Check every node of `gateway-nodes`; empty without one."""
    if not config.gateway.nodes:
        return []
    async with open_sessions() as sessions:
        gateway = build_gateway(config.gateway, sessions, config.evm_rpc, network_id)
        pools = {chain: forwarder.pool for chain, forwarder in gateway.forwarders.items()}
        await asyncio.gather(*(pool.check() for pool in pools.values()))
        heights = await asyncio.gather(*(_heights(pool) for pool in pools.values()))
    by_chain = dict(zip(pools, heights, strict=True))
    nodes = pools[PrimaryChain.P].nodes
    return [finding for node in nodes for finding in _check_gateway_node(node, by_chain)]


async def _heights(pool: NodePool[int]) -> list[int | None]:
    """Return the height of a chain at each node; None if the node does not report it."""

    async def height(node: PoolNode) -> int | None:
        if not node.is_verified:
            return None
        try:
            return await pool.identity.read_height(node.node, _HEIGHT_TIMEOUT_S)
        except CallFailure:
            return None

    return await asyncio.gather(*map(height, pool.nodes))


def _check_gateway_node(
    node: PoolNode, heights: dict[PrimaryChain, list[int | None]]
) -> list[Finding]:
    setting = f"gateway-nodes[{node.position}]"
    where = f"{setting} {node.display}"
    if node.failure is not None:
        text, detail = f"{where}: {node.failure}", {"setting": setting}
        return [Finding(Grade.WARNING, text, _GATEWAY_ADVICE, detail)]
    reported: dict[str, str] = {}
    remarks: list[Finding] = []
    for chain, heights_of_nodes in heights.items():
        name, height = f"{chain.name}-Chain", heights_of_nodes[node.position]
        if height is None:
            text = f"{where} reports no height of the {name}"
            remarks.append(Finding(Grade.WARNING, text, _NO_HEIGHT))
            continue
        reported[chain.name] = str(height)
        lag = max(other or 0 for other in heights_of_nodes) - height
        if lag > MAX_LAGGING_BLOCKS:
            text = f"{where} is {lag} blocks behind the others on the {name}"
            remarks.append(Finding(Grade.WARNING, text, _BEHIND))
    heights_text = ", ".join(f"{chain} {height}" for chain, height in reported.items())
    text = f"{where} answers: heights {heights_text or 'unknown'}"
    response = Finding(Grade.GOOD, text, detail={"setting": setting, "heights": reported})
    return [response, *remarks]
