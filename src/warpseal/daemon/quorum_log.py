"""Log lines about the quorums of the tracked subnets after the start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from warpseal.peers.network import PeerNetwork
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.warp.ids import SubnetID, id_text, node_id_text
from warpseal.warp.validator_set import Validator

log = logging.getLogger(__name__)

_QUORUM_CHECK_S: Final = 0.1
_QUORUM_WARNING_S: Final = 5.0
_MAX_LOGGED_VALIDATORS: Final = 10


async def log_first_quorums(
    network: PeerNetwork, subnet_tracker: SubnetTracker, uptime_s: Callable[[], float]
) -> None:
    """Log the Primary Network and each configured subnet when its connected weight first reaches
    the quorum.
    """
    changed, reached = asyncio.Event(), set[SubnetID]()
    network.subscribe(lambda node_id, connected: changed.set())
    subnet_tracker.watch(changed.set)
    while len(reached) < len(subnets := subnet_tracker.readiness()):
        changed.clear()
        for subnet in subnets:
            validators = subnet_tracker.validators_of(subnet.subnet_id)
            if subnet.is_ready and validators is not None and subnet.subnet_id not in reached:
                reached.add(subnet.subnet_id)
                fields = {
                    "subnet_id": id_text(subnet.subnet_id),
                    "connected_weight": subnet.connected,
                    "required_weight": subnet.needed,
                    "connected_validators": len(validators.validators) - len(subnet.missing),
                    "validators": len(validators.validators),
                }
                log.info("first quorum reached", extra={**fields, "uptime_s": round(uptime_s(), 1)})
        await changed.wait()
        # Many validators connect at once after the start.
        await asyncio.sleep(_QUORUM_CHECK_S)


async def log_missing_quorums(network: PeerNetwork, subnet_tracker: SubnetTracker) -> None:
    """Log once for each subnet which validators it misses if it has no quorum some seconds after
    the start.

    A subnet whose validators are not known then gets a line at once, and another one when they are.
    """
    logged_ids, is_first = set[SubnetID](), True
    while True:
        await asyncio.sleep(_QUORUM_WARNING_S)
        subnets = [
            subnet for subnet in subnet_tracker.readiness() if subnet.subnet_id not in logged_ids
        ]
        for subnet in subnets:
            if subnet.shortfall is not None and (subnet.is_known or is_first):
                missing = [
                    _describe_missing(network, validator)
                    for validator in subnet.missing[:_MAX_LOGGED_VALIDATORS]
                ]
                fields = {"missing_validators": len(subnet.missing), "heaviest_missing": missing}
                log.warning("no quorum after start", extra={"reason": subnet.shortfall, **fields})
        logged_ids |= {subnet.subnet_id for subnet in subnets if subnet.is_known}
        if all(subnet.is_known for subnet in subnets):
            return
        is_first = False


def _describe_missing(network: PeerNetwork, validator: Validator) -> str:
    """Return weight and connection of a validator, of its first node if it has several."""
    node_id = validator.node_ids[0]
    missing = network.missing_connection(node_id)
    if missing is None:
        state = "it is not dialed yet"
    else:
        untried = "the first dial has no result yet" if missing.address else "no address is known"
        state = (missing.last_error or untried) + (
            f", address {missing.address}" if missing.address else ""
        )
    return f"{node_id_text(node_id)} with weight {validator.weight}: {state}"
