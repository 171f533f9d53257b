"""Blocks of an EVM chain with their receipts, read from one node.

Receipts are read by eth_getBlockReceipts, or one by one.

What a node lacks is never taken for empty. Source of truth: avalanchego
`graft/coreth/internal/ethapi`, `graft/coreth/eth` ("cannot query unfinalized data", "receipts
length mismatch").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from warpseal.chains.evm.blocks import (
    EvmHeader,
    EvmReceipt,
    MalformedBlock,
    RawJson,
    decode_block,
    decode_receipt,
    decode_receipts,
)
from warpseal.chains.evm.contract_calls import MAX_CALL_GAS
from warpseal.upstream.jsonrpc import (
    NULL,
    UNREADABLE,
    RpcCall,
    RpcResponse,
    is_unknown_method,
    rpc_call,
)

BLOCK: Final = "eth_getBlockByNumber"
BLOCK_RECEIPTS: Final = "eth_getBlockReceipts"
RECEIPT: Final = "eth_getTransactionReceipt"
_MAX_TRANSACTIONS: Final = 1 << 16
_MAX_REPLY: Final = 1_000

CallNode = Callable[[Sequence[RpcCall]], Awaitable[list[RpcResponse]]]
"""Returns the responses of one node to calls of one method, in their order. Raises CallFailure."""


class NotHere(Exception):
    """The node lacks a block or its receipts.

    reply: reply of the node in their place, as it came.
    """

    def __init__(self, reply: str = "null") -> None:
        super().__init__(reply)
        self.reply = reply


class RawReceipts(NamedTuple):
    """The receipts of a block as a node returned them.

    is_whole: true if one response has all receipts; else there is a response for each transaction.
    """

    responses: tuple[RpcResponse, ...] = ()
    is_whole: bool = False

    def decode(self) -> tuple[EvmReceipt, ...] | None:
        """Return the receipts; None if the node lacks one. Raises MalformedBlock."""
        # All responses are read first: one that is malformed counts more than one that is missing.
        results = [result_of(response) for response in self.responses]
        documents = [result for result in results if result is not None]
        if len(documents) < len(results):
            return None
        if self.is_whole:
            return decode_receipts(documents[0])
        decoded = [decode_receipt(document) for document in documents]
        receipts = tuple(receipt for receipt in decoded if receipt is not None)
        return receipts if len(receipts) == len(decoded) else None

    def lack(self) -> NotHere:
        """Return the error for receipts that the node lacks."""
        method = BLOCK_RECEIPTS if self.is_whole else RECEIPT
        for response in self.responses:
            if _is_empty(response):
                return lack_of(method, response)
        return NotHere(method)

    def to_json(self) -> RawJson:
        """Return the list of the receipts as JSON; the node lacks none."""
        results = [result for response in self.responses if (result := response.result) is not None]
        return results[0] if self.is_whole else b"[%b]" % b",".join(map(bytes, results))


NO_RECEIPTS: Final = RawReceipts()
"""The receipts of a block without transactions."""


async def read_receipts(
    call_node: CallNode, headers: Sequence[EvmHeader], missing_methods: MutableMapping[str, bool]
) -> dict[int, RawReceipts]:
    """Return the receipts of blocks with transactions, by their place in `headers`.

    missing_methods: methods that the node lacks; a method that it turns out to lack is added.
    Raises CallFailure.
    """
    places = [place for place, header in enumerate(headers) if header.transactions]
    if not places:
        return {}
    if BLOCK_RECEIPTS not in missing_methods:
        calls = [rpc_call(BLOCK_RECEIPTS, headers[place].number) for place in places]
        responses = await call_node(calls)
        if not any(is_unknown_method(response, BLOCK_RECEIPTS) for response in responses):
            receipts = [RawReceipts((response,), True) for response in responses]
            return dict(zip(places, receipts, strict=True))
        missing_methods[BLOCK_RECEIPTS] = True
    return await read_single_receipts(call_node, headers)


async def read_single_receipts(
    call_node: CallNode, headers: Sequence[EvmHeader]
) -> dict[int, RawReceipts]:
    """Return the receipts of blocks as `read_receipts` does, by a call for each transaction.

    Raises CallFailure.
    """
    calls: list[RpcCall] = []
    for header in headers:
        calls += [rpc_call(RECEIPT, tx_hash) for tx_hash in header.transactions]
    responses = iter(await call_node(calls))
    receipts: dict[int, RawReceipts] = {}
    for place, header in enumerate(headers):
        if header.transactions:
            receipts[place] = RawReceipts(tuple(islice(responses, len(header.transactions))))
    return receipts


def decode_headers(responses: Iterable[RpcResponse]) -> tuple[list[EvmHeader], Exception | None]:
    """Return the blocks before the first one that is missing or malformed, and its error."""
    headers: list[EvmHeader] = []
    for response in responses:
        try:
            result = result_of(response)
            header = None if result is None else decode_block(result)
            if header is not None and len(header.transactions) > _MAX_TRANSACTIONS:
                raise MalformedBlock(f"more than {_MAX_TRANSACTIONS} transactions")
        except MalformedBlock as error:
            return headers, error
        if header is None:
            return headers, lack_of(BLOCK, response)
        headers.append(header)
    return headers, None


def lack_of(method: str, response: RpcResponse) -> NotHere:
    """Return the error for a response without what was asked for."""
    error = response.error
    if error is None:
        return NotHere(f"{method}: null")
    return NotHere(f"{method}: {error.message[:_MAX_REPLY]} ({error.code})")


def _is_empty(response: RpcResponse) -> bool:
    return response.result is None or bytes(response.result) == bytes(NULL)


def result_of(response: RpcResponse) -> msgspec.Raw | None:
    """Return the result of a response; None if the node lacks it. Raises MalformedBlock."""
    if response is UNREADABLE:
        raise MalformedBlock("the reply of the node is no JSON-RPC response")
    return response.result


def result_bytes(responses: Iterable[RpcResponse]) -> int:
    """Return the size of the results of responses."""
    results = (response.result for response in responses if response.result is not None)
    return sum(memoryview(result).nbytes for result in results)


def contract_call(to: bytes, data: bytes, block: str = "latest") -> RpcCall:
    """Return an eth_call without value, of the zero address, with bounded gas.

    data: selector and arguments.
    """
    call = {"to": "0x" + to.hex(), "data": "0x" + data.hex(), "gas": hex(MAX_CALL_GAS)}
    return rpc_call("eth_call", call, block)
