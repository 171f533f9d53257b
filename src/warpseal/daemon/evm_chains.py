"""The EVM chains of the Data API: for each one its nodes, and its index if it has one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from warpseal.api.data.contract_info import ContractInfoFolder
from warpseal.api.data.evm_chains import EvmChainService, EvmChainServices
from warpseal.chains.evm.checks import BlockRules
from warpseal.config.keys import Config
from warpseal.daemon.evm_api import EvmApi
from warpseal.evm_rpc.build import ForwardedChain
from warpseal.evm_rpc.reads import EvmChainReader
from warpseal.history.aliases import ChainAliases
from warpseal.history.chains import PrimaryChains
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.node.endpoint import EvmChain


class EvmDataServices:
    """Builds the services of EVM chains. folder: of the network in data-dir; None: it is read-only.

    executor: decodes large answers.
    """

    def __init__(
        self,
        config: Config,
        folder: Path | None,
        evm_api: EvmApi,
        aliases: ChainAliases,
        contract_infos: ContractInfoFolder,
        executor: Executor,
    ) -> None:
        self._config = config
        self._folder = folder
        self._evm_api = evm_api
        self._executor = executor
        self._stack = AsyncExitStack()
        self.chains = EvmChainServices(aliases, contract_infos)

    @asynccontextmanager
    async def opened(self, primary_chains: PrimaryChains) -> AsyncIterator[EvmChainServices]:
        """Hold the indexes of the configured chains."""
        async with self._stack:
            for entry, chain in zip(self._config.node.evm_chains, self._evm_api.chains, strict=True):
                await self.add(entry, chain, primary_chains)
            yield self.chains

    async def add(self, entry: EvmChain, chain: ForwardedChain, primary_chains: PrimaryChains) -> None:
        """Add a chain, its index open until `opened` ends."""
        index = None
        if entry.index is not None:
            url = evm_index_url(self._config.index, self._folder, entry.blockchain_id)
            index = await self._stack.enter_async_context(EvmIndex(url, self._config.index))
        is_c_chain = entry.blockchain_id == primary_chains.c
        reader = EvmChainReader(
            chain.forwarder,
            self._c_chain_rules if is_c_chain else _l1_rules,
            self._config.node.call_timeout_s,
            self._executor,
        )
        self.chains.add(EvmChainService(entry, reader, index))

    async def _c_chain_rules(self) -> BlockRules:
        """Return the rules of the C-Chain; if no node says when Helicon begins, gas and bloom prove nothing."""
        times = await self._evm_api.upgrade_times() or {}
        return BlockRules(asynchronous_from=times.get("helicon", 0))


async def _l1_rules() -> BlockRules:
    return BlockRules()
