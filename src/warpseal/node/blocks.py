"""Accepted blocks and transactions of the primary chains from nodes, for follower and indexer.

Source of truth: avalanchego `vms/platformvm/service.go`, `vms/avm/service.go`,
`graft/coreth/internal/ethapi`, `graft/coreth/plugin/evm/customtypes`, `indexer/service.go`. The
bytes of blocks are not verified. Every method raises NodeUnavailable if no node answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final

import msgspec

from warpseal.node.containers import CChainBlock, Container
from warpseal.node.info import InfoClient
from warpseal.node.p_chain import P_CHAIN_PATHS, decode_height, decode_tx
from warpseal.upstream.agreement import NodeAgreement
from warpseal.upstream.errors import (
    CallFailure,
    NodeFailure,
    NodeUnavailable,
    NotFoundByNode,
    RpcRefusal,
)
from warpseal.upstream.json_values import (
    block_height,
    date_s,
    decode_block_number,
    decode_checked_hex,
    decode_hex,
    decode_number,
    decode_quantity,
    field_decoder,
    list_decoder,
    unix_s,
)
from warpseal.upstream.limits import CallOrigin, NodeLimits
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool, PoolNode
from warpseal.warp.ids import id_text

X_CHAIN_PATHS: Final = ("/ext/bc/X",)
C_CHAIN_PATHS: Final = ("/ext/bc/C/rpc",)
MAX_CONTAINERS: Final = 1024
_HASH_BYTES: Final = 32
_NOT_SERVED: Final = (403, 404, 405)


class BlocksClient:
    """Accepted blocks of one chain, within the follower's limits and pauses of each node.

    height_call: call for the height of the last block.
    block_call: function that returns the call for the block at a height.
    max_concurrency, max_calls_per_s: the follower's limits, by which it sets its own pace.
    """

    def __init__(
        self,
        pool: NodePool[int],
        limits: NodeLimits,
        height_call: NodeCall[int],
        block_call: Callable[[int], NodeCall[bytes]],
    ) -> None:
        self._pool = pool
        self._height_call = height_call
        self._block_call = block_call
        self.max_concurrency = limits.background_in_flight
        self.max_calls_per_s = limits.background_per_s

    async def tip(self) -> int:
        """Return the height of the last accepted block of the first node in service."""
        return await self._pool.require(self._height_call)

    async def tips(self) -> tuple[int, ...]:
        """Return the heights of all nodes that answer, in configured order."""
        return await self._pool.values(self._height_call)

    async def block_at(self, height: int) -> bytes:
        """Return the accepted block at `height` from the first node in service."""
        return await self._pool.require(self._block_call(height))

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the distinct blocks that the nodes return for a height, in configured order."""
        return await self._pool.distinct(self._block_call(height))


class PBlocksClient(BlocksClient):
    """P-Chain blocks. A reply longer than the settings' `max_answer_bytes` counts as a failure."""

    def __init__(
        self, pool: NodePool[int], limits: NodeLimits, info: InfoClient, agreement: NodeAgreement
    ) -> None:
        super().__init__(pool, limits, _P_HEIGHT, _p_block)
        self._info = info
        self._agreement = agreement

    @property
    def must_agree(self) -> bool:
        """Whether several nodes must agree, so that `agreed_block_at` says more than `block_at`."""
        return self._agreement.quorum > 1

    async def agreed_block_at(self, height: int) -> bytes:
        """Return the accepted block at `height` from the nodes that must agree.

        Raises NodesDisagree.
        """
        try:
            return await self._agreement.call(self._block_call(height))
        except RpcRefusal as refusal:
            replies = refusal.replies or (str(refusal),)
            raise NodeUnavailable("platform.getBlockByHeight", replies=replies) from None

    async def tip(self) -> int:
        """Return the highest height that the nodes that must agree have reached."""
        if self.must_agree:
            return await self._agreement.height(self._height_call)
        return await super().tip()

    async def tips(self) -> tuple[int, ...]:
        """Return the heights of all nodes; only the agreed height if nodes must agree."""
        if self.must_agree:
            return (await self.tip(),)
        return await super().tips()

    async def upgrades(self) -> Mapping[str, int]:
        """Return the activation times of the network's upgrades, as far as they are known."""
        return await self._info.upgrades()


