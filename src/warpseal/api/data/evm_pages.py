"""Pages of the EVM chains that wait a moment for what the indexer has not called or fetched yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from warpseal.api.data.evm_context import EvmContext
from warpseal.store.errors import StoreDown

if TYPE_CHECKING:
    from warpseal.index.evm.reader import EvmPage
    from warpseal.index.evm.records import HolderPage, Lacking

P = TypeVar("P", bound="EvmPage[Any] | HolderPage")

WAIT_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 0.4


async def complete_page(context: EvmContext, read: Callable[[], Awaitable[P]]) -> P:
    """Return a page for which the indexer was asked for contracts and metadata; they may come within 2 seconds.

    Old metadata is asked for, and nothing waits for it. Raises StoreDown.
    """
    page, index = await read(), context.chain.index
    assert index is not None
    lacking = _wanted(context, page.lacking)
    if not lacking:
        return page
    with suppress(TimeoutError, StoreDown):
        async with asyncio.timeout(WAIT_S):
            await index.request(lacking)
            pause_s = _FIRST_PAUSE_S
            while (lacking.contracts or lacking.tokens) and _is_indexer_heard(context):
                await asyncio.sleep(pause_s)
                pause_s = min(_MAX_PAUSE_S, 2 * pause_s)
                page = await read()
                lacking = _wanted(context, page.lacking)
    return page


def _wanted(context: EvmContext, lacking: Lacking) -> Lacking:
    """Return what the indexer fetches: no metadata if its fetching is off."""
    return lacking if context.chain.has_metadata else replace(lacking, tokens=frozenset(), old_tokens=frozenset())


def _is_indexer_heard(context: EvmContext) -> bool:
    """Return whether the indexer reports heights of nodes; else it does not run, or reaches no node."""
    return context.freshness is not None and not context.freshness.is_node_behind
