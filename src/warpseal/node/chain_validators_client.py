"""The validators of one EVM chain from its nodes; uptimes and connections are measured by the node that answers.

Source of truth: subnet-evm's validators API. One node answers as long as it can, since each has its own measurements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec

from warpseal.errors import CallRefused
from warpseal.upstream.errors import CallFailure, NodeAttempt, NodeUnavailable, RpcRefusal
from warpseal.upstream.json_values import list_decoder
from warpseal.upstream.node import NodeCall, UpstreamNode
from warpseal.warp.ids import EMPTY_NODE_ID, NodeID, node_id_text

METHOD: Final = "validators.getCurrentValidators"
NOT_SERVED_S: Final = 600.0
"""For how long a node that does not serve validators is not called again."""
_NOT_SERVED: Final = frozenset({404, 405})
_PATHS: Final = ("",)

U64 = Annotated[int, msgspec.Meta(ge=0)]


class ListedValidator(msgspec.Struct, frozen=True):
    """One validator, with the fields and their order as on the wire. Times in seconds; percentage: 0..100."""

    validation_id: str = msgspec.field(name="validationID")
    node_id: str = msgspec.field(name="nodeID")
    weight: U64
    start_timestamp: U64 = msgspec.field(name="startTimestamp")
    is_active: bool = msgspec.field(name="isActive")
    is_l1_validator: bool = msgspec.field(name="isL1Validator")
    is_connected: bool = msgspec.field(name="isConnected")
    uptime_percentage: int | float = msgspec.field(name="uptimePercentage")
    uptime_seconds: U64 = msgspec.field(name="uptimeSeconds")


class ChainValidatorsClient:
    """The nodes of one chain; the one that replied last is called first. now: seconds of a monotonic clock.

    has_answered: whether a node has ever replied.
    """

    def __init__(self, nodes: Sequence[UpstreamNode], now: Callable[[], float] | None = None) -> None:
        self._nodes = list(nodes)
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._not_before: dict[int, float] = {}
        self.has_answered = False

    async def are_served(self) -> bool:
        """Return whether a node serves validators, or may: a node that does not answer may."""
        if not self.has_answered:
            try:
                await self.current([EMPTY_NODE_ID])
            except (NodeUnavailable, CallRefused):
                return True
        return any(self._may_serve(node) for node in self._nodes)

    async def current(self, node_ids: Sequence[NodeID]) -> tuple[ListedValidator, ...] | None:
        """Return the validators with these node ids, or all if none is given; None if no node serves them.

        Raises CallRefused with a node's message, and NodeUnavailable if none answered.
        """
        params = {"nodeIDs": [node_id_text(node_id) for node_id in node_ids]}
        call = NodeCall(METHOD, params, _PATHS, _decode)
        attempts: list[NodeAttempt] = []
        for position, node in enumerate(tuple(self._nodes)):
            if not self._may_serve(node):
                continue
            try:
                validators = await node.call(call)
            except RpcRefusal as error:
                raise CallRefused(error.text) from None
            except CallFailure as error:
                if error.status in _NOT_SERVED:
                    self._not_before[id(node)] = self._now() + NOT_SERVED_S
                else:
                    attempts.append(NodeAttempt(position, error.failure.public))
                continue
            self.has_answered = True
            self._nodes.remove(node)
            self._nodes.insert(0, node)
            return validators
        if attempts:
            raise NodeUnavailable(METHOD, attempts)
        return None

    def _may_serve(self, node: UpstreamNode) -> bool:
        return self._now() >= self._not_before.get(id(node), 0.0)


_decode: Final = list_decoder("validators", ListedValidator, lambda validator: validator)
