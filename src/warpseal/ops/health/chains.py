"""The check of each followed chain: how far behind its node it is, since when, and who of its subnet is connected.

Source of truth: the specification's chain message; its texts are of avalanchego's handler and consensus checks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warpseal.evm_rpc.build import ForwardedChain
from warpseal.ops.health.check import CheckOutcome, HealthCheck, go_duration
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import SubnetID, id_text, node_id_text

REQUIRED_SHARE: Final = 0.67
_MAX_SEEN: Final = 4_096
_MAX_SHOWN: Final = 1_000


@dataclass(frozen=True, slots=True)
class ChainProgress:
    """How following a chain stands. height, node_height: None: not known. block_id: of `height`.

    stopped: why nothing is read any more. is_backfilling: there is still more to read than new blocks.
    """

    height: int | None
    node_height: int | None
    block_id: bytes | None = None
    stopped: str | None = None
    is_backfilling: bool = False


@dataclass(frozen=True, slots=True)
class FollowedChain:
    """One followed chain. name: its primary alias. now: seconds that never go back."""

    name: str
    subnet_id: SubnetID
    progress: Callable[[], ChainProgress]


class LagTimer:
    """Since when the first block that a chain misses is known to be there."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_MAX_SEEN)

    def age_s(self, progress: ChainProgress, now: float) -> float:
        """Return how long ago the first missing block was first heard of; 0 where none is missing."""
        tip, height = progress.node_height, progress.height
        if tip is None or height is None or tip <= height:
            self._seen.clear()
            return 0.0
        if not self._seen or tip > self._seen[-1][0]:
            self._seen.append((tip, now))
        while self._seen[0][0] <= height:
            self._seen.popleft()
        return now - self._seen[0][1]


def chain_check(
    chain: FollowedChain,
    readiness: Callable[[], Sequence[SubnetReadiness]],
    max_lag_s: float,
    now: Callable[[], float],
) -> HealthCheck:
    """Return the check of a followed chain; its subnet is its tag."""
    missing = LagTimer()

    def look() -> CheckOutcome:
        progress = chain.progress()
        subnet = next((one for one in readiness() if one.subnet_id == chain.subnet_id), None)
        age_s = missing.age_s(progress, now())
        networking, share = _networking(subnet)
        message = {"engine": {"consensus": _consensus(progress, age_s), "vm": _vm(progress)}, "networking": networking}
        faults = []
        if progress.stopped is not None:
            faults.append(f"engine: consensus: the follower has stopped: {progress.stopped}")
        if age_s > max_lag_s and not progress.is_backfilling:
            longest, allowed = go_duration(age_s), go_duration(max_lag_s)
            faults.append(f"engine: consensus: block processing too long: {longest} > {allowed}")
        if share < REQUIRED_SHARE:
            shares = f"connected to {share * 100:f}%; required at least {REQUIRED_SHARE * 100:f}%"
            faults.append(f"networking: not connected to enough stake: {shares}")
        return CheckOutcome(message, "; ".join(faults) or None)

    return HealthCheck(chain.name, look, frozenset({id_text(chain.subnet_id)}))


def _consensus(progress: ChainProgress, age_s: float) -> dict[str, Any]:
    height, tip = progress.height or 0, progress.node_height or 0
    return {
        "lastAcceptedHeight": height,
        "lastAcceptedID": id_text(progress.block_id) if progress.block_id is not None else "",
        "longestProcessingBlock": go_duration(age_s),
        "processingBlocks": max(0, tip - height) if progress.height is not None else 0,
    }


def _vm(progress: ChainProgress) -> dict[str, Any]:
    """Return what is known of the node; its last block only where it is ours, too."""
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
    gone = [node_id_text(node_id) for validator in subnet.missing for node_id in validator.node_ids]
    return {"disconnectedValidators": gone[:_MAX_SHOWN], "percentConnected": share}, share


def evm_check(chain: ForwardedChain) -> HealthCheck:
    """Return the check of a chain's nodes; they are named by their place in the operator's list."""

    def look() -> CheckOutcome:
        pool = chain.pool
        identity = pool.identity
        nodes = {str(place): told for place, told in sorted(pool.faults().items())}
        message: Mapping[str, Any] = {"chainID": identity.chain_id if identity else None, "nodes": nodes}
        nodes |= {f"ws{place}": told for place, told in sorted(chain.sockets.refused.items())}
        refused = [f"rpc[{place}] {reason}" for place, reason in sorted(pool.refused().items())]
        refused += [f"ws[{place}] {reason}" for place, reason in sorted(chain.sockets.refused.items())]
        if not pool.is_up:
            refused.append("no node of this chain can be reached")
        return CheckOutcome(message, "; ".join(refused) or None)

    return HealthCheck(f"evm-{id_text(chain.chain_id)}", look)
