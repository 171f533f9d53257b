"""Blocks of the C-Chain by batch, and its heights.

Source of truth: the Ethereum JSON-RPC specification; avalanchego `graft/coreth/internal/ethapi`,
`graft/coreth/plugin/evm/customtypes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from warpseal.errors import NodeUnavailable
from warpseal.node.errors import RpcRefusal
from warpseal.node.json_values import decode_hex, decode_quantity
from warpseal.node.limits import CallOrigin
from warpseal.node.pool import NodePool, require_values
from warpseal.node.rpc import NodeCall

C_CHAIN_PATHS: Final = ("/ext/bc/C/rpc",)
_HASH_BYTES: Final = 32


class BatchRefused(Exception):
    """Nodes answered, but none returns these blocks; they may return fewer at a time."""


@dataclass(frozen=True, slots=True)
class EvmBlock:
    """One block. hash, parent_hash: 32 bytes; extra_data: the atomic transactions' bytes; tx_count: all others."""

    number: int
    hash: bytes
    parent_hash: bytes
    time_s: int
    size_bytes: int
    tx_count: int
    extra_data: bytes


class CBlocksClient:
    """eth_* calls for the C-Chain to a list of nodes. Every method raises NodeUnavailable if no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def tips(self) -> tuple[int, ...]:
        """Return the numbers of the last accepted blocks of all nodes that answer."""
        call = NodeCall("eth_blockNumber", [], C_CHAIN_PATHS, _decode_number, CallOrigin.FOLLOWER, optional=True)
        return require_values(await self._pool.call_all(call), call.method)

    async def evm_chain_id(self) -> int:
        """Return the chain id of the C-Chain's EVM, from the first node that answers."""
        call = NodeCall("eth_chainId", [], C_CHAIN_PATHS, _decode_number, CallOrigin.DAEMON, optional=True)
        return require_values(await self._pool.call_all(call), call.method)[0]

    async def blocks(self, first: int, count: int) -> tuple[EvmBlock | None, ...]:
        """Return `count` blocks from number `first` on, None for each that the node lacks. Raises BatchRefused."""
        call = _blocks_call(first, count)
        try:
            blocks = await self._pool.call(call)
        except RpcRefusal as refusal:
            raise BatchRefused(refusal.text) from None
        for number, block in enumerate(blocks, first):
            if block is not None and block.number != number:
                raise NodeUnavailable(call.method)
        return blocks

    async def block_of_each(self, number: int) -> tuple[EvmBlock, ...]:
        """Return the distinct blocks that the nodes return for a number, in configured order."""
        results = await self._pool.call_all(_blocks_call(number, 1))
        blocks = (result.value[0] for result in results if result.value is not None)
        return tuple(dict.fromkeys(block for block in blocks if block is not None and block.number == number))


def _blocks_call(first: int, count: int) -> NodeCall[tuple[EvmBlock | None, ...]]:
    numbers: tuple[list[Any], ...] = tuple([hex(number), False] for number in range(first, first + count))
    paths, method = C_CHAIN_PATHS, "eth_getBlockByNumber"
    return NodeCall(method, [], paths, _decode_blocks, CallOrigin.FOLLOWER, large=True, batch=numbers)


def _decode_number(result: bytes) -> int:
    return decode_quantity(msgspec.json.decode(result, type=str))


class _Block(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    size: str
    transactions: list[msgspec.Raw]
    block_extra_data: str = "0x"


_BLOCKS: Final = msgspec.json.Decoder(list[_Block | None])


def _decode_blocks(result: bytes) -> tuple[EvmBlock | None, ...]:
    return tuple(None if block is None else _evm_block(block) for block in _BLOCKS.decode(result))


def _evm_block(block: _Block) -> EvmBlock:
    return EvmBlock(
        decode_quantity(block.number),
        _hash(block.hash),
        _hash(block.parent_hash),
        decode_quantity(block.timestamp),
        decode_quantity(block.size),
        len(block.transactions),
        decode_hex(block.block_extra_data),
    )


def _hash(text: str) -> bytes:
    raw = decode_hex(text)
    if len(raw) != _HASH_BYTES:
        raise ValueError("a hash has 32 bytes")
    return raw
