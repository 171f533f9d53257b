"""Chains of tracked subnets are found at a node as soon as it serves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.eventually import until
from tests.node.recorded_node import serve_app
from warpseal.forwarding.evm.served_l1s import ServedL1s
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.runtime.process import running
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, L1sNode, NodeEndpoint
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import ChainID, SubnetID, id_text

SUBNETS = SubnetID(bytes([1]) * 32), SubnetID(bytes([2]) * 32)
CHAINS = [ChainID(bytes([10 + number]) * 32) for number in range(5)]


@asynccontextmanager
async def serving_chains(served: set[ChainID], result: bytes = b'"0x1"') -> AsyncIterator[str]:
    """Serve chains at their paths; every other path is 404. Yield the node's base URL.

    result: JSON that each call returns
    """

    async def respond(request: web.Request) -> web.Response:
        if request.match_info["chain"] not in {id_text(chain_id) for chain_id in served}:
            return web.Response(status=404, text="404 page not found")
        return web.Response(
            body=b'{"jsonrpc":"2.0","id":0,"result":' + result + b"}",
            content_type="application/json",
        )

    app = web.Application()
    app.router.add_post("/ext/bc/{chain}/rpc", respond)
    async with serve_app(app) as url:
        yield url


async def test_chains_are_found_once_when_the_node_serves_them() -> None:
    blockchains = {SUBNETS[0]: CHAINS[:3], SUBNETS[1]: []}
    served, chains = {CHAINS[0], CHAINS[2]}, list[EvmChain]()
    failing = {SUBNETS[1]}

    async def blockchains_of(subnet_id: SubnetID) -> tuple[ChainID, ...]:
        if subnet_id in failing:
            raise NodeUnavailable("platform.validates")
        return tuple(blockchains[subnet_id])

    settings = EvmRpcSettings()
    async with serving_chains(served) as url, open_sessions() as sessions:
        node = NodeEndpoint(url, http_headers={"key": "x"})
        # The third chain is configured by itself.
        finder = ServedL1s(
            L1sNode(node), SUBNETS, blockchains_of, [CHAINS[2]], sessions, settings, interval_s=0.01
        )
        finding = asyncio.create_task(finder.run(chains.append))
        await until(lambda: len(chains) == 1)
        endpoint = NodeEndpoint(f"{url}/ext/bc/{id_text(CHAINS[0])}/rpc", http_headers={"key": "x"})
        assert chains == [EvmChain(CHAINS[0], (endpoint,), index=EvmIndexing())]
        failing.clear()
        blockchains[SUBNETS[1]] = CHAINS[3:]
        served |= {CHAINS[1], CHAINS[4]}
        await until(lambda: len(chains) == 3)
        assert {chain.blockchain_id for chain in chains} == {CHAINS[0], CHAINS[1], CHAINS[4]}
        finding.cancel()


async def test_a_node_whose_chain_id_is_no_text_serves_no_chain() -> None:
    rounds: list[SubnetID] = []

    async def blockchains_of(subnet_id: SubnetID) -> tuple[ChainID, ...]:
        rounds.append(subnet_id)
        return (CHAINS[0],)

    settings, chains = EvmRpcSettings(), list[EvmChain]()
    async with serving_chains({CHAINS[0]}, b'"\xff"') as url, open_sessions() as sessions:
        finder = ServedL1s(
            L1sNode(NodeEndpoint(url)),
            SUBNETS[:1],
            blockchains_of,
            [],
            sessions,
            settings,
            interval_s=0.01,
        )
        async with running(finder.run(chains.append)):
            await until(lambda: len(rounds) == 3)
    assert chains == []
