"""All clients of upstream nodes, built together, so that a node in several lists has one limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import aiohttp

from warpseal.node.agreement import NodeAgreement
from warpseal.node.blocks import CBlocksClient, ContainersClient, PBlocksClient, XChainClient
from warpseal.node.chain_nodes import ChainApi, ChainApiNodes, api_endpoint
from warpseal.node.chain_rpc import ChainRpcClient
from warpseal.node.chain_validators_client import ChainValidatorsClient
from warpseal.node.info import InfoClient
from warpseal.node.node_view import NodeViewClient
from warpseal.node.platform import PlatformClient
from warpseal.node.pool import NodePool, ServedNetwork
from warpseal.node.proposervm import ProposerVMClient
from warpseal.node.rpc import CallObserver, UpstreamNode
from warpseal.node.settings import NodeSettings
from warpseal.node.state import StateClient
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class Upstream:
    """The clients of the configured nodes; validators: by configured EVM chain."""

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
) -> Upstream:
    """Build the clients; no node is called yet.

    executor: decodes large answers; it should have a single thread, since decoding holds the interpreter lock and
    several threads would keep the event loop waiting. check_key: see PlatformClient.
    """
    served = ServedNetwork()
    nodes: list[UpstreamNode] = []

    def node_at(endpoint: NodeEndpoint) -> UpstreamNode:
        for node in nodes:
            if node.endpoint == endpoint:
                return node
        nodes.append(UpstreamNode(endpoint, session, settings, observer, executor))
        return nodes[-1]

    platform_nodes = [node_at(endpoint) for endpoint in settings.p_chain_api]
    info_nodes = [node_at(endpoint) for endpoint in settings.info_api]
    retry_s = settings.retry_failed_after_s
    info = InfoClient(NodePool(info_nodes, served, retry_failed_after_s=retry_s), served)

    def pool(members: Sequence[UpstreamNode]) -> NodePool:
        return NodePool(
            members,
            served,
            learn_network=info.network_id,
            retry_failed_after_s=retry_s,
            on_contradiction=None if observer is None else observer.count_disagreement,
        )

    def own_nodes(chain: EvmChain, api: ChainApi) -> list[UpstreamNode]:
        endpoints = (api_endpoint(endpoint, api) if api is not ChainApi.RPC else endpoint for endpoint in chain.rpc)
        return [UpstreamNode(endpoint, session, settings, observer, executor) for endpoint in endpoints if endpoint]

    def chain_nodes(api: ChainApi) -> ChainApiNodes:
        # The URLs of an entry are those of one chain: its nodes need not say to which network they belong.
        own = {
            chain.blockchain_id: NodePool(found, ServedNetwork(), retry_failed_after_s=retry_s)
            for chain in settings.evm_chains
            if (found := own_nodes(chain, api))
        }
        return ChainApiNodes(api, pool(nodes), own)

    def agreement(members: NodePool) -> NodeAgreement:
        return NodeAgreement(members, settings.p_chain_quorum, claim_grace_s=settings.height_claim_grace_s)

    p_chain = pool(platform_nodes)
    platform = PlatformClient(p_chain, agreement(p_chain), check_key)
    return Upstream(
        platform=platform,
        info=info,
        proposervm=ProposerVMClient(chain_nodes(ChainApi.PROPOSERVM)),
        chain_rpc=ChainRpcClient(chain_nodes(ChainApi.RPC)),
        blocks=PBlocksClient(
            pool(platform_nodes),
            info,
            max_concurrency=settings.follow_max_concurrency,
            max_calls_per_s=settings.follow_calls_per_s,
        ),
        x_chain=XChainClient(pool(nodes)),
        c_blocks=CBlocksClient(pool(nodes)),
        containers=ContainersClient(pool(nodes)),
        state=StateClient(pool(platform_nodes)),
        view=NodeViewClient(platform, agreement(pool(platform_nodes)), pool(info_nodes)),
        validators={
            chain.blockchain_id: ChainValidatorsClient(own_nodes(chain, ChainApi.VALIDATORS))
            for chain in settings.evm_chains
        },
    )
