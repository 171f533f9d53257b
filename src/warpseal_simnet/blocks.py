"""Blocks and transactions over JSON-RPC: the `platform.*` and `avm.*` calls that hand out bytes.

Source of truth: avalanchego `vms/platformvm/service.go`, `vms/avm/service.go`, `utils/formatting`;
texts as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from warpseal.warp.ids import id_text
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.rpc import (
    BadArgument,
    Method,
    Params,
    RpcError,
    id_argument,
    number_argument,
    text_argument,
)
from warpseal_simnet.state import StateAt

_CHECKSUM_BYTES: Final = 4
_NO_ID: Final = bytes(32)


class Blocks:
    """Responder from the ledger, as far as the node's own chain reaches."""

    def __init__(self, view: Callable[[], StateAt]) -> None:
        """view: the state that the node is at."""
        self._view = view

    def methods(self) -> dict[str, Method]:
        """Return the calls by name."""
        return {
            "platform.getTx": self._transaction,
            "platform.getTxStatus": self._status,
            "platform.getBlock": self._block,
            "platform.getBlockByHeight": self._block_by_height,
        }

    def _transaction(self, params: Params) -> Any:
        encoding = encoding_argument(params)
        transaction, is_accepted = self._find(params)
        if transaction is None or not is_accepted:
            raise RpcError("couldn't get tx: not found")
        return {"tx": encoded(transaction.raw, encoding), "encoding": encoding}

    def _status(self, params: Params) -> Any:
        transaction, is_accepted = self._find(params)
        if transaction is None:
            return {"status": "Unknown"}
        return {"status": "Committed" if is_accepted else "Processing"}

    def _find(self, params: Params) -> tuple[Transaction | None, bool]:
        view = self._view()
        transaction = view.state.ledger.transaction(id_argument(params, "txID"))
        if transaction is None:
            return None, False
        return transaction, transaction.height is not None and transaction.height <= view.height

    def _block(self, params: Params) -> Any:
        encoding = encoding_argument(params)
        view, block_id = self._view(), id_argument(params, "blockID")
        height = view.state.ledger.height_of(block_id)
        if height is None or height > view.height:
            raise RpcError(f"couldn't get block with id {id_text(block_id)}: not found")
        return {
            "block": encoded(view.state.ledger.block(height) or b"", encoding),
            "encoding": encoding,
        }

    def _block_by_height(self, params: Params) -> Any:
        encoding = encoding_argument(params)
        view, height = self._view(), number_argument(params, "height")
        raw = view.state.ledger.block(height) if height <= view.height else None
        if raw is None:
            raise RpcError(f"couldn't get block at height {height}: not found")
        return {"block": encoded(raw, encoding), "encoding": encoding}


def x_methods(transactions: Mapping[bytes, bytes]) -> dict[str, Method]:
    """Return the calls of the X-Chain.

    transactions: the signed bytes of accepted transactions by id.
    """

    def transaction(params: Params) -> Any:
        encoding = encoding_argument(params)
        raw = transactions.get(_x_id(params))
        if raw is None:
            raise RpcError("not found")
        return {"tx": encoded(raw, encoding), "encoding": encoding}

    def status(params: Params) -> Any:
        return {"status": "Accepted" if _x_id(params) in transactions else "Unknown"}

    return {"avm.getTx": transaction, "avm.getTxStatus": status}


def _x_id(params: Params) -> bytes:
    tx_id = id_argument(params, "txID")
    if tx_id == _NO_ID:
        raise RpcError("nil transaction ID")
    return tx_id


def encoding_argument(params: Params) -> str:
    """Return the encoding asked for; JSON, which loses information, is not offered here.

    Raises BadArgument.
    """
    encoding = text_argument(params, "encoding") or "hex"
    if encoding not in ("hex", "hexc", "hexnc"):
        raise BadArgument
    return encoding


def encoded(raw: bytes, encoding: str) -> str:
    """Return bytes in an encoding of nodes."""
    checksum = b"" if encoding == "hexnc" else sha256(raw).digest()[-_CHECKSUM_BYTES:]
    return "0x" + (raw + checksum).hex()
