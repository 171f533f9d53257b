"""Pages of the EVM chains that wait a moment for what the indexer has not called or fetched yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from warpseal.api.data.evm_context import EvmContext

if TYPE_CHECKING:
    from warpseal.index.evm.reader import EvmPage

T = TypeVar("T")

WAIT_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 0.4


async def complete_page(context: EvmContext, read: Callable[[], Awaitable[EvmPage[T]]]) -> EvmPage[T]:
    """Return a page for which the indexer was asked for contracts and metadata; it may come within 2 seconds.

    Old metadata is asked for, and nothing waits for it. Raises StoreDown.
    """
    page, index = await read(), context.chain.index
    assert index is not None
    lacking = page.lacking
    if not context.chain.has_metadata:
        lacking = replace(lacking, tokens=frozenset(), old_tokens=frozenset())
    if not lacking:
        return page
    await index.request(lacking)
    loop = asyncio.get_running_loop()
    until, pause_s = loop.time() + WAIT_S, _FIRST_PAUSE_S
    assert context.freshness is not None
    # While no node reports a height, the indexer does not run or reaches no node.
    while (lacking.contracts or lacking.tokens) and not context.freshness.is_node_behind:
        if loop.time() + pause_s > until:
            break
        await asyncio.sleep(pause_s)
        pause_s = min(_MAX_PAUSE_S, 2 * pause_s)
        page = await read()
        lacking = replace(
            page.lacking,
            contracts=page.lacking.contracts & lacking.contracts,
            tokens=page.lacking.tokens & lacking.tokens,
        )
    return page
