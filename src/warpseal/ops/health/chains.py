"""Checks of chains: the lag of each followed chain and its connected validators, and the nodes of each EVM chain.

Source of truth: the specification's chain message; its texts are of avalanchego's handler and consensus checks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warpseal.forwarding.evm.build import ForwardedChain
from warpseal.ops.health.check import CheckOutcome, HealthCheck, go_duration
from warpseal.upstream.pool import NodePool
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import SubnetID, id_text, node_id_text

REQUIRED_SHARE: Final = 0.67
_MAX_TIPS: Final = 4_096
_MAX_LISTED: Final = 1_000
_EVM_INDEX_AGE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ChainProgress:
    """How far a chain is read. height, node_height: None if not known. block_id: of `height`.

    stopped: why no more blocks are read. is_backfilling: older blocks are still to be read.
    """

    height: int | None
    node_height: int | None
    block_id: bytes | None = None
    stopped: str | None = None
    is_backfilling: bool = False


@dataclass(frozen=True, slots=True)
class FollowedChain:
    """One followed chain. name: its primary alias."""

    name: str
    subnet_id: SubnetID
    progress: Callable[[], ChainProgress]


class LagTimer:
    """Measures for how long the first block that a chain misses has been known. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self._tips: deque[tuple[int, float]] = deque(maxlen=_MAX_TIPS)

    def age_s(self, progress: ChainProgress, now: float) -> float:
        """Return for how long the first missing block has been known; 0 if none is missing."""
        tip, height = progress.node_height, progress.height
        if tip is None or height is None or tip <= height:
            self._tips.clear()
            return 0.0
        if not self._tips or tip > self._tips[-1][0]:
            self._tips.append((tip, now))
        while self._tips[0][0] <= height:
            self._tips.popleft()
        return now - self._tips[0][1]


def chain_check(
    chain: FollowedChain,
    readiness_of: Callable[[SubnetID], SubnetReadiness | None],
    max_lag_s: float,
    now: Callable[[], float],
) -> HealthCheck:
    """Return the check of a followed chain, with its subnet as tag. now: seconds of a monotonic clock."""
    lag = LagTimer()

    def run() -> CheckOutcome:
        progress = chain.progress()
        age_s = lag.age_s(progress, now())
        networking, share = _networking(readiness_of(chain.subnet_id))
        message = {"engine": {"consensus": _consensus(progress, age_s), "vm": _vm(progress)}, "networking": networking}
        errors = []
        if progress.stopped is not None:
            errors.append(f"engine: consensus: the follower has stopped: {progress.stopped}")
        if age_s > max_lag_s and not progress.is_backfilling:
            longest, allowed = go_duration(age_s), go_duration(max_lag_s)
            errors.append(f"engine: consensus: block processing too long: {longest} > {allowed}")
        if share < REQUIRED_SHARE:
            shares = f"connected to {share * 100:f}%; required at least {REQUIRED_SHARE * 100:f}%"
            errors.append(f"networking: not connected to enough stake: {shares}")
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck(chain.name, run, frozenset({id_text(chain.subnet_id)}))


def evm_check(chain: ForwardedChain) -> HealthCheck:
    """Return the check of a forwarded EVM chain's nodes, which are named by their positions in the operator's list."""

    def run() -> CheckOutcome:
        pool = chain.pool
        identity = pool.identity.expected
        nodes = {str(position): error for position, error in sorted(pool.failures().items())}
        message: Mapping[str, Any] = {"chainID": identity.chain_id if identity else None, "nodes": nodes}
        nodes |= {f"ws{position}": error for position, error in sorted(chain.sockets.refused.items())}
        errors = [f"rpc[{position}] {reason}" for position, reason in sorted(pool.mismatches().items())]
        errors += [f"ws[{position}] {reason}" for position, reason in sorted(chain.sockets.refused.items())]
        if not pool.is_up:
            errors.append("no node of this chain can be reached")
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck(f"evm-{id_text(chain.chain_id)}", run)


def evm_index_check(
    refresh: Callable[[], Awaitable[None]], content: Callable[[], Mapping[str, Any]], stops: Callable[[], Sequence[str]]
) -> HealthCheck:
    """Return the check of the indexes of EVM chains; it fails for each of `stops`, the chains that stopped."""

    async def run() -> CheckOutcome:
        await refresh()
        return CheckOutcome(content(), "; ".join(stops()) or None)

    return HealthCheck("evm-index", run, max_age_s=_EVM_INDEX_AGE_S)


def gateway_check(pools: Mapping[str, NodePool[int]]) -> HealthCheck:
    """Return the check of the nodes of the gateway, by chain, named by their positions in the operator's list.

    Nodes need not serve all chains: a chain is missed if a node has shown a block of it since the start. Before any
    node has shown one, all chains are missed.
    """

    def run() -> CheckOutcome:
        message = {
            chain: {str(position): error for position, error in sorted(pool.failures().items())}
            for chain, pool in pools.items()
        }
        refused = {position: reason for pool in pools.values() for position, reason in pool.mismatches().items()}
        errors = [f"gateway-nodes[{position}] {reason}" for position, reason in sorted(refused.items())]
        expected = {chain: pool for chain, pool in pools.items() if pool.has_blocks} or pools
        errors += [f"no node of the {chain}-Chain can be reached" for chain, pool in expected.items() if not pool.is_up]
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck("gateway", run)


def _consensus(progress: ChainProgress, age_s: float) -> dict[str, Any]:
    height, tip = progress.height or 0, progress.node_height or 0
    return {
        "lastAcceptedHeight": height,
        "lastAcceptedID": id_text(progress.block_id) if progress.block_id is not None else "",
        "longestProcessingBlock": go_duration(age_s),
        "processingBlocks": max(0, tip - height) if progress.height is not None else 0,
    }


def _vm(progress: ChainProgress) -> dict[str, Any]:
    """Return what is known of the node; the id of its last block is known only if the daemon has read that block."""
    is_same = progress.block_id is not None and progress.height == progress.node_height
    block_id = progress.block_id if is_same else None
    return {
        "nodeHeight": progress.node_height,
        "nodeLastAcceptedID": id_text(block_id) if block_id is not None else None,
    }


def _networking(subnet: SubnetReadiness | None) -> tuple[dict[str, Any], float]:
    if subnet is None or not subnet.total:
        return {"disconnectedValidators": [], "percentConnected": 0}, 0.0
    share = subnet.connected / subnet.total
    missing = [node_id_text(node_id) for validator in subnet.missing for node_id in validator.node_ids]
    return {"disconnectedValidators": missing[:_MAX_LISTED], "percentConnected": share}, share