class XChainClient(BlocksClient):
    """X-Chain calls. A gateway that does not serve the X-Chain does not count as failed."""

    def __init__(self, pool: NodePool[int], limits: NodeLimits) -> None:
        super().__init__(pool, limits, _X_HEIGHT, _x_block)

    async def transaction(
        self, tx_id: bytes, origin: CallOrigin = CallOrigin.CALLER
    ) -> bytes | None:
        """Return the signed bytes of an accepted transaction; None if no node returns it."""
        call = NodeCall(
            "avm.getTx",
            {"txID": id_text(tx_id), "encoding": "hex"},
            X_CHAIN_PATHS,
            partial(decode_tx, tx_id),
            origin,
            large=True,
            optional=True,
        )
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            return None


class CBlocksClient:
    """C-Chain blocks by batch, and its heights."""

    def __init__(self, pool: NodePool[int]) -> None:
        self._pool = pool

    async def tips(self) -> tuple[int, ...]:
        """Return the numbers of the last accepted blocks of all nodes that reply."""
        return await self._pool.values(_C_HEIGHT)

    async def evm_chain_id(self) -> int:
        """Return the chain id of the C-Chain's EVM, from the first node that answers."""
        return (await self._pool.values(_C_CHAIN_ID))[0]

    async def blocks(self, first: int, count: int) -> tuple[CChainBlock | None, ...]:
        """Return `count` blocks from number `first` on, of the first node that has the first one.

        None stands for a block that this node lacks, and for all of them if no node has the first.
        Nodes may return fewer at a time than they are asked for: then all calls fail.
        """
        call = _c_blocks(first, count)

        async def attempt(node: PoolNode) -> tuple[CChainBlock | None, ...]:
            try:
                blocks = await node.call(call)
            except NotFoundByNode:
                return (None,) * count
            for number, block in enumerate(blocks, first):
                if block is not None and block.number != number:
                    detail = f"block {block.number} in place of {number}"
                    raise CallFailure(NodeFailure.BAD_ANSWER, detail)
            return blocks

        # A node may have pruned the blocks, or lag: what it lacks is not missing at other nodes.
        results = await self._pool.try_each(
            call.method, attempt, lambda blocks: blocks[0] is not None, call.origin
        )
        return results[-1]

    async def block_of_each(self, number: int) -> tuple[CChainBlock, ...]:
        """Return the distinct blocks that the nodes return for a number, in configured order."""
        blocks = [batch[0] for batch in await self._pool.distinct(_c_blocks(number, 1))]
        return tuple(block for block in blocks if block is not None and block.number == number)

    async def describe_lack(self, number: int) -> tuple[str, ...]:
        """Return the reply of each node that lacks a block, for operators."""
        call = _c_blocks(number, 1)
        replies: list[str] = []
        for result in await self._pool.call_all(call):
            if result.value is None or result.value[0] is None:
                null_reply = f"node {result.position}: {call.method} {number}: null"
                replies.append(result.reply or null_reply)
        return tuple(replies)


class Stream(StrEnum):
    """A sequence of the index API.

    X_TXS: transactions accepted before the X-Chain was linearized.
    """

    P_BLOCKS = "P/block"
    X_BLOCKS = "X/block"
    X_TXS = "X/tx"


class ContainersClient:
    """Blocks with the proposervm's wrapping.

    Few nodes have the index API: it must be enabled before they bootstrap.
    """

    def __init__(self, pool: NodePool[int]) -> None:
        self._pool = pool

    async def range(self, stream: Stream, first: int, count: int) -> tuple[Container, ...] | None:
        """Return containers from index `first` on; None if no node has them.

        count: largest number of containers, at most 1,024.
        """
        call = NodeCall(
            "index.getContainerRange",
            {"startIndex": str(first), "numToFetch": str(count), "encoding": "hex"},
            (f"/ext/index/{stream}",),
            _decode_containers,
            CallOrigin.FOLLOWER,
            large=True,
            optional=True,
        )

        async def attempt(node: PoolNode) -> tuple[Container, ...] | None:
            try:
                return await node.call(call)
            except RpcRefusal:
                return None
            except CallFailure as error:
                if error.status not in _NOT_SERVED:
                    raise
                return None

        def is_final(containers: tuple[Container, ...] | None) -> bool:
            return containers is not None

        results = await self._pool.try_each(call.method, attempt, is_final, call.origin)
        return results[-1]


