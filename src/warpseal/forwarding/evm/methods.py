"""Classes of RPC methods: reads, methods that are bound to one node, denied ones, and others.

Source of truth: the Ethereum JSON-RPC specification, and the methods that subnet-evm and coreth add
to it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from warpseal.upstream.json_values import height_or_none
from warpseal.upstream.jsonrpc import MALFORMED, RpcCall


class MethodClass(StrEnum):
    """The way in which a method is forwarded.

    READ: the call goes to any node, and to the next one if that fails.
    MAKE_FILTER: the result is an id that only the node knows.
    USE_FILTER: such an id is the argument.
    SUBSCRIBE: the call is for WebSockets, each client of which has a node of its own.
    WRITE: the call is never sent twice; every unknown method is a write.
    """

    READ = "read"
    MAKE_FILTER = "make_filter"
    USE_FILTER = "use_filter"
    SUBSCRIBE = "subscribe"
    WRITE = "write"


FEE_CONFIG: Final = "eth_feeConfig"
CHAIN_CONFIG: Final = "eth_getChainConfig"
ACTIVE_PRECOMPILES: Final = "eth_getActivePrecompilesAt"
ACTIVE_RULES: Final = "eth_getActiveRulesAt"
SUBNET_EVM: Final = frozenset({FEE_CONFIG, CHAIN_CONFIG, ACTIVE_PRECOMPILES, ACTIVE_RULES})
"""Methods that the daemon answers itself if the node does not have them."""
TIMESTAMPED: Final = frozenset({ACTIVE_PRECOMPILES, ACTIVE_RULES})
"""Methods whose only argument is a timestamp."""
BLOCK_NUMBER: Final = "eth_blockNumber"
HEAD_METHODS: Final = frozenset(
    {
        BLOCK_NUMBER,
        "eth_getBlockByNumber",
        "eth_getBlockByHash",
        "eth_getHeaderByNumber",
        "eth_getTransactionByHash",
        "eth_getTransactionReceipt",
    }
)
"""Methods whose results name a block that the node has."""
_PENDING: Final = b'"pending"'

_MAKE_FILTER: Final = frozenset(
    {"eth_newFilter", "eth_newBlockFilter", "eth_newPendingTransactionFilter"}
)
_USE_FILTER: Final = frozenset({"eth_getFilterChanges", "eth_getFilterLogs", "eth_uninstallFilter"})
_READ: Final = SUBNET_EVM | {
    "eth_accounts", "eth_baseFee", "eth_blobBaseFee", "eth_blockNumber", "eth_call",
    "eth_callDetailed", "eth_chainId", "eth_coinbase", "eth_createAccessList", "eth_estimateGas",
    "eth_feeHistory", "eth_gasPrice", "eth_getBadBlocks", "eth_getBalance", "eth_getBlockByHash",
    "eth_getBlockByNumber", "eth_getBlockReceipts", "eth_getBlockTransactionCountByHash",
    "eth_getBlockTransactionCountByNumber", "eth_getCode", "eth_getHeaderByHash",
    "eth_getHeaderByNumber", "eth_getLogs", "eth_getProof",
    "eth_getRawTransactionByBlockHashAndIndex", "eth_getRawTransactionByBlockNumberAndIndex",
    "eth_getRawTransactionByHash", "eth_getStorageAt", "eth_getTransactionByBlockHashAndIndex",
    "eth_getTransactionByBlockNumberAndIndex", "eth_getTransactionByHash",
    "eth_getTransactionCount", "eth_getTransactionReceipt", "eth_getUncleByBlockHashAndIndex",
    "eth_getUncleByBlockNumberAndIndex", "eth_getUncleCountByBlockHash",
    "eth_getUncleCountByBlockNumber", "eth_hashrate", "eth_maxPriorityFeePerGas", "eth_mining",
    "eth_pendingTransactions", "eth_protocolVersion", "eth_simulateV1", "eth_suggestPriceOptions",
    "eth_syncing", "net_listening", "net_peerCount", "net_version", "rpc_modules",
    "txpool_content", "txpool_contentFrom", "txpool_inspect", "txpool_status",
    "warp_getBlockAggregateSignature", "warp_getBlockSignature", "warp_getMessage",
    "warp_getMessageAggregateSignature", "warp_getMessageSignature", "web3_clientVersion",
    "web3_sha3",
}  # fmt: skip


PLAIN_READS: Final = _READ - SUBNET_EVM
"""Methods whose calls and responses pass unchanged, any number of times."""
_CLASSES: Final = (
    dict.fromkeys(_READ, MethodClass.READ)
    | dict.fromkeys(_MAKE_FILTER, MethodClass.MAKE_FILTER)
    | dict.fromkeys(_USE_FILTER, MethodClass.USE_FILTER)
    | dict.fromkeys(("eth_subscribe", "eth_unsubscribe"), MethodClass.SUBSCRIBE)
)


_WRITE: Final = frozenset(
    {
        "debug_accountRange", "debug_getAccessibleState", "debug_getBadBlocks",
        "debug_getRawBlock", "debug_getRawHeader", "debug_getRawReceipts",
        "debug_getRawTransaction", "debug_storageRangeAt", "debug_traceBlock",
        "debug_traceBlockByHash", "debug_traceBlockByNumber", "debug_traceCall",
        "debug_traceTransaction", "eth_fillTransaction", "eth_resend", "eth_sendRawTransaction",
        "eth_sendTransaction", "eth_sign", "eth_signTransaction", "eth_signTypedData_v4",
    }
)  # fmt: skip
KNOWN_METHODS: Final = frozenset(_CLASSES) | _WRITE
"""Methods that have labels of their own in usage."""


def class_of(method: str) -> MethodClass:
    """Return how a method is forwarded."""
    return _CLASSES.get(method, MethodClass.WRITE)


class _NamesBlock(msgspec.Struct):
    number: str | None = None
    block_number: str | None = msgspec.field(name="blockNumber", default=None)


_HEAD_RESULT: Final = msgspec.json.Decoder(str | _NamesBlock | None)


def reveals_head(call: RpcCall) -> bool:
    """Return whether the response to a call names a block that its node has.

    A node does not have a pending block yet.
    """
    if call.method not in HEAD_METHODS:
        return False
    return call.params is None or _PENDING not in bytes(call.params)


def head_in(result: msgspec.Raw | bytes) -> int | None:
    """Return the height in the result of a call that reveals a head; None if there is none."""
    try:
        block = _HEAD_RESULT.decode(result)
    except MALFORMED:
        return None
    if isinstance(block, _NamesBlock):
        block = block.number if block.number is not None else block.block_number
    return height_or_none(block)


class DenyList:
    """Methods that are answered as if they did not exist, without asking a node."""

    def __init__(self, patterns: Iterable[str]) -> None:
        listed = [pattern.lower() for pattern in patterns]
        self._exact = frozenset(pattern for pattern in listed if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in listed if pattern.endswith("*"))

    def denies(self, method: str) -> bool:
        """Return whether callers may not use a method."""
        method = method.lower()
        return method in self._exact or method.startswith(self._prefixes)
