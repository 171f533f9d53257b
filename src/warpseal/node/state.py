"""The current state of the chains at one node: parameters, supply, outputs.

Source of truth: avalanchego `vms/platformvm/service.go`, `vms/avm/service.go`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from warpseal.chains.codec import StructCodec
from warpseal.chains.components import Output, Utxo
from warpseal.chains.ids import AssetID, UtxoID
from warpseal.chains.p_txs import P_TYPES
from warpseal.chains.x_txs import X_TYPES, XUtxo
from warpseal.ledger.params import L1FeeConfig
from warpseal.node.blocks import X_CHAIN_PATHS
from warpseal.node.p_chain import P_CHAIN_PATHS, decode_fee_config, decode_height
from warpseal.upstream.errors import CallFailure, NodeUnavailable, NotFoundByNode, RpcRefusal
from warpseal.upstream.json_values import NUMBER, decode_checked_hex, field_decoder, u64
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool, PoolNode
from warpseal.warp.ids import ValidationID, id_text, parse_id

T = TypeVar("T")

_PAGE: Final = 1_024
_MAX_PAGES: Final = 256
_Call = partial(NodeCall, origin=CallOrigin.FOLLOWER, large=True)


class NodeState:
    """The replies of one node. Every method raises NodeUnavailable if it gives none."""

    def __init__(self, node: PoolNode) -> None:
        self._node = node

    async def p_height(self) -> int:
        """Return the height of the P-Chain's last accepted block."""
        return await self._call(_Call("platform.getHeight", {}, P_CHAIN_PATHS, decode_height))

    async def x_height(self) -> int:
        """Return the height of the X-Chain's last accepted block."""
        return await self._call(_Call("avm.getHeight", {}, X_CHAIN_PATHS, decode_height))

    async def staking_asset(self) -> AssetID:
        """Return the id of AVAX on this network."""
        call = _Call("platform.getStakingAssetID", {}, P_CHAIN_PATHS, decode_asset)
        return await self._call(call)

    async def fee_config(self) -> L1FeeConfig | None:
        """Return the fee parameters of active L1 validators; None from an older node."""
        call = _Call("platform.getValidatorFeeConfig", {}, P_CHAIN_PATHS, decode_fee_config)
        return await self._find(call)

    async def supply(self) -> int | None:
        """Return the Primary Network's supply, nAVAX; None from a node that does not return it."""
        call = _Call("platform.getCurrentSupply", {}, P_CHAIN_PATHS, _decode_supply)
        return await self._find(call)

    async def l1_balance(self, validation_id: ValidationID) -> int | None:
        """Return an L1 validator's remaining balance, nAVAX; None for an unknown validation."""
        params = {"validationID": id_text(validation_id)}
        call = _Call("platform.getL1Validator", params, P_CHAIN_PATHS, _decode_l1_balance)
        return await self._find(call, NotFoundByNode)

    async def p_outputs(self, address: str) -> tuple[Utxo[Output], ...]:
        """Return the unspent outputs of the P-Chain that an address owns or shares.

        address: text form of the address.
        """
        return await self._outputs("platform.getUTXOs", P_CHAIN_PATHS, _P_UTXO, address)

    async def x_outputs(self, address: str) -> tuple[XUtxo, ...]:
        """Return the unspent outputs of the X-Chain that an address owns or shares.

        address: text form of the address.
        """
        return await self._outputs("avm.getUTXOs", X_CHAIN_PATHS, _X_UTXO, address)

    async def _outputs(
        self, method: str, paths: tuple[str, ...], codec: StructCodec[Utxo[T]], address: str
    ) -> tuple[Utxo[T], ...]:
        """Return the outputs of all pages.

        Pages may be of different heights: the caller compares the height before and after.
        """
        outputs: dict[UtxoID, Utxo[T]] = {}
        params: dict[str, Any] = {"addresses": [address], "limit": _PAGE, "encoding": "hex"}
        for _ in range(_MAX_PAGES):
            page = await self._call(_Call(method, params, paths, partial(_decode_page, codec)))
            outputs |= {output.id: output for output in page.outputs}
            if len(page.outputs) < _PAGE:
                return tuple(outputs.values())
            params["startIndex"] = {"address": page.end.address, "utxo": page.end.utxo}
        raise NodeUnavailable(method)

    async def _call(self, call: NodeCall[T]) -> T:
        try:
            return await self._node.call(call)
        except (CallFailure, RpcRefusal):
            raise NodeUnavailable(call.method) from None

    async def _find(self, call: NodeCall[T], missing: type[RpcRefusal] = RpcRefusal) -> T | None:
        """Return the node's reply; None if it refuses the call in this way."""
        try:
            return await self._node.call(call)
        except missing:
            return None
        except (CallFailure, RpcRefusal):
            raise NodeUnavailable(call.method) from None


class StateClient:
    """The nodes, of which one at a time is asked for a state."""

    def __init__(self, pool: NodePool[int]) -> None:
        self._pool = pool

    async def first_available(self) -> NodeState:
        """Return the first node that responds. Raises NodeUnavailable if none does."""
        for node in map(NodeState, await self._pool.candidates(CallOrigin.FOLLOWER)):
            with suppress(NodeUnavailable):
                await node.p_height()
                return node
        raise NodeUnavailable("platform.getHeight")


class _PageEnd(msgspec.Struct):
    address: str
    utxo: str


class _Page(msgspec.Struct):
    end_index: _PageEnd = msgspec.field(name="endIndex")
    utxos: list[str] | None = None


class _OutputPage(NamedTuple, Generic[T]):
    """One page of outputs, and the place behind which the next page begins."""

    outputs: tuple[Utxo[T], ...]
    end: _PageEnd


def _decode_page(codec: StructCodec[Utxo[T]], result: bytes) -> _OutputPage[T]:
    page = msgspec.json.decode(result, type=_Page)
    texts = page.utxos or []
    if len(texts) > _PAGE:
        raise ValueError(f"a page of {len(texts)} outputs")
    outputs = tuple(codec.parse(decode_checked_hex(text)) for text in texts)
    return _OutputPage(outputs, page.end_index)


decode_asset: Final = field_decoder("assetID", str, lambda text: AssetID(parse_id(text)))
_decode_supply: Final = field_decoder("supply", NUMBER, u64)
_decode_l1_balance: Final = field_decoder("balance", NUMBER, u64)
_P_UTXO: Final[StructCodec[Utxo[Output]]] = P_TYPES.struct(Utxo[Output])
_X_UTXO: Final[StructCodec[XUtxo]] = X_TYPES.struct(XUtxo)
