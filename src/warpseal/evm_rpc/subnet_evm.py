"""Answers to the subnet-evm methods, derived from configuration, headers and calls if a node does not have them.

Source of truth: avalanchego `graft/subnet-evm/internal/ethapi/api_extra.go`, `core/blockchain_reader.go`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from warpseal.evm_rpc.arguments import BlockRef, RpcFailure, check_no_arguments, parse_block, parse_timestamp
from warpseal.evm_rpc.chain_config import ChainConfig
from warpseal.evm_rpc.methods import ACTIVE_RULES, CHAIN_CONFIG, FEE_CONFIG
from warpseal.evm_rpc.precompiles import FEE_FIELDS, fees_as_json
from warpseal.node.jsonrpc import SERVER_ERROR, UNREADABLE, RpcCall, RpcError, RpcResponse

FEE_MANAGER_ADDRESS: Final = "0x0200000000000000000000000000000000000003"
_GET_FEES: Final = "0x5fbbc0d2"
_GET_LAST_CHANGED: Final = "0x9e05549a"
_WORD_BYTES: Final = 32

CallNode = Callable[[RpcCall], Awaitable[RpcResponse]]
"""Calls the chain's nodes."""


class _Header(msgspec.Struct):
    number: str
    timestamp: str


async def derive(call: RpcCall, config: ChainConfig, call_node: CallNode) -> RpcResponse:
    """Return the answer to one of the subnet-evm methods. An error of a node on the way becomes the answer."""
    try:
        result = await _derive_result(call, config, call_node)
    except RpcFailure as failure:
        return RpcResponse(error=failure.error, is_derived=True)
    except (ValueError, TypeError):
        return RpcResponse(error=UNREADABLE.error, is_derived=True)
    return RpcResponse(msgspec.Raw(_encode(result)), is_derived=True)


def with_last_changed(response: RpcResponse) -> RpcResponse:
    """Return a node's response to eth_feeConfig with `lastChangedAt`, 0 if the node left it out."""
    if response.result is None or b'"lastChangedAt"' in bytes(response.result):
        return response
    try:
        fields = msgspec.json.decode(response.result, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return response
    return RpcResponse(msgspec.Raw(msgspec.json.encode({**fields, "lastChangedAt": 0})))


async def _derive_result(call: RpcCall, config: ChainConfig, call_node: CallNode) -> Mapping[str, Any]:
    if call.method == CHAIN_CONFIG:
        check_no_arguments(call.params)
        return config.as_json()
    if call.method == FEE_CONFIG:
        return await _fee_config(parse_block(call.params), config, call_node)
    moment = parse_timestamp(call.params)
    if moment is None:
        moment = _number((await _get_header(BlockRef(), call_node)).timestamp)
    return config.rules_at(moment) if call.method == ACTIVE_RULES else config.precompiles_at(moment)


async def _fee_config(block: BlockRef, config: ChainConfig, call_node: CallNode) -> Mapping[str, Any]:
    header = await _get_header(block, call_node)
    moment = _number(header.timestamp)
    if not config.is_active(moment) or not config.has_fee_manager(moment):
        return {"feeConfig": config.fees(moment), "lastChangedAt": 0}
    words = await _eth_call(_GET_FEES, header.number, len(FEE_FIELDS), call_node)
    changed = await _eth_call(_GET_LAST_CHANGED, header.number, 1, call_node)
    fees = fees_as_json(dict(zip(FEE_FIELDS, words, strict=True)))
    return {"feeConfig": fees, "lastChangedAt": changed[0]}


async def _get_header(block: BlockRef, call_node: CallNode) -> _Header:
    by_hash = block.hash is not None
    method = "eth_getBlockByHash" if by_hash else "eth_getBlockByNumber"
    block_object = await _result_of(call_node, method, [block.hash or block.number, False])
    if block_object is None:
        missing = "header for hash not found" if by_hash else "cannot query unfinalized data"
        raise RpcFailure(RpcError(SERVER_ERROR, missing))
    return msgspec.convert(block_object, _Header)


async def _eth_call(data: str, block: str, words: int, call_node: CallNode) -> list[int]:
    output = await _result_of(call_node, "eth_call", [{"to": FEE_MANAGER_ADDRESS, "data": data}, block])
    raw = bytes.fromhex(str(output).removeprefix("0x"))
    if len(raw) != words * _WORD_BYTES:
        raise ValueError("the fee manager returned another number of words")
    return [int.from_bytes(raw[at : at + _WORD_BYTES], "big") for at in range(0, len(raw), _WORD_BYTES)]


async def _result_of(call_node: CallNode, method: str, params: list[Any]) -> Any:
    response = await call_node(RpcCall(method, msgspec.Raw(msgspec.json.encode(params))))
    if response.error is not None:
        raise RpcFailure(response.error)
    return None if response.result is None else msgspec.json.decode(response.result)


def _encode(result: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(result)
    except OverflowError:  # Fees and chain ids may have more than 64 bits
        return json.dumps(result, separators=(",", ":")).encode()


def _number(text: str) -> int:
    return int(text, 16)
