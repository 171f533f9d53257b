"""The current state of the chains at one node: parameters, supply, balances; several answers of the same node.

Source of truth: avalanchego `vms/platformvm/service.go`, `vms/avm/service.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from warpseal.errors import NodeUnavailable
from warpseal.node.errors import CallFailure, NotFoundByNode, RpcRefusal
from warpseal.node.json_values import u64
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import decode_height
from warpseal.node.platform import P_CHAIN_PATHS
from warpseal.node.pool import NodePool, PoolNode
from warpseal.node.rpc import NodeCall
from warpseal.node.x_chain import X_CHAIN_PATHS
from warpseal.warp.ids import ValidationID, id_text, parse_id

T = TypeVar("T")

AVAX: Final = "AVAX"
"""The X-Chain's name for the staking asset, used instead of its id."""


@dataclass(frozen=True, slots=True)
class ValidatorFeeConfig:
    """The fee parameters of active L1 validators: prices in nAVAX a second, target and capacity in validators."""

    target: int
    min_price: int
    excess_conversion: int
    capacity: int


@dataclass(frozen=True, slots=True)
class PBalance:
    """The result of platform.getBalance for one address, each amount by asset id."""

    unlocked: Mapping[bytes, int]
    locked_stakeable: Mapping[bytes, int]
    locked: Mapping[bytes, int]


class NodeState:
    """The answers of one node. Every method raises NodeUnavailable if it gives none."""

    def __init__(self, node: PoolNode) -> None:
        self._node = node

    async def p_height(self) -> int:
        """Return the height of the P-Chain's last accepted block."""
        return await self._call("platform.getHeight", {}, decode_height)

    async def x_height(self) -> int:
        """Return the height of the X-Chain's last accepted block."""
        return await self._call("avm.getHeight", {}, decode_height, X_CHAIN_PATHS)

    async def staking_asset(self) -> bytes:
        """Return the id of AVAX on this network."""
        return await self._call("platform.getStakingAssetID", {}, decode_asset)

    async def fee_config(self) -> ValidatorFeeConfig | None:
        """Return the fee parameters of active L1 validators; None from a node that is too old to have them."""
        try:
            return await self._call_raw("platform.getValidatorFeeConfig", {}, _decode_fee_config)
        except RpcRefusal:
            return None

    async def supply(self) -> int | None:
        """Return the Primary Network's supply, nAVAX; None from a node that does not return it."""
        try:
            return await self._call_raw("platform.getCurrentSupply", {}, _decode_supply)
        except RpcRefusal:
            return None

    async def l1_balance(self, validation_id: ValidationID) -> int | None:
        """Return the remaining balance of an L1 validator, nAVAX; None if there is no such validation."""
        try:
            return await self._call_raw("platform.getL1Validator", {"validationID": id_text(validation_id)}, _decode_l1)
        except NotFoundByNode:
            return None
        except RpcRefusal:
            raise NodeUnavailable("platform.getL1Validator") from None

    async def p_balance(self, address: str) -> PBalance:
        """Return the balances of a P-Chain address, in its text form, including amounts that it shares."""
        return await self._call("platform.getBalance", {"addresses": [address]}, _decode_p_balance)

    async def x_balances(self, address: str) -> Mapping[str, int]:
        """Return the amounts that an X-Chain address alone can spend now, by asset id or alias in text form."""
        params = {"address": address, "includePartial": False}
        return await self._call("avm.getAllBalances", params, _decode_x_balances, X_CHAIN_PATHS)

    async def _call(
        self,
        method: str,
        params: Mapping[str, Any],
        decode: Callable[[bytes], T],
        paths: tuple[str, ...] = P_CHAIN_PATHS,
    ) -> T:
        try:
            return await self._call_raw(method, params, decode, paths)
        except RpcRefusal:
            raise NodeUnavailable(method) from None

    async def _call_raw(
        self,
        method: str,
        params: Mapping[str, Any],
        decode: Callable[[bytes], T],
        paths: tuple[str, ...] = P_CHAIN_PATHS,
    ) -> T:
        try:
            return await self._node.call(NodeCall(method, params, paths, decode, CallOrigin.FOLLOWER, large=True))
        except CallFailure:
            raise NodeUnavailable(method) from None


class StateClient:
    """The nodes, to be called one by one."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def nodes(self) -> tuple[NodeState, ...]:
        """Return the nodes in the order in which to try them."""
        return tuple(NodeState(node) for node in await self._pool.candidates(CallOrigin.FOLLOWER))


class _Asset(msgspec.Struct):
    asset_id: str = msgspec.field(name="assetID")


class _FeeConfig(msgspec.Struct, rename="camel"):
    capacity: int | str
    target: int | str
    min_price: int | str
    excess_conversion_constant: int | str


class _Supply(msgspec.Struct):
    supply: int | str


class _L1(msgspec.Struct):
    balance: int | str


class _PBalance(msgspec.Struct, rename="camel"):
    unlockeds: dict[str, int | str]
    locked_stakeables: dict[str, int | str]
    locked_not_stakeables: dict[str, int | str]


class _XBalance(msgspec.Struct):
    asset: str
    balance: int | str


class _XBalances(msgspec.Struct):
    balances: list[_XBalance] | None = None


def decode_asset(result: bytes) -> bytes:
    """Return the id in the result of platform.getStakingAssetID."""
    return parse_id(msgspec.json.decode(result, type=_Asset).asset_id)


def _decode_fee_config(result: bytes) -> ValidatorFeeConfig:
    fields = msgspec.json.decode(result, type=_FeeConfig)
    return ValidatorFeeConfig(
        u64(fields.target), u64(fields.min_price), u64(fields.excess_conversion_constant), u64(fields.capacity)
    )


def _decode_supply(result: bytes) -> int:
    return u64(msgspec.json.decode(result, type=_Supply).supply)


def _decode_l1(result: bytes) -> int:
    return u64(msgspec.json.decode(result, type=_L1).balance)


def _decode_p_balance(result: bytes) -> PBalance:
    fields = msgspec.json.decode(result, type=_PBalance)
    return PBalance(
        _amounts(fields.unlockeds), _amounts(fields.locked_stakeables), _amounts(fields.locked_not_stakeables)
    )


def _decode_x_balances(result: bytes) -> dict[str, int]:
    listed = msgspec.json.decode(result, type=_XBalances).balances or ()
    return {entry.asset: u64(entry.balance) for entry in listed}


def _amounts(amounts: Mapping[str, int | str]) -> dict[bytes, int]:
    return {parse_id(asset_id): u64(amount) for asset_id, amount in amounts.items()}
