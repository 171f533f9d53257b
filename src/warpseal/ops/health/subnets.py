"""Checks of connected weight: the quorum of each subnet, and whether the daemon has started up (bootstrapped).

Source of truth: the body of `/ready`; the latch and its texts are those of avalanchego's `bootstrapped` check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from warpseal.ops.health.chains import FollowedChain
from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text

NOT_BOOTSTRAPPED: Final = "subnets not bootstrapped"
Readiness = Callable[[], Sequence[SubnetReadiness]]


def quorum_check(subnet_id: SubnetID, readiness: Readiness) -> HealthCheck:
    """Return the check of one subnet's connected weight."""
    name = id_text(subnet_id)

    def run() -> CheckOutcome:
        subnet = next((subnet for subnet in readiness() if subnet.subnet_id == subnet_id), None)
        if subnet is None:
            return CheckOutcome(error="the network is not known yet")
        message = {
            "connectedWeight": str(subnet.connected),
            "requiredWeight": str(subnet.needed),
            "totalWeight": str(subnet.total),
        }
        return CheckOutcome(message, subnet.shortfall)

    return HealthCheck(f"quorum-{name}", run, frozenset({name}), is_prompt=True)


class BootstrapCheck:
    """Passes when each subnet has had enough weight connected, and each followed chain was at its tip, once."""

    def __init__(
        self, subnet_ids: Sequence[SubnetID], readiness: Readiness, chains: Callable[[], Mapping[str, FollowedChain]]
    ) -> None:
        self._pending = list(dict.fromkeys((PRIMARY_NETWORK, *subnet_ids)))
        self._readiness = readiness
        self._chains = chains
        self._connected: set[SubnetID] = set()
        self._first_tips: dict[str, int] = {}
        self._caught_up: set[str] = set()

    def check(self) -> HealthCheck:
        """Return the check: a global startup check that latches."""
        tags = frozenset({APPLICATION})
        return HealthCheck("bootstrapped", self.run, tags, is_startup=True, latches=True, is_prompt=True)

    def run(self) -> CheckOutcome:
        """Remove the subnets that have started up from the pending ones."""
        self._connected.update(subnet.subnet_id for subnet in self._readiness() if subnet.is_ready)
        self._update_chains()
        self._pending = [subnet_id for subnet_id in self._pending if not self._has_started(subnet_id)]
        message = [id_text(subnet_id) for subnet_id in self._pending]
        return CheckOutcome(message, NOT_BOOTSTRAPPED if message else None)

    def _has_started(self, subnet_id: SubnetID) -> bool:
        chains = [name for name, chain in self._chains().items() if chain.subnet_id == subnet_id]
        return subnet_id in self._connected and self._caught_up.issuperset(chains)

    def _update_chains(self) -> None:
        """Compare each chain with its first known tip, which it reaches although new blocks keep coming."""
        for name, chain in self._chains().items():
            progress = chain.progress()
            if progress.node_height is not None:
                tip = self._first_tips.setdefault(name, progress.node_height)
                if progress.height is not None and progress.height >= tip:
                    self._caught_up.add(name)
