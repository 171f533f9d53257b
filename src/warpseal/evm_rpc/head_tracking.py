"""How far a node is, as its answers tell: whoever has shown a block must not be followed by one without it.

Source of truth: the Ethereum JSON-RPC specification. Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from warpseal.evm_rpc.calls import RpcCall
from warpseal.evm_rpc.messages import quantity_of
from warpseal.evm_rpc.methods import BLOCK_NUMBER

HEADS: Final = frozenset(
    {
        BLOCK_NUMBER,
        "eth_getBlockByNumber",
        "eth_getBlockByHash",
        "eth_getHeaderByNumber",
        "eth_getTransactionByHash",
        "eth_getTransactionReceipt",
    }
)
"""Methods whose results name a block."""
_PENDING: Final = b'"pending"'


class _Shown(msgspec.Struct):
    number: str | None = None
    block_number: str | None = msgspec.field(name="blockNumber", default=None)


_RESULT: Final = msgspec.json.Decoder(str | _Shown | None)


def tells(call: RpcCall) -> bool:
    """Tell whether the answer to a call tells of a block that its node has. What is pending it has not yet."""
    return call.method in HEADS and (call.params is None or _PENDING not in bytes(call.params))


def head_in(result: msgspec.Raw | bytes) -> int | None:
    """Return the height in the result of a call that `tells`; None where there is none."""
    try:
        told = _RESULT.decode(result)
    except msgspec.MsgspecError:
        return None
    if isinstance(told, _Shown):
        told = told.number if told.number is not None else told.block_number
    return quantity_of(told)
