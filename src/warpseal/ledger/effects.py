"""The effects of a P-Chain block, as values: everything that the index stores of it.

Source of truth: the rules in docs/ledger.md. Amounts are in the asset's smallest unit, times unix
seconds.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import AssetID, TxID
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import ProofOfPossession, PSignedTx, api_type
from warpseal.ledger.outputs import Consumed, LedgerOutput
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import PChainOwner

# Sums by asset, of assets with a sum above zero, by asset id.
AssetSums = tuple[tuple[AssetID, int], ...]


class TxOutcome(Enum):
    """The outcome of a transaction: PROPOSED until the next block commits or aborts it."""

    ACCEPTED = "accepted"
    PROPOSED = "proposed"
    COMMITTED = "committed"
    ABORTED = "aborted"


class StakingPeriod(Struct, frozen=True):
    """The staking of the transaction tx_id.

    shares: the parts per million of its delegators' rewards that a validator takes; None for a
    delegator.
    potential_reward: None before the staking starts and if the supply is unknown; 0 if the staking
    earns nothing.
    stake_asset_id, validation_owner, delegation_owner: None on permissioned subnets, which pay no
    rewards.
        A delegator's reward goes to validation_owner; its delegation_owner is None.
    auto_renewed: True for validators of ACP-236.
    """

    tx_id: TxID
    subnet_id: SubnetID
    node_id: NodeID
    start_s: int
    end_s: int
    weight: int
    is_delegation: bool
    shares: int | None = None
    potential_reward: int | None = None
    stake_asset_id: AssetID | None = None
    validation_owner: OutputOwners | None = None
    delegation_owner: OutputOwners | None = None
    signer: ProofOfPossession | None = None
    auto_renewed: bool = False


class PeriodStarted(Struct, frozen=True):
    """A pending staking began (before Durango); its potential reward is known from now on."""

    tx_id: TxID
    start_s: int
    potential_reward: int | None


class PeriodClosed(Struct, frozen=True):
    """A staking is over.

    is_rewarded: the reward was committed.
    end_s: chain time.

    Amounts paid now: validation_reward, delegation_reward (a validator's own, and its part of
    delegations), or delegator_reward with the validator_share of that delegation, paid to the
    validator now or (is_deferred) at its end.
    is_known: False if the staking or its potential reward lies before the first indexed block; the
        rest is then unknown.
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


class PeriodRenewed(Struct, frozen=True):
    """A cycle of an auto-renewed validator is over; the next begins, with compounded rewards.

    kept_validation, kept_delegation: rewards of the cycle that became weight, and are paid when the
        validator leaves.
    """

    tx_id: TxID
    reward_tx_id: TxID
    start_s: int
    end_s: int
    weight: int
    potential_reward: int
    kept_validation: int
    kept_delegation: int


class SubnetCreated(Struct, frozen=True):
    """A subnet was created; it has the ID of the transaction."""

    subnet_id: SubnetID
    owner: OutputOwners


class SubnetOwnerChanged(Struct, frozen=True):
    """A subnet has a new owner."""

    subnet_id: SubnetID
    owner: OutputOwners


class SubnetTransformed(Struct, frozen=True):
    """A subnet became elastic; the transaction has the terms."""

    subnet_id: SubnetID
    asset_id: AssetID


class SubnetConverted(Struct, frozen=True):
    """A subnet became an L1."""

    subnet_id: SubnetID
    conversion_id: bytes
    manager_chain_id: ChainID
    manager_address: bytes


SubnetChange = SubnetCreated | SubnetOwnerChanged | SubnetTransformed | SubnetConverted


class ChainCreated(Struct, frozen=True):
    """A blockchain was created; it has the ID of the transaction."""

    chain_id: ChainID
    subnet_id: SubnetID
    name: str
    vm_id: bytes


