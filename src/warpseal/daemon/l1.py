"""Messages of L1 transactions: follows the P-Chain, signs by transaction, signs ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from warpseal.aggregation.service import SignatureAggregator
from warpseal.daemon.chain_rows import describe_follower
from warpseal.daemon.core import Core
from warpseal.daemon.events import Events
from warpseal.daemon.registries import StatusRequest
from warpseal.daemon.subsystems import index_database, index_source
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.destination import Destinations
from warpseal.l1.context import L1Lookups
from warpseal.l1.follower import (
    FollowerSample,
    PChainFollower,
    follower_detail,
    follower_sample,
    follower_state,
)
from warpseal.l1.prefetch import EagerSigner
from warpseal.l1.service import L1MessageService
from warpseal.ops.health.checks import follower_check
from warpseal.resources.chains import PrimaryChain

if TYPE_CHECKING:
    from warpseal.daemon.evm_api import EvmApi


class L1:
    """The follower of the P-Chain, and the service that signs messages by transaction."""

    def __init__(self, follower: PChainFollower, messages: L1MessageService) -> None:
        self.follower = follower
        self.messages = messages


@asynccontextmanager
async def open_l1(
    core: Core,
    tasks: asyncio.TaskGroup,
    validators: ValidatorNetwork,
    signing: SignatureAggregator,
    destinations: Destinations,
    events: Events,
    evm_api: EvmApi | None,
) -> AsyncIterator[L1]:
    """Follow the P-Chain; sign messages by transaction on request, those of tracked L1s ahead."""
    config, store = core.config, core.store

    async def status(request: StatusRequest) -> Mapping[str, Any]:
        return {"chains": describe_follower(follower)}

    with open_follower(core) as follower, ThreadPoolExecutor(1, "hash") as hashing:
        lookups = L1Lookups(
            core.upstream,
            store,
            validators.chains,
            validators.epochs,
            core.network_id,
            config.l1,
            evm={} if evm_api is None else evm_api.log_clients(core.upstreams.decoding),
            progress=lambda: follower_detail(follower),
            find_quorum=destinations.quorum,
            executor=hashing,
        )
        messages = L1MessageService(
            lookups,
            signing,
            store.archive,
            validators.sets,
            validators.heights,
            config.l1,
            config.aggregation,
            on_signed=events.recorder.on_l1_signed,
        )
        eager = EagerSigner(
            messages,
            store.l1,
            core.leadership,
            validators.chains,
            follower,
            frozenset(config.validators.tracked_subnet_ids),
            core.network_id,
            config.l1,
        )
        core.metrics.samples.register(FollowerSample, lambda: [follower_sample(follower)])
        core.ready.register("follower", lambda: follower_state(follower))
        core.status.register(status)
        core.health.register(follower_check(follower.progress))
        if core.has_store:
            core.keep_running(tasks, "P-Chain follower", follower.run)
            core.keep_running(tasks, "eager signing", eager.run)
        yield L1(follower, messages)


@contextmanager
def open_follower(core: Core) -> Iterator[PChainFollower]:
    """Hold the follower of the P-Chain, which takes blocks from the index if there is one."""
    config = core.config
    # Without a store the follower would be of no use.
    settings = replace(
        config.follower, follow_p_chain=config.follower.follow_p_chain and core.has_store
    )
    with ExitStack() as stack:
        indexed = None
        if PrimaryChain.P in config.indexer.chains:
            url = index_database.index_url(config.index, core.folder)
            indexed = stack.enter_context(closing(index_source.IndexedBlocks(url, config.index)))
        yield PChainFollower(
            core.upstream.blocks, core.store.l1, core.leadership, settings, indexed=indexed
        )
