"""Parameters of a network: upgrade times, rewards, the fee of L1 validators, chains, asset.

Source of truth: avalanchego `upgrade/upgrade.go`, `genesis/genesis_{mainnet,fuji,local}.go`. Times
are unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from warpseal.chains.ids import AssetID
from warpseal.chains.p_blocks import PGenesis
from warpseal.chains.p_txs import CreateChainTx
from warpseal.warp.ids import ChainID, parse_id

NAVAX_PER_AVAX: Final = 10**9
DAY_S: Final = 24 * 60 * 60

UNSCHEDULED_S: Final = 253_399_622_400
"""9999-12-01, the time of an upgrade that is not scheduled, Unix seconds."""
_INITIALLY_ACTIVE_S: Final = 1_607_144_400
_AVM: Final = b"avm".ljust(32, b"\x00")
_EVM: Final = b"evm".ljust(32, b"\x00")


class UpgradeTimes(Struct, frozen=True):
    """Activation times of the upgrades that change the effects of blocks, unix seconds."""

    apricot_5_s: int
    cortina_s: int
    durango_s: int
    etna_s: int
    helicon_s: int = UNSCHEDULED_S

    @classmethod
    def from_node(cls, times_s: Mapping[str, int]) -> UpgradeTimes:
        """Return the times of info.upgrades, by names such as "apricotPhase5" and "etna".

        A missing upgrade is active from the start; Helicon is unscheduled.
        """
        names = {"apricotPhase5": "apricot_5_s"} | {
            name: f"{name}_s" for name in ("cortina", "durango", "etna")
        }
        activation_times = {
            field: times_s.get(name, _INITIALLY_ACTIVE_S) for name, field in names.items()
        }
        return cls(**activation_times, helicon_s=times_s.get("helicon", UNSCHEDULED_S))


class RewardConfig(Struct, frozen=True):
    """The terms of staking rewards: rates in parts per million, cap in the smallest unit."""

    max_rate: int
    min_rate: int
    minting_period_s: int
    supply_cap: int


class L1FeeConfig(Struct, frozen=True):
    """The fee of an L1 validator a second: `min_price` nAVAX, rising above `target` validators."""

    target: int
    min_price: int
    excess_conversion: int
    capacity: int = 20_000


class Parameters(Struct, frozen=True):
    """All parameters of a network.

    repeated_c_blocks: heights of C-Chain blocks with atomic transactions that an earlier block had
        accepted.
    """

    network_id: int
    staking_asset_id: AssetID
    x_chain_id: ChainID
    c_chain_id: ChainID
    upgrades: UpgradeTimes
    rewards: RewardConfig
    l1_fee: L1FeeConfig
    max_validator_stake: int = 3_000_000 * NAVAX_PER_AVAX
    repeated_c_blocks: frozenset[int] = frozenset()


# The rewards of every public network, and of networks that nodes have no own configuration for.
STANDARD_REWARDS: Final = RewardConfig(120_000, 100_000, 365 * DAY_S, 720_000_000 * NAVAX_PER_AVAX)

# Known as bonus blocks (coreth `plugin/evm/atomic/vm/bonus_blocks.go`).
_REPEATED_ON_MAINNET: Final = frozenset(
    (
        *(
            102972,
            103105,
            103143,
            103183,
            103197,
            103203,
            103208,
            103209,
            103259,
            103261,
            103266,
            103287,
            103339,
        ),
        *(
            103346,
            103350,
            103358,
            103437,
            103472,
            103478,
            103493,
            103514,
            103536,
            103545,
            103547,
            103554,
            103555,
        ),
        *(
            103559,
            103561,
            103563,
            103564,
            103569,
            103570,
            103575,
            103577,
            103578,
            103582,
            103587,
            103590,
            103591,
        ),
        *(
            103594,
            103597,
            103598,
            103603,
            103604,
            103607,
            103612,
            103614,
            103617,
            103618,
            103621,
            103623,
            103624,
        ),
        *(103627, 103628, 103629, 103630, 103633),
    )
)

MAINNET: Final = Parameters(
    network_id=1,
    staking_asset_id=AssetID(parse_id("FvwEAhmxKfeiG8SnEvq42hc6whRyY3EFYAvebMqDNDGCgxN5Z")),
    x_chain_id=ChainID(parse_id("2oYMBNV4eNHyqk2fjjV5nVQLDbtmNJzq5s3qs3Lo6ftnC6FByM")),
    c_chain_id=ChainID(parse_id("2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5")),
    upgrades=UpgradeTimes(
        apricot_5_s=1_638_468_000,
        cortina_s=1_682_434_800,
        durango_s=1_709_740_800,
        etna_s=1_734_368_400,
        helicon_s=1_790_089_200,
    ),
    rewards=STANDARD_REWARDS,
    l1_fee=L1FeeConfig(target=10_000, min_price=512, excess_conversion=1_246_488_515),
    repeated_c_blocks=_REPEATED_ON_MAINNET,
)
FUJI: Final = Parameters(
    network_id=5,
    staking_asset_id=AssetID(parse_id("U8iRqJoiJm8xZHAacmvYyZVwqQx6uDNtQeP3CQ6fcgQk3JqnK")),
    x_chain_id=ChainID(parse_id("2JVSBoinj9C2J33VntvzYtVJNZdN2NKiwwKjcumHUWEb5DbBrm")),
    c_chain_id=ChainID(parse_id("yH8D7ThNJkxmtkuv2jgBa4P1Rn3Qpr4pPr7QYNfcdoS6k6HWp")),
    upgrades=UpgradeTimes(
        apricot_5_s=1_637_766_000,
        cortina_s=1_680_793_200,
        durango_s=1_707_840_000,
        etna_s=1_732_550_400,
        helicon_s=1_785_250_800,
    ),
    rewards=STANDARD_REWARDS,
    l1_fee=L1FeeConfig(target=10_000, min_price=512, excess_conversion=51_937_021),
)


def builtin_parameters(network_id: int) -> Parameters | None:
    """Return the parameters of mainnet or fuji; None for other networks, which ask their node."""
    return {1: MAINNET, 5: FUJI}.get(network_id)


def parameters_from_node(
    network_id: int,
    staking_asset_id: AssetID,
    genesis: PGenesis,
    times_s: Mapping[str, int],
    l1_fee: L1FeeConfig,
) -> Parameters:
    """Return the parameters of a network from its node's replies and its genesis.

    times_s: times of info.upgrades.
    l1_fee: result of platform.getValidatorFeeConfig.
    No API has the rewards: the standard ones apply, as in nodes of networks without a built-in
    configuration.
    Raises ValueError without X- or C-Chain.
    """
    x_chain_id, c_chain_id = find_primary_chains(genesis)
    upgrades = UpgradeTimes.from_node(times_s)
    return Parameters(
        network_id, staking_asset_id, x_chain_id, c_chain_id, upgrades, STANDARD_REWARDS, l1_fee
    )


def find_primary_chains(genesis: PGenesis) -> tuple[ChainID, ChainID]:
    """Return the ids of the X- and the C-Chain that a genesis creates.

    Raises ValueError if one is missing.
    """
    chains = {
        tx.unsigned.vm_id: ChainID(tx.id)
        for tx in genesis.chains
        if isinstance(tx.unsigned, CreateChainTx)
    }
    try:
        return chains[_AVM], chains[_EVM]
    except KeyError:
        raise ValueError("the genesis creates no X-Chain or no C-Chain") from None
