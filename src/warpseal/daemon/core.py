"""What every subsystem may use once a node has named the network; `registries` has what exists
before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from warpseal.config.keys import Config
from warpseal.daemon.registries import Registries
from warpseal.daemon.subsystems import indexed_platform
from warpseal.errors import StartupError
from warpseal.index.settings import EVM_INDEX, PRIMARY_INDEX
from warpseal.metrics.registry import Metrics
from warpseal.metrics.samples import Sample, metric
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.peers.identity import LockedIdentity, lock_identity
from warpseal.store.errors import StoreDown
from warpseal.store.store import Store, open_store
from warpseal.store.url import OFF
from warpseal.upstream.node import open_session
from warpseal.validators.set_cache import PublicKeyCache
from warpseal.validators.settings import SetSource

if TYPE_CHECKING:
    from warpseal.validators.indexed_platform import IndexedPlatform

log = logging.getLogger(__name__)


class Upstreams(Struct, frozen=True):
    """The clients of the nodes, the cache of parsed keys, and the thread that decodes large
    responses.

    indexed: the client of the P-Chain if it also reads the index; None if validator sets come from
        nodes.
    """

    upstream: Upstream
    keys: PublicKeyCache
    decoding: Executor
    indexed: IndexedPlatform | None = None


@asynccontextmanager
async def open_upstreams(
    config: Config, metrics: Metrics, set_source: SetSource = SetSource.NODE
) -> AsyncIterator[Upstreams]:
    """Hold the clients of the configured nodes; nothing is asked yet."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        decoding = stack.enter_context(ThreadPoolExecutor(1, "decode"))
        keys = PublicKeyCache(config.validators.key_cache_keys)
        connect = partial(
            connect_upstream,
            config.node,
            session,
            observer=metrics,
            executor=decoding,
            check_key=keys.parse,
        )
        if set_source is SetSource.NODE:
            yield Upstreams(connect(), keys, decoding)
            return
        build = partial(
            indexed_platform.IndexedPlatform,
            source=set_source,
            count=metrics.count_set_comparison,
            has_stop=config.validators.set_source is SetSource.BOTH,
        )
        upstream = connect(build_platform=build)
        assert isinstance(upstream.platform, indexed_platform.IndexedPlatform)
        yield Upstreams(upstream, keys, decoding, upstream.platform)


class CertificateSample(Sample, frozen=True):
    """The certificate of the daemon's identity."""

    expires_at: int | None = metric(
        None,
        "warpseal_certificate_expiration_timestamp_seconds",
        "Unix time at which the certificate of the daemon's identity expires; absent while there is"
        " none",
    )


class Core:
    """What every subsystem of the network stage may use."""

    def __init__(
        self,
        registries: Registries,
        network_id: int,
        identity: LockedIdentity,
        upstreams: Upstreams,
        store: Store,
    ) -> None:
        self.config = registries.config
        self.registries = registries
        self.metrics = registries.metrics
        self.health = registries.health
        self.status = registries.status
        self.ready = registries.ready
        self.background = registries.background
        self.network_id = network_id
        self.identity = identity
        self.upstreams = upstreams
        self.upstream = upstreams.upstream
        self.platform = upstreams.upstream.platform
        self.store = store
        self.leadership = store.leadership("p-chain")

    @property
    def folder(self) -> Path | None:
        """The folder of the network in the data folder; None if that is read-only."""
        return self.identity.folder

    @property
    def has_store(self) -> bool:
        """Whether signatures and blocks are kept."""
        return self.config.store.url != OFF

    def keep_running(
        self, tasks: asyncio.TaskGroup, part: str, run: Callable[[], Awaitable[object]]
    ) -> None:
        """Run a part that signing does not need until it returns, again after each error."""
        tasks.create_task(self.background.keep_running(part, run))


@asynccontextmanager
async def open_core(
    registries: Registries, upstreams: Upstreams, network_id: int
) -> AsyncIterator[Core]:
    """Lock the identity, and open the store. Raises StartupError."""
    config, metrics = registries.config, registries.metrics
    with lock_identity(config.peers, network_id) as identity:
        log.debug("identity locked", extra={"folder": identity.folder})
        check_index_places(config, identity.folder)
        if identity.folder is not None:
            # Earlier versions kept P-Chain blocks that the index did not have yet.
            for suffix in ("", "-wal", "-shm"):
                with suppress(OSError):
                    (identity.folder / f"waiting-blocks.db{suffix}").unlink(missing_ok=True)
        async with open_store(
            config.store, identity.folder, on_commit=metrics.observe_commit
        ) as store:
            log.debug("store opened", extra={"url": store.status().url})
            # Nothing is signed, also ahead, until they were read once.
            with suppress(StoreDown):
                await store.signing_blocks.load()
            certificate = identity.identity
            metrics.samples.register(
                CertificateSample, lambda: [CertificateSample(certificate.expires_at)]
            )
            yield Core(registries, network_id, identity, upstreams, store)


def check_index_places(config: Config, folder: Path | None) -> None:
    """Raise StartupError if an index of the configuration has no place.

    folder: folder of the network; None if the data folder is read-only.
    """
    place = config.index.place
    places = [place(EVM_INDEX, chain.blockchain_id) for chain in config.node.indexed_evm_chains]
    if config.indexer.chains:
        places.append(place(PRIMARY_INDEX))
    if config.node.index_l1s_at is not None:
        places.append(place(EVM_INDEX))
    if folder is None and not all(index.url for index in places):
        raise StartupError(
            f"data-dir {config.peers.data_dir} is read-only, so there is no place for the index: "
            "make it writable, or set index-url"
        )
