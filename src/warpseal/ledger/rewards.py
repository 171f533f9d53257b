"""How much a staker may earn, and how a delegator shares it with the validator. Integers only.

Source of truth: avalanchego `vms/platformvm/reward/calculator.go`; for Helicon ACP-285.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from warpseal.ledger.params import DAY_S, RewardConfig

ALL_SHARES: Final = 1_000_000

_MOST: Final = 2**64 - 1
_HELICON_MIN_RATE: Final = 75_000
_HELICON_RAMP_S: Final = 90 * DAY_S


def potential_reward(config: RewardConfig, duration_s: int, stake: int, supply: int) -> int:
    """Return what staking `stake` for `duration_s` earns when `supply` (above 0) is there just before it."""
    remaining = config.supply_cap - supply
    period = config.minting_period_s
    rate = (config.max_rate - config.min_rate) * duration_s + config.min_rate * period
    minted = remaining * rate * stake * duration_s // (period * ALL_SHARES) // supply // period
    return min(remaining, minted)


def split(total: int, shares: int) -> tuple[int, int]:
    """Return (the part of `shares` parts per million, the rest); rounding favours the first.

    The rest is rounded late where the product fits 64 bits, early where it does not.
    """
    rest_shares = ALL_SHARES - shares
    product = rest_shares * total
    rest = product // ALL_SHARES if product <= _MOST else rest_shares * (total // ALL_SHARES)
    return total - rest, rest


def at_start(config: RewardConfig, start_s: int, helicon_s: int) -> RewardConfig:
    """Return the Primary Network's config for a staking that starts at `start_s`: Helicon moves the minimum rate."""
    if start_s < helicon_s or config.max_rate < _HELICON_MIN_RATE:
        return config
    change = abs(config.min_rate - _HELICON_MIN_RATE)
    elapsed_s = start_s - helicon_s
    if elapsed_s < _HELICON_RAMP_S:
        change = change * elapsed_s // _HELICON_RAMP_S
    towards = change if config.min_rate < _HELICON_MIN_RATE else -change
    return replace(config, min_rate=config.min_rate + towards)
