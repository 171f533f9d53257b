"""The nodes of one chain: which belong to the chain, which are up, which lag, and so the order to try them in."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from warpseal.forwarding.evm.methods import BLOCK_NUMBER
from warpseal.forwarding.evm.node import RpcNode, RpcNodeError, RpcNodeFailure, RpcNodeReply
from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.runtime.single_flight import SingleFlight
from warpseal.upstream.json_values import quantity_or_none
from warpseal.upstream.jsonrpc import MALFORMED, RpcCall, decode_result, encode_calls

log = logging.getLogger(__name__)

CHAIN_ID_CALL: Final = RpcCall("eth_chainId", msgspec.Raw(b"[]"), msgspec.Raw(b"0"))
GENESIS_CALL: Final = RpcCall("eth_getBlockByNumber", msgspec.Raw(b'["0x0",false]'), msgspec.Raw(b"1"))
HEAD_CALL: Final = RpcCall(BLOCK_NUMBER, msgspec.Raw(b"[]"), msgspec.Raw(b"2"))
T = TypeVar("T")

MAX_DECODED_BYTES: Final = 65_536
"""Of a reply about the node itself: decoding a long one would hold up the event loop."""
_HASH_CHARACTERS: Final = 66
_RECHECK_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ChainIdentity:
    """The identity of a chain, equal at all its nodes: the EVM's chain id and the hash of block 0."""

    chain_id: int
    genesis_hash: str


@dataclass(frozen=True, slots=True)
class HeadProgress:
    """The growth of a chain, by the moving window of its nodes. lag_blocks, eta_s: of the node that lags most."""

    blocks_s: float | None
    lag_blocks: int | None
    eta_s: float | None


class ForwardingPool(ABC, Generic[T]):
    """The nodes in configured order. identity: that of the first node that answered; others must match it.

    has_blocks: whether a node has shown a block of the chain since the start.
    """

    def __init__(self, nodes: Sequence[RpcNode], settings: EvmRpcSettings) -> None:
        self.identity: T | None = None
        self.has_blocks = False
        self.nodes = tuple(nodes)
        self._settings = settings
        self._checks: SingleFlight[None, None] = SingleFlight()

    @abstractmethod
    async def read_identity(self, node: RpcNode) -> T | None:
        """Return the identity that a node reports; None if it reports none. Raises RpcNodeError."""

    @abstractmethod
    def find_fault(self, identity: T | None) -> str | None:
        """Return why a node with this identity is refused; None if it belongs here."""

    @abstractmethod
    async def read_height(self, node: RpcNode) -> int | None:
        """Return the height of the last block of a node; None if it reports none. Raises RpcNodeError."""

    async def candidates(self) -> list[RpcNode]:
        """Return the nodes that may be called, best first: those that are up first, then those with higher heads.

        A node that has shown a client a block comes before those that do not have that block.
        """
        if not any(node.is_verified and not self._is_cooling_down(node) for node in self.nodes):
            await self._checks.run(None, self.check)
        return sorted((node for node in self.nodes if node.is_verified), key=self._preference)

    async def post(
        self, node: RpcNode, body: bytes, timeout_s: float, *, is_write: bool = False, path: str = ""
    ) -> RpcNodeReply:
        """Send a body to a node, and note whether it can serve requests. Raises RpcNodeError."""
        try:
            reply = await node.post(body, max(0.001, timeout_s), is_write=is_write, path=path)
        except RpcNodeError as error:
            self.note_error(node, error)
            raise
        if reply.is_busy:
            self.note_error(node, RpcNodeError(RpcNodeFailure.BUSY))
        else:  # Any other status is about the request, not about the node.
            self.note_success(node)
        return reply

    def note_head(self, node: RpcNode, height: int) -> None:
        """Note that a node has a block at this height."""
        self.has_blocks = True
        node.set_head(max(node.head or 0, height), _now())

    def note_error(self, node: RpcNode, error: RpcNodeError) -> None:
        """Note that a node did not answer. Another node may run at its address next, so it is verified again."""
        if error.kind is RpcNodeFailure.TOO_LARGE:
            return
        if error.kind in (RpcNodeFailure.UNREACHABLE, RpcNodeFailure.LOST):
            node.is_verified = False
            node.head = None
        node.fault = f"{error.kind}"
        node.cooldown_until = _now() + self._settings.retry_after_s

    def note_success(self, node: RpcNode) -> None:
        """Note that a node answered."""
        if node.fault is not None and node.is_verified:
            node.fault = None
            node.cooldown_until = 0.0

    def refused(self) -> dict[int, str]:
        """Return why nodes are refused for good, by position: they are not of this chain."""
        return {node.position: node.fault for node in self.nodes if node.is_wrong_chain and node.fault is not None}

    def faults(self) -> dict[int, str]:
        """Return what is wrong with nodes, by position."""
        return {node.position: node.fault for node in self.nodes if node.fault is not None}

    @property
    def is_up(self) -> bool:
        """Whether a node can be called."""
        return any(node.is_verified and node.fault is None for node in self.nodes)

    @property
    def highest(self) -> int:
        """The highest head of the nodes; 0 if none is known."""
        return max((node.head or 0 for node in self.nodes), default=0)

    def head_progress(self) -> HeadProgress:
        """Return how fast the chain grows, and when the node that lags most has the block that is the highest now."""
        now = _now()
        heads = sorted((node.head, node.head_rate.rate(now) or 0.0) for node in self.nodes if node.head is not None)
        if not heads:
            return HeadProgress(None, None, None)
        (lowest, rate), (highest, growth) = heads[0], heads[-1]
        lag_blocks = highest - lowest
        return HeadProgress(growth or None, lag_blocks, lag_blocks / rate if lag_blocks and rate else None)

    @property
    def compares_heads(self) -> bool:
        """Whether the heads of nodes matter: only if there are several nodes."""
        return len(self.nodes) > 1

    async def run(self) -> None:
        """Check nodes and poll their heads until cancelled."""
        poll_s = self._settings.poll_s if self.compares_heads else self._settings.single_poll_s
        due_at = 0.0
        while True:
            await self._checks.run(None, self.check)
            verified = [node for node in self.nodes if node.is_verified and not node.is_paused]
            if _now() >= due_at or any(node.head is None for node in verified):
                due_at = _now() + poll_s
                await _for_all(self._read_head, verified)
            await asyncio.sleep(self._settings.poll_s)

    async def check(self) -> None:
        """Verify the nodes that are due, concurrently once the identity of the chain is known."""
        checked_before = _now() - _RECHECK_S
        waiting = [node for node in self.nodes if node.fault is not None or node.checked_at < checked_before]
        due = [node for node in waiting if not node.is_paused]
        if self.identity is None:
            for node in due:
                await self._verify(node)
        else:
            await _for_all(self._verify, due)

    async def _verify(self, node: RpcNode) -> None:
        try:
            identity = await self.read_identity(node)
        except RpcNodeError as error:
            self.note_error(node, error)
            return
        node.checked_at = _now()
        self._compare_identity(node, identity)
        if node.is_verified and self.compares_heads:
            await self._read_head(node)

    def _compare_identity(self, node: RpcNode, identity: T | None) -> None:
        self.identity = self.identity or identity
        fault = self.find_fault(identity)
        if fault is not None and fault != node.fault:
            log.warning("node refused", extra={"node": node.display, "reason": fault})
        node.is_wrong_chain = fault is not None
        node.is_verified, node.fault = fault is None, fault
        node.cooldown_until = 0.0

    async def _read_head(self, node: RpcNode) -> None:
        """Ask a node for its head. The head goes back if the node says so and nothing else changed it meanwhile."""
        before = node.head
        try:
            height = await self.read_height(node)
        except RpcNodeError as error:
            self.note_error(node, error)
            return
        if height is not None:
            self.has_blocks = True
            node.set_head(height if node.head == before else max(height, node.head or 0), _now())

    async def call(self, node: RpcNode, call: RpcCall, path: str = "") -> object:
        """Return the result of a call as JSON values; None if there is none, or too much. Raises RpcNodeError."""
        reply = await node.post(encode_calls([call], is_batch=False), self._settings.connect_timeout_s, path=path)
        if not reply.is_ok:
            raise RpcNodeError(RpcNodeFailure.BUSY)
        if len(reply.body) > MAX_DECODED_BYTES:
            return None
        result = decode_result(reply.body)
        try:
            return None if result is None else msgspec.json.decode(result)
        except MALFORMED:
            return None

    def _is_cooling_down(self, node: RpcNode) -> bool:
        return node.cooldown_until > _now() or node.is_paused

    def _preference(self, node: RpcNode) -> tuple[bool, int, int]:
        head = node.head or 0 if self.compares_heads else 0
        return self._is_cooling_down(node), -head, node.position


