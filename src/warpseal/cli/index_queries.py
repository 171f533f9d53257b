"""The work of `warpseal index status|verify|rebuild|export`: places of indexes, names of chains.

They read the configuration and the data folder. Only `rebuild` writes; with the others the index
process may run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.config.keys import Config
from warpseal.daemon.evm_indexer import read_block_rules
from warpseal.daemon.index_core import open_upstream
from warpseal.daemon.primary_indexer import read_genesis
from warpseal.errors import StartupError
from warpseal.forwarding.evm.served_l1s import served_chain
from warpseal.index.database import (
    INDEX_NAME,
    index_url,
    reading_index,
    rebuild_hint,
    translate_errors,
    writing_index,
)
from warpseal.index.errors import IndexDamaged
from warpseal.index.evm.database import FOLDER as EVM_FOLDER
from warpseal.index.evm.database import evm_index_url, find_chains
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.rows import read_chain_row
from warpseal.index.index import Index
from warpseal.index.rebuild import RowRebuilder
from warpseal.index.schema import create_row_tables
from warpseal.index.settings import EVM_INDEX, PRIMARY_INDEX, IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.verify import EvmIndexVerifier
from warpseal.indexer.network import fetch_network
from warpseal.indexer.settings import primary_chain
from warpseal.indexer.status import EvmIndexStatus
from warpseal.indexer.verify import IndexFinding, IndexVerifier
from warpseal.ledger.params import Parameters
from warpseal.node.upstream import Upstream
from warpseal.peers.data_dir import find_files
from warpseal.resources.aliases import read_aliases
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import ChainProgress, EvmChainProgress
from warpseal.runtime.process import Progress, ignore_progress
from warpseal.runtime.settings import InvalidSetting
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import P_CHAIN, ChainID, MalformedID, id_text, parse_id

_REBUILD_STEP_S: Final = 1.0


def describe_damage(error: IndexDamaged, url: StoreUrl) -> str:
    """Return a sentence for the operator of a damaged index, with how to build it again."""
    return f"{error.code}: {url.redacted}: {error}; {rebuild_hint(url)}"


@contextmanager
def readable(url: StoreUrl) -> Iterator[None]:
    """Raise StartupError, which names the index, if it is damaged or its database is down."""
    try:
        yield
    except IndexDamaged as error:
        raise StartupError(describe_damage(error, url)) from None
    except StoreDown as error:
        raise StartupError(f"{url.redacted}: {error}") from None


def find_index(config: Config, network: int | None) -> StoreUrl:
    """Return the URL of the index without a call to a node.

    Raises StartupError if there is no index, or several.
    """
    if config.index.place(PRIMARY_INDEX).url:
        return index_url(config.index, None)
    files = find_files(config.peers.data_dir, INDEX_NAME)
    files = [path for path in files if network is None or path.parent.name == str(network)]
    if len(files) != 1:
        reason = "several indexes in {}: choose one with --network" if files else "no index in {}"
        raise StartupError(reason.format(config.peers.data_dir))
    return StoreUrl.for_file(files[0])


async def read_primary_progress(
    url: StoreUrl, config: Config
) -> Mapping[PrimaryChain, ChainProgress]:
    """Return the progress of each primary chain that has a block or a status.

    Raises StoreDown.
    """
    async with Index(url, None, config.index) as index:
        await index.refresh()
        return {PrimaryChain(progress.chain): progress for progress in index.progress()}


class EvmIndexLocation(Struct, frozen=True):
    """The place of the index of an EVM chain."""

    chain_id: ChainID
    url: StoreUrl


def find_evm_indexes(config: Config, network: int | None) -> tuple[EvmIndexLocation, ...]:
    """Return the indexes of configured and of stored EVM chains, without a call to a node.

    Raises StartupError if there are files of several networks.
    """
    folder, has_shared_place = None, bool(config.index.place(EVM_INDEX).url)
    if not has_shared_place:
        folders = find_files(config.peers.data_dir, EVM_FOLDER)
        folders = [path for path in folders if network is None or path.parent.name == str(network)]
        if len(folders) > 1:
            raise StartupError(
                f"several networks in {config.peers.data_dir}: choose one with --network"
            )
        folder = folders[0].parent if folders else None
    chain_ids = {chain.blockchain_id for chain in config.node.indexed_evm_chains}
    if not has_shared_place and folder is None:
        chain_ids &= config.index.chains.keys()
    else:
        # If the server is down, the index of each configured chain says so.
        with suppress(StoreDown):
            chain_ids |= find_chains(evm_index_url(config.index, folder, P_CHAIN))
    return tuple(
        EvmIndexLocation(chain_id, evm_index_url(config.index, folder, chain_id))
        for chain_id in sorted(chain_ids)
    )


async def read_evm_progress(location: EvmIndexLocation, config: Config) -> EvmChainProgress:
    """Return the progress of an EVM chain."""
    status, name = EvmIndexStatus(), id_text(location.chain_id)
    async with EvmIndex(location.url, config.index) as index:
        status.indexes = lambda: {name: index}
        await status.refresh()
    return status.chains[name]


def resolve_chain(config: Config, name: str, network: int | None = None) -> PrimaryChain | ChainID:
    """Return the chain of a name.

    name: p, x or c, a blockchain id, an alias, a chain-name, or the EVM chain id of an index. A
        blockchain id need not be configured.
    Raises StartupError, which lists the names of all chains.
    """
    with suppress(InvalidSetting):
        return primary_chain(name, "--chain")
    with suppress(MalformedID):
        return ChainID(parse_id(name))
    names = dict(_configured_names(config))
    if name.lower() not in names:
        locations: Iterable[EvmIndexLocation] = ()
        # Of several networks, none is chosen.
        with suppress(StartupError):
            locations = find_evm_indexes(config, network)
        for location in locations:
            names.setdefault(id_text(location.chain_id), location.chain_id)
            if (evm_chain_id := _stored_evm_chain_id(location, config)) is not None:
                names[str(evm_chain_id)] = location.chain_id
    if name.lower() not in names:
        all_names = ", ".join(("p", "x", "c", *names))
        raise StartupError(f"--chain {name}: no such chain; the names are {all_names}")
    return names[name.lower()]


def _configured_names(config: Config) -> Iterator[tuple[str, ChainID]]:
    """Yield the names of EVM chains in the configuration, in lower case."""
    aliases = read_aliases(config.node_api.chain_aliases_file)
    for chain in config.node.indexed_evm_chains:
        yield id_text(chain.blockchain_id), chain.blockchain_id
        if chain.info.chain_name:
            yield chain.info.chain_name.lower(), chain.blockchain_id
    for chain_id, names in aliases.items():
        for name in names:
            yield name.lower(), chain_id


def _stored_evm_chain_id(location: EvmIndexLocation, config: Config) -> int | None:
    if location.url.path is not None and not location.url.path.exists():
        return None
    engine = reading_index(location.url, config.index)
    try:
        with translate_errors(engine), engine.connect() as connection:
            row = read_chain_row(connection)
            return None if row is None else row.identity.evm_chain_id
    except StoreDown:
        return None
    finally:
        engine.dispose()


def select_chains(
    config: Config, names: Iterable[str], network: int | None = None
) -> tuple[Config, frozenset[ChainID] | None]:
    """Return a configuration that indexes only some chains, and the ids of its EVM chains.

    names: names of chains, as `resolve_chain` takes them. Without a name the configuration stays as
        it is, and None stands for all ids.
    Raises StartupError for an unknown name.
    """
    chosen = [resolve_chain(config, name, network) for name in names]
    if not chosen:
        return config, None
    chain_ids = frozenset(chain for chain in chosen if not isinstance(chain, PrimaryChain))
    chains = tuple(chain for chain in config.indexer.chains if chain in chosen)
    evm_chains = tuple(
        chain if chain.blockchain_id in chain_ids else replace(chain, index=None)
        for chain in config.node.evm_chains
    )
    index_l1s_at = config.node.index_l1s_at if chain_ids else None
    node = replace(config.node, evm_chains=evm_chains, index_l1s_at=index_l1s_at)
    return replace(config, indexer=replace(config.indexer, chains=chains), node=node), chain_ids


async def verify_index(
    config: Config,
    count: int,
    addresses: tuple[str, ...],
    chains: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> tuple[IndexFinding, ...]:
    """Check the rows of the indexes against each other, and samples against nodes.

    It does not wait until a node has a block.

    chains: names of the only chains to check; p, x and c stand for all primary chains.
    Raises StartupError, NodeUnavailable.
    """
    async with open_upstream(config) as upstream:
        network_id = await upstream.info.network_id()
        config, only = select_chains(config, chains, network_id)
        locations = [
            location
            for location in find_evm_indexes(config, network_id)
            if only is None or location.chain_id in only
        ]
        findings: tuple[IndexFinding, ...] = ()
        if config.indexer.chains or not locations:
            url = find_index(config, network_id)
            network = await fetch_network(upstream, network_id, read_genesis(config, network_id))
            with readable(url):
                verifier = IndexVerifier(upstream, network.params, url, config.index)
                findings = await verifier.run(count, addresses, progress=progress)
        return findings + await _verify_evm_indexes(
            config, upstream, network_id, locations, count, progress
        )


async def read_parameters(config: Config, network_id: int) -> Parameters:
    """Return the parameters of a network; a node reports those that are not public.

    Raises NodeUnavailable.
    """
    async with open_upstream(config) as upstream:
        return (await fetch_network(upstream, network_id, read_genesis(config, network_id))).params


def rebuild_rows(
    url: StoreUrl, params: Parameters, settings: IndexSettings, progress: Progress
) -> None:
    """Drop the rows of the primary chains, and derive them from the stored blocks.

    Raises StartupError, StoreDown, RebuildFailed.
    """
    engine = writing_index(url, settings)
    with translate_errors(engine), engine.begin() as connection:
        create_row_tables(connection)
    # Daemons see that the heights went back, and forget the keys, which get another meaning.
    time.sleep(2 * settings.refresh_s)
    with closing(IndexWriter(engine, params, settings)) as writer:
        rebuilder = RowRebuilder(writer, reading_index(url, settings), params)
        while rebuilder.step(_REBUILD_STEP_S) is not None:
            progress("blocks", *rebuilder.block_counts())


async def _verify_evm_indexes(
    config: Config,
    upstream: Upstream,
    network_id: int,
    locations: Iterable[EvmIndexLocation],
    count: int,
    progress: Progress,
) -> tuple[IndexFinding, ...]:
    entries = {chain.blockchain_id: chain for chain in config.node.indexed_evm_chains}
    node, findings = config.node.index_l1s_at, list[IndexFinding]()
    async with open_sessions() as sessions:
        for location in locations:
            chain, name = entries.get(location.chain_id), id_text(location.chain_id)
            if chain is None and node is not None:
                chain = served_chain(node, location.chain_id)
            if chain is None:
                reason = "evm-chains does not index this chain"
                findings.append(IndexFinding(name, is_compared=False, reason=reason, chain=name))
                continue
            if location.url.path is not None and not location.url.path.exists():
                reason = "nothing is indexed yet"
                findings.append(IndexFinding(name, is_compared=False, reason=reason, chain=name))
                continue
            rules = await read_block_rules(upstream, network_id, location.chain_id)
            nodes = ChainNodes(chain, sessions, config.evm_rpc)
            with readable(location.url):
                verifier = EvmIndexVerifier(name, nodes, rules, location.url, config.index)
                findings += await verifier.run(count, progress=progress)
    return tuple(findings)
