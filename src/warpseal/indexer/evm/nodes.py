"""The nodes of one indexed EVM chain, with their order and heads, and calls of contracts.

Contracts are hostile: they burn gas, return as much as a node lets them, and choose the text of
their reverts. Calls (eth_call) have bounded gas, time and size of the result. Source of truth of
the errors: geth `core/vm/errors.go`, coreth `eth/state_accessor.go`, and what recorded nodes
returned.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from enum import StrEnum
from typing import Final

from msgspec import Struct

from warpseal.forwarding.evm.methods import head_in
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.runtime.settings import MEBIBYTE
from warpseal.upstream.batch import ChainNode, NodeResource
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.evm_blocks import contract_call
from warpseal.upstream.identity import BLOCK_NUMBER, ChainIdentity, EvmIdentity
from warpseal.upstream.json_values import decode_bytes
from warpseal.upstream.jsonrpc import (
    REQUEST_TIMED_OUT,
    RESPONSE_TOO_LARGE,
    UNREADABLE,
    RpcError,
    RpcResponse,
    rpc_call,
)
from warpseal.upstream.limits import CallRates
from warpseal.upstream.node import Sessions, UpstreamNode
from warpseal.upstream.pool import NodePool

_CHECK_S: Final = 2.0
# Once one node has reported its head, the other nodes have this long.
_HEAD_TIMEOUT_S: Final = 0.5
_HEAD_CALL_TIMEOUT_S: Final = 5.0
_CONTRACT_TIMEOUT_S: Final = 5.0
_MAX_RESULT_BYTES: Final = MEBIBYTE
# A pruned node keeps the state of its last blocks.
_PRUNED_BLOCKS: Final = 32
_LATEST: Final = "latest"
_REVERTED: Final = 3

# The message of a revert ends with the contract's own text, so that only its beginning counts.
_IS_REVERT: Final = re.compile(
    r"execution reverted|EVM error|out of gas|contract creation code storage out of gas|"
    r"max call depth|insufficient balance for transfer|contract address collision|"
    r"max (init)?code size|invalid jump destination|write protection|return data out of bounds|"
    r"gas uint64 overflow|invalid code|stack underflow|stack limit|invalid opcode|"
    r"nonce uint64 overflow|intrinsic gas too low|insufficient gas for floor|"
    r"gas required exceeds allowance|prohibited address",
    re.IGNORECASE,
)
_IS_SLOW: Final = re.compile(r"execution aborted \(timeout", re.IGNORECASE)
HAS_NO_STATE: Final = re.compile(
    r"missing trie node|historical state|genesis state is missing|missing block|"
    r"state .{0,80}(not available|unavailable)|(revision|parent) .{0,80}not found",
    re.IGNORECASE,
)
"""Messages of nodes that have a block, but not the state after it, or before it."""


class ChainNodes(NodePool[ChainIdentity]):
    """The nodes of one chain. Deny lists of methods do not bind the indexer.

    rates: rates of the nodes of all chains; None: this chain is the only one.
    """

    node_type = ChainNode
    nodes: tuple[ChainNode, ...]

    def __init__(
        self,
        chain: EvmChain,
        sessions: Sessions,
        settings: EvmRpcSettings,
        rates: CallRates | None = None,
    ) -> None:
        assert chain.index is not None
        rates, limits, per_s = rates or CallRates(), settings.limits, chain.index.calls_per_s
        nodes = [
            UpstreamNode(endpoint, sessions.pooled, limits, rate=rates.of(endpoint, per_s))
            for endpoint in chain.rpc
        ]
        super().__init__(nodes, EvmIdentity(), limits)

    async def require_candidates(
        self, resource: NodeResource | None = None, height: int = 0
    ) -> list[ChainNode]:
        """Return the nodes that may be called, best first. Raises NodeUnavailable if there is none.

        resource: nodes that lacked it at this height come last.
        """
        nodes = [self.nodes[node.position] for node in await self.candidates()]
        if not nodes:
            raise NodeUnavailable("eth_chainId", replies=self.describe_failures())
        if resource is None:
            return nodes
        return sorted(nodes, key=lambda node: node.lacks(resource, height))

    def describe_failures(self) -> list[str]:
        """Return why nodes cannot be used now, for the operator."""
        return [
            f"node {position}: {failure}" for position, failure in sorted(self.failures().items())
        ]

    async def heads(self) -> tuple[int, ...]:
        """Return the heads of the nodes, the highest first.

        Raises NodeUnavailable if no node reports its head.
        """
        tasks = {
            asyncio.create_task(self._poll_head(node)) for node in await self.require_candidates()
        }
        try:
            done, _ = await asyncio.wait(tasks, timeout=_HEAD_TIMEOUT_S)
            while not any(task.result() for task in done) and (waiting := tasks - done):
                done |= (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[0]
        finally:
            for task in tasks:
                task.cancel()
        heads = [head for task in done if (head := task.result()) is not None]
        if not heads:
            raise NodeUnavailable(BLOCK_NUMBER, replies=self.describe_failures())
        return tuple(sorted(heads, reverse=True))

    async def run(self) -> None:
        """Verify nodes again and again until cancelled: a node that was down may be up."""
        while True:
            await self.check()
            await asyncio.sleep(_CHECK_S)

    async def _poll_head(self, node: ChainNode) -> int | None:
        with suppress(CallFailure):
            (response,) = await node.call_batch(
                [rpc_call(BLOCK_NUMBER)], timeout_s=_HEAD_CALL_TIMEOUT_S
            )
            if response.result is not None and (height := head_in(response.result)) is not None:
                node.set_head(height)
                return height
        return None


class NoResult(StrEnum):
    """Why a contract returned no usable output; another node would say the same."""

    REVERTED = "reverted"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"


class ContractCall(Struct, frozen=True):
    """A call without value, of the zero address.

    data: selector and arguments.
    """

    to: bytes
    data: bytes


CallResult = bytes | NoResult | None
"""The output of a contract; None if no node answered."""


class EvmCaller:
    """Calls contracts of one chain, at any of its nodes.

    timeout_s: time that one call may take.
    """

    def __init__(self, nodes: ChainNodes, timeout_s: float = _CONTRACT_TIMEOUT_S) -> None:
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._is_background = False

    def in_background(self) -> EvmCaller:
        """Return a caller of the same nodes whose calls go behind all others."""
        caller = copy(self)
        caller._is_background = True
        return caller

    async def call_all(self, calls: Sequence[ContractCall], height: int | None) -> list[CallResult]:
        """Return the results of calls, in their order, from as few batches as the nodes allow.

        A node that has the block but not its state is called in the state of its last block.

        height: the block after which the state is called; None: the last block.
        """
        results: list[CallResult] = [None] * len(calls)
        try:
            nodes = await self._nodes.require_candidates(
                None if height is None else NodeResource.STATE, height or 0
            )
        except NodeUnavailable:
            return results
        for node in nodes:
            open_indexes = [index for index, result in enumerate(results) if result is None]
            if not open_indexes:
                break
            open_calls = [calls[index] for index in open_indexes]
            node_results = await self._call_node(node, open_calls, height)
            for index, result in zip(open_indexes, node_results, strict=True):
                results[index] = result
        return results

    async def _call_node(
        self, node: ChainNode, calls: Sequence[ContractCall], height: int | None
    ) -> list[CallResult]:
        """Return the results of one node, in the state of its last block if it lacks `height`."""
        if height is None or node.lacks(NodeResource.STATE, height):
            return list(map(_read, await self._post(node, calls, _LATEST)))
        responses = await self._post(node, calls, hex(height))
        results = list(map(_read, responses))
        stateless = [
            index for index, response in enumerate(responses) if _is_stateless(response.error)
        ]
        if stateless:
            node.note_missing(NodeResource.STATE, max(height, (node.head or 0) - _PRUNED_BLOCKS))
            latest = await self._post(node, [calls[index] for index in stateless], _LATEST)
            for index, response in zip(stateless, latest, strict=True):
                results[index] = _read(response)
        return results

    async def _post(
        self, node: ChainNode, calls: Sequence[ContractCall], block: str
    ) -> list[RpcResponse]:
        """Return the responses of a node; UNREADABLE for calls that it did not answer.

        A contract that is slow or returns too much spoils only its own call.
        """
        encoded = [contract_call(call.to, call.data, block) for call in calls]
        try:
            return await node.call_batch(
                encoded,
                timeout_s=self._timeout_s,
                is_background=self._is_background,
                spoils_others=False,
            )
        except CallFailure:
            return [UNREADABLE] * len(calls)


def _is_revert(error: RpcError) -> bool:
    return error.code == _REVERTED or _IS_REVERT.match(error.message) is not None


def _is_stateless(error: RpcError | None) -> bool:
    """Return whether an error says that the node lacks the state.

    A revert ends with the contract's own text, which may say so as well.
    """
    if error is None or _is_revert(error):
        return False
    return HAS_NO_STATE.search(error.message) is not None


def _read(response: RpcResponse) -> CallResult:
    """Return the output of the contract in a response; None if another node should be called."""
    error = response.error
    if error is not None:
        if _is_revert(error):
            return NoResult.REVERTED
        if error.code == RESPONSE_TOO_LARGE:
            return NoResult.TOO_LARGE
        is_slow = error.code == REQUEST_TIMED_OUT or _IS_SLOW.match(error.message)
        return NoResult.TOO_SLOW if is_slow else None
    if response.result is None:
        return None
    try:
        output = decode_bytes(response.result)
    except (ValueError, RecursionError):
        return None
    return output if len(output) <= _MAX_RESULT_BYTES else NoResult.TOO_LARGE
