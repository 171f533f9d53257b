"""Rows of the status document about chains that the daemon follows, indexes or forwards calls to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpseal.api.status.document import ChainSummary

if TYPE_CHECKING:
    from warpseal.l1.follower import PChainFollower
    from warpseal.metrics.samples import IndexSample
    from warpseal.upstream.pool import NodePool


def describe_follower(follower: PChainFollower) -> list[ChainSummary]:
    """Return the row of the P-Chain; no row if it is not followed."""
    if follower.is_off:
        return []
    progress = follower.progress()
    row = ChainSummary(
        kind="follower",
        name="p-chain",
        height=height_text(progress.height),
        node_height=height_text(progress.node_height),
        lag_blocks=progress.lag_blocks,
        blocks_per_second=_rate(progress.blocks_per_s),
        eta_seconds=_whole(progress.eta_s),
        waiting_for=progress.waiting_for,
        stopped=progress.stopped,
    )
    return [row]


def describe_index(sample: IndexSample) -> ChainSummary:
    """Return the row of an indexed chain."""
    is_comparable = sample.height is not None and sample.node_height is not None
    return ChainSummary(
        kind="index",
        name=sample.chain,
        height=height_text(sample.height),
        node_height=height_text(sample.node_height),
        lag_blocks=(
            max(0, (sample.node_height or 0) - (sample.height or 0)) if is_comparable else None
        ),
        blocks_per_second=_rate(sample.rate),
        eta_seconds=_whole(sample.eta_s),
        waiting=sample.waiting or None,
        stopped=sample.stopped,
        evm_chain_id=sample.evm_chain_id,
        internal_height=(
            None if sample.evm_chain_id is None else height_text(sample.traced_height) or "none"
        ),
        internal_gap=height_text(sample.trace_gap),
    )


def describe_pool(
    kind: str, name: str, pool: NodePool[Any], evm_chain_id: int | None = None
) -> ChainSummary:
    """Return the row of a chain whose calls are forwarded.

    kind: evm or gateway.
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