class EvmPool(ForwardingPool[ChainIdentity]):
    """The nodes of an EVM chain."""

    async def read_identity(self, node: RpcNode) -> ChainIdentity | None:
        """Return chain id and hash of block 0."""
        chain_id = quantity_or_none(await self.call(node, CHAIN_ID_CALL))
        return parse_identity(chain_id, await self.call(node, GENESIS_CALL))

    def find_fault(self, identity: ChainIdentity | None) -> str | None:
        """Return why a node is not of this chain."""
        return find_identity_fault(identity, self.identity)

    async def read_height(self, node: RpcNode) -> int | None:
        """Return the number of the last block."""
        return quantity_or_none(await self.call(node, HEAD_CALL))


def parse_identity(chain_id: int | None, genesis_block: object) -> ChainIdentity | None:
    """Return the identity that a chain id and block 0 make; None if one of them is malformed."""
    genesis_hash = genesis_block.get("hash") if isinstance(genesis_block, dict) else None
    if chain_id is None or not isinstance(genesis_hash, str) or len(genesis_hash) != _HASH_CHARACTERS:
        return None
    return ChainIdentity(chain_id, genesis_hash.lower())


def find_identity_fault(identity: ChainIdentity | None, expected: ChainIdentity | None) -> str | None:
    """Return why a node with this identity does not belong to a chain; None if it does."""
    if identity is None:
        return "returns no chain id or no block 0"
    if identity != expected:
        return f"is of another chain: chain id {identity.chain_id}, block 0 {identity.genesis_hash}"
    return None


async def _for_all(action: Callable[[RpcNode], Coroutine[Any, Any, None]], nodes: Iterable[RpcNode]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(action(node))


def _now() -> float:
    return asyncio.get_running_loop().time()
