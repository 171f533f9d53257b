"""The subnets, their validators and the connections to them, for the status document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, Final

from warpseal.api.status.document import (
    INACTIVE,
    MAX_MISSING,
    MAX_MISSING_UNPINNED,
    MAX_VALIDATORS,
    NOT_TRACKED,
    MissingStatus,
    SubnetStatus,
    ValidatorStatus,
)
from warpseal.daemon.registries import StatusRequest
from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.network import PeerNetwork
from warpseal.peers.statistics import PeerStatus
from warpseal.validators.chain_validator_list import CurrentValidations
from warpseal.validators.subnet_tracker import SubnetReadiness, SubnetTracker
from warpseal.warp.ids import NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.validator_set import Validator

_ROWS_PER_TURN: Final = 100
_MAX_CACHED_NAMES: Final = 16_384

_node_text: Final = lru_cache(_MAX_CACHED_NAMES)(node_id_text)
_id_text: Final = lru_cache(_MAX_CACHED_NAMES)(id_text)


async def describe_validators(
    request: StatusRequest,
    network: PeerNetwork,
    subnet_tracker: SubnetTracker,
    current: CurrentValidations,
    pinned: Set[SubnetID],
) -> Mapping[str, Any]:
    """Return the subnets and their validators; other callbacks of the event loop run in between.

    pinned: subnets that are always tracked, of which more missing validators are listed.
    """
    describer = PeerDescriber(request, network, subnet_tracker, current)
    readiness: list[SubnetReadiness] = []
    members: list[list[Validator | CurrentValidation]] = []
    for subnet in subnet_tracker.all_readiness():
        readiness.append(subnet)
        members.append(describer.members(subnet.subnet_id))
        await asyncio.sleep(0)
    sizes = list(map(len, members))
    subnets: list[SubnetStatus] = []
    validators: list[ValidatorStatus] = []
    for subnet, listed, row_limit in zip(
        readiness, members, share_limits(sizes, MAX_VALIDATORS), strict=True
    ):
        validators += await describer.rows(subnet.subnet_id, listed[:row_limit])
        is_pinned = subnet.subnet_id in pinned
        limit = MAX_MISSING if is_pinned else MAX_MISSING_UNPINNED
        missing = await describer.rows(subnet.subnet_id, subnet.missing[:limit])
        inactive = [member for member in listed if not isinstance(member, Validator)]
        subnets.append(_subnet(subnet, missing, inactive, limit, is_pinned=is_pinned))
    return {
        "subnets": subnets,
        "validators": validators,
        "omitted_validators": sum(sizes) - len(validators),
    }


class PeerDescriber:
    """Describes the validators of subnets and the connections to them."""

    def __init__(
        self,
        request: StatusRequest,
        network: PeerNetwork,
        subnet_tracker: SubnetTracker,
        current: CurrentValidations,
    ) -> None:
        self._network = network
        self._subnet_tracker = subnet_tracker
        self._current = current
        self._moment = request.moment
        self._with_addresses = request.with_addresses

    def members(self, subnet_id: SubnetID) -> list[Validator | CurrentValidation]:
        """Return the validators of a subnet, heaviest first, and the inactive ones of an L1, which
        are in no set.
        """
        validator_set = self._subnet_tracker.validators_of(subnet_id)
        validators = validator_set.validators if validator_set is not None else ()
        members: list[Validator | CurrentValidation] = [*validators]
        inactive = [paid for paid in self._paying(subnet_id).values() if not paid.is_active]
        if inactive:
            keyed = {node_id for validator in validators for node_id in validator.node_ids}
            members += [validation for validation in inactive if validation.node_id not in keyed]
        return sorted(members, key=lambda member: member.weight, reverse=True)

    async def rows(
        self, subnet_id: SubnetID, members: Sequence[Validator | CurrentValidation]
    ) -> list[ValidatorStatus]:
        """Return the rows of these validators; other callbacks run in between."""
        name, paying = _id_text(subnet_id), self._paying(subnet_id)
        rows = []
        for position, member in enumerate(members):
            if position % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
            rows.append(
                self._row(name, member, paying)
                if isinstance(member, Validator)
                else _inactive(name, member)
            )
        return rows

    def _paying(self, subnet_id: SubnetID) -> dict[NodeID, CurrentValidation]:
        """Return the validations of an L1. A node may also have a permissioned one."""
        validations = self._current.latest(subnet_id)
        return {
            validation.node_id: validation for validation in validations or () if validation.is_l1
        }

    def _row(
        self, subnet: str, validator: Validator, paying: Mapping[NodeID, CurrentValidation]
    ) -> ValidatorStatus:
        node_id = next(
            filter(self._network.is_connected, validator.node_ids), validator.node_ids[0]
        )
        peer = self._network.status(node_id) or PeerStatus(NOT_TRACKED)
        validation = paying.get(node_id)
        return ValidatorStatus(
            subnet_id=subnet,
            node_ids=[_node_text(holder) for holder in validator.node_ids],
            weight=str(validator.weight),
            state=peer.stage,
            reason=peer.failure,
            address=peer.address if self._with_addresses else None,
            connected_since=self._moment(peer.connected_at),
            disconnected_since=self._moment(peer.disconnected_at),
            next_try_at=self._moment(peer.next_dial_at),
            version=peer.version,
            latency_ms=None if peer.latency_s is None else round(peer.latency_s * 1_000, 1),
            last_reply=self._moment(peer.responded_at),
            validation_id=None if validation is None else _id_text(validation.validation_id),
            balance=None if validation is None else str(validation.balance),
            # The detail may quote the address.
            detail=peer.detail if self._with_addresses else None,
        )


def share_limits(sizes: Sequence[int], total: int) -> list[int]:
    """Return the number of rows that each part may show.

    Small parts show all of their rows; the others share the rest of `total` equally.
    """
    limits = [0] * len(sizes)
    remaining = total
    for done, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        limits[place] = min(sizes[place], remaining // (len(sizes) - done))
        remaining -= limits[place]
    return limits


def _subnet(
    subnet: SubnetReadiness,
    missing: Sequence[ValidatorStatus],
    inactive: Sequence[CurrentValidation],
    limit: int,
    *,
    is_pinned: bool,
) -> SubnetStatus:
    """Return the status of a subnet.

    limit: number of inactive validators that are named.
    """
    return SubnetStatus(
        subnet_id=_id_text(subnet.subnet_id),
        is_known=subnet.is_known,
        is_pinned=is_pinned,
        ready=subnet.is_ready,
        connected_weight=str(subnet.connected),
        required_weight=str(subnet.needed),
        total_weight=str(subnet.total),
        missing_validators=len(subnet.missing),
        missing=[
            MissingStatus(row.node_ids, row.weight, row.state, row.reason, row.detail)
            for row in missing
        ],
        keyless_weight=str(subnet.keyless),
        inactive_validators=len(inactive),
        inactive=[
            MissingStatus([_node_text(validation.node_id)], str(validation.weight), INACTIVE)
            for validation in inactive[:limit]
        ],
    )


def _inactive(subnet: str, validation: CurrentValidation) -> ValidatorStatus:
    return ValidatorStatus(
        subnet_id=subnet,
        node_ids=[_node_text(validation.node_id)],
        weight=str(validation.weight),
        state=INACTIVE,
        validation_id=_id_text(validation.validation_id),
        balance=str(validation.balance),
    )
