"""Calls to the RPC API of a chain: its configuration, the time of its last block, and a call of a contract.

Source of truth: avalanchego `graft/subnet-evm/internal/ethapi/api_extra.go`; the Ethereum JSON-RPC specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from warpseal.errors import CallRefused
from warpseal.node.chain_nodes import ChainApiNodes
from warpseal.node.rpc import NodeCall
from warpseal.upstream.errors import CallFailure, MethodMissing, NodeAttempt, NodeFailure, NodeUnavailable, RpcRefusal
from warpseal.upstream.json_values import decode_hex, decode_quantity, field_decoder
from warpseal.warp.ids import ChainID

T = TypeVar("T")

_LATEST: Final = "latest"
_NOT_SERVED: Final = frozenset({404, 405})


class ChainRpcClient:
    """eth_* calls to the nodes of a chain.

    Every method returns None if all nodes answer that they do not have the method, or do not run the chain; if one of
    them fails, it may have it. Every method raises NodeUnavailable.
    """

    def __init__(self, nodes: ChainApiNodes) -> None:
        self._nodes = nodes

    async def chain_config(self, chain_id: ChainID, decode: Callable[[bytes], T]) -> T | None:
        """Return the configuration of a chain, decoded from its JSON; `decode` raises ValueError."""
        return await self._call(chain_id, "eth_getChainConfig", [], decode)

    async def latest_block_time_s(self, chain_id: ChainID) -> int | None:
        """Return the time of the last accepted block, Unix seconds."""
        return await self._call(chain_id, "eth_getBlockByNumber", [_LATEST, False], _decode_block_time)

    async def eth_call(self, chain_id: ChainID, transaction: Mapping[str, Any]) -> bytes | None:
        """Return the result of a call at the last accepted block. Raises CallRefused with a node's message and data.

        transaction: from, to, data, gas, in the spelling of the Ethereum JSON-RPC.
        """
        params = [dict(transaction), _LATEST]
        return await self._call(chain_id, "eth_call", params, _decode_bytes, is_refusal_final=True)

    async def _call(
        self,
        chain_id: ChainID,
        method: str,
        params: list[Any],
        decode: Callable[[bytes], T],
        *,
        is_refusal_final: bool = False,
    ) -> T | None:
        """Return the first usable result. is_refusal_final: the first refusal is raised as CallRefused."""
        attempts: list[NodeAttempt] = []
        has_failed = False
        for pool, paths in self._nodes.of(chain_id):
            call = NodeCall(method, params, paths, decode, optional=True)
            try:
                nodes = await pool.candidates(call.origin)
            except NodeUnavailable as error:
                attempts += error.attempts
                has_failed = True
                continue
            for node in nodes:
                try:
                    result = await node.call(call)
                except MethodMissing:
                    continue
                except RpcRefusal as refusal:
                    if is_refusal_final:
                        raise CallRefused(refusal.text, refusal.data) from None
                    attempts.append(NodeAttempt(node.position, NodeFailure.BAD_ANSWER))
                except CallFailure as error:
                    if error.status not in _NOT_SERVED:
                        attempts.append(NodeAttempt(node.position, error.failure))
                else:
                    self._nodes.prefer(chain_id, pool)
                    return result
        if has_failed or attempts:
            raise NodeUnavailable(method, attempts)
        return None


_decode_block_time: Final = field_decoder("timestamp", str, decode_quantity)
_HEX: Final = msgspec.json.Decoder(str)


def _decode_bytes(result: bytes) -> bytes:
    return decode_hex(_HEX.decode(result))
