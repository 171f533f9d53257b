"""Calls of contracts (eth_call) at the nodes of one EVM chain, with bounded gas, time and size of the result.

Contracts are hostile: they burn gas, return as much as a node lets them, and choose the text of their reverts. Source
of truth of the errors: geth `core/vm/errors.go`, coreth `eth/state_accessor.go`, and what recorded nodes returned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from enum import StrEnum
from typing import Final

from msgspec import Struct

from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.runtime.settings import MEBIBYTE
from warpseal.upstream.batch import ChainNode, NodeResource
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.evm_blocks import contract_call
from warpseal.upstream.json_values import decode_bytes
from warpseal.upstream.jsonrpc import REQUEST_TIMED_OUT, RESPONSE_TOO_LARGE, UNREADABLE, RpcError, RpcResponse

_TIMEOUT_S: Final = 5.0
_MAX_RESULT_BYTES: Final = MEBIBYTE
# A pruned node keeps the state of its last blocks.
_PRUNED_BLOCKS: Final = 32
_LATEST: Final = "latest"
_REVERTED: Final = 3

# The message of a revert ends with the contract's own text, so that only its beginning counts.
_IS_REVERT: Final = re.compile(
    r"execution reverted|EVM error|out of gas|contract creation code storage out of gas|max call depth|"
    r"insufficient balance for transfer|contract address collision|max (init)?code size|invalid jump destination|"
    r"write protection|return data out of bounds|gas uint64 overflow|invalid code|stack underflow|stack limit|"
    r"invalid opcode|nonce uint64 overflow|intrinsic gas too low|insufficient gas for floor|"
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


class NoResult(StrEnum):
    """Why a contract that was called returned nothing usable; another node would say the same."""

    REVERTED = "reverted"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"


class ContractCall(Struct, frozen=True):
    """A call without value, of the zero address. data: selector and arguments."""

    to: bytes
    data: bytes


CallResult = bytes | NoResult | None
"""What a contract returned; None if no node answered."""


class EvmCaller:
    """Calls contracts of one chain, at any of its nodes. timeout_s: of one call."""

    def __init__(self, nodes: ChainNodes, timeout_s: float = _TIMEOUT_S) -> None:
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._is_background = False

    def in_background(self) -> EvmCaller:
        """Return a caller of the same nodes whose calls go behind blocks, and behind calls that clients wait for."""
        caller = copy(self)
        caller._is_background = True
        return caller

    async def call_all(self, calls: Sequence[ContractCall], height: int | None) -> list[CallResult]:
        """Return the results of calls, in their order, from as few batches as the nodes allow.

        They are of the state after block `height`, of the last block if it is None. A node that has the block but not
        its state is called in the state of its last block.
        """
        results: list[CallResult] = [None] * len(calls)
        try:
            nodes = await self._nodes.require_candidates(None if height is None else NodeResource.STATE, height or 0)
        except NodeUnavailable:
            return results
        for node in nodes:
            open_calls = [index for index, result in enumerate(results) if result is None]
            if not open_calls:
                break
            node_results = await self._call_node(node, [calls[index] for index in open_calls], height)
            for index, result in zip(open_calls, node_results, strict=True):
                results[index] = result
        return results

    async def _call_node(self, node: ChainNode, calls: Sequence[ContractCall], height: int | None) -> list[CallResult]:
        """Return what one node answers, in the state of its last block if it lacks that of `height`."""
        if height is None or node.lacks(NodeResource.STATE, height):
            return list(map(_read, await self._post(node, calls, _LATEST)))
        responses = await self._post(node, calls, hex(height))
        results = list(map(_read, responses))
        errors = [(index, response.error) for index, response in enumerate(responses) if response.error is not None]
        stateless = [index for index, error in errors if not _is_revert(error) and HAS_NO_STATE.search(error.message)]
        if stateless:
            node.note_missing(NodeResource.STATE, max(height, (node.head or 0) - _PRUNED_BLOCKS))
            latest = await self._post(node, [calls[index] for index in stateless], _LATEST)
            for index, response in zip(stateless, latest, strict=True):
                results[index] = _read(response)
        return results

    async def _post(self, node: ChainNode, calls: Sequence[ContractCall], block: str) -> list[RpcResponse]:
        """Return the responses of a node; UNREADABLE for calls that it did not answer.

        A contract that is slow or returns too much spoils only its own call.
        """
        encoded = [contract_call(call.to, call.data, block) for call in calls]
        try:
            return await node.call_batch(
                encoded, timeout_s=self._timeout_s, is_background=self._is_background, spoils_others=False
            )
        except CallFailure:
            return [UNREADABLE] * len(calls)


def _is_revert(error: RpcError) -> bool:
    return error.code == _REVERTED or _IS_REVERT.match(error.message) is not None


def _read(response: RpcResponse) -> CallResult:
    """Return what a response says of the contract; None if it says nothing."""
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
