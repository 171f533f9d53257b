"""The current state of the chains at one node: parameters, supply, balances; several replies of the same node.

Source of truth: avalanchego `vms/platformvm/service.go`, `vms/avm/service.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from warpseal.chains.ids import AssetID
from warpseal.ledger.params import L1FeeConfig
from warpseal.node.blocks import X_CHAIN_PATHS
from warpseal.node.p_chain import P_CHAIN_PATHS, decode_fee_config, decode_height
from warpseal.upstream.errors import CallFailure, NodeUnavailable, NotFoundByNode, RpcRefusal
from warpseal.upstream.json_values import NUMBER, field_decoder, list_decoder, u64
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool, PoolNode
from warpseal.warp.ids import ValidationID, id_text, parse_id

T = TypeVar("T")

AVAX: Final = "AVAX"
"""The X-Chain's name for the staking asset, used instead of its id."""
_Call = partial(NodeCall, origin=CallOrigin.FOLLOWER, large=True)


class PBalance(Struct, frozen=True):
    """The result of platform.getBalance for one address, each amount by asset id."""

    unlocked: Mapping[bytes, int]
    locked_stakeable: Mapping[bytes, int]
    locked: Mapping[bytes, int]


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
        return await self._call(_Call("platform.getStakingAssetID", {}, P_CHAIN_PATHS, decode_asset))

    async def fee_config(self) -> L1FeeConfig | None:
        """Return the fee parameters of active L1 validators; None from a node that is too old to have them."""
        return await self._find(_Call("platform.getValidatorFeeConfig", {}, P_CHAIN_PATHS, decode_fee_config))

    async def supply(self) -> int | None:
        """Return the Primary Network's supply, nAVAX; None from a node that does not return it."""
        return await self._find(_Call("platform.getCurrentSupply", {}, P_CHAIN_PATHS, _decode_supply))

    async def l1_balance(self, validation_id: ValidationID) -> int | None:
        """Return the remaining balance of an L1 validator, nAVAX; None if there is no such validation."""
        params = {"validationID": id_text(validation_id)}
        call = _Call("platform.getL1Validator", params, P_CHAIN_PATHS, _decode_l1_balance)
        return await self._find(call, NotFoundByNode)

    async def p_balance(self, address: str) -> PBalance:
        """Return the balances of a P-Chain address, in its text form, including amounts that it shares."""
        params = {"addresses": [address]}
        return await self._call(_Call("platform.getBalance", params, P_CHAIN_PATHS, _decode_p_balance))

    async def x_balances(self, address: str) -> Mapping[str, int]:
        """Return the amounts that an X-Chain address alone can spend now, by asset id or alias in text form."""
        params = {"address": address, "includePartial": False}
        return dict(await self._call(_Call("avm.getAllBalances", params, X_CHAIN_PATHS, _decode_x_balances)))

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


class _PBalance(msgspec.Struct, rename="camel"):
    unlockeds: dict[str, int | str]
    locked_stakeables: dict[str, int | str]
    locked_not_stakeables: dict[str, int | str]


class _XBalance(msgspec.Struct):
    asset: str
    balance: int | str


def _decode_p_balance(result: bytes) -> PBalance:
    fields = msgspec.json.decode(result, type=_PBalance)
    return PBalance(*map(_amounts, (fields.unlockeds, fields.locked_stakeables, fields.locked_not_stakeables)))


def _amounts(amounts: Mapping[str, int | str]) -> dict[bytes, int]:
    return {parse_id(asset_id): u64(amount) for asset_id, amount in amounts.items()}


decode_asset: Final = field_decoder("assetID", str, lambda text: AssetID(parse_id(text)))
_decode_supply: Final = field_decoder("supply", NUMBER, u64)
_decode_l1_balance: Final = field_decoder("balance", NUMBER, u64)
_decode_x_balances: Final = list_decoder("balances", _XBalance, lambda entry: (entry.asset, u64(entry.balance)))
