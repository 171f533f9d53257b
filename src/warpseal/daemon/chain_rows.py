"""Rows of the status document: chains that are followed, indexed, or get forwarded calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from warpseal.api.status.document import ChainSummary
from warpseal.indexer.status import stop_reason
from warpseal.resources.progress import (
    ChainProgress,
    EvmChainProgress,
    rounded_eta_s,
    rounded_rate,
)

if TYPE_CHECKING:
    from warpseal.l1.follower import PChainFollower
    from warpseal.upstream.pool import NodePool


def describe_follower(follower: PChainFollower) -> list[ChainSummary]:
    """Return the row of the P-Chain; no row if it is not followed."""
    if follower.is_off:
        return []
    progress = follower.progress()
    row = _describe_progress("follower", progress.chain, progress)
    return [replace(row, waiting_for=progress.waiting_for, stopped=progress.stopped)]


def describe_index(chain: str, progress: ChainProgress) -> ChainSummary:
    """Return the row of an indexed chain."""
    row = _describe_progress("index", chain, progress)
    row = replace(row, waiting=progress.waiting or None, stopped=stop_reason(progress))
    if not isinstance(progress, EvmChainProgress) or progress.evm_chain_id is None:
        return row
    return replace(
        row,
        evm_chain_id=progress.evm_chain_id,
        internal_height=height_text(progress.traced_height) or "none",
        internal_gap=height_text(progress.trace_gap),
    )


def _describe_progress(kind: str, name: str, progress: ChainProgress) -> ChainSummary:
    return ChainSummary(
        kind=kind,
        name=name,
        height=height_text(progress.height),
        node_height=height_text(progress.node_height),
        lag_blocks=progress.lag_blocks,
        blocks_per_second=rounded_rate(progress),
        eta_seconds=rounded_eta_s(progress),
    )


def describe_pool(
    kind: str, name: str, pool: NodePool[Any], evm_chain_id: int | None = None
) -> ChainSummary:
    """Return the row of a chain whose calls are forwarded.

    kind: kind of the row, "evm" or "gateway".
    """
    failures, growth = pool.failures(), pool.head_growth()
    return ChainSummary(
        kind=kind,
        name=name,
        height=str(pool.highest) if pool.highest else None,
        lag_blocks=growth.lag_blocks,
        blocks_per_second=_rate(growth.blocks_s),
        eta_seconds=_whole(growth.eta_s),
        evm_chain_id=evm_chain_id,
        nodes_up=sum(node.is_verified and node.failure is None for node in pool.nodes),
        nodes=len(pool.nodes),
        errors={str(position): reason for position, reason in sorted(failures.items())} or None,
    )


def height_text(height: int | None) -> str | None:
    """Return a height for the document."""
    return None if height is None else str(height)


def _rate(blocks_s: float | None) -> float | None:
    return None if blocks_s is None else round(blocks_s, 1)


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)
