"""Checks of chains: the lag of each followed chain and its connected validators, the nodes of each
EVM chain, and the upstream nodes: each list has enough usable nodes, and the node in use keeps up.

Source of truth: the specification's chain message; its texts are of avalanchego's handler and
consensus checks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from warpseal.ops.health.registry import APPLICATION, CheckOutcome, HealthCheck
from warpseal.ops.settings import HealthSettings
from warpseal.resources.progress import ChainProgress
from warpseal.runtime.go_time import go_duration, rfc3339
from warpseal.upstream.errors import PublicFailure
from warpseal.upstream.pool import NodePool, NodeResult
from warpseal.upstream.replies import find_quorum_height
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import SubnetID, id_text, node_id_text

if TYPE_CHECKING:
    from warpseal.forwarding.evm.forwarder import ForwardedChain

REQUIRED_SHARE: Final = 0.67
_MAX_TIPS: Final = 4_096
_MAX_LISTED: Final = 1_000
_EVM_INDEX_AGE_S: Final = 1.0
P_CHAIN_API: Final = "p-chain-api"
INFO_API: Final = "info-api"
STALE_HEIGHT: Final = "the proposed P-Chain height is not known, or stale"
_RETRY_S: Final = 5.0
_MIN_INTERVAL_S: Final = 1.0


class FollowedChain(Struct, frozen=True):
    """One followed chain.

    name: its primary alias.
    """

    name: str
    subnet_id: SubnetID
    progress: Callable[[], ChainProgress]


class LagTimer:
    """Measures for how long the first block that a chain misses has been known.

    Times are of a monotonic clock.
    """

    def __init__(self) -> None:
        self._tips: deque[tuple[int, float]] = deque(maxlen=_MAX_TIPS)

    def age_s(self, height: int | None, tip: int | None, now: float) -> float:
        """Return for how long the first block above `height` has been known; 0 if none is missing
        below `tip`.
        """
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
    """Return the check of a followed chain, with its subnet as tag.

    now: seconds of a monotonic clock.
    """
    lag = LagTimer()

    def run() -> CheckOutcome:
        progress = chain.progress()
        age_s = lag.age_s(progress.height, progress.node_height, now())
        networking, share = _networking(readiness_of(chain.subnet_id))
        # The id of the node's last block is known only if the daemon has read that block.
        is_same = progress.block_id is not None and progress.height == progress.node_height
        vm = {
            "nodeHeight": progress.node_height,
            "nodeLastAcceptedID": (
                id_text(progress.block_id) if is_same and progress.block_id else None
            ),
        }
        message = {
            "engine": {"consensus": _consensus(progress, age_s), "vm": vm},
            "networking": networking,
        }
        errors = []
        if progress.stopped is not None:
            errors.append(f"engine: consensus: the follower has stopped: {progress.stopped}")
        if progress.waiting_since is not None:
            since = rfc3339(progress.waiting_since)
            errors.append(
                f"engine: consensus: the follower waits since {since}: {progress.waiting}"
            )
        if age_s > max_lag_s and not progress.is_catching_up:
            longest, allowed = go_duration(age_s), go_duration(max_lag_s)
            errors.append(f"engine: consensus: block processing too long: {longest} > {allowed}")
        if share < REQUIRED_SHARE:
            shares = f"connected to {share * 100:f}%; required at least {REQUIRED_SHARE * 100:f}%"
            errors.append(f"networking: not connected to enough stake: {shares}")
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck(chain.name, run, frozenset({id_text(chain.subnet_id)}))


def evm_check(chain: ForwardedChain) -> HealthCheck:
    """Return the check of a forwarded EVM chain's nodes, which are named by their positions in the
    operator's list.
    """

    def run() -> CheckOutcome:
        pool = chain.pool
        identity = pool.identity.expected
        nodes = {str(position): error for position, error in sorted(pool.failures().items())}
        message: Mapping[str, Any] = {
            "chainID": identity.chain_id if identity else None,
            "nodes": nodes,
        }
        nodes |= {
            f"ws{position}": error for position, error in sorted(chain.sockets.refused.items())
        }
        errors = [
            f"rpc[{position}] {reason}" for position, reason in sorted(pool.mismatches().items())
        ]
        errors += [
            f"ws[{position}] {reason}" for position, reason in sorted(chain.sockets.refused.items())
        ]
        if not pool.is_up:
            errors.append("no node of this chain can be reached")
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck(f"evm-{id_text(chain.chain_id)}", run)


def evm_index_check(
    refresh: Callable[[], Awaitable[None]],
    content: Callable[[], Mapping[str, Any]],
    stops: Callable[[], Sequence[str]],
) -> HealthCheck:
    """Return the check of the indexes of EVM chains; it fails for each of `stops`, the chains that
    stopped.
    """

    async def run() -> CheckOutcome:
        await refresh()
        return CheckOutcome(content(), "; ".join(stops()) or None)

    return HealthCheck("evm-index", run, max_age_s=_EVM_INDEX_AGE_S)


def gateway_check(pools: Mapping[str, NodePool[int]]) -> HealthCheck:
    """Return the check of the nodes of the gateway, by chain, named by their positions in the
    operator's list.

    Nodes need not serve all chains: a chain is missed if a node has shown a block of it since the
    start. Before any node has shown one, all chains are missed.
    """

    def run() -> CheckOutcome:
        message = {
            chain: {str(position): error for position, error in sorted(pool.failures().items())}
            for chain, pool in pools.items()
        }
        refused = {
            position: reason
            for pool in pools.values()
            for position, reason in pool.mismatches().items()
        }
        errors = [
            f"gateway-nodes[{position}] {reason}" for position, reason in sorted(refused.items())
        ]
        expected = {chain: pool for chain, pool in pools.items() if pool.has_blocks} or pools
        errors += [
            f"no node of the {chain}-Chain can be reached"
            for chain, pool in expected.items()
            if not pool.is_up
        ]
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


def _networking(subnet: SubnetReadiness | None) -> tuple[dict[str, Any], float]:
    if subnet is None or not subnet.total:
        return {"disconnectedValidators": [], "percentConnected": 0}, 0.0
    share = subnet.connected / subnet.total
    missing = [
        node_id_text(node_id) for validator in subnet.missing for node_id in validator.node_ids
    ]
    return {"disconnectedValidators": missing[:_MAX_LISTED], "percentConnected": share}, share


NodeProbe = Callable[[], Awaitable[Sequence[NodeResult[int]]]]
"""Asks every node of a list; never raises."""


class NodeMonitor(Struct):
    """The latest results of the nodes of each list: those of p-chain-api are heights.

    heights: asks the nodes of p-chain-api for their heights; info: asks those of info-api for any
        result.
    proposed: the proposed P-Chain height, which the signing uses; is_fresh: whether it is recent
        enough for that.
    now: seconds of a monotonic clock.
    quorum: how many nodes of p-chain-api must agree; as many have reached the height with which the
        others are compared, so that fewer nodes that forge heights do not make the others late.
    """

    heights: NodeProbe
    info: NodeProbe
    proposed: Callable[[], int | None]
    is_fresh: Callable[[], bool]
    settings: HealthSettings
    now: Callable[[], float]
    quorum: int = 1
    results: dict[str, Sequence[NodeResult[int]]] = field(default_factory=dict)
    _lags: dict[int, LagTimer] = field(default_factory=dict)
    _behind_s: dict[int, float] = field(default_factory=dict)

    async def run(self, on_change: Callable[[], None]) -> None:
        """Ask the nodes in each round of checks, more often while an error is known, until
        cancelled.
        """
        while True:
            before = tuple(self._errors())
            await self.poll()
            after = tuple(self._errors())
            if after != before:
                on_change()
            frequency_s = max(_MIN_INTERVAL_S, self.settings.check_frequency_s)
            await asyncio.sleep(min(_RETRY_S, frequency_s) if after else frequency_s)

    async def poll(self) -> None:
        """Ask every node once."""
        results = await asyncio.gather(self.heights(), self.info())
        self.results = dict(zip((P_CHAIN_API, INFO_API), results, strict=True))
        heights = {
            result.position: result.value for result in results[0] if result.value is not None
        }
        reached = find_quorum_height(heights.values(), self.quorum)
        highest = max(heights.values(), default=None) if reached is None else reached
        self._behind_s = {
            position: self._lags.setdefault(position, LagTimer()).age_s(height, highest, self.now())
            for position, height in heights.items()
        }

    def behind_s(self, position: int) -> float:
        """Return for how long a node of p-chain-api has been behind the others; 0 if it is not, or
        did not result.
        """
        return self._behind_s.get(position, 0.0)

    def check(self) -> HealthCheck:
        """Return the check; it also fails without a proposed height, since no message can be signed
        then.
        """
        tags = frozenset({APPLICATION})
        return HealthCheck(
            "nodes", self._check, tags, is_prompt=True, blocking_error=self._height_error
        )

    def _height_error(self) -> str | None:
        return None if self.is_fresh() else STALE_HEIGHT

    def _check(self) -> CheckOutcome:
        message = {"nodes": dict(self._node_messages()), "proposedHeight": self.proposed()}
        return CheckOutcome(
            message, "; ".join(filter(None, (self._height_error(), *self._errors()))) or None
        )

    def _node_messages(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, results in self.results.items():
            for result in results:
                message: dict[str, Any] = (
                    {} if result.failure is None else {"error": result.failure.value}
                )
                if result.disagrees:
                    message["disagrees"] = True
                if name == P_CHAIN_API and result.value is not None:
                    message["height"] = result.value
                    if behind_s := self._behind_s[result.position]:
                        message["behindFor"] = go_duration(behind_s)
                yield f"{name}[{result.position}]", message

    def _errors(self) -> Iterator[str]:
        """Yield the current errors. A node may be down as long as another one of its list is up."""
        for name, results in self.results.items():
            for result in results:
                if result.failure is PublicFailure.WRONG_NETWORK:
                    yield f"{name}[{result.position}] is of another network"
            usable = [result for result in results if result.value is not None]
            first = next(iter(usable), None)
            if first is None:
                yield f"no node of {name} can be used"
            elif name == P_CHAIN_API and len(usable) < self.quorum:
                yield (
                    f"{len(usable)} of {len(results)} nodes of {name} can be used, and"
                    f" {self.quorum} must agree"
                )
            elif (
                name == P_CHAIN_API
                and self.quorum == 1
                and self._behind_s[first.position] > self.settings.max_lag_s
            ):
                allowed = go_duration(self.settings.max_lag_s)
                yield f"{name}[{first.position}] is behind the others for longer than {allowed}"
