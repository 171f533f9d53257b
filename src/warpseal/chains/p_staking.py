"""P-Chain transactions about stakers: who joins, who delegates, who leaves, the passing of time.

Source of truth: avalanchego `vms/platformvm/txs/*.go`. Shares are parts per million. What is staked comes back when the
staker leaves: as outputs of the staking transaction, behind its base outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import ID, U32, U64
from warpseal.chains.components import BaseFields, Input, OutputOwners, TransferableOutput
from warpseal.chains.ids import TxID
from warpseal.chains.layout import Layout
from warpseal.chains.p_components import (
    AUTHORITY,
    BASE,
    NODE_ID,
    OUTPUTS,
    OWNER,
    SIGNER,
    SUBNET_VALIDATOR,
    VALIDATOR,
    Signer,
    SubnetValidator,
    Validator,
)
from warpseal.warp.ids import NodeID, SubnetID


@dataclass(frozen=True, slots=True)
class AddValidatorTx:
    """A validator joins the Primary Network without a BLS key (before Durango)."""

    base: BaseFields
    validator: Validator
    stake: tuple[TransferableOutput, ...]
    rewards_owner: OutputOwners
    delegation_shares: int


@dataclass(frozen=True, slots=True)
class AddDelegatorTx:
    """Somebody delegates to a validator of the Primary Network (before Durango)."""

    base: BaseFields
    validator: Validator
    stake: tuple[TransferableOutput, ...]
    rewards_owner: OutputOwners


@dataclass(frozen=True, slots=True)
class AddSubnetValidatorTx:
    """The subnet's owner lets a validator join a permissioned subnet."""

    base: BaseFields
    validator: SubnetValidator
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class AddPermissionlessValidatorTx:
    """A validator joins the Primary Network or an elastic subnet."""

    base: BaseFields
    validator: SubnetValidator
    signer: Signer
    stake: tuple[TransferableOutput, ...]
    validator_rewards_owner: OutputOwners
    delegator_rewards_owner: OutputOwners
    delegation_shares: int


@dataclass(frozen=True, slots=True)
class AddPermissionlessDelegatorTx:
    """Somebody delegates to a validator of the Primary Network or of an elastic subnet."""

    base: BaseFields
    validator: SubnetValidator
    stake: tuple[TransferableOutput, ...]
    rewards_owner: OutputOwners


@dataclass(frozen=True, slots=True)
class RemoveSubnetValidatorTx:
    """The subnet's owner removes a validator of a permissioned subnet."""

    base: BaseFields
    node_id: NodeID
    subnet_id: SubnetID
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class AdvanceTimeTx:
    """Proposes a new chain time (before Banff). It has no inputs and no credentials."""

    time_s: int


@dataclass(frozen=True, slots=True)
class RewardValidatorTx:
    """Proposes to end a staking, with its reward if committed. It has no inputs and no credentials."""

    staking_tx_id: TxID


ADD_VALIDATOR_TX: Final = Layout(
    AddValidatorTx, base=BASE, validator=VALIDATOR, stake=OUTPUTS, rewards_owner=OWNER, delegation_shares=U32
)
ADD_DELEGATOR_TX: Final = Layout(AddDelegatorTx, base=BASE, validator=VALIDATOR, stake=OUTPUTS, rewards_owner=OWNER)
ADD_SUBNET_VALIDATOR_TX: Final = Layout(
    AddSubnetValidatorTx, base=BASE, validator=SUBNET_VALIDATOR, subnet_auth=AUTHORITY
)
ADD_PERMISSIONLESS_VALIDATOR_TX: Final = Layout(
    AddPermissionlessValidatorTx,
    base=BASE,
    validator=SUBNET_VALIDATOR,
    signer=SIGNER,
    stake=OUTPUTS,
    validator_rewards_owner=OWNER,
    delegator_rewards_owner=OWNER,
    delegation_shares=U32,
)
ADD_PERMISSIONLESS_DELEGATOR_TX: Final = Layout(
    AddPermissionlessDelegatorTx, base=BASE, validator=SUBNET_VALIDATOR, stake=OUTPUTS, rewards_owner=OWNER
)
REMOVE_SUBNET_VALIDATOR_TX: Final = Layout(
    RemoveSubnetValidatorTx, base=BASE, node_id=NODE_ID, subnet_id=ID, subnet_auth=AUTHORITY
)
ADVANCE_TIME_TX: Final = Layout(AdvanceTimeTx, time_s=U64)
REWARD_VALIDATOR_TX: Final = Layout(RewardValidatorTx, staking_tx_id=ID)
