"""The Warp configuration of EVM chains, as their nodes return it.

Source of truth: avalanchego `graft/subnet-evm/precompile/contracts/warp/config.go`,
`params/extras`; shapes as recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warpseal_simnet.values import SimChain

DEFAULT_QUORUM: Final = 67
UPGRADES_AT: Final = 1607144400
_ETHEREUM_UPGRADES: Final = ("cancunTime", "shanghaiTime")
_LATE_UPGRADES: Final = ("etna", "granite", "helicon")
_FEE_CONFIG: Final = {
    "gasLimit": 20000000,
    "targetBlockRate": 2,
    "minBaseFee": 1000000000,
    "targetGas": 100000000,
    "baseFeeChangeDenominator": 48,
    "minBlockGasCost": 0,
    "maxBlockGasCost": 10000000,
    "blockGasCostStep": 500000,
}
_FORKS: Final = (
    "berlinBlock",
    "byzantiumBlock",
    "constantinopleBlock",
    "eip150Block",
    "eip155Block",
    "eip158Block",
    "homesteadBlock",
    "istanbulBlock",
    "londonBlock",
    "muirGlacierBlock",
    "petersburgBlock",
)
_C_CHAIN_UPGRADES: Final = (
    *(f"apricotPhase{phase}" for phase in ("1", "2", "3", "4", "5", "6", "Post6", "Pre6")),
    "banff",
    "cortina",
    "durango",
)


@dataclass(frozen=True, slots=True)
class WarpRule:
    """An entry of a chain's configuration.

    since: Unix seconds; quorum: percent, 0 for the default.

    needs_primary_signers: the Primary Network signs messages of its own chains except the P-Chain.
    """

    since: int = 0
    quorum: int = 0
    needs_primary_signers: bool = False
    is_disabled: bool = False

    @property
    def numerator(self) -> int:
        """The quorum in percent that the rule means."""
        return self.quorum or DEFAULT_QUORUM

    def as_json(self) -> dict[str, Any]:
        """Return the value of `warpConfig`."""
        disabled = {"disable": True} if self.is_disabled else {}
        return {
            "blockTimestamp": self.since,
            **disabled,
            "quorumNumerator": self.quorum,
            "requirePrimaryNetworkSigners": self.needs_primary_signers,
        }


DEFAULT_RULE: Final = WarpRule()


class WarpConfig:
    """The rules of one chain.

    genesis: None if the chain started without them.
    """

    def __init__(self, genesis: WarpRule | None, upgrades: Sequence[WarpRule] = ()) -> None:
        self.genesis = genesis
        self.upgrades = list(upgrades)

    def at(self, unix_s: int) -> WarpRule | None:
        """Return the rule in a block of this time; None if the chain takes no messages."""
        rules = [
            rule
            for rule in (self.genesis, *self.upgrades)
            if rule is not None and rule.since <= unix_s
        ]
        return None if not rules or rules[-1].is_disabled else rules[-1]


def chain_config(
    chain: SimChain, warp: WarpConfig, upgrades_s: Mapping[str, float]
) -> Mapping[str, Any]:
    """Return the result of eth_getChainConfig.

    upgrades_s: Unix seconds of upgrades at another time than usual.
    """
    times = {f"{name}Timestamp": int(upgrades_s.get(name, UPGRADES_AT)) for name in _LATE_UPGRADES}
    common = dict.fromkeys(_FORKS, 0) | dict.fromkeys(_ETHEREUM_UPGRADES, UPGRADES_AT) | times
    common["chainId"] = chain.evm_chain_id
    if chain.alias == "C":
        phases = {f"{name}BlockTimestamp": UPGRADES_AT for name in _C_CHAIN_UPGRADES}
        fork = {"daoForkBlock": 0, "daoForkSupport": True, "fortunaTimestamp": UPGRADES_AT}
        return dict(sorted((common | phases | fork).items()))
    own = {"durangoTimestamp": UPGRADES_AT, "feeConfig": _FEE_CONFIG, "subnetEVMTimestamp": 0}
    started = {} if warp.genesis is None else {"warpConfig": warp.genesis.as_json()}
    listed = [{"warpConfig": rule.as_json()} for rule in warp.upgrades]
    upgrades = {"precompileUpgrades": listed} if listed else {}
    return dict(sorted((common | own | started).items())) | {"upgrades": upgrades}
