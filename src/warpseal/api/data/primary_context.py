"""Requests about the three primary chains: the network check, and how far each chain is indexed.

Every response carries `x-warpseal-index: p-chain;height=H;node=N;lag=S`, one item a chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import asdict

from warpseal.api.data.errors import IndexNotEnabled, IndexNotReady, IndexStale, NotAPrimaryChain
from warpseal.api.data.request_context import HEADER, RequestContext, header_item
from warpseal.api.http.responses import response_headers
from warpseal.errors import InvalidRequest
from warpseal.index.errors import IndexDamaged
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.interfaces import PrimaryNetworkIndex
from warpseal.resources.progress import ChainProgress
from warpseal.warp.ids import ChainID, MalformedID

INDEX_CHAINS: Final = "index-chains"


class PrimaryNetworkContext(RequestContext, frozen=True):
    """One request about the primary chains.

    network_name: name of the network in the path.
    progress: progress of each chain with an indexed block.
    """

    network_name: str
    progress: tuple[ChainProgress, ...]

    @classmethod
    async def of(cls, context: RequestContext) -> PrimaryNetworkContext:
        """Return the context, the index's progress among the response headers.

        Raises NetworkNotServed.
        """
        network_name = context.request.path_params["network"]
        context.api_settings.require_network(network_name, context.network.network_id)
        progress = context.network.progress()
        if progress:
            response_headers(context.request.scope)[HEADER] = header_of(progress, context.now)
        return cls(**asdict(context), network_name=network_name, progress=progress)

    def chain(self) -> PrimaryChain:
        """Return the primary chain that the path names.

        Raises InvalidRequest, NotAPrimaryChain, and what `require_indexed` and `require_fresh`
        raise.
        """
        chain = self.network.chains.of_id(self.chain_id())
        if chain is None:
            text = self.network.text
            id_texts = {chain.value: text.chain_id(chain) for chain in PrimaryChain}
            raise NotAPrimaryChain(self.request.path_params["blockchainId"], id_texts)
        self.require_indexed(chain)
        self.require_fresh([chain])
        return chain

    def require_indexed(self, chain: PrimaryChain) -> None:
        """Raise IndexNotEnabled if a chain is not in the index, IndexNotReady if it is going to be,
        or IndexDamaged.
        """
        if not self.is_indexed(chain):
            damage = self.network.index_damage()
            if damage is not None:
                raise IndexDamaged(damage)
            if chain in self.network.indexed:
                raise IndexNotReady(chain)
            raise IndexNotEnabled(f"the {chain}", INDEX_CHAINS, f"name {chain.value[0]}")

    def require_fresh(self, chains: Iterable[PrimaryChain]) -> None:
        """Raise IndexStale if one of the chains lags further behind than the settings allow."""
        required, limit_s = frozenset(chains), self.settings.max_index_lag_s
        for chain in self.progress if limit_s else ():
            if chain.chain in required and chain.lag_s(self.now) > limit_s:
                raise IndexStale(chain.chain, chain.lag_s(self.now), limit_s)

    def is_indexed(self, chain: PrimaryChain) -> bool:
        """Return whether the index has a chain."""
        return self.progress_of(chain) is not None

    def progress_of(self, chain: PrimaryChain) -> ChainProgress | None:
        """Return the progress of a chain; None if no block of it is indexed."""
        return next((progress for progress in self.progress if progress.chain == chain), None)

    def chain_id(self) -> ChainID:
        """Return the id of the blockchain that the path names, by id or alias.

        Raises InvalidRequest.
        """
        try:
            return self.network.find_chain_id(self.request.path_params["blockchainId"])
        except MalformedID as error:
            raise InvalidRequest("blockchainId", str(error)) from None

    def index(self, subject: str) -> PrimaryNetworkIndex:
        """Return the index.

        subject: the feature that needs it, for the error text.
        Raises IndexNotEnabled.
        """
        if self.network.index is None:
            raise IndexNotEnabled(subject, INDEX_CHAINS, "name p, x or c")
        return self.network.index


def header_of(chains: Iterable[ChainProgress], now: float) -> str:
    """Return the header's value, one item a chain."""
    return ", ".join(header_item(chain.chain, chain, now) for chain in chains)
