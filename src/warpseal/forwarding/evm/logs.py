"""Logs of an EVM chain, read by the daemon itself from the nodes to which it forwards calls.

Source of truth: the Ethereum JSON-RPC specification; avalanchego
`graft/subnet-evm/precompile/contracts/warp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from warpseal.forwarding.evm.forwarder import NO_NODE, NOT_ANSWERED, EvmForwarder
from warpseal.forwarding.evm.log_filter import EvmLog, LogFilter, LogsRefused
from warpseal.runtime.settings import MEBIBYTE
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.identity import BLOCK_NUMBER
from warpseal.upstream.json_values import (
    block_height,
    decode_block_number,
    decode_hex,
    decode_quantity,
)
from warpseal.upstream.jsonrpc import rpc_call
from warpseal.upstream.node import run_decoder

T = TypeVar("T")

_MAX_LOGS_BYTES: Final = 16 * MEBIBYTE


class EvmLogClient:
    """The logs of one chain.

    timeout_s: time for one call to one node.
    executor: threads that decode large replies.
    """

    def __init__(
        self, forwarder: EvmForwarder, timeout_s: float, executor: Executor | None = None
    ) -> None:
        self._forwarder = forwarder
        self._timeout_s = timeout_s
        self._executor = executor

    async def block_number(self) -> int:
        """Return the number of the last accepted block. Raises NodeUnavailable."""
        try:
            return await self._call(BLOCK_NUMBER, [], decode_block_number)
        except LogsRefused:
            raise NodeUnavailable(BLOCK_NUMBER) from None

    async def logs(self, log_filter: LogFilter) -> tuple[EvmLog, ...]:
        """Return the logs in the order of the node, which is that of the chain.

        Raises LogsRefused, NodeUnavailable.
        """
        params = {
            "fromBlock": hex(log_filter.first),
            "toBlock": hex(log_filter.last),
            "address": "0x" + log_filter.address.hex(),
            "topics": ["0x" + topic.hex() for topic in log_filter.topics],
        }
        return await self._call("eth_getLogs", [params], partial(_decode_logs, log_filter))

    async def _call(self, method: str, params: Sequence[Any], decode: Callable[[bytes], T]) -> T:
        """Return the first usable reply of a node; other nodes may reply where one refuses."""
        call = rpc_call(method, *params)
        is_refused = False
        for node in await self._forwarder.pool.candidates():
            response = await self._forwarder.read(call, [node], self._timeout_s)
            if response.result is None:
                is_refused |= response.error not in (NO_NODE, NOT_ANSWERED)
                continue
            is_refused, result = True, bytes(response.result)
            if len(result) <= _MAX_LOGS_BYTES:
                with suppress(ValueError, RecursionError):
                    return await run_decoder(partial(decode, result), len(result), self._executor)
        raise LogsRefused if is_refused else NodeUnavailable(method)


class _Log(msgspec.Struct):
    address: str
    topics: list[str]
    data: str
    block_number: str = msgspec.field(name="blockNumber")


def _decode_logs(log_filter: LogFilter, result: bytes) -> tuple[EvmLog, ...]:
    """Return the logs of a result. Raises ValueError if one does not match the filter."""
    logs: list[EvmLog] = []
    for log in msgspec.json.decode(result, type=list[_Log]):
        logs.append(EvmLog(block_height(decode_quantity(log.block_number)), decode_hex(log.data)))
        topics = tuple(decode_hex(topic) for topic in log.topics[: len(log_filter.topics)])
        is_match = decode_hex(log.address) == log_filter.address and topics == log_filter.topics
        if not is_match or not log_filter.first <= logs[-1].block <= log_filter.last:
            raise ValueError("a log that does not match the filter")
    return tuple(logs)
