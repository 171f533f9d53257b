"""The calls of a simulated node about unspent outputs, balances, stakes and fees.

All outputs have the same owner. Source of truth: avalanchego `vms/platformvm/service.go`,
`vms/avm/service.go`, `vms/saevm/cchain/api.go`, `api/info/service.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import bech32

from warpseal.warp.ids import id_text
from warpseal_simnet.blocks import encoded, encoding_argument
from warpseal_simnet.rpc import (
    BadArgument,
    Method,
    Params,
    RpcError,
    number_argument,
    text_argument,
)
from warpseal_simnet.state import StateAt
from warpseal_simnet.tx_builder import OWNER

_MAX_PAGE: Final = 1024
_NO_ID: Final = id_text(bytes(32))
_TX_FEE: Final = "1000000"
_FEES: Final = (
    *(
        "txFee",
        "createAssetTxFee",
        "createSubnetTxFee",
        "transformSubnetTxFee",
        "createBlockchainTxFee",
    ),
    *("addPrimaryNetworkValidatorFee", "addPrimaryNetworkDelegatorFee", "addSubnetValidatorFee"),
    "addSubnetDelegatorFee",
)


class Balances:
    """Responder about the funds of the P-Chain, as far as the node's own chain reaches."""

    def __init__(self, view: Callable[[], StateAt]) -> None:
        """view: the state that the node is at."""
        self._view = view

    def methods(self) -> dict[str, Method]:
        """Return the calls by name."""
        return {
            "platform.getUTXOs": lambda params: utxo_page(params, self._outputs(params)),
            "platform.getBalance": self._balance,
            "platform.getStake": self._stake,
            "platform.getRewardUTXOs": lambda params: _page([], encoding_argument(params)),
        }

    def _outputs(self, params: Params) -> list[bytes]:
        view = self._view()
        is_here = text_argument(params, "sourceChain") in ("", "P") and OWNER in _addresses(params)
        return view.state.ledger.unspent(view.height) if is_here else []

    def _balance(self, params: Params) -> Any:
        outputs = self._outputs(params)
        amounts: dict[str, str] = {}
        if outputs:
            asset_id = id_text(self._view().state.ledger.asset_id)
            amounts[asset_id] = str(sum(map(_amount, outputs)))
        total = next(iter(amounts.values()), "0")
        utxo_ids = [
            {"txID": id_text(raw[2:34]), "outputIndex": int.from_bytes(raw[34:38], "big")}
            for raw in outputs
        ]
        return {
            "balance": total,
            "unlocked": total,
            "lockedStakeable": "0",
            "lockedNotStakeable": "0",
            "balances": amounts,
            "unlockeds": amounts,
            "lockedStakeables": {},
            "lockedNotStakeables": {},
            "utxoIDs": utxo_ids or None,
        }

    def _stake(self, params: Params) -> Any:
        _addresses(params)
        return {
            "staked": "0",
            "stakeds": {},
            "stakedOutputs": [],
            "encoding": encoding_argument(params),
        }


def x_balance_methods() -> dict[str, Method]:
    """Return the calls about the height and the funds of an X-Chain without blocks and outputs."""
    return {
        "avm.getHeight": lambda _: {"height": "0"},
        "avm.getUTXOs": lambda params: utxo_page(params, []),
        "avm.getBalance": lambda _: {"balance": "0", "utxoIDs": []},
        "avm.getAllBalances": lambda _: {"balances": []},
    }


def atomic_methods() -> dict[str, Method]:
    """Return the calls about atomic transactions of the C-Chain, which has none."""

    def transaction(_: Params) -> Any:
        raise RpcError("fetching tx: not found")

    return {
        "avax.getUTXOs": lambda params: utxo_page(params, []),
        "avax.getAtomicTx": transaction,
        "avax.getAtomicTxStatus": lambda _: {"status": "Unknown"},
    }


def tx_fee(_: Params) -> Any:
    """Return the fees of info.getTxFee."""
    return dict.fromkeys(_FEES, _TX_FEE)


def utxo_page(params: Params, outputs: Sequence[bytes]) -> Any:
    """Return a page of outputs behind the one that the params name."""
    _addresses(params)
    ids = [id_text(sha256(raw).digest()) for raw in outputs]
    start = params.get("startIndex") or {}
    after = start.get("utxo") if isinstance(start, dict) else None
    first = ids.index(after) + 1 if after in ids else 0
    last = first + min(number_argument(params, "limit") or _MAX_PAGE, _MAX_PAGE)
    address = params["addresses"][0]
    return _page(
        outputs[first:last], encoding_argument(params), address, (ids[first:last] or [_NO_ID])[-1]
    )


def _page(outputs: Sequence[bytes], encoding: str, address: str = "", end: str = _NO_ID) -> Any:
    return {
        "numFetched": str(len(outputs)),
        "utxos": [encoded(raw, encoding) for raw in outputs],
        "endIndex": {"address": address, "utxo": end},
        "encoding": encoding,
    }


def _addresses(params: Params) -> set[bytes]:
    """Return the 20 bytes of each address. Raises RpcError."""
    texts = params.get("addresses")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadArgument
    if not texts:
        raise RpcError("no addresses provided")
    return set(map(_address, texts))


def _address(text: str) -> bytes:
    _, digits = bech32.bech32_decode(text.rpartition("-")[2])
    raw = None if digits is None else bech32.convertbits(digits, 5, 8, False)
    if raw is None:
        raise RpcError(f"couldn't parse address {text!r}")
    return bytes(raw)


def _amount(output: bytes) -> int:
    """Return the amount of an encoded output."""
    # The bytes before it are version, transaction, index, asset and type.
    return int.from_bytes(output[74:82], "big")
