"""The services of EVM chains behind the Data API: of the configured chains, and of those that a node of L1s serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from warpseal.api.data.evm_chains import EvmChainService, EvmChainServices
from warpseal.chains.evm.checks import BlockRules
from warpseal.config.keys import Config
from warpseal.daemon.forwarding_api import EvmApi
from warpseal.daemon.services import Services, Upstreams, denies_calls
from warpseal.events.index_events import IndexEvents
from warpseal.forwarding.evm.forwarder import ForwardedChain
from warpseal.forwarding.evm.reads import EvmChainReader, c_chain_rules
from warpseal.forwarding.evm.served_l1s import ServedL1s
from warpseal.icm.obstacles import MessageObstacles
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.messages.signing_blocks import subjects
from warpseal.resources.chains import PrimaryChains
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.lazy import LazyModule
from warpseal.upstream.endpoint import EvmChain
from warpseal.warp.ids import ChainID, id_text

if TYPE_CHECKING:
    from warpseal.icm import signer as icm_signer
else:
    icm_signer = LazyModule("warpseal.icm.signer")


class EvmDataServices(Struct):
    """Builds the services of EVM chains, and adds them to `chains`.

    folder: of the network in data-dir; None: it is read-only. stack: holds the indexes.
    """

    config: Config
    network_id: int
    folder: Path | None
    evm_api: EvmApi
    upstreams: Upstreams
    chains: EvmChainServices
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @asynccontextmanager
    async def opened(self, primary_chains: PrimaryChains) -> AsyncIterator[None]:
        """Hold the indexes of the configured chains, and of those that `find_l1s` adds."""
        async with self.stack:
            # Chains that were added to the configured ones come after them.
            for entry, chain in zip(self.config.node.evm_chains, self.evm_api.chains, strict=False):
                self._add(entry, chain, is_c_chain=entry.blockchain_id == primary_chains.c)
            yield

    async def find_l1s(self) -> None:
        """Add the chains that the node of `index-l1s-at` serves, until cancelled."""
        node = self.config.node
        if node.index_l1s_at is None:
            return
        configured_ids = [chain.blockchain_id for chain in node.evm_chains]
        subnet_ids = self.config.validators.tracked_subnet_ids
        blockchains_of = self.upstreams.upstream.platform.blockchains_of
        sessions, settings = self.evm_api.sessions, self.config.evm_rpc
        served = ServedL1s(node.index_l1s_at, subnet_ids, blockchains_of, configured_ids, sessions, settings)

        def add(entry: EvmChain) -> None:
            self._add(entry, self.evm_api.add(entry), is_c_chain=False)

        await served.run(add)

    def indexes(self) -> Mapping[str, EvmIndex]:
        """Return the indexes by blockchain id as text."""
        return {id_text(chain.entry.blockchain_id): chain.index for chain in self.chains if chain.index is not None}

    def build_obstacles(self, services: Services) -> MessageObstacles:
        """Return the lookups of what hinders ICM messages."""
        return MessageObstacles(
            services.aggregator,
            services.store.archive,
            services.delivery.sign,
            services.preflight.check,
            self.upstreams.upstream.chain_rpc,
            partial(denies_calls, self.config),
            self.network_id,
            find_block=lambda message: services.store.signing_blocks.find(subjects(message)),
            known_set=services.sets.known,
            unreachable_reason=services.unreachable_reason,
            subnet_of=services.chains.subnet_of,
        )

    async def report_messages(self, services: Services, background: BackgroundWork) -> None:
        """Add what the indexes have of ICM messages to the event log, and sign them ahead if configured."""
        store, plan_tasks = services.store, None
        leadership = store.leadership("icm")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(background.keep_running("leadership for ICM messages", leadership.run))
            if subnet_ids := frozenset(self.config.delivery.eager_icm_subnet_ids):
                deps = icm_signer.IcmSignerDeps(
                    services.delivery.sign,
                    services.delivery.signing_set,
                    services.chains.subnet_of,
                    services.aggregator.admission,
                    store.database,
                    leadership,
                )
                signer = icm_signer.IcmSigner(deps, subnet_ids, self.network_id)
                tasks.create_task(background.keep_running("eager signing of ICM messages", signer.run))
                plan_tasks = signer.plan_tasks
            reader = IndexEvents(
                store.events, leadership, self._message_indexes, self.network_id, background, plan_tasks
            )
            tasks.create_task(background.keep_running("events of ICM messages", reader.run))

    def _message_indexes(self) -> Mapping[ChainID, EvmIndex]:
        return {chain.entry.blockchain_id: chain.index for chain in self.chains if chain.index and chain.has_icm}

    def _add(self, entry: EvmChain, chain: ForwardedChain, *, is_c_chain: bool) -> None:
        index = None
        if entry.index is not None:
            url = evm_index_url(self.config.index, self.folder, entry.blockchain_id)
            index = EvmIndex(url, self.config.index)
            self.stack.push_async_exit(index)
        load_rules = self._c_chain_rules if is_c_chain else _l1_rules
        timeout_s, executor = self.config.node.call_timeout_s, self.upstreams.decoding
        reader = EvmChainReader(chain.forwarder, load_rules, timeout_s, executor)
        self.chains.add(EvmChainService(entry, reader, index))

    async def _c_chain_rules(self) -> BlockRules:
        """Return the rules of the C-Chain; while no node says when Helicon begins, gas and bloom prove nothing."""
        times = await self.evm_api.upgrade_times()
        return BlockRules(asynchronous_from=0) if times is None else c_chain_rules(times)


async def _l1_rules() -> BlockRules:
    return BlockRules()
