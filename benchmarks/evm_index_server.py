"""The Data and Metrics API over existing indexes of EVM chains, on loopback, without the rest of
the daemon.

python -m benchmarks.evm_index_server --folder PATH --cache-bytes N [--url URL] [--messages]
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop
from msgspec.structs import replace

from benchmarks.evm_index_made_up import CHAIN_ID, MESSAGE_CHAINS
from benchmarks.index_server import build_needs, serve_data_api
from warpseal.api.data.evm_chains import EvmChainDirectory, EvmChainService
from warpseal.cli.serve import GC_THRESHOLDS
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.settings import IndexSettings
from warpseal.store.url import StoreUrl
from warpseal.upstream.endpoint import EvmChain, EvmIndexing
from warpseal.usage.database import METRICS_NAME, MetricsDatabase
from warpseal.usage.settings import UsageSettings
from warpseal.warp.ids import ChainID


class NoNodes:
    """The nodes of a chain of which only the index is asked."""

    async def chain_id(self) -> None:
        """Return None."""

    async def is_up(self) -> bool:
        """Return False."""
        return False


async def serve(settings: IndexSettings, folder: Path, chain_ids: Sequence[ChainID]) -> None:
    """Answer until SIGTERM."""
    nodes: Any = NoNodes()
    chains = EvmChainDirectory()
    async with (
        AsyncExitStack() as stack,
        MetricsDatabase(StoreUrl.for_file(folder / METRICS_NAME), UsageSettings()) as metrics,
    ):
        for chain_id in chain_ids:
            index = EvmIndex(evm_index_url(settings, folder, chain_id), settings)
            await stack.enter_async_context(index)
            entry = EvmChain(chain_id, (), index=EvmIndexing(has_holders=True))
            chains.add(EvmChainService(entry, nodes, index))
        needs = replace(build_needs(), evm=chains, metrics_database=metrics)
        await serve_data_api(needs)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--url", default="")
    parser.add_argument("--cache-bytes", type=int, required=True)
    parser.add_argument("--messages", action="store_true", help="of the chains with ICM messages")
    args = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    chains = MESSAGE_CHAINS if args.messages else (CHAIN_ID,)
    uvloop.run(serve(IndexSettings(args.url, cache_bytes=args.cache_bytes), args.folder, chains))


if __name__ == "__main__":
    main()
