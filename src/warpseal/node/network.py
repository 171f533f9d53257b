"""Which network the daemon serves, and whether a node belongs to it.

A node says so at /ext/info below its base URL. A gateway that serves only the P-Chain may not: its silence is
no fault, another network's id is. Source of truth: avalanchego `api/info/service.go`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from warpseal.errors import NodeFailure
from warpseal.node.limits import Origin
from warpseal.node.numbers import u32
from warpseal.node.refusals import RpcRefusal
from warpseal.node.rpc import Call, CallFailure, UpstreamNode

INFO_PATHS = ("/ext/info",)
_CHECK_TIMEOUT_S = 2.0
_ASK_SILENT_NODES_AGAIN_AFTER_S = 600.0


@dataclass(slots=True)
class ServedNetwork:
    """The network id of this daemon: None until the first info node told it."""

    network_id: int | None = None


class _NetworkAnswer(msgspec.Struct):
    network_id: int | str = msgspec.field(name="networkID")


def decode_network_id(result: bytes) -> int:
    """Return the network id in the result of info.getNetworkID. Raises ValueError."""
    return u32(msgspec.json.decode(result, type=_NetworkAnswer).network_id)


NETWORK_ID = Call("info.getNetworkID", {}, INFO_PATHS, decode_network_id, Origin.DAEMON)


class NetworkCheck:
    """Whether one node belongs to the served network; asked before its first use and after each failure.

    What it told last is believed until it tells otherwise: several calls may judge by one answer.
    """

    def __init__(self, node: UpstreamNode) -> None:
        self._node = node
        self._network_id: int | None = None
        self._valid_until = float("-inf")

    def forget(self) -> None:
        """Ask again before the next use: another node may answer at this address by then."""
        self._valid_until = float("-inf")

    def is_due(self, served: ServedNetwork, now: float) -> bool:
        """Tell whether the node is to be asked before it is used."""
        return served.network_id is not None and now >= self._valid_until

    async def ask(self, now: float) -> None:
        """Ask the node for its network id; no answer is fine."""
        try:
            self._network_id = await self._node.call(NETWORK_ID, timeout_s=_CHECK_TIMEOUT_S)
            self._valid_until = float("inf")
        except (CallFailure, RpcRefusal):
            self._valid_until = now + _ASK_SILENT_NODES_AGAIN_AFTER_S

    def judge(self, served: ServedNetwork) -> None:
        """Return where the node may be used. Raises CallFailure where it is of another network."""
        if served.network_id is not None and self._network_id not in (None, served.network_id):
            told = f"the node is of network {self._network_id}, not {served.network_id}"
            raise CallFailure(NodeFailure.WRONG_NETWORK, told)
