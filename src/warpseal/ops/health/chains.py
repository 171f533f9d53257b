"""Checks of chains and of the nodes that serve them.

A followed chain must not lag, and its validators must be connected. Each EVM chain needs a node.
Each list of upstream nodes needs enough usable nodes, of which the first must keep up.

Source of truth: the specification's chain message; its texts are of avalanchego's handler and
consensus checks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

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
    from warpseal.node.info import InfoClient
    from warpseal.node.platform import PlatformClient
    from warpseal.validators.heights import ProposedHeight

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
    """A followed chain.

    name: primary alias of the chain.
    """

    name: str
    subnet_id: SubnetID
    progress: Callable[[], ChainProgress]


class ReadinessSource(Protocol):
    """The connected weight of subnets (`validators.subnet_tracker.SubnetTracker`).

    The node API stands for it while the daemon starts.
    """

    def readiness(self) -> Sequence[SubnetReadiness]: ...
    def readiness_of(self, subnet_id: SubnetID) -> SubnetReadiness | None: ...


class LagTimer:
    """Measures for how long the first block that a chain misses has been known.

    Times are of a monotonic clock.
    """

    def __init__(self) -> None:
        self._tips: deque[tuple[int, float]] = deque(maxlen=_MAX_TIPS)

    def age_s(self, height: int | None, tip: int | None, now: float) -> float:
        """Return the seconds since which the first block above `height` is known; 0 without one.

        tip: height of the newest block that a node has.
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
    subnets: ReadinessSource,
    max_lag_s: float,
    now: Callable[[], float],
) -> HealthCheck:
    """Return the check of a followed chain, with its subnet as tag.

    max_lag_s: age of the first missing block beyond which the check fails.
    now: returns the seconds of a monotonic clock.
    """
    lag = LagTimer()

    def run() -> CheckOutcome:
        progress = chain.progress()
        age_s = lag.age_s(progress.height, progress.node_height, now())
        networking, share = _networking(subnets.readiness_of(chain.subnet_id))
        engine = {"consensus": _consensus(progress, age_s), "vm": _vm(progress)}
        message = {"engine": engine, "networking": networking}
        errors = []
        if progress.stop is not None:
            errors.append(f"engine: consensus: the follower has stopped {progress.stop.text}")
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
    """Return the check of a forwarded EVM chain's nodes.

    The nodes are named by their positions in the operator's list.
    """

    def run() -> CheckOutcome:
        pool, identity = chain.pool, chain.pool.identity.expected
        nodes = {str(position): error for position, error in sorted(pool.failures().items())}
        sockets, mismatches = chain.sockets, pool.mismatches()
        nodes |= {f"ws{position}": error for position, error in sorted(sockets.failures.items())}
        chain_id = identity.chain_id if identity else None
        errors = [f"rpc[{position}] {reason}" for position, reason in sorted(mismatches.items())]
        errors += [
            f"ws[{position}] {reason}" for position, reason in sorted(sockets.mismatches.items())
        ]
        if not pool.is_up:
            errors.append("no node of this chain can be reached")
        message = {"chainID": chain_id, "nodes": nodes}
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck(f"evm-{id_text(chain.chain_id)}", run)


def evm_index_check(
    refresh: Callable[[], Awaitable[None]],
    content: Callable[[], Mapping[str, Any]],
    stops: Callable[[], Sequence[str]],
) -> HealthCheck:
    """Return the check of the indexes of EVM chains.

    refresh: reads the state of the indexes again.
    content: returns the message.
    stops: returns an error for each chain whose indexing stopped.
    """

    async def run() -> CheckOutcome:
        await refresh()
        return CheckOutcome(content(), "; ".join(stops()) or None)

    return HealthCheck("evm-index", run, max_age_s=_EVM_INDEX_AGE_S)


def gateway_check(pools: Mapping[str, NodePool[int]]) -> HealthCheck:
    """Return the check of the nodes of the gateway, by chain.

    The nodes are named by their positions in the operator's list. They need not serve all chains: a
    chain without a node is an error if a node has shown a block of it since the start. Before any
    node has shown a block, every chain without a node is an error.
    """

    def run() -> CheckOutcome:
        message = {
            chain: {str(position): error for position, error in sorted(pool.failures().items())}
            for chain, pool in pools.items()
        }
        refused: dict[int, str] = {}
        for pool in pools.values():
            refused |= pool.mismatches()
        errors = [
            f"gateway-nodes[{position}] {reason}" for position, reason in sorted(refused.items())
        ]
        expected = {chain: pool for chain, pool in pools.items() if pool.has_blocks} or pools
        down = [chain for chain, pool in expected.items() if not pool.is_up]
        errors += [f"no node of the {chain}-Chain can be reached" for chain in down]
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
    # The id of the node's last block is known only if the daemon has read that block.
    has_last_block = progress.block_id is not None and progress.height == progress.node_height
    return {
        "nodeHeight": progress.node_height,
        "nodeLastAcceptedID": id_text(progress.block_id) if has_last_block else None,
    }


