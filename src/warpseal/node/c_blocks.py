"""Blocks of the C-Chain, asked for by the batch: their headers' few fields, and what holds the atomic transactions.

Source of truth: avalanchego `graft/coreth/internal/ethapi`, `graft/coreth/plugin/evm/customtypes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from warpseal.errors import NodeUnavailable
from warpseal.node.blocks import told_by
from warpseal.node.failover import NodePool
from warpseal.node.limits import Origin
from warpseal.node.refusals import RpcRefusal
from warpseal.node.rpc import Call

T = TypeVar("T")

C_CHAIN_PATHS: Final = ("/ext/bc/C/rpc",)
_HASH_BYTES: Final = 32


class BatchRefused(Exception):
    """Nodes answered, and none gives these blocks; fewer at a time may be given."""


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
    """eth_* calls to the C-Chain over a list of nodes. Every method raises NodeUnavailable when no node answered."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def tips(self) -> tuple[int, ...]:
        """Return the numbers of the last accepted blocks of all nodes that tell one."""
        call = Call("eth_blockNumber", [], C_CHAIN_PATHS, _decode_number, Origin.FOLLOWER, optional=True)
        return told_by(await self._pool.call_each(call), call.method)

    async def evm_chain_id(self) -> int:
        """Return the chain id of the C-Chain's EVM, of the first node that tells it."""
        call = Call("eth_chainId", [], C_CHAIN_PATHS, _decode_number, Origin.DAEMON, optional=True)
        return told_by(await self._pool.call_each(call), call.method)[0]

    async def blocks(self, first: int, count: int) -> tuple[EvmBlock | None, ...]:
        """Return `count` blocks from number `first` on, each None that the node does not have. Raises BatchRefused."""
        call = _blocks_call(first, count)
        try:
            found = await self._pool.call(call)
        except RpcRefusal as refusal:
            raise BatchRefused(refusal.text) from None
        for number, block in enumerate(found, first):
            if block is not None and block.number != number:
                raise NodeUnavailable(call.method)
        return found

    async def block_of_each(self, number: int) -> tuple[EvmBlock, ...]:
        """Return the different blocks that all nodes give for a number, in configured order."""
        answers = await self._pool.call_each(_blocks_call(number, 1))
        told = (answer.value[0] for answer in answers if answer.value is not None)
        return tuple(dict.fromkeys(block for block in told if block is not None and block.number == number))


def _blocks_call(first: int, count: int) -> Call[tuple[EvmBlock | None, ...]]:
    numbers: tuple[list[Any], ...] = tuple([hex(number), False] for number in range(first, first + count))
    paths, method = C_CHAIN_PATHS, "eth_getBlockByNumber"
    return Call(method, [], paths, _decode_blocks, Origin.FOLLOWER, large=True, batch=numbers)


class _Block(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    size: str
    transactions: list[msgspec.Raw]
    block_extra_data: str = "0x"


_BLOCKS: Final = msgspec.json.Decoder(list[_Block | None])


def _decode_number(result: bytes) -> int:
    return _quantity(msgspec.json.decode(result, type=str))


def _decode_blocks(result: bytes) -> tuple[EvmBlock | None, ...]:
    return tuple(None if told is None else _block(told) for told in _BLOCKS.decode(result))


def _block(told: _Block) -> EvmBlock:
    return EvmBlock(
        _quantity(told.number),
        _hash(told.hash),
        _hash(told.parent_hash),
        _quantity(told.timestamp),
        _quantity(told.size),
        len(told.transactions),
        _hex(told.block_extra_data),
    )


def _hash(text: str) -> bytes:
    raw = _hex(text)
    if len(raw) != _HASH_BYTES:
        raise ValueError("a hash has 32 bytes")
    return raw


def _quantity(text: str) -> int:
    if text[:2] != "0x" or not 3 <= len(text) <= 18:
        raise ValueError("no quantity")
    return int(text, 16)


def _hex(text: str) -> bytes:
    if text[:2] != "0x":
        raise ValueError("hex starts with 0x")
    return bytes.fromhex(text[2:])
