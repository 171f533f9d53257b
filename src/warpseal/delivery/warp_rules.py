"""The Warp rules of a chain at a time, and the subnet that signs. Pure.

The rules come from the configuration that the chain's nodes return. Source of truth: avalanchego
`graft/subnet-evm/precompile/contracts/warp/config.go`,
`graft/subnet-evm/params/extras/precompile_upgrade.go`,
`vms/platformvm/txs/executor/warp_verifier.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from warpseal.forwarding.evm.precompiles import (
    Config,
    active_precompiles,
    precompile_as_json,
    timestamp,
)
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID
from warpseal.warp.validator_set import DEFAULT_QUORUM

RulesSource = Literal["genesis", "upgrade", "default"]
"""Where the quorum comes from; default: the rules name none, or the destination is the P-Chain."""

SignerSource = Literal["source", "destination", "primary_network", "request"]
"""Why a subnet signs.

It validates the source or the destination, it is the Primary Network, or the caller named it.
"""

_WARP: Final = "warpConfig"
_MIN_QUORUM: Final = 33
_MAX_QUORUM: Final = 100
_MAX_TIME: Final = 2**64 - 1
# The schedule is held in memory for each chain, and all of it is looked at once a second.
_MAX_UPGRADES: Final = 1_000


class WarpRules(Struct, frozen=True):
    """The Warp configuration of a chain at one time.

    quorum: percent.
    requires_primary_signers: the Primary Network signs messages of its C- and X-Chain.
    """

    quorum: int = DEFAULT_QUORUM
    requires_primary_signers: bool = False
    source: RulesSource = "default"


class WarpSchedule(Struct, frozen=True):
    """The Warp configurations of a chain, each with the time from which it holds.

    genesis: configuration in the genesis.
    upgrades: configurations in the order of the chain's upgrades.
    is_subnet_evm: the chain lacks the Warp precompile without an active configuration.
    durango_s: Unix seconds from which on another EVM chain has the precompile.
    """

    genesis: Mapping[str, Config]
    upgrades: tuple[Config, ...]
    is_subnet_evm: bool
    durango_s: int = 0

    def rules_at(self, moment: int) -> WarpRules | None:
        """Return the rules for a block of this Unix time; None if it verifies no messages."""
        active = active_precompiles(moment, self.genesis, self.upgrades).get(_WARP)
        if active is not None:
            source: RulesSource = "genesis" if active is self.genesis.get(_WARP) else "upgrade"
            quorum = active["quorumNumerator"]
            requires_primary = active["requirePrimaryNetworkSigners"]
            return WarpRules(
                quorum or DEFAULT_QUORUM, requires_primary, source if quorum else "default"
            )
        if self.is_subnet_evm or self.genesis or self.upgrades or moment < self.durango_s:
            return None
        return WarpRules()


ALWAYS_DEFAULT: Final = WarpSchedule({}, (), is_subnet_evm=False)
"""Rules of a chain whose nodes have no eth_getChainConfig, and of the P-Chain."""


def parse_schedule(config: bytes) -> WarpSchedule:
    """Return the schedule in the result of eth_getChainConfig. Raises ValueError."""
    fields = _CONFIG.decode(config)
    genesis = {} if fields.get(_WARP) is None else {_WARP: _warp_config(fields[_WARP])}
    listed = _object(fields.get("upgrades") or {}).get("precompileUpgrades") or []
    if not isinstance(listed, list):
        raise ValueError("precompileUpgrades is not a list")
    if len(listed) > _MAX_UPGRADES:
        raise ValueError(f"{len(listed)} upgrades of precompiles")
    upgrades = tuple(
        {_WARP: _warp_config(upgrade[_WARP])}
        for upgrade in map(_object, listed)
        if _WARP in upgrade
    )
    durango_s = timestamp(fields.get("durangoBlockTimestamp")) or 0
    return WarpSchedule(genesis, upgrades, fields.get("feeConfig") is not None, durango_s)


class SignerSubnet(NamedTuple):
    """The subnet whose validators sign a message.

    source: why.
    """

    subnet_id: SubnetID
    source: SignerSource


def choose_signing_subnet(
    source_chain_id: ChainID,
    source_subnet_id: SubnetID,
    destination_chain_id: ChainID,
    destination_subnet_id: SubnetID,
    rules: WarpRules,
) -> SignerSubnet:
    """Return the subnet that signs a message of the source chain for a destination."""
    if source_chain_id == P_CHAIN:
        return SignerSubnet(destination_subnet_id, "destination")
    if source_subnet_id != PRIMARY_NETWORK:
        return SignerSubnet(source_subnet_id, "source")
    if destination_chain_id == P_CHAIN or rules.requires_primary_signers:
        return SignerSubnet(PRIMARY_NETWORK, "primary_network")
    return SignerSubnet(destination_subnet_id, "destination")


def _warp_config(value: Any) -> Config:
    config = precompile_as_json(_WARP, value)
    begins, quorum = config["blockTimestamp"], config["quorumNumerator"]
    if begins is not None and not 0 <= begins <= _MAX_TIME:
        raise ValueError("the time of a Warp configuration is out of range")
    if quorum and not _MIN_QUORUM <= quorum <= _MAX_QUORUM:
        raise ValueError(f"a quorum of {quorum} percent")
    return config


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


_CONFIG: Final = msgspec.json.Decoder(dict[str, Any])
