"""What a P-Chain block does, as values: everything that a store has to write of it.

Source of truth: the rules in docs/ledger.md. Amounts are in the asset's smallest unit, times unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import AssetID, TxID
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_components import ProofOfPossession
from warpseal.chains.p_txs import PSignedTx
from warpseal.ledger.outputs import Consumed, LedgerOutput
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import PChainOwner

# Sums by asset, of assets with a sum above zero, by asset id.
AssetSums = tuple[tuple[AssetID, int], ...]


class TxOutcome(Enum):
    """What became of a transaction: PROPOSED until the next block commits or aborts it."""

    ACCEPTED = "accepted"
    PROPOSED = "proposed"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a transaction moved. value: of everything that it made; burned: inputs less outputs less L1 balances.

    staked: what it locked. l1_balance: nAVAX that it put into the balances of L1 validators.
    """

    value: AssetSums
    burned: AssetSums
    staked: AssetSums
    l1_balance: int


@dataclass(frozen=True, slots=True)
class StakingPeriod:
    """A staking, of the transaction tx_id. potential_reward: None while it waits to start (and where
    the supply is not known), 0 where none can be earned.

    shares: parts per million that the validator takes of its delegators' rewards; None for a delegator.
    stake_asset_id, validation_owner, delegation_owner: None where nothing is earned (permissioned subnets), and the
    latter for delegators, whose own reward goes to validation_owner. auto_renewed: Helicon's kind.
    """

    tx_id: TxID
    subnet_id: SubnetID
    node_id: NodeID
    start_s: int
    end_s: int
    weight: int
    is_delegation: bool
    shares: int | None
    potential_reward: int | None
    stake_asset_id: AssetID | None
    validation_owner: OutputOwners | None
    delegation_owner: OutputOwners | None
    signer: ProofOfPossession | None
    auto_renewed: bool = False


@dataclass(frozen=True, slots=True)
class PeriodStarted:
    """A staking that waited began (before Durango): now it is known what it may earn."""

    tx_id: TxID
    start_s: int
    potential_reward: int | None


@dataclass(frozen=True, slots=True)
class PeriodClosed:
    """A staking is over. is_rewarded: whether its reward was committed; end_s: chain time.

    Amounts paid out now: validation_reward, delegation_reward (a validator's own, and of its delegators' stakings), or
    delegator_reward with the validator_share of that delegation, paid to the validator now or (is_deferred) at its end.
    is_known: False where the staking, or what it may earn, is from before what was indexed: nothing else can be said.
    """

    tx_id: TxID
    reward_tx_id: TxID
    end_s: int
    is_rewarded: bool
    validation_reward: int = 0
    delegation_reward: int = 0
    delegator_reward: int = 0
    validator_share: int = 0
    is_deferred: bool = False
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class PeriodRenewed:
    """A cycle of an auto-renewed validator is over and the next begins with what it earned and kept."""

    tx_id: TxID
    reward_tx_id: TxID
    start_s: int
    end_s: int
    weight: int
    potential_reward: int


@dataclass(frozen=True, slots=True)
class PeriodRemoved:
    """The subnet's owner removed a permissioned validator. was_current: False where it had not started yet."""

    tx_id: TxID
    was_current: bool


@dataclass(frozen=True, slots=True)
class SubnetCreated:
    """A subnet came to be, its id that of the transaction."""

    subnet_id: SubnetID
    owner: OutputOwners


@dataclass(frozen=True, slots=True)
class SubnetOwnerChanged:
    """A subnet has a new owner."""

    subnet_id: SubnetID
    owner: OutputOwners


@dataclass(frozen=True, slots=True)
class SubnetTransformed:
    """A subnet became elastic; the transaction has the terms."""

    subnet_id: SubnetID
    asset_id: AssetID


@dataclass(frozen=True, slots=True)
class SubnetConverted:
    """A subnet became an L1."""

    subnet_id: SubnetID
    conversion_id: bytes
    manager_chain_id: ChainID
    manager_address: bytes


SubnetChange = SubnetCreated | SubnetOwnerChanged | SubnetTransformed | SubnetConverted


@dataclass(frozen=True, slots=True)
class ChainCreated:
    """A blockchain came to be, its id that of the transaction."""

    chain_id: ChainID
    subnet_id: SubnetID
    name: str
    vm_id: bytes


@dataclass(frozen=True, slots=True)
class L1ValidatorChange:
    """An L1 validator as a transaction left it.

    balance: nAVAX, at the time of the transaction's block; 0: inactive. balance_change: negative where it was paid
    back. is_new, is_removed: whether the transaction began or ended the validation.
    """

    validation_id: ValidationID
    subnet_id: SubnetID
    node_id: NodeID
    public_key: bytes
    weight: int
    min_nonce: int
    start_s: int
    remaining_balance_owner: PChainOwner
    deactivation_owner: PChainOwner
    balance: int
    balance_change: int
    is_new: bool = False
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class L1Deactivated:
    """An L1 validator's balance ran out. forfeited: nAVAX that were left, too few for another second."""

    validation_id: ValidationID
    subnet_id: SubnetID
    after_transactions: bool
    forfeited: int


@dataclass(frozen=True, slots=True)
class SupplyChange:
    """What a subnet's asset has in supply after the block; the Primary Network's is AVAX."""

    subnet_id: SubnetID
    supply: int


@dataclass(frozen=True, slots=True)
class TxEffects:
    """What one transaction does. height, position: of the block that holds it, and where in it.

    consumed: in the order of the credentials. emitted: what it makes, by output index, exports and staked outputs
    included; of a RewardValidatorTx the rewards, under the staking's id. released: staked outputs that were emitted
    with the staking and can be spent from now on (no longer `staked`).
    """

    tx: PSignedTx
    height: int
    position: int
    api_type: str
    outcome: TxOutcome
    consumed: tuple[Consumed, ...]
    emitted: tuple[LedgerOutput, ...]
    released: tuple[LedgerOutput, ...]
    source_chain_id: ChainID | None
    destination_chain_id: ChainID | None
    amounts: Amounts
    opened: StakingPeriod | None
    closed: PeriodClosed | None
    renewed: PeriodRenewed | None
    removed: PeriodRemoved | None
    subnet: SubnetChange | None
    chain: ChainCreated | None
    l1: tuple[L1ValidatorChange, ...]


@dataclass(frozen=True, slots=True)
class BlockEffects:
    """What a block does. time_s: chain time after it, which is its own since Banff.

    supply, l1_accrued_fees, l1_active, l1_excess: the Primary Network's supply (None where the genesis is not known)
    and the L1 validators' fee state after it. txs: in its order; the last of a proposal only PROPOSED. settled: the
    proposal of the block before, committed or aborted here. emitted: outputs that no transaction made (the genesis).
    started: stakings that had waited; ended: permissioned validators whose time was over, silently. l1_deactivated,
    supplies: all that changed.
    """

    chain_id: ChainID
    block: PBlock
    size_bytes: int
    tx_count: int
    time_s: int
    supply: int | None
    l1_accrued_fees: int
    l1_active: int
    l1_excess: int
    txs: tuple[TxEffects, ...]
    settled: TxEffects | None
    emitted: tuple[LedgerOutput, ...]
    started: tuple[PeriodStarted, ...]
    ended: tuple[TxID, ...]
    l1_deactivated: tuple[L1Deactivated, ...]
    supplies: tuple[SupplyChange, ...]
