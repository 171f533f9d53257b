"""All clients of upstream nodes, built together, so that a node in several lists has one limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from msgspec import Struct

from warpseal.node.blocks import CBlocksClient, ContainersClient, PBlocksClient, XChainClient
from warpseal.node.chain_apis import (
    ChainApi,
    ChainRpcClient,
    ChainValidatorsClient,
    ProposerVMClient,
    api_endpoint,
)
from warpseal.node.info import InfoClient
from warpseal.node.node_view import NodeViewClient
from warpseal.node.platform import PlatformClient, height_call
from warpseal.node.settings import NodeSettings
from warpseal.node.state import StateClient
from warpseal.runtime.http_session import aiohttp
from warpseal.upstream.agreement import NodeAgreement
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.identity import ServedNetwork
from warpseal.upstream.node import CallObserver, UpstreamNode
from warpseal.upstream.pool import NodePool
from warpseal.warp.ids import ChainID


class Upstream(Struct, frozen=True):
    """The clients of the configured nodes.

    validators: clients of the validators API, by configured EVM chain.
    """

    platform: PlatformClient
    info: InfoClient
    proposervm: ProposerVMClient
    chain_rpc: ChainRpcClient
    blocks: PBlocksClient
    x_chain: XChainClient
    c_blocks: CBlocksClient
    containers: ContainersClient
    state: StateClient
    view: NodeViewClient
    validators: Mapping[ChainID, ChainValidatorsClient]


def connect_upstream(
    settings: NodeSettings,
    session: aiohttp.ClientSession,
    *,
    observer: CallObserver | None = None,
    executor: Executor | None = None,
    check_key: Callable[[bytes], object] | None = None,
    build_platform: Callable[
        [NodePool[int], NodeAgreement, Callable[[bytes], object] | None], PlatformClient
    ] = PlatformClient,
) -> Upstream:
    """Build the clients; no node is called yet.

    executor: thread that decodes large replies; a single one, since decoding holds the interpreter
        lock and several threads would keep the event loop waiting.
    check_key: function that checks public keys, passed to the PlatformClient.
    build_platform: class of the PlatformClient.
    """
    served, limits = ServedNetwork(), settings.limits
    nodes: list[UpstreamNode] = []

    def build_node(endpoint: NodeEndpoint) -> UpstreamNode:
        return UpstreamNode(endpoint, session, limits, observer=observer, executor=executor)

    def node_at(endpoint: NodeEndpoint) -> UpstreamNode:
        for node in nodes:
            if node.endpoint == endpoint:
                return node
        nodes.append(build_node(endpoint))
        return nodes[-1]

    platform_nodes = [node_at(endpoint) for endpoint in settings.p_chain_api]
    info_nodes = [node_at(endpoint) for endpoint in settings.info_api]
    info_pool, all_nodes = NodePool(info_nodes, served, limits), NodePool(nodes, served, limits)
    info_quorum = max(1, min(settings.p_chain_quorum, len(info_nodes)))
    info_agreement = NodeAgreement(
        info_pool, info_quorum, height_call, settings.height_claim_grace_s
    )
    info = InfoClient(info_pool, served, info_agreement, all_nodes, settings.p_chain_quorum)

    def pool(members: Sequence[UpstreamNode]) -> NodePool[int]:
        on_contradiction = None if observer is None else observer.count_disagreement
        return NodePool(
            members,
            served,
            limits,
            learn_identity=info.network_id,
            on_contradiction=on_contradiction,
        )

    def own_nodes(chain: EvmChain, api: ChainApi) -> list[UpstreamNode]:
        if api is ChainApi.RPC:
            return [build_node(endpoint) for endpoint in chain.rpc]
        endpoints = [api_endpoint(endpoint, api) for endpoint in chain.rpc]
        return [build_node(endpoint) for endpoint in endpoints if endpoint is not None]

    def own_pools(api: ChainApi) -> dict[ChainID, NodePool[int]]:
        # The URLs of an entry are those of one chain, so that its nodes need not name a network.
        pools: dict[ChainID, NodePool[int]] = {}
        for chain in settings.evm_chains:
            members = own_nodes(chain, api)
            if members:
                pools[chain.blockchain_id] = NodePool(members, ServedNetwork(), limits)
        return pools

    def agreement(members: NodePool[int]) -> NodeAgreement:
        return NodeAgreement(
            members, settings.p_chain_quorum, height_call, settings.height_claim_grace_s
        )

    p_chain, p_blocks = pool(platform_nodes), pool(platform_nodes)
    platform = build_platform(p_chain, agreement(p_chain), check_key)
    validators: dict[ChainID, ChainValidatorsClient] = {}
    for chain in settings.evm_chains:
        chain_nodes = own_nodes(chain, ChainApi.VALIDATORS)
        validators[chain.blockchain_id] = ChainValidatorsClient(chain_nodes)
    return Upstream(
        platform=platform,
        info=info,
        proposervm=ProposerVMClient(
            pool(nodes),
            own_pools(ChainApi.PROPOSERVM),
            settings.p_chain_quorum,
            settings.height_claim_grace_s,
        ),
        chain_rpc=ChainRpcClient(pool(nodes), own_pools(ChainApi.RPC)),
        blocks=PBlocksClient(p_blocks, limits, info, agreement(p_blocks)),
        x_chain=XChainClient(pool(nodes), limits),
        c_blocks=CBlocksClient(pool(nodes)),
        containers=ContainersClient(pool(nodes)),
        state=StateClient(pool(platform_nodes)),
        view=NodeViewClient(platform, agreement(pool(platform_nodes)), pool(info_nodes)),
        validators=validators,
    )
