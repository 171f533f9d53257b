"""The check of each followed chain: how far behind its node it is, since when, and who of its subnet is connected.

Source of truth: the specification's chain message; its texts are of avalanchego's handler and consensus checks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warpseal.ops.health.check import Check, Outcome
from warpseal.ops.health.go_duration import go_duration
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import SubnetID, id_text, node_id_text

REQUIRED_SHARE: Final = 0.67
_MAX_SEEN: Final = 4_096
_MAX_SHOWN: Final = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """How following a chain stands. height, node_height: None: not known. block_id: of `height`.

    stopped: why nothing is read any more. is_backfilling: there is still more to read than new blocks.
    """

    height: int | None
    node_height: int | None
    block_id: bytes | None = None
    stopped: str | None = None
    is_backfilling: bool = False


@dataclass(frozen=True, slots=True)
class Following:
    """One followed chain. name: its primary alias. now: seconds that never go back."""

    name: str
    subnet_id: SubnetID
    standing: Callable[[], Standing]


class MissingSince:
    """Since when the first block that a chain misses is known to be there."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_MAX_SEEN)

    def age_s(self, standing: Standing, now: float) -> float:
        """Return how long ago the first missing block was first heard of; 0 where none is missing."""
        tip, height = standing.node_height, standing.height
        if tip is None or height is None or tip <= height:
            self._seen.clear()
            return 0.0
        if not self._seen or tip > self._seen[-1][0]:
            self._seen.append((tip, now))
        while self._seen[0][0] <= height:
            self._seen.popleft()
        return now - self._seen[0][1]


def chain_check(
    chain: Following,
    readiness: Callable[[], Sequence[SubnetReadiness]],
    max_lag_s: float,
    now: Callable[[], float],
) -> Check:
    """Return the check of a followed chain; its subnet is its tag."""
    missing = MissingSince()

    def look() -> Outcome:
        standing = chain.standing()
        subnet = next((one for one in readiness() if one.subnet_id == chain.subnet_id), None)
        age_s = missing.age_s(standing, now())
        networking, share = _networking(subnet)
        message = {"engine": {"consensus": _consensus(standing, age_s), "vm": _vm(standing)}, "networking": networking}
        faults = []
        if standing.stopped is not None:
            faults.append(f"engine: consensus: the follower has stopped: {standing.stopped}")
        if age_s > max_lag_s and not standing.is_backfilling:
            longest, allowed = go_duration(age_s), go_duration(max_lag_s)
            faults.append(f"engine: consensus: block processing too long: {longest} > {allowed}")
        if share < REQUIRED_SHARE:
            shares = f"connected to {share * 100:f}%; required at least {REQUIRED_SHARE * 100:f}%"
            faults.append(f"networking: not connected to enough stake: {shares}")
        return Outcome(message, "; ".join(faults) or None)

    return Check(chain.name, look, frozenset({id_text(chain.subnet_id)}))


def _consensus(standing: Standing, age_s: float) -> dict[str, Any]:
    height, tip = standing.height or 0, standing.node_height or 0
    return {
        "lastAcceptedHeight": height,
        "lastAcceptedID": id_text(standing.block_id) if standing.block_id is not None else "",
        "longestProcessingBlock": go_duration(age_s),
        "processingBlocks": max(0, tip - height) if standing.height is not None else 0,
    }


def _vm(standing: Standing) -> dict[str, Any]:
    """Return what is known of the node; its last block only where it is ours, too."""
    is_same = standing.block_id is not None and standing.height == standing.node_height
    block_id = standing.block_id if is_same else None
    return {
        "nodeHeight": standing.node_height,
        "nodeLastAcceptedID": id_text(block_id) if block_id is not None else None,
    }


def _networking(subnet: SubnetReadiness | None) -> tuple[dict[str, Any], float]:
    if subnet is None or not subnet.total:
        return {"disconnectedValidators": [], "percentConnected": 0}, 0.0
    share = subnet.connected / subnet.total
    gone = [node_id_text(node_id) for validator in subnet.missing for node_id in validator.node_ids]
    return {"disconnectedValidators": gone[:_MAX_SHOWN], "percentConnected": share}, share
