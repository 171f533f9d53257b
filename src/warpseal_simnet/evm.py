"""The `/rpc` API of simulated EVM chains: chain ID, blocks, and logs of sent Warp messages.

Source of truth: the Ethereum JSON-RPC as geth-based nodes speak it (errors as recorded),
avalanchego warp precompile (the SendWarpMessage event).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from warpseal_simnet.state import SimState
from warpseal_simnet.teleporter import MESSENGER
from warpseal_simnet.values import SentMessage, SimChain
from warpseal_simnet.warp_config import chain_config

SEND_WARP_MESSAGE: Final = "0x56600c567728a800c0aa927500f831cb451df66a7af570eb4df4dfbf4674887d"
PRECOMPILE: Final = "0x0200000000000000000000000000000000000005"
# Every message has a block of its own, followed by empty ones.
_BLOCKS_PER_MESSAGE: Final = 10
_WORD_BYTES: Final = 32
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_UNKNOWN_METHOD: Final = -32601
_INVALID_PARAMS: Final = -32602
_SERVER_ERROR: Final = -32000
_TAGS: Final = ("latest", "accepted", "finalized", "safe")


class EvmError(Exception):
    """An error response of the chain."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class EvmChain:
    """The JSON-RPC handler of an EVM chain."""

    def __init__(self, state: SimState, chain: SimChain) -> None:
        self._state = state
        self._chain = chain
        self._proposer = state.proposervm[chain.chain_id]
        self._methods: Mapping[str, tuple[int, Callable[..., Any]]] = {
            "eth_chainId": (0, lambda: hex(chain.evm_chain_id)),
            "eth_getChainConfig": (
                0,
                lambda: chain_config(chain, state.warp[chain.chain_id], state.upgrades),
            ),
            "net_version": (0, lambda: str(chain.evm_chain_id)),
            "eth_blockNumber": (0, lambda: hex(self._height)),
            "eth_getBlockByNumber": (2, self._block_by_number),
            "eth_getLogs": (1, self._logs),
            "eth_call": (2, self._eth_call),
        }

    def respond(self, body: bytes) -> tuple[str, bytes]:
        """Return the method (empty if there is none) and the response to a request or a batch."""
        try:
            request = json.loads(body)
        except ValueError:
            return "", _packed(_error(None, EvmError(_PARSE_ERROR, "parse error")))
        if isinstance(request, list):
            if not request:
                return "", _packed(_error(None, EvmError(_INVALID_REQUEST, "empty batch")))
            return _name(request[0]), _packed([self._handle(call) for call in request])
        return _name(request), _packed(self._handle(request))

    @property
    def _height(self) -> int:
        return _BLOCKS_PER_MESSAGE * (len(self._sent_messages) + 1)

    @property
    def _sent_messages(self) -> list[SentMessage]:
        return self._state.sent_messages.get(self._chain.chain_id, [])

    def _handle(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or not _name(request):
            return _error(None, EvmError(_INVALID_REQUEST, "invalid request"))
        call_id = request.get("id")
        try:
            result = self._call(request["method"], request.get("params") or [])
        except EvmError as error:
            return _error(call_id, error)
        return {"jsonrpc": "2.0", "id": call_id, "result": result}

    def _call(self, name: str, params: Any) -> Any:
        if name not in self._methods:
            raise EvmError(_UNKNOWN_METHOD, f"the method {name} does not exist/is not available")
        if not isinstance(params, list):
            raise EvmError(_INVALID_PARAMS, "non-array args")
        parameter_count, method = self._methods[name]
        if len(params) > parameter_count:
            raise EvmError(_INVALID_PARAMS, f"too many arguments, want at most {parameter_count}")
        if len(params) < parameter_count:
            raise EvmError(_INVALID_PARAMS, f"missing value for required argument {len(params)}")
        return method(*params)

    def _logs(self, query: Any) -> list[dict[str, Any]]:
        if not isinstance(query, dict):
            raise EvmError(_INVALID_PARAMS, "invalid argument 0: json: cannot unmarshal")
        first, last = self._block(query.get("fromBlock")), self._block(query.get("toBlock"))
        if first > last:
            raise EvmError(_SERVER_ERROR, "invalid block range params")
        logs = (_log(place, message) for place, message in enumerate(self._sent_messages, start=1))
        return [
            log
            for log in logs
            if first <= int(log["blockNumber"], 16) <= last and _matches(log, query)
        ]

    def _eth_call(self, call: Any, _block: Any) -> str:
        """Return the result of a call of the messenger, the only contract that answers."""
        try:
            contract, data = (bytes.fromhex(call.get(name, "0x")[2:]) for name in ("to", "data"))
        except (AttributeError, TypeError, ValueError):
            raise EvmError(_INVALID_PARAMS, "invalid argument 0: json: cannot unmarshal") from None
        messenger = self._state.messengers[self._chain.chain_id]
        return "0x" + (messenger.call(data) if contract == MESSENGER else b"").hex()

    def _block_by_number(self, number: Any, _: Any) -> dict[str, Any]:
        height = self._block(number)
        if height > self._height:
            raise EvmError(_SERVER_ERROR, "cannot query unfinalized data")
        place, rest = divmod(height, _BLOCKS_PER_MESSAGE)
        has_message = place > 0 and not rest and place <= len(self._sent_messages)
        if has_message:
            block_hash = _block_hash(self._sent_messages[place - 1])
        else:
            block_hash = self._hash_of_empty_block(height)
        # Only the last block has the time of a proposervm block; the others are as old as the
        # chain.
        heights = self._state.heights
        made_at = (
            self._proposer.last.time if height == self._height else heights.time_of(heights.first)
        )
        return {
            "number": hex(height),
            "hash": block_hash,
            "timestamp": hex(made_at),
            "transactions": [],
        }

    def _hash_of_empty_block(self, height: int) -> str:
        return "0x" + sha256(self._chain.chain_id + height.to_bytes(8, "big")).hexdigest()

    def _block(self, value: Any) -> int:
        if value == "pending":
            # After ACP-194 the C-Chain has none; no chain here has, so that nothing can depend on
            # it.
            raise EvmError(_SERVER_ERROR, "state not available for pending block")
        if value is None or value in _TAGS:
            return self._height
        if value == "earliest":
            return 0
        if not isinstance(value, str) or not value.startswith("0x"):
            raise EvmError(_INVALID_PARAMS, "invalid argument 0: hex string without 0x prefix")
        try:
            return int(value, 16)
        except ValueError:
            raise EvmError(_INVALID_PARAMS, "invalid argument 0: invalid hex string") from None


def _block_hash(message: SentMessage) -> str:
    return "0x" + sha256(b"block of " + message.evm_tx_id).hexdigest()


def _log(place: int, message: SentMessage) -> dict[str, Any]:
    raw = message.unsigned.raw
    padded = raw.ljust(-(-len(raw) // _WORD_BYTES) * _WORD_BYTES, b"\x00")
    data = _word(_WORD_BYTES) + _word(len(raw)) + padded
    number = _BLOCKS_PER_MESSAGE * place
    return {
        "address": PRECOMPILE,
        "topics": [
            SEND_WARP_MESSAGE,
            "0x" + message.sender.rjust(_WORD_BYTES, b"\x00").hex(),
            "0x" + message.unsigned.id.hex(),
        ],
        "data": "0x" + data.hex(),
        "blockNumber": hex(number),
        "transactionHash": "0x" + message.evm_tx_id.hex(),
        "transactionIndex": "0x0",
        "blockHash": _block_hash(message),
        "logIndex": "0x0",
        "removed": False,
    }


def _matches(log: dict[str, Any], query: dict[str, Any]) -> bool:
    topics = query.get("topics") or []
    filters = [(log["address"], query.get("address")), *zip(log["topics"], topics, strict=False)]
    return len(topics) <= len(log["topics"]) and all(
        _matches_choice(value, choice) for value, choice in filters
    )


def _matches_choice(value: str, choice: Any) -> bool:
    """Return whether a value matches a filter.

    choice: a value or a list of values; None and an empty list match any value.
    """
    choices = choice if isinstance(choice, list) else [choice]
    return (
        not choices
        or choice is None
        or any(isinstance(text, str) and text.lower() == value for text in choices)
    )


def _name(request: Any) -> str:
    name = request.get("method") if isinstance(request, dict) else None
    return name if isinstance(name, str) else ""


def _error(call_id: Any, error: EvmError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "error": {"code": error.code, "message": str(error)}}


def _word(value: int) -> bytes:
    return value.to_bytes(_WORD_BYTES, "big")


def _packed(reply: Any) -> bytes:
    return json.dumps(reply, separators=(",", ":")).encode() + b"\n"
