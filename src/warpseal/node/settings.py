"""What an operator may set about calls to upstream nodes."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.node.endpoint import EvmChain, NodeEndpoint

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Upstream nodes, in the order in which they are preferred, and the limits of calls to them.

    p_chain_api and info_api: at least one each. upstream_at_once and upstream_per_s limit, per node, the
    calls that callers cause; follow_at_once and follow_per_s those of the follower of blocks. max_set_bytes
    bounds answers that hold validator sets or peers, max_answer_bytes all others. evm_chains: at most one entry
    per chain.
    """

    p_chain_api: tuple[NodeEndpoint, ...]
    info_api: tuple[NodeEndpoint, ...]
    call_timeout_s: float = 5.0
    upstream_max_concurrency: int = 8
    upstream_calls_per_s: int = 50
    follow_max_concurrency: int = 4
    follow_calls_per_s: int = 20
    retry_failed_after_s: float = 10.0
    max_set_bytes: int = 16 * MEBIBYTE
    max_answer_bytes: int = 1 * MEBIBYTE
    evm_chains: tuple[EvmChain, ...] = ()