def _networking(subnet: SubnetReadiness | None) -> tuple[dict[str, Any], float]:
    if subnet is None or not subnet.total:
        return {"disconnectedValidators": [], "percentConnected": 0}, 0.0
    share = subnet.connected / subnet.total
    missing = [
        node_id_text(node_id) for validator in subnet.missing for node_id in validator.node_ids
    ]
    return {"disconnectedValidators": missing[:_MAX_LISTED], "percentConnected": share}, share


class NodeMonitor:
    """The latest results of the nodes of each list; those of p-chain-api are heights.

    platform: client of p-chain-api, whose nodes are called for their heights.
    info: client of info-api, whose nodes are called for any result.
    heights: proposed P-Chain height, at which messages are signed.
    now: returns the seconds of a monotonic clock.
    quorum: number of nodes of p-chain-api that must agree. The lag of a node is measured from the
        height that as many nodes have reached, so that fewer nodes that forge heights do not make
        the others late.
    """

    def __init__(
        self,
        platform: PlatformClient,
        info: InfoClient,
        heights: ProposedHeight,
        settings: HealthSettings,
        now: Callable[[], float],
        quorum: int = 1,
    ) -> None:
        self._platform = platform
        self._info = info
        self._heights = heights
        self._settings = settings
        self._now = now
        self._quorum = quorum
        self.results: Mapping[str, Sequence[NodeResult[int]]] = {}
        self._lags: dict[int, LagTimer] = {}
        self._behind_s: dict[int, float] = {}

    async def run(self, on_change: Callable[[], None]) -> None:
        """Call the nodes in each round of checks, more often while there is an error, until
        cancelled.

        on_change: called when the errors change.
        """
        while True:
            before = tuple(self._errors())
            await self.poll()
            after = tuple(self._errors())
            if after != before:
                on_change()
            interval_s = max(_MIN_INTERVAL_S, self._settings.check_frequency_s)
            if after:
                interval_s = min(_RETRY_S, interval_s)
            await asyncio.sleep(interval_s)

    async def poll(self) -> None:
        """Call every node once."""
        p_chain_results, info_results = await asyncio.gather(
            self._platform.probe(), self._info.probe()
        )
        self.results = {P_CHAIN_API: p_chain_results, INFO_API: info_results}
        heights = {
            result.position: result.value for result in p_chain_results if result.value is not None
        }
        tip = find_quorum_height(heights.values(), self._quorum)
        if tip is None:
            tip = max(heights.values(), default=None)
        now = self._now()
        self._behind_s = {}
        for position, height in heights.items():
            lag = self._lags.setdefault(position, LagTimer())
            self._behind_s[position] = lag.age_s(height, tip, now)

    def behind_s(self, position: int) -> float:
        """Return the seconds for which a node of p-chain-api has been behind the others.

        It is 0 if the node is not behind them, or has not answered.
        """
        return self._behind_s.get(position, 0.0)

    def check(self) -> HealthCheck:
        """Return the check; it also fails without a proposed height, which signing needs."""
        return HealthCheck(
            "nodes",
            self._check,
            frozenset({APPLICATION}),
            is_prompt=True,
            blocking_error=self._height_error,
        )

    def _height_error(self) -> str | None:
        return None if self._heights.is_fresh else STALE_HEIGHT

    def _check(self) -> CheckOutcome:
        message = {"nodes": dict(self._node_messages()), "proposedHeight": self._heights.last}
        errors = list(self._errors())
        if (height_error := self._height_error()) is not None:
            errors.insert(0, height_error)
        return CheckOutcome(message, "; ".join(errors) or None)

    def _node_messages(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, results in self.results.items():
            for result in results:
                message: dict[str, Any] = {}
                if result.failure is not None:
                    message["error"] = result.failure.value
                if result.disagrees:
                    message["disagrees"] = True
                if name == P_CHAIN_API and result.value is not None:
                    message["height"] = result.value
                    if behind_s := self._behind_s[result.position]:
                        message["behindFor"] = go_duration(behind_s)
                yield f"{name}[{result.position}]", message

    def _errors(self) -> Iterator[str]:
        """Yield the current errors. A node may be down while another node of its list is up."""
        for name, results in self.results.items():
            for result in results:
                if result.failure is PublicFailure.WRONG_NETWORK:
                    yield f"{name}[{result.position}] is of another network"
            usable = [result for result in results if result.value is not None]
            if not usable:
                yield f"no node of {name} can be used"
            elif name == P_CHAIN_API and len(usable) < self._quorum:
                yield (
                    f"{len(usable)} of {len(results)} nodes of {name} can be used, and"
                    f" {self._quorum} must agree"
                )
            elif name == P_CHAIN_API and self._quorum == 1:
                # A single node decides: the first that can be used.
                position, allowed_s = usable[0].position, self._settings.max_lag_s
                if self._behind_s[position] > allowed_s:
                    allowed = go_duration(allowed_s)
                    yield f"{name}[{position}] is behind the others for longer than {allowed}"
