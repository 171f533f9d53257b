"""The identity of the nodes of a pool: the id of their network, or chain id and block 0 of an EVM.

Source of truth: avalanchego `api/info/service.go`; the Ethereum JSON-RPC specification.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from warpseal.upstream.errors import CallFailure, NodeFailure, RpcRefusal
from warpseal.upstream.json_values import (
    NUMBER,
    decode_block_number,
    decode_number,
    field_decoder,
    u32,
)
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall, UpstreamNode

T = TypeVar("T")
IdentityT = TypeVar("IdentityT")

INFO_PATHS: Final = ("/ext/info",)
NETWORK_ID: Final = NodeCall(
    "info.getNetworkID", {}, INFO_PATHS, field_decoder("networkID", NUMBER, u32), CallOrigin.DAEMON
)
BLOCK_NUMBER: Final = "eth_blockNumber"
_HASH_CHARACTERS: Final = 66


class NodeIdentity(ABC, Generic[IdentityT]):
    """The identity of all nodes of a pool.

    expected: the right identity; None until it is known.
    is_required: if true, a node is used only after it has returned the right identity, which is
        read again every minute; if false, a node is used unless it has returned another identity.
    """

    is_required: ClassVar[bool] = True

    def __init__(self, expected: IdentityT | None = None) -> None:
        self.expected = expected

    @abstractmethod
    async def read(self, node: UpstreamNode, timeout_s: float) -> IdentityT | None:
        """Return the identity that a node reports; None if it reports none. Raises CallFailure."""

    @abstractmethod
    def find_mismatch(self, identity: IdentityT | None) -> str | None:
        """Return why a node with this identity does not belong here; None if it does."""

    async def read_height(self, node: UpstreamNode, timeout_s: float) -> int | None:
        """Return the height of the last block of a node; None if it reports none.

        Raises CallFailure.
        """
        return None


class ServedNetwork(NodeIdentity[int]):
    """The network id of this daemon, decided by the info nodes.

    A gateway of the P-Chain need not report one.
    """

    is_required = False

    async def read(self, node: UpstreamNode, timeout_s: float) -> int | None:
        """Return the network id of a node."""
        return await read_value(node, NETWORK_ID, timeout_s)

    def find_mismatch(self, identity: int | None) -> str | None:
        """Return why a node is not of the daemon's network."""
        if identity in (None, self.expected):
            return None
        return (
            f"the node is of network {identity}, not {self.expected} as info-api says: correct its"
            " base-url"
        )


class PrimaryNetwork(ServedNetwork):
    """The network id of the nodes of one primary chain.

    height: the call that returns the chain's last height.
    """

    is_required = True

    def __init__(self, network_id: int, height: NodeCall[int]) -> None:
        super().__init__(network_id)
        self._height = height

    async def read(self, node: UpstreamNode, timeout_s: float) -> int:
        """Return the network id of a node.

        Raises CallFailure, also if the node refuses the call.
        """
        return await require_value(node, NETWORK_ID, timeout_s)

    def find_mismatch(self, identity: int | None) -> str | None:
        """Return why a node is not of the daemon's network."""
        return None if identity == self.expected else f"is of another network: {identity}"

    async def read_height(self, node: UpstreamNode, timeout_s: float) -> int | None:
        """Return the height of the last block of the chain."""
        return await _read_height(node, self._height, timeout_s)


class ChainIdentity(Struct, frozen=True):
    """The identity of an EVM chain, equal at all its nodes: chain id and hash of block 0."""

    chain_id: int
    genesis_hash: str


class EvmIdentity(NodeIdentity[ChainIdentity]):
    """The identity of the nodes of an EVM chain: that of the first node that reports one."""

    async def read(self, node: UpstreamNode, timeout_s: float) -> ChainIdentity | None:
        """Return chain id and hash of block 0; None if one of them is malformed.

        Raises CallFailure, also if the node refuses a call.
        """
        chain_id = await require_value(node, CHAIN_ID, timeout_s)
        genesis_block = await require_value(node, GENESIS, timeout_s)
        return parse_identity(chain_id, genesis_block)

    def find_mismatch(self, identity: ChainIdentity | None) -> str | None:
        """Return why a node is not of this chain."""
        if identity is None:
            return "returns no chain id or no block 0"
        if identity != self.expected:
            return (
                f"is of another chain: chain id {identity.chain_id}, block 0"
                f" {identity.genesis_hash}"
            )
        return None

    async def read_height(self, node: UpstreamNode, timeout_s: float) -> int | None:
        """Return the number of the last block."""
        return await _read_height(node, HEAD, timeout_s)


async def read_value(node: UpstreamNode, call: NodeCall[T], timeout_s: float) -> T | None:
    """Return a node's result about itself; None if it refuses the call. Raises CallFailure.

    A reply that cannot be read is a failure: it does not show that the node is of another chain.
    """
    try:
        return await node.call(call, timeout_s)
    except RpcRefusal:
        return None


async def require_value(node: UpstreamNode, call: NodeCall[T], timeout_s: float) -> T:
    """Return a node's result about itself. Raises CallFailure.

    A refusal, such as that of an invalid API key, is a failure: it does not show that the node is
    of another network or chain.
    """
    try:
        return await node.call(call, timeout_s)
    except RpcRefusal as error:
        failure = identity_refused(call.method, error)
    raise failure


def identity_refused(method: str, refusal: RpcRefusal) -> CallFailure:
    """Return the failure of a node that refuses a call for its identity."""
    return CallFailure(NodeFailure.BAD_ANSWER, f"{method}: {refusal}")


async def _read_height(node: UpstreamNode, call: NodeCall[int], timeout_s: float) -> int | None:
    """Return the height that a node reports; None if it reports none that can be read.

    Raises CallFailure.
    """
    try:
        return await read_value(node, call, timeout_s)
    except CallFailure as error:
        if error.failure is NodeFailure.BAD_ANSWER:
            return None
        raise


def parse_identity(chain_id: int | None, genesis_block: object) -> ChainIdentity | None:
    """Return the identity that a chain id and block 0 make; None if one of them is malformed."""
    genesis_hash = genesis_block.get("hash") if isinstance(genesis_block, dict) else None
    if (
        chain_id is None
        or not isinstance(genesis_hash, str)
        or len(genesis_hash) != _HASH_CHARACTERS
    ):
        return None
    return ChainIdentity(chain_id, genesis_hash.lower())


def _evm_call(method: str, decode: Callable[[bytes], T], *params: object) -> NodeCall[T]:
    return NodeCall(method, params, ("",), decode, CallOrigin.DAEMON)


CHAIN_ID: Final = _evm_call("eth_chainId", decode_number)
GENESIS: Final[NodeCall[object]] = _evm_call(
    "eth_getBlockByNumber", msgspec.json.decode, "0x0", False
)
HEAD: Final = _evm_call(BLOCK_NUMBER, decode_block_number)
