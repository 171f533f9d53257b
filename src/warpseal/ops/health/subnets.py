"""Checks of who is connected: the quorum of each subnet, and whether everything was there once (bootstrapped).

Source of truth: what `/ready` says; the latch and its words are of avalanchego's `bootstrapped` check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from warpseal.ops.health.chains import FollowedChain
from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text
from warpseal.warp.validator_set import required_weight

READY_PERCENTAGE: Final = 67
NOT_BOOTSTRAPPED: Final = "subnets not bootstrapped"
Readiness = Callable[[], Sequence[SubnetReadiness]]


def is_connected(subnet: SubnetReadiness) -> bool:
    """Tell whether enough of a subnet's weight is connected for its validators to sign."""
    return subnet.total > 0 and subnet.connected >= required_weight(subnet.total, READY_PERCENTAGE)


def describe_shortfall(subnet: SubnetReadiness) -> str | None:
    """Return what a subnet lacks, for people; None: nothing."""
    if not subnet.is_known:
        return f"subnet {id_text(subnet.subnet_id)}: its validators are not known yet"
    if is_connected(subnet):
        return None
    needed = required_weight(subnet.total, READY_PERCENTAGE)
    return (
        f"subnet {id_text(subnet.subnet_id)}: connected weight {subnet.connected} of {needed} needed "
        f"(total {subnet.total})"
    )


def quorum_check(subnet_id: SubnetID, readiness: Readiness) -> HealthCheck:
    """Return the check of one subnet's connected weight."""
    name = id_text(subnet_id)

    def look() -> CheckOutcome:
        subnet = next((one for one in readiness() if one.subnet_id == subnet_id), None)
        if subnet is None:
            return CheckOutcome(error="the network is not known yet")
        message = {
            "connectedWeight": str(subnet.connected),
            "requiredWeight": str(required_weight(subnet.total, READY_PERCENTAGE)),
            "totalWeight": str(subnet.total),
        }
        return CheckOutcome(message, describe_shortfall(subnet))

    return HealthCheck(f"quorum-{name}", look, frozenset({name}), is_prompt=True)


class BootstrapCheck:
    """Which subnets have had enough weight connected, and their followed chains at the tip, at least once each."""

    def __init__(
        self, subnet_ids: Sequence[SubnetID], readiness: Readiness, chains: Callable[[], Mapping[str, FollowedChain]]
    ) -> None:
        self._waiting_for = list(dict.fromkeys((PRIMARY_NETWORK, *subnet_ids)))
        self._readiness = readiness
        self._chains = chains
        self._were_connected: set[SubnetID] = set()
        self._tips: dict[str, int] = {}
        self._arrived: set[str] = set()

    def has(self, subnet_id: SubnetID) -> bool:
        """Tell whether a subnet has started up."""
        return subnet_id not in self._waiting_for

    def check(self) -> HealthCheck:
        """Return the check: global, of readiness, latched."""
        tags = frozenset({APPLICATION})
        return HealthCheck("bootstrapped", self.look, tags, is_startup=True, latches=True, is_prompt=True)

    def look(self) -> CheckOutcome:
        """Note what has arrived by now."""
        self._were_connected.update(one.subnet_id for one in self._readiness() if is_connected(one))
        self._follow_chains()
        self._waiting_for = [one for one in self._waiting_for if not self._is_there(one)]
        message = [id_text(subnet_id) for subnet_id in self._waiting_for]
        return CheckOutcome(message, NOT_BOOTSTRAPPED if message else None)

    def _is_there(self, subnet_id: SubnetID) -> bool:
        chains = [name for name, chain in self._chains().items() if chain.subnet_id == subnet_id]
        return subnet_id in self._were_connected and self._arrived.issuperset(chains)

    def _follow_chains(self) -> None:
        """Note the tip that each chain had at first: it is reached even where new blocks never cease to come."""
        for name, chain in self._chains().items():
            now = chain.progress()
            if now.node_height is not None:
                tip = self._tips.setdefault(name, now.node_height)
                if now.height is not None and now.height >= tip:
                    self._arrived.add(name)
