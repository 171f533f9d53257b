"""What subnet-evm nodes tell of their chain, derived where a node does not: from configuration, headers and calls.

Source of truth: avalanchego `graft/subnet-evm/internal/ethapi/api_extra.go`, `core/blockchain_reader.go`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from warpseal.evm_rpc.arguments import BlockRef, block_of, no_arguments, timestamp_of
from warpseal.evm_rpc.calls import SERVER_ERROR, RpcAnswer, RpcCall, RpcError, RpcFailure
from warpseal.evm_rpc.chain_config import ChainConfig
from warpseal.evm_rpc.methods import ACTIVE_RULES, CHAIN_CONFIG, FEE_CONFIG
from warpseal.evm_rpc.precompiles import FEE_FIELDS, shown_fees

FEE_MANAGER_ADDRESS: Final = "0x0200000000000000000000000000000000000003"
_GET_FEES: Final = "0x5fbbc0d2"
_GET_LAST_CHANGED: Final = "0x9e05549a"
_WORD_BYTES: Final = 32
_BAD_ANSWER: Final = RpcError(SERVER_ERROR, "the node's answer cannot be read")

Ask = Callable[[RpcCall], Awaitable[RpcAnswer]]
"""Asks the chain's nodes."""


class _Header(msgspec.Struct):
    number: str
    timestamp: str


async def derive(call: RpcCall, config: ChainConfig, ask: Ask) -> RpcAnswer:
    """Return the answer to one of the subnet-evm methods. What a node refuses on the way is the answer."""
    try:
        result = await _result(call, config, ask)
    except RpcFailure as failure:
        return RpcAnswer(error=failure.error, is_derived=True)
    except (ValueError, TypeError):
        return RpcAnswer(error=_BAD_ANSWER, is_derived=True)
    return RpcAnswer(msgspec.Raw(_encoded(result)), is_derived=True)


def with_last_changed(answer: RpcAnswer) -> RpcAnswer:
    """Return a node's answer to eth_feeConfig with `lastChangedAt`, 0 where the node left it out."""
    if answer.result is None or b'"lastChangedAt"' in bytes(answer.result):
        return answer
    try:
        told = msgspec.json.decode(answer.result, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return answer
    return RpcAnswer(msgspec.Raw(msgspec.json.encode({**told, "lastChangedAt": 0})))


async def _result(call: RpcCall, config: ChainConfig, ask: Ask) -> Mapping[str, Any]:
    if call.method == CHAIN_CONFIG:
        no_arguments(call.params)
        return config.shown()
    if call.method == FEE_CONFIG:
        return await _fees(block_of(call.params), config, ask)
    moment = timestamp_of(call.params)
    if moment is None:
        moment = _number((await _header(BlockRef(), ask)).timestamp)
    return config.rules_at(moment) if call.method == ACTIVE_RULES else config.precompiles_at(moment)


async def _fees(block: BlockRef, config: ChainConfig, ask: Ask) -> Mapping[str, Any]:
    header = await _header(block, ask)
    moment = _number(header.timestamp)
    if not config.has_begun(moment) or not config.has_fee_manager(moment):
        return {"feeConfig": config.fees(moment), "lastChangedAt": 0}
    words = await _call(_GET_FEES, header.number, len(FEE_FIELDS), ask)
    changed = await _call(_GET_LAST_CHANGED, header.number, 1, ask)
    fees = shown_fees(dict(zip(FEE_FIELDS, words, strict=True)))
    return {"feeConfig": fees, "lastChangedAt": changed[0]}


async def _header(block: BlockRef, ask: Ask) -> _Header:
    by_hash = block.hash is not None
    method = "eth_getBlockByHash" if by_hash else "eth_getBlockByNumber"
    told = await _told(ask, method, [block.hash or block.number, False])
    if told is None:
        missing = "header for hash not found" if by_hash else "cannot query unfinalized data"
        raise RpcFailure(RpcError(SERVER_ERROR, missing))
    return msgspec.convert(told, _Header)


async def _call(data: str, block: str, words: int, ask: Ask) -> list[int]:
    told = await _told(ask, "eth_call", [{"to": FEE_MANAGER_ADDRESS, "data": data}, block])
    raw = bytes.fromhex(str(told).removeprefix("0x"))
    if len(raw) != words * _WORD_BYTES:
        raise ValueError("not as many words as the fee manager tells")
    return [int.from_bytes(raw[at : at + _WORD_BYTES], "big") for at in range(0, len(raw), _WORD_BYTES)]


async def _told(ask: Ask, method: str, params: list[Any]) -> Any:
    answer = await ask(RpcCall(method, msgspec.Raw(msgspec.json.encode(params))))
    if answer.error is not None:
        raise RpcFailure(answer.error)
    return None if answer.result is None else msgspec.json.decode(answer.result)


def _encoded(result: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(result)
    except OverflowError:  # fees and chain ids may have more than 64 bits
        return json.dumps(result, separators=(",", ":")).encode()


def _number(text: str) -> int:
    return int(text, 16)
