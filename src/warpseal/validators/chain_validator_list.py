"""Who validates a chain now, and for how long each was seen: from the node behind it, else from what we know.

Source of truth: subnet-evm's validators API. The list is the P-Chain's; who is connected, and for how long, is what
this daemon saw itself, as every node tells its own.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from warpseal.errors import CallRefused, NodeUnavailable, UnknownChain
from warpseal.node.chain_validators_client import ChainValidatorsClient, ListedValidator
from warpseal.node.errors import RpcRefusal
from warpseal.node.p_chain import CurrentValidation
from warpseal.validators.chains import ChainLookup
from warpseal.validators.current_validations import CurrentValidations
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, NodeID, SubnetID, id_text, node_id_text

LEFT_ALONE_S: Final = 10.0
"""How long nodes of which none has ever answered are not asked again, where we know enough ourselves."""
_FLOAT32_DIGITS: Final = 9


class Uptime(Protocol):
    """For how long a validation was seen. percentage: 0..100, of the time in which anybody looked."""

    @property
    def connected_s(self) -> int:
        """Whole seconds that its node was connected."""
        ...

    @property
    def percentage(self) -> float:
        """0..100; 100 where nobody looked yet."""
        ...


class Sight(Protocol):
    """What this daemon sees of its peers."""

    def is_connected(self, node_id: NodeID) -> bool:
        """Whether a node is connected to us."""
        ...

    def uptime(self, validation: CurrentValidation) -> Uptime:
        """Return for how long the node of a validation was seen."""
        ...


class LocalView:
    """What this daemon knows of the validators of subnets, the Primary Network apart: no node lists that one so."""

    def __init__(self, chains: ChainLookup, current: CurrentValidations, sight: Sight) -> None:
        self._chains = chains
        self._current = current
        self._sight = sight

    async def subnet_of(self, chain_id: ChainID) -> SubnetID | None:
        """Return the subnet that validates a chain; None: the Primary Network, or nobody. Raises NodeUnavailable."""
        try:
            subnet_id = await self._chains.subnet_of(chain_id)
        except UnknownChain:
            return None
        except RpcRefusal:
            raise NodeUnavailable("platform.validatedBy") from None
        return None if subnet_id == PRIMARY_NETWORK else subnet_id

    async def listed(self, subnet_id: SubnetID, node_ids: Sequence[NodeID]) -> tuple[ListedValidator, ...]:
        """Return the validators with these node ids, or all where none is named. Raises NodeUnavailable."""
        wanted = frozenset(node_ids)
        current = await self._current.of(subnet_id)
        return tuple(self._entry(one) for one in current if not wanted or one.node_id in wanted)

    def _entry(self, validation: CurrentValidation) -> ListedValidator:
        uptime = self._sight.uptime(validation)
        return ListedValidator(
            validation_id=id_text(validation.validation_id),
            node_id=node_id_text(validation.node_id),
            weight=validation.weight,
            start_timestamp=validation.start_unix_s,
            is_active=validation.is_active,
            is_l1_validator=validation.is_l1,
            # Nodes count an inactive validator as none, so that it is never a connected one.
            is_connected=validation.is_active and self._sight.is_connected(validation.node_id),
            uptime_percentage=format_percentage(uptime.percentage),
            uptime_seconds=uptime.connected_s,
        )


class ChainValidatorList:
    """One chain. nodes: those behind it, none where it is not configured. now: seconds that never go back."""

    def __init__(
        self,
        chain_id: ChainID,
        nodes: ChainValidatorsClient,
        known: LocalView,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._chain_id = chain_id
        self._nodes = nodes
        self._known = known
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._not_before = float("-inf")

    async def own_subnet(self) -> SubnetID | None:
        """Return whose validators we list ourselves; None: a node does, or nobody can. Raises NodeUnavailable."""
        if await self._nodes.are_served() and self._nodes.has_answered:
            return None
        return await self._known.subnet_of(self._chain_id)

    async def are_served(self) -> bool:
        """Tell whether anything can be said of them; as long as no node tells what the chain is, it may be."""
        try:
            if await self._known.subnet_of(self._chain_id) is not None:
                return True
        except NodeUnavailable:
            return True
        return await self._nodes.are_served()

    async def current(self, node_ids: Sequence[NodeID]) -> tuple[ListedValidator, ...] | None:
        """Return the validators with these node ids, or all where none is named; None: nothing can be said.

        Raises CallRefused with a node's words, and NodeUnavailable where a node that serves them did not answer.
        """
        found = await self._of_nodes(node_ids)
        if found is not None:
            return found
        try:
            subnet_id = await self._known.subnet_of(self._chain_id)
            return None if subnet_id is None else await self._known.listed(subnet_id, node_ids)
        except NodeUnavailable as error:
            raise CallRefused(f"failed to get current validator set: {error}") from None

    async def _of_nodes(self, node_ids: Sequence[NodeID]) -> tuple[ListedValidator, ...] | None:
        """Return what a node lists; None where none serves them. Raises CallRefused, NodeUnavailable.

        What a node has measured is never mixed with what we have: once one has answered, its failure is an error.
        """
        if not self._nodes.has_answered and self._now() < self._not_before:
            return None
        try:
            return await self._nodes.current(node_ids)
        except NodeUnavailable:
            if self._nodes.has_answered or await self._known.subnet_of(self._chain_id) is None:
                raise
            self._not_before = self._now() + LEFT_ALONE_S
            return None


def format_percentage(percentage: float) -> int | float:
    """Return a percentage as nodes print it: the shortest decimal of a 32-bit float, whole ones without a point."""
    rounded = _as_float32(percentage)
    if rounded.is_integer():
        return int(rounded)
    texts = (f"{rounded:.{digits}g}" for digits in range(1, _FLOAT32_DIGITS + 1))
    return next(float(text) for text in texts if _as_float32(float(text)) == rounded)


def _as_float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found