class L1Validator(Struct, frozen=True):
    """One validation.

    end_accumulated_fee: the sum of fees that uses up its balance, nAVAX; 0 if inactive.
    """

    validation_id: ValidationID
    subnet_id: SubnetID
    node_id: NodeID
    public_key: bytes
    remaining_balance_owner: PChainOwner
    deactivation_owner: PChainOwner
    start_s: int
    weight: int
    min_nonce: int = 0
    end_accumulated_fee: int = 0

    def balance(self, accrued_fees: int) -> int:
        """Return its balance, nAVAX, once every validator has paid `accrued_fees`."""
        return max(0, self.end_accumulated_fee - accrued_fees)


class L1ValidatorChange(Struct, frozen=True):
    """An L1 validator after a transaction, with weight 0 if it ended the validation.

    balance: nAVAX, at the time of the transaction's block; 0 if inactive.
    balance_change: negative for a refund.
    is_new: the transaction began the validation.
    """

    validator: L1Validator
    balance: int
    balance_change: int
    is_new: bool = False


class L1Deactivated(Struct, frozen=True):
    """An L1 validator's balance ran out; nAVAX too few for another second are forfeited."""

    validation_id: ValidationID
    subnet_id: SubnetID
    after_transactions: bool


class SupplyChange(Struct, frozen=True):
    """The supply of a subnet's asset after the block; the Primary Network's asset is AVAX."""

    subnet_id: SubnetID
    supply: int


class SetChange(Struct, frozen=True):
    """A member of a subnet's validator set after the block.

    weight: weight of the member, 0 after it left.
    public_key: 48 bytes, None without a key.

    node_id: the empty node stands for all inactive validators of an L1, which have no key.
    """

    subnet_id: SubnetID
    node_id: NodeID
    weight: int
    public_key: bytes | None


class TxEffects(Struct):
    """The effects of a transaction.

    The ledger fills it in while it applies the block; afterwards it does not change.

    height: height of the block that holds the transaction.
    position: position in that block.
    consumed: consumed outputs in the order of the credentials.
    emitted: its outputs by index, including exports and staked outputs; of a RewardValidatorTx the
        rewards, under the staking's id.
    released: outputs that the staking transaction emitted as staked and that are spendable from now
        on.
    burned: inputs less the outputs that they pay, less l1_balance, the nAVAX that it added to the
        balances of L1 validators.
    removed: staking that the subnet's owner ended.
    """

    tx: PSignedTx
    height: int
    position: int
    outcome: TxOutcome
    consumed: tuple[Consumed, ...] = ()
    emitted: tuple[LedgerOutput, ...] = ()
    released: tuple[LedgerOutput, ...] = ()
    source_chain_id: ChainID | None = None
    destination_chain_id: ChainID | None = None
    burned: AssetSums = ()
    l1_balance: int = 0
    opened: StakingPeriod | None = None
    closed: PeriodClosed | None = None
    renewed: PeriodRenewed | None = None
    removed: TxID | None = None
    subnet: SubnetChange | None = None
    chain: ChainCreated | None = None
    l1: tuple[L1ValidatorChange, ...] = ()

    @property
    def api_type(self) -> str:
        """The public data API's name of the transaction's type."""
        return api_type(self.tx)


class BlockEffects(Struct, frozen=True):
    """The effects of a block.

    time_s: chain time after the block, which is the block's own since Banff.

    supply: supply of the Primary Network after the block, None without the genesis.
    l1_accrued_fees, l1_active, l1_excess: fee state of L1 validators after it.
    txs: transactions in order; the last one of a proposal is PROPOSED.
    settled: proposal of the parent, committed or aborted by this block.
    emitted: outputs without a transaction, of the genesis.
    started: stakings that had been pending; ended: permissioned validators whose period is over.
    l1_deactivated, supplies: all changes.
    set_changes: the members of validator sets that differ from those after the parent; None without
        the genesis.
    """

    block: PBlock
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
    set_changes: tuple[SetChange, ...] | None = None

    @property
    def executed(self) -> tuple[TxEffects, ...]:
        """The transactions as they change outputs: the settled proposal, then the block's."""
        return self.txs if self.settled is None else (self.settled, *self.txs)
