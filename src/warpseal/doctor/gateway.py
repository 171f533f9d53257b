"""Checks of the gateway's nodes for `warpseal doctor`: their network, and how far each one has the primary chains."""

from __future__ import annotations

import asyncio
from typing import Final

from warpseal.config.keys import Config
from warpseal.doctor.finding import Finding, Grade
from warpseal.forwarding.primary.gateway import build_gateway
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.errors import CallFailure
from warpseal.upstream.node import open_sessions
from warpseal.upstream.pool import NodePool, PoolNode

MAX_LAGGING_BLOCKS: Final = 5
_TIMEOUT_S: Final = 3.0
_ADVICE: Final = "is the node up, of the same network, the base URL right, and the key (if any) valid?"
_NO_HEIGHT: Final = "calls of this chain fail there: the node is not bootstrapped, or does not serve its RPC"
_BEHIND: Final = "it is called only if no other node is up; it may still be bootstrapping"


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
    return [finding for node in nodes for finding in _check_node(node, by_chain)]


async def _heights(pool: NodePool[int]) -> list[int | None]:
    """Return the height of a chain at each node; None if the node does not report it."""

    async def height(node: PoolNode) -> int | None:
        try:
            return await pool.identity.read_height(node.node, _TIMEOUT_S) if node.is_verified else None
        except CallFailure:
            return None

    return await asyncio.gather(*map(height, pool.nodes))


def _check_node(node: PoolNode, heights: dict[PrimaryChain, list[int | None]]) -> list[Finding]:
    setting = f"gateway-nodes[{node.position}]"
    where = f"{setting} {node.display}"
    if node.failure is not None:
        return [Finding(Grade.WARNING, f"{where}: {node.failure}", _ADVICE, {"setting": setting})]
    found = {chain.name: of_nodes[node.position] for chain, of_nodes in heights.items()}
    known = ", ".join(f"{chain} {height}" for chain, height in found.items() if height is not None)
    detail = {
        "setting": setting,
        "heights": {chain: str(height) for chain, height in found.items() if height is not None},
    }
    findings = [Finding(Grade.GOOD, f"{where} answers: heights {known or 'unknown'}", detail=detail)]
    for chain, of_nodes in heights.items():
        height, tip = of_nodes[node.position], max((height or 0 for height in of_nodes), default=0)
        if height is None:
            findings.append(Finding(Grade.WARNING, f"{where} reports no height of the {chain.name}-Chain", _NO_HEIGHT))
        elif tip - height > MAX_LAGGING_BLOCKS:
            behind = f"{where} is {tip - height} blocks behind the others on the {chain.name}-Chain"
            findings.append(Finding(Grade.WARNING, behind, _BEHIND))
    return findings
