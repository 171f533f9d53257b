"""Requests about an EVM chain: the chain that the path names, how far it is indexed, and pages the
indexer completes.

If the chain is indexed, the response carries `x-warpseal-index:
43114;height=H;node=N;lag=S;internal=T`, for it only; sums over chains carry one item a chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import asdict, replace

from warpseal.api.data.errors import IndexNotEnabled, IndexNotReady, IndexStale
from warpseal.api.data.evm_chains import EvmChainService
from warpseal.api.data.evm_resources import EvmWording
from warpseal.api.data.parameters import read_account, read_uint256
from warpseal.api.data.request_context import HEADER, RequestContext, header_item
from warpseal.api.http.responses import response_headers
from warpseal.resources.progress import EvmChainProgress
from warpseal.store.errors import StoreDown
from warpseal.validators.errors import UnknownChain

if TYPE_CHECKING:
    from warpseal.index.evm.reader import EvmIndex, EvmPage
    from warpseal.index.evm.records import HolderPage, MissingResults

SETTING: Final = "evm-chains"
ENABLE_INDEX: Final = 'set "index": true for the chain'
WAIT_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 0.4

P = TypeVar("P", bound="EvmPage[Any] | HolderPage")


class EvmRequestContext(RequestContext, frozen=True):
    """One request about an EVM chain.

    progress: The progress of the chain; None if no block is indexed.
    index_error: The error of reading the index.
    """

    chain: EvmChainService
    progress: EvmChainProgress | None
    index_error: StoreDown | None

    @classmethod
    async def of(cls, context: RequestContext) -> EvmRequestContext:
        """Return the context, the chain's progress among the response headers.

        Raises UnknownChain.
        """
        name = context.request.path_params["chainId"]
        chain = await context.evm.find(name)
        if chain is None:
            raise UnknownChain(evm_name=name)
        return await cls.of_chain(context, chain)

    @classmethod
    async def of_chain(cls, context: RequestContext, chain: EvmChainService) -> EvmRequestContext:
        """Return the context of a chain, and add the chain's progress to the response headers."""
        progress, index_error = None, None
        try:
            progress = await chain.progress()
        except StoreDown as error:
            index_error = error
        if progress is not None:
            headers = response_headers(context.request.scope)
            item = evm_header_item(progress, context.now)
            headers[HEADER] = f"{headers[HEADER]}, {item}" if HEADER in headers else item
        return cls(**asdict(context), chain=chain, progress=progress, index_error=index_error)

    def index(self) -> EvmIndex:
        """Return the index of the chain.

        Raises IndexNotEnabled, IndexNotReady, IndexStale, StoreDown.
        """
        if self.chain.index is None:
            raise IndexNotEnabled(f"EVM chain {self.chain.name}", SETTING, ENABLE_INDEX)
        if self.index_error is not None:
            raise self.index_error
        if self.progress is None:
            raise IndexNotReady(f"EVM chain {self.chain.name}")
        lag_s, limit_s = self.progress.lag_s(self.now), self.settings.max_index_lag_s
        if limit_s and lag_s > limit_s:
            raise IndexStale(f"EVM chain {self.chain.name}", lag_s, limit_s)
        return self.chain.index

    @property
    def is_indexer_heard(self) -> bool:
        """Whether the indexer reports heights of nodes; else it is down or reaches no node."""
        return self.progress is not None and not self.progress.is_node_behind

    @property
    def wording(self) -> EvmWording:
        """The wording of responses about the chain."""
        return EvmWording(self.evm.contracts_of(self.chain), for_sdk=self.for_sdk)

    def address(self) -> bytes:
        """Return the account or contract that the path names. Raises InvalidRequest."""
        return read_account("address", self.request.path_params["address"])

    def token_id(self) -> int:
        """Return the token that the path names. Raises InvalidRequest."""
        return read_uint256("tokenId", self.request.path_params["tokenId"])


async def indexed_contexts(
    context: RequestContext, chains: Iterable[EvmChainService]
) -> Sequence[EvmRequestContext]:
    """Return the contexts of indexed chains; of those without a block only if all are."""
    contexts = [await EvmRequestContext.of_chain(context, chain) for chain in chains]
    return [
        chain for chain in contexts if chain.progress is not None or chain.index_error is not None
    ] or contexts


def evm_header_item(chain: EvmChainProgress, now: float) -> str:
    """Return the header's item of an EVM chain.

    internal: The height up to which creations inside of transactions are complete; "none" if no
        node traces.
    gap: The first block that no node can trace.
    icm: The first block whose messages are stored, if earlier blocks lack them.
    """
    internal = "none" if chain.traced_height is None else chain.traced_height
    item = f"{header_item(str(chain.evm_chain_id), chain, now)};internal={internal}"
    if chain.trace_gap is not None:
        item += f";gap={chain.trace_gap}"
    if chain.icm_first > 0:
        item += f";icm={chain.icm_first}"
    return item


async def complete_page(context: EvmRequestContext, read: Callable[[], Awaitable[P]]) -> P:
    """Return a page after a request to the indexer for missing contracts and metadata.

    The page waits for them for at most 2 seconds, and not for old metadata. Raises StoreDown.
    """
    page, index = await read(), context.chain.index
    assert index is not None
    missing = _fetchable(context, page.missing)
    if not missing:
        return page
    with suppress(TimeoutError, StoreDown):
        async with asyncio.timeout(WAIT_S):
            await index.request(missing)
            pause_s = _FIRST_PAUSE_S
            while (missing.contracts or missing.tokens) and context.is_indexer_heard:
                await asyncio.sleep(pause_s)
                pause_s = min(_MAX_PAUSE_S, 2 * pause_s)
                page = await read()
                missing = _fetchable(context, page.missing)
    return page


def _fetchable(context: EvmRequestContext, missing: MissingResults) -> MissingResults:
    """Return the results that the indexer fetches: no metadata if its fetching is off."""
    if context.chain.has_metadata:
        return missing
    return replace(missing, tokens=frozenset(), old_tokens=frozenset())
