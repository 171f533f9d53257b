"""The P-Chain's state as far as its blocks' effects depend on it: all but the unspent outputs.

Source of truth: avalanchego `vms/platformvm/state`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import AssetID, BlockID, TxID
from warpseal.chains.p_txs import PSignedTx
from warpseal.ledger.l1_validators import L1Validators
from warpseal.ledger.params import Parameters, RewardConfig
from warpseal.ledger.stakers import StakerSet
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID


@dataclass(frozen=True, slots=True)
class Transformation:
    """How an elastic subnet rewards its stakers."""

    tx_id: TxID
    asset_id: AssetID
    rewards: RewardConfig


@dataclass(frozen=True, slots=True)
class Conversion:
    """Who decides over an L1's validators."""

    conversion_id: bytes
    manager_chain_id: ChainID
    manager_address: bytes


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet; its owner is the last one, also of an L1."""

    subnet_id: SubnetID
    owner: OutputOwners
    transformation: Transformation | None = None
    conversion: Conversion | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A transaction whose outcome the next block decides, and where it stands."""

    tx: PSignedTx
    height: int
    position: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """How an auto-renewed validator (Helicon) goes on. next_period_s: 0 to leave at the end of the cycle.

    accrued_validation, accrued_delegation: what it has kept of its rewards as weight, paid out when it leaves.
    """

    compound_shares: int
    next_period_s: int
    accrued_validation: int = 0
    accrued_delegation: int = 0


@dataclass(slots=True)
class PChainState:
    """The state after block `height`. Only `apply` changes it.

    time_s: chain time. supplies: by subnet, of the Primary Network (where known) and elastic ones. delegation_rewards:
    what current validators (by transaction) will be paid for delegations that ended. is_complete: False where it began
    without the genesis, so that stakers and outputs may be unknown. is_spoiled: a fault left it in between; nothing may
    use it.
    """

    params: Parameters
    time_s: int
    height: int
    block_id: BlockID
    supplies: dict[SubnetID, int]
    current: StakerSet = field(default_factory=StakerSet)
    waiting: StakerSet = field(default_factory=StakerSet)
    delegation_rewards: dict[TxID, int] = field(default_factory=dict)
    renewals: dict[TxID, Renewal] = field(default_factory=dict)
    subnets: dict[SubnetID, Subnet] = field(default_factory=dict)
    chains: dict[ChainID, SubnetID] = field(default_factory=dict)
    l1: L1Validators = field(default_factory=L1Validators)
    l1_excess: int = 0
    l1_accrued_fees: int = 0
    proposal: Proposal | None = None
    is_complete: bool = True
    is_spoiled: bool = False

    @property
    def supply(self) -> int | None:
        """The Primary Network's supply, nAVAX; None where the genesis is not known."""
        return self.supplies.get(PRIMARY_NETWORK)
