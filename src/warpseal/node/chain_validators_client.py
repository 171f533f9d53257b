"""What the nodes of one EVM chain say of its validators: uptimes and connections are as the node that answers saw them.

Source of truth: subnet-evm's validators API. One node answers as long as it can, since each has measured for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from warpseal.errors import CallRefused, NodeAttempt, NodeUnavailable
from warpseal.node.endpoint import NodeEndpoint
from warpseal.node.errors import CallFailure, RpcRefusal
from warpseal.node.rpc import NodeCall, UpstreamNode
from warpseal.warp.ids import EMPTY_NODE_ID, NodeID, node_id_text

METHOD: Final = "validators.getCurrentValidators"
NOT_SERVED_S: Final = 600.0
"""How long a node that does not serve validators is not asked again."""
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


class _Listed(msgspec.Struct):
    validators: list[ListedValidator] | None = None


class ChainValidatorsClient:
    """The nodes of one chain; the one that answered last is asked first. now: seconds that never go back."""

    def __init__(self, nodes: Sequence[UpstreamNode], now: Callable[[], float] | None = None) -> None:
        self._nodes = list(nodes)
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._not_before: dict[int, float] = {}
        self._is_known = False

    @property
    def has_answered(self) -> bool:
        """Whether a node was ever seen to serve them."""
        return self._is_known

    async def are_served(self) -> bool:
        """Tell whether a node serves them, or may: one that does not answer counts as one that may."""
        if not self._is_known:
            try:
                await self.current([EMPTY_NODE_ID])
            except (NodeUnavailable, CallRefused):
                return True
        return any(self._may_serve(node) for node in self._nodes)

    async def current(self, node_ids: Sequence[NodeID]) -> tuple[ListedValidator, ...] | None:
        """Return the validators with these node ids, or all where none is named; None: no node serves them.

        Raises CallRefused with a node's words, and NodeUnavailable where none answered.
        """
        params = {"nodeIDs": [node_id_text(node_id) for node_id in node_ids]}
        call = NodeCall(METHOD, params, _PATHS, _decode)
        attempts: list[NodeAttempt] = []
        for position, node in enumerate(tuple(self._nodes)):
            if not self._may_serve(node):
                continue
            try:
                found = await node.call(call)
            except RpcRefusal as error:
                raise CallRefused(error.text) from None
            except CallFailure as error:
                if error.status in _NOT_SERVED:
                    self._not_before[id(node)] = self._now() + NOT_SERVED_S
                else:
                    attempts.append(NodeAttempt(position, error.failure))
                continue
            self._pin(node)
            return found
        if attempts:
            raise NodeUnavailable(METHOD, attempts)
        return None

    def _pin(self, node: UpstreamNode) -> None:
        self._is_known = True
        self._nodes.remove(node)
        self._nodes.insert(0, node)

    def _may_serve(self, node: UpstreamNode) -> bool:
        return self._now() >= self._not_before.get(id(node), 0.0)


def validators_endpoint(rpc: NodeEndpoint) -> NodeEndpoint | None:
    """Return where the validators of a chain are, by where its RPC is; None where that does not say."""
    base, found, rest = rpc.base_url.rpartition("/rpc")
    return replace(rpc, base_url=f"{base}/validators{rest}") if found else None


def _decode(result: bytes) -> tuple[ListedValidator, ...]:
    return tuple(msgspec.json.decode(result, type=_Listed).validators or ())
