"""The Avalanche network that the Data API answers about."""

from __future__ import annotations

from typing import Final

from warpseal.resources.aliases import ChainAliases
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.resources.interfaces import NodeView, PrimaryNetworkIndex
from warpseal.resources.progress import ChainProgress
from warpseal.resources.text import NetworkText
from warpseal.warp.ids import ChainID, MalformedID, parse_id

_MAINNET_ID: Final = 1


class AvalancheNetwork:
    """The network of the daemon: its primary chains, their index, a node, the names of chains.

    index: The index of the primary chains; None if none of them is indexed.
    indexed: The chains that the index has, or is going to have.
    aliases: The names of blockchains.
    text: The texts that depend on the network.
    """

    def __init__(
        self,
        network_id: int,
        chains: PrimaryChains,
        node: NodeView,
        aliases: ChainAliases,
        index: PrimaryNetworkIndex | None = None,
        indexed: frozenset[PrimaryChain] = frozenset(),
    ) -> None:
        self.network_id = network_id
        self.chains = chains
        self.node = node
        self.aliases = aliases
        self.index = index
        self.indexed = indexed
        self.text = NetworkText(network_id, chains)
        self._primary_ids = {chain.value: chains.id_of(chain) for chain in PrimaryChain}

    @property
    def is_mainnet(self) -> bool:
        """Whether the network is mainnet."""
        return self.network_id == _MAINNET_ID

    def progress(self) -> tuple[ChainProgress, ...]:
        """Return the progress of each primary chain with an indexed block."""
        if self.index is None:
            return ()
        return tuple(chain for chain in self.index.progress() if chain.height is not None)

    def index_damage(self) -> str | None:
        """Return why the index is damaged; None if it is not, or if there is none."""
        return None if self.index is None else self.index.damage()

    def find_chain_id(self, name: str) -> ChainID:
        """Return the blockchain id that a primary chain's name, an id or an alias denotes.

        Raises MalformedID.
        """
        if name in self._primary_ids:
            return self._primary_ids[name]
        try:
            return ChainID(parse_id(name))
        except MalformedID:
            chain_id = self.aliases.find(name)
            if chain_id is None:
                raise
            return chain_id
