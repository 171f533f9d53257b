"""Reads of an EVM chain by the daemon itself, on demand, from the nodes that it forwards to.

Nodes are untrusted: a block and its receipts must agree, and be those that were asked for. Source
of truth: the Ethereum JSON-RPC specification; for the errors, what recorded nodes returned.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from warpseal.chains.evm.blocks import MalformedBlock, parse_bytes, parse_quantity
from warpseal.chains.evm.checks import BlockContradiction, BlockRules, block_facts
from warpseal.chains.evm.contract_calls import balance_of_batch_call, decode_numbers
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.forwarding.evm.forwarder import NO_NODE, NOT_ANSWERED, TIMED_OUT, EvmForwarder
from warpseal.resources.text import hex_text
from warpseal.upstream.errors import CallFailure, NodeFailure, NodeUnavailable
from warpseal.upstream.evm_blocks import (
    BLOCK,
    BLOCK_RECEIPTS,
    NO_RECEIPTS,
    NotHere,
    contract_call,
    decode_headers,
    read_receipts,
    result_bytes,
)
from warpseal.upstream.json_values import decode_bytes
from warpseal.upstream.jsonrpc import (
    REQUEST_TIMED_OUT,
    RpcCall,
    RpcResponse,
    is_unknown_method,
    rpc_call,
)
from warpseal.upstream.node import run_decoder
from warpseal.upstream.pool import PoolNode

_NULL: Final = b"null"
_NO_CODE: Final = b'"0x"'
_MAX_CONCURRENT: Final = 16
"""Reads of one chain at a time: a reply of a node may have 64 MiB."""
_MAX_CONCURRENT_CALLS: Final = 16
_BLOCK_TIMEOUT_S: Final = 15.0
_WORD_DIGITS: Final = 64
# A node that has not executed or accepted a block yet.
_NOT_YET: Final = re.compile(r"unfinalized|unaccepted|not found|unknown block", re.IGNORECASE)


class EvmChainReader:
    """Reads one chain.

    load_rules: function that returns the rules by which its receipts are checked.
    timeout_s: time for one call to one node.
    """

    def __init__(
        self,
        forwarder: EvmForwarder,
        load_rules: Callable[[], Awaitable[BlockRules]],
        timeout_s: float,
        executor: Executor | None = None,
    ) -> None:
        self._forwarder = forwarder
        self._load_rules = load_rules
        self._timeout_s = timeout_s
        self._executor = executor
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def chain_id(self) -> int | None:
        """Return the EVM's chain id; None while no node answers."""
        await self._forwarder.pool.candidates()
        identity = self._forwarder.pool.identity.expected
        return None if identity is None else identity.chain_id

    async def is_up(self) -> bool:
        """Return whether a node of the chain can be called."""
        return bool(await self._forwarder.pool.candidates()) and self._forwarder.pool.is_up

    async def block(self, block: int | bytes) -> EvmBlockFacts | None:
        """Return an accepted block by number or hash; None if no node has it with its receipts.

        Raises NodeUnavailable.
        """

        def is_final(facts: EvmBlockFacts | None) -> bool:
            return facts is not None

        attempt = partial(self._block_at, block)
        try:
            async with asyncio.timeout(_BLOCK_TIMEOUT_S), self._slots:
                results = await self._forwarder.pool.try_each("the block", attempt, is_final)
                return results[-1]
        except TimeoutError:
            raise NodeUnavailable("the block") from None

    async def has_code(self, address: bytes) -> bool:
        """Return whether a contract is at an address now. Raises NodeUnavailable."""
        call = rpc_call("eth_getCode", hex_text(address), "latest")
        response = await self._forwarder.read(call, None, self._timeout_s)
        if response.result is None:
            raise NodeUnavailable("eth_getCode")
        return bytes(response.result) not in (_NULL, _NO_CODE)

    async def balances(
        self, contract: bytes, owner: bytes, token_ids: Sequence[int]
    ) -> tuple[int, ...] | None:
        """Return an account's balance of each ERC-1155 token; None if the contract refuses.

        Raises NodeUnavailable.
        """
        data = balance_of_batch_call([owner] * len(token_ids), token_ids)
        call = contract_call(contract, data)
        async with self._slots:
            response = await self._forwarder.read(call, None, self._timeout_s)
        if response.result is None:
            if response.error in (NO_NODE, NOT_ANSWERED, TIMED_OUT):
                raise NodeUnavailable("eth_call")
            return None
        # Hostile contracts return more; an array is its place, its length and its numbers.
        if memoryview(response.result).nbytes > 2 * _WORD_DIGITS * (2 + len(token_ids)):
            return None
        try:
            return decode_numbers(decode_bytes(response.result), len(token_ids))
        except ValueError:
            return None

    async def _block_at(self, block: int | bytes, node: PoolNode) -> EvmBlockFacts | None:
        """Return a block of one node; None if the node lacks it. Raises CallFailure."""
        try:
            return await self._read_block(node, block)
        except NotHere:
            return None
        except (BlockContradiction, MalformedBlock):
            raise CallFailure(NodeFailure.BAD_ANSWER) from None

    async def _read_block(self, node: PoolNode, block: int | bytes) -> EvmBlockFacts:
        """Return a block of one node.

        Raises NotHere, CallFailure, BlockContradiction, MalformedBlock.
        """
        call_node = partial(self._call_node, node)
        if isinstance(block, int):
            call = rpc_call(BLOCK, hex(block), False)
        else:
            call = rpc_call("eth_getBlockByHash", hex_text(block), False)
        responses = await call_node([call])
        read_headers = partial(decode_headers, responses)
        headers, error = await run_decoder(read_headers, result_bytes(responses), self._executor)
        if error is not None:
            raise error
        (header,) = headers
        number_or_hash: int | bytes
        if isinstance(block, int):
            number_or_hash = parse_quantity(header.number)
        else:
            number_or_hash = parse_bytes(header.hash)
        if number_or_hash != block:
            raise MalformedBlock("another block than the one of the call")
        receipts_by_place = await read_receipts(call_node, headers, {})
        raw = receipts_by_place.get(0, NO_RECEIPTS)
        rules = await self._load_rules()

        def read_facts() -> EvmBlockFacts:
            receipts = raw.decode()
            if receipts is None:
                raise raw.lack()
            return block_facts(header, receipts, rules)

        return await run_decoder(read_facts, result_bytes(raw.responses), self._executor)

    async def _call_node(self, node: PoolNode, calls: Sequence[RpcCall]) -> list[RpcResponse]:
        """Return the responses of a node, which may lack a block, or the receipts of whole blocks.

        Raises CallFailure for other errors: receipts can be read one by one, but no other method
        can be replaced.
        """
        responses: list[RpcResponse] = []
        for start in range(0, len(calls), _MAX_CONCURRENT_CALLS):
            part = calls[start : start + _MAX_CONCURRENT_CALLS]
            reads = (self._forwarder.read(call, [node], self._timeout_s) for call in part)
            responses += await asyncio.gather(*reads)
        for call, response in zip(calls, responses, strict=True):
            error = response.error
            if error is None or _NOT_YET.search(error.message):
                continue
            if call.method == BLOCK_RECEIPTS and is_unknown_method(response, call.method):
                continue
            is_timeout = error.code == REQUEST_TIMED_OUT
            failure = NodeFailure.TIMEOUT if is_timeout else NodeFailure.REFUSED
            raise CallFailure(failure, error.message)
        return responses


def c_chain_rules(upgrade_times: Mapping[str, int]) -> BlockRules:
    """Return the rules of the C-Chain, which executes blocks after their acceptance since Helicon.

    upgrade_times: Unix seconds by upgrade, as info.upgrades returns them.
    """
    return BlockRules(upgrade_times.get("helicon"))
