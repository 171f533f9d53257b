"""The EVM chains that the daemon serves: their entries, nodes, indexes and descriptions of
contracts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from warpseal.api.data.contract_info import ContractInfoFolder, DescribedContracts
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.progress import EvmChainProgress
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.store.errors import StoreDown
from warpseal.upstream.endpoint import EvmChain, MetadataMode
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID, SubnetID, id_text

if TYPE_CHECKING:
    from warpseal.forwarding.evm.reads import EvmChainReader
    from warpseal.index.evm.reader import EvmIndex

MULTICALL: Final = bytes.fromhex("ca11bde05977b3631167028862be2a173976ca11")
"""Multicall3 has this address on every chain on which it was deployed as its authors ask for."""
NODE_WAIT_S: Final = 2.0
_NO_CODE_TTL_S: Final = 60.0


class PlatformFacts(Struct, frozen=True):
    """A chain as the P-Chain has it.

    evm_chain_id: The EVM chain id in the genesis of the chain.
    """

    subnet_id: SubnetID
    vm_id: bytes
    name: str
    evm_chain_id: int | None


class EvmChainService:
    """One EVM chain that the daemon serves.

    index: The index of the chain; None if the chain is not indexed.
    platform: The chain as the P-Chain has it; None until a node has reported it.
    """

    def __init__(self, entry: EvmChain, nodes: EvmChainReader, index: EvmIndex | None) -> None:
        self.entry = entry
        self.nodes = nodes
        self.index = index
        self.platform: PlatformFacts | None = None
        self._chain_id: int | None = None
        self._has_code: TtlCache[bytes, bool] = TtlCache(1)

    @property
    def name(self) -> str:
        """The EVM chain id, or the blockchain id until that is known."""
        return self.evm_chain_id_text or id_text(self.entry.blockchain_id)

    @property
    def evm_chain_id_text(self) -> str:
        """The EVM chain id, "" until that is known."""
        return "" if self._chain_id is None else str(self._chain_id)

    @property
    def has_icm(self) -> bool:
        """Whether the messages of ICM are indexed."""
        return self.entry.index is not None and self.entry.index.has_icm

    @property
    def has_metadata(self) -> bool:
        """Whether the metadata of NFTs is fetched."""
        return self.entry.index is not None and self.entry.index.metadata is not MetadataMode.OFF

    async def progress(self) -> EvmChainProgress | None:
        """Return the progress of the chain; None without an index, or before the first block.

        Raises StoreDown.
        """
        progress = None if self.index is None else await self.index.progress()
        if progress is None or progress.height is None:
            return None
        self._chain_id = progress.evm_chain_id
        return progress

    async def chain_id(self) -> int | None:
        """Return the EVM chain id as the index or a node has it; None while neither does."""
        if self._chain_id is None:
            with suppress(StoreDown):
                await self.progress()
        if self._chain_id is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(NODE_WAIT_S):
                    self._chain_id = await self.nodes.chain_id()
        return self._chain_id

    async def is_up(self) -> bool:
        """Return whether a node answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NODE_WAIT_S):
                return await self.nodes.is_up()
        return False

    async def has_multicall(self) -> bool:
        """Return whether Multicall3 is deployed, as far as a node says so."""
        has_multicall = self._has_code.get(MULTICALL)
        if has_multicall is not None:
            return has_multicall.value
        with suppress(TimeoutError, NodeUnavailable):
            async with asyncio.timeout(NODE_WAIT_S):
                has_code = await self.nodes.has_code(MULTICALL)
            self._has_code.put(MULTICALL, has_code, float("inf") if has_code else _NO_CODE_TTL_S)
            return has_code
        return False


class EvmChainDirectory:
    """The EVM chains by name and id, in the order in which they were added."""

    def __init__(
        self, aliases: ChainAliases | None = None, contract_infos: ContractInfoFolder | None = None
    ) -> None:
        self._aliases = aliases or ChainAliases()
        self._contract_infos = contract_infos or ContractInfoFolder(None)
        self._chains: dict[ChainID, EvmChainService] = {}

    def __iter__(self) -> Iterator[EvmChainService]:
        return iter(tuple(self._chains.values()))

    def add(self, chain: EvmChainService) -> None:
        """Add a chain, or replace the one with its blockchain id."""
        self._aliases.add_chain(chain.entry.blockchain_id)
        self._chains[chain.entry.blockchain_id] = chain

    async def find(self, name: str) -> EvmChainService | None:
        """Return the chain of a name: an EVM chain id, a blockchain id or an alias."""
        chain_id = await self.find_id(name)
        return None if chain_id is None else self.get(chain_id)

    async def find_id(self, name: str) -> ChainID | None:
        """Return the blockchain id of a name, as `find`, also of a chain that is not served."""
        chain_id = self._aliases.find(name)
        if chain_id is not None or not (name.isascii() and name.isdigit()):
            return chain_id
        chains = tuple(self)
        # At the same time: a chain without a node that answers takes a while.
        chain_ids = await asyncio.gather(*(chain.chain_id() for chain in chains))
        by_id = zip(chains, chain_ids, strict=True)
        return next(
            (chain.entry.blockchain_id for chain, evm_id in by_id if str(evm_id) == name), None
        )

    def get(self, chain_id: ChainID) -> EvmChainService | None:
        """Return a chain by its blockchain id; None if it is not served."""
        return self._chains.get(chain_id)

    def evm_chain_id_text(self, chain_id: ChainID) -> str:
        """Return the EVM chain id of a chain; "" while it is unknown."""
        chain = self.get(chain_id)
        return "" if chain is None else chain.evm_chain_id_text

    def contracts_of(self, chain: EvmChainService) -> DescribedContracts:
        """Return the contracts that the operator described under any name of a chain."""
        aliases = self._aliases.aliases_of(chain.entry.blockchain_id)
        return self._contract_infos.contracts(
            (id_text(chain.entry.blockchain_id), chain.name, *aliases)
        )
