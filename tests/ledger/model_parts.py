"""What the plain model is made of: the network's numbers, stakers, L1 validators, coins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

PRIMARY = bytes(32)
DAY_S = 86_400
# (asset, amount, locktime, stakeable locktime, threshold, addresses)
Coin = tuple[bytes, int, int, int, int, tuple[bytes, ...]]


@dataclass
class Rules:
    """The network's numbers."""

    avax: bytes
    cortina_s: int
    durango_s: int
    etna_s: int
    target: int
    min_price: int
    conversion: int
    cap: int = 720_000_000 * 10**9
    min_rate: int = 100_000
    max_rate: int = 120_000
    period_s: int = 365 * DAY_S


@dataclass
class Staker:
    """A staker of the model."""

    tx_id: bytes
    subnet: bytes
    node: bytes
    start: int
    end: int
    weight: int
    is_delegator: bool
    earns: bool
    rank_waiting: int
    rank: int
    coins: list[Coin]
    behind: int
    shares: int = 0
    owner: Any = None
    fee_owner: Any = None
    key: bytes | None = None
    reward: int = 0
    earned_from_delegators: int = 0


@dataclass
class PayingValidator:
    """An L1 validator of the model; balance in nAVAX, 0 when it is inactive."""

    subnet: bytes
    node: bytes
    key: bytes
    weight: int
    nonce: int
    start: int
    balance: int
    owner: Any


@dataclass
class TxSums:
    """What the model says of a transaction: sums by asset."""

    tx_id: bytes
    value: dict[bytes, int]
    burned: dict[bytes, int]
    staked: dict[bytes, int]
    l1_balance: int


def coin_id(tx_id: bytes, index: int) -> bytes:
    """Return the id of an output."""
    return sha256(index.to_bytes(8, "big") + tx_id).digest()


def coin(asset: bytes, output: Any) -> Coin:
    """Return what an output is."""
    stakeable = 0
    if hasattr(output, "output"):
        stakeable, output = output.locktime, output.output
    return asset, output.amount, output.locktime, stakeable, output.threshold, output.addresses


def add(sums: dict[bytes, int], asset: bytes, amount: int) -> None:
    """Add to a sum."""
    sums[asset] = sums.get(asset, 0) + amount


def sum_amounts(parts: Iterable[Any]) -> tuple[tuple[Any, int], ...]:
    """Return the sums above zero of the amounts of inputs or outputs, by asset."""
    sums: dict[bytes, int] = {}
    for part in parts:
        add(sums, part.asset_id, part.amount)
    return tuple(sorted((asset, amount) for asset, amount in sums.items() if amount))