def _p_block(height: int) -> NodeCall[bytes]:
    params = {"height": str(height), "encoding": "hex"}
    return NodeCall(
        "platform.getBlockByHeight", params, P_CHAIN_PATHS, _decode_p_block, CallOrigin.FOLLOWER
    )


def _x_block(height: int) -> NodeCall[bytes]:
    params = {"height": str(height), "encoding": "hex"}
    return NodeCall(
        "avm.getBlockByHeight",
        params,
        X_CHAIN_PATHS,
        _decode_x_block,
        CallOrigin.FOLLOWER,
        large=True,
    )


def _c_blocks(first: int, count: int) -> NodeCall[tuple[CChainBlock | None, ...]]:
    params: list[list[Any]] = [[hex(number), False] for number in range(first, first + count)]
    return NodeCall(
        "eth_getBlockByNumber",
        [],
        C_CHAIN_PATHS,
        _decode_c_blocks,
        CallOrigin.FOLLOWER,
        large=True,
        batch=tuple(params),
    )


class _PBlock(msgspec.Struct):
    block: str
    encoding: str = "hex"


class _CBlock(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    size: str
    transactions: list[msgspec.Raw]
    block_extra_data: str = "0x"


class _Container(msgspec.Struct):
    bytes: str
    timestamp: datetime
    index: int | str


_P_BLOCK: Final = msgspec.json.Decoder(_PBlock)
_C_BLOCKS: Final = msgspec.json.Decoder(list[_CBlock | None])


def _decode_p_block(result: bytes) -> bytes:
    reply = _P_BLOCK.decode(result)
    if reply.encoding != "hex":
        raise ValueError("the block is not in the encoding that was asked for")
    return decode_checked_hex(reply.block)


def _decode_c_blocks(result: bytes) -> tuple[CChainBlock | None, ...]:
    return tuple(None if block is None else _evm_block(block) for block in _C_BLOCKS.decode(result))


def _evm_block(block: _CBlock) -> CChainBlock:
    return CChainBlock(
        block_height(decode_quantity(block.number)),
        _hash(block.hash),
        _hash(block.parent_hash),
        unix_s(decode_quantity(block.timestamp)),
        decode_quantity(block.size),
        len(block.transactions),
        decode_hex(block.block_extra_data),
    )


def _hash(text: str) -> bytes:
    raw = decode_hex(text)
    if len(raw) != _HASH_BYTES:
        raise ValueError("a hash has 32 bytes")
    return raw


def _container(entry: _Container) -> Container:
    return Container(
        block_height(entry.index), decode_checked_hex(entry.bytes), date_s(entry.timestamp)
    )


_decode_x_block: Final = field_decoder("block", str, decode_checked_hex)
_decode_containers: Final = list_decoder("containers", _Container, _container)
_P_HEIGHT: Final = NodeCall(
    "platform.getHeight", {}, P_CHAIN_PATHS, decode_height, CallOrigin.FOLLOWER
)
_X_HEIGHT: Final = NodeCall(
    "avm.getHeight", {}, X_CHAIN_PATHS, decode_height, CallOrigin.FOLLOWER, optional=True
)
_C_HEIGHT: Final = NodeCall(
    "eth_blockNumber", [], C_CHAIN_PATHS, decode_block_number, CallOrigin.FOLLOWER, optional=True
)
_C_CHAIN_ID: Final = NodeCall(
    "eth_chainId", [], C_CHAIN_PATHS, decode_number, CallOrigin.DAEMON, optional=True
)
