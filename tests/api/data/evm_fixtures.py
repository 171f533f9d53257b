"""The Data API in front of EVM chains, with real nodes on loopback and the real index of each
chain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.api.data.fixtures import DataApiSetup, client_of
from tests.forwarding.evm.evm import SETTINGS
from tests.indexer.evm_chains import ServedChain, recorded_chain
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from warpseal.api.data.contract_info import ContractInfoFolder
from warpseal.api.data.evm_chains import EvmChainDirectory, EvmChainService
from warpseal.chains.evm.checks import BlockRules
from warpseal.forwarding.evm.forwarder import forward_chain
from warpseal.forwarding.evm.reads import EvmChainReader
from warpseal.index.evm.reader import EvmIndex
from warpseal.resources.aliases import ChainAliases
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import ChainID

L1: Final = recorded_chain("localnet", "l1-0")
L1_PATH: Final = f"/v1/chains/{L1.evm_chain_id}"


@dataclass(frozen=True)
class HttpResponse:
    """A response of the API.

    body: decoded, None if it is empty.
    """

    status: int
    headers: Any
    body: Any


@asynccontextmanager
async def evm_setup(
    *nodes: EvmReplayNode,
    chain_id: ChainID | None = None,
    index_reader: EvmIndex | None = None,
    rules: BlockRules | None = None,
    aliases: ChainAliases | None = None,
    contract_infos: ContractInfoFolder | None = None,
    more_urls: Sequence[str] = (),
    **entry: Any,
) -> AsyncIterator[DataApiSetup]:
    """Serve nodes of one chain, and yield an API in front of them.

    more_urls: URLs of nodes that are served elsewhere, or not at all.
    entry: more fields of the entry of the chain.
    """
    async with serving_evm(*nodes):
        endpoints = tuple(NodeEndpoint(url) for url in (*(node.url for node in nodes), *more_urls))
        configured = EvmChain(chain_id or L1.blockchain_id, endpoints, **entry)

        async def load_rules() -> BlockRules:
            return rules or BlockRules()

        async def nothing() -> None:
            return None

        async with open_sessions() as sessions:
            chain = forward_chain(configured, sessions, SETTINGS, nothing)
            services = EvmChainDirectory(aliases, contract_infos)
            services.add(
                EvmChainService(
                    configured, EvmChainReader(chain.forwarder, load_rules, 2.0), index_reader
                )
            )
            yield replace(DataApiSetup(index=None), evm=services)


async def ask(setup: DataApiSetup, path: str, method: str = "GET", **params: Any) -> HttpResponse:
    """Send one request. Names in `params` that begin with `header_` are headers."""
    headers = {
        name.removeprefix("header_"): params.pop(name)
        for name in list(params)
        if name.startswith("header_")
    }
    async with (
        client_of(setup) as client,
        client.request(method, path, params=params, headers=headers) as response,
    ):
        body = await response.json() if await response.read() else None
        return HttpResponse(response.status, response.headers, body)


def l1_node(chain: ServedChain = L1, **fields: Any) -> EvmReplayNode:
    """Return a node of a recorded chain."""
    return EvmReplayNode(chain, **fields)
