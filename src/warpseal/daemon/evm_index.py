"""EVM chains behind the Data API, with their indexes: the configured chains, and those that a node
of L1s serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from warpseal.api.data.evm_chains import EvmChainDirectory, EvmChainService
from warpseal.chains.evm.checks import BlockRules
from warpseal.daemon.core import Core
from warpseal.daemon.evm_api import EvmApi
from warpseal.forwarding.evm.forwarder import ForwardedChain
from warpseal.forwarding.evm.reads import EvmChainReader, c_chain_rules
from warpseal.forwarding.evm.served_l1s import ServedL1s
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.indexer.status import IndexStatus
from warpseal.resources.chains import PrimaryChains
from warpseal.upstream.endpoint import EvmChain
from warpseal.warp.ids import ChainID, id_text


class EvmChains:
    """The EVM chains of the Data API, which are added to `services`."""

    def __init__(self, core: Core, evm_api: EvmApi, services: EvmChainDirectory) -> None:
        self.services = services
        self._config = core.config
        self._core = core
        self._evm_api = evm_api
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def opened(self, primary_chains: PrimaryChains) -> AsyncIterator[None]:
        """Hold the indexes of the configured chains, and of those that `find_l1s` adds."""
        async with self._stack:
            # Chains that were added to the configured ones come after them.
            for entry, chain in zip(
                self._config.node.evm_chains, self._evm_api.chains, strict=False
            ):
                self._add(entry, chain, is_c_chain=entry.blockchain_id == primary_chains.c)
            yield

    async def find_l1s(self) -> None:
        """Add the chains that the node of `index-l1s-at` serves, until cancelled."""
        node = self._config.node
        if node.index_l1s_at is None:
            return
        configured_ids = [chain.blockchain_id for chain in node.evm_chains]
        subnet_ids = self._config.validators.tracked_subnet_ids
        blockchains_of = self._core.platform.blockchains_of
        sessions, settings = self._evm_api.sessions, self._config.evm_rpc
        served = ServedL1s(
            node.index_l1s_at, subnet_ids, blockchains_of, configured_ids, sessions, settings
        )

        def add(entry: EvmChain) -> None:
            self._add(entry, self._evm_api.add(entry), is_c_chain=False)

        await served.run(add)

    def indexes(self) -> Mapping[str, EvmIndex]:
        """Return the indexes by blockchain id as text."""
        return {
            id_text(chain.entry.blockchain_id): chain.index
            for chain in self.services
            if chain.index is not None
        }

    def message_indexes(self) -> Mapping[ChainID, EvmIndex]:
        """Return the indexes that have messages of ICM, by chain."""
        return {
            chain.entry.blockchain_id: chain.index
            for chain in self.services
            if chain.index and chain.has_icm
        }

    def _add(self, entry: EvmChain, chain: ForwardedChain, *, is_c_chain: bool) -> None:
        index = None
        if entry.index is not None:
            url = evm_index_url(self._config.index, self._core.folder, entry.blockchain_id)
            index = EvmIndex(url, self._config.index)
            self._stack.push_async_exit(index)
        load_rules = self._c_chain_rules if is_c_chain else _l1_rules
        timeout_s, executor = self._config.node.call_timeout_s, self._core.upstreams.decoding
        reader = EvmChainReader(chain.forwarder, load_rules, timeout_s, executor)
        self.services.add(EvmChainService(entry, reader, index))

    async def _c_chain_rules(self) -> BlockRules:
        """Return the rules of the C-Chain; while no node says when Helicon begins, gas and bloom
        prove nothing.
        """
        times = await self._evm_api.facts.upgrade_times()
        return BlockRules(asynchronous_from=0) if times is None else c_chain_rules(times)


async def _l1_rules() -> BlockRules:
    return BlockRules()


@asynccontextmanager
async def open_evm_index(
    core: Core,
    tasks: asyncio.TaskGroup,
    evm_api: EvmApi,
    contracts: EvmChainDirectory,
    index_status: IndexStatus,
) -> AsyncIterator[EvmChains]:
    """Build the EVM chains. The Data API opens them once the primary chains have their ids."""
    chains = EvmChains(core, evm_api, contracts)
    index_status.evm.indexes = chains.indexes
    yield chains
