"""P-Chain transactions that the Helicon upgrade adds: validators that renew themselves. Live on no public network yet.

Source of truth: ACP-236, avalanchego `vms/platformvm/txs/*_auto_renewed_validator*.go`. Shares are parts per million.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import ID, SIZED, U32, U64
from warpseal.chains.components import BaseFields, Input, OutputOwners, TransferableOutput
from warpseal.chains.ids import TxID
from warpseal.chains.layout import Layout
from warpseal.chains.p_components import AUTHORITY, BASE, OUTPUTS, OWNER, SIGNER, Signer


@dataclass(frozen=True, slots=True)
class AddAutoRenewedValidatorTx:
    """A validator joins the Primary Network for cycles of `period_s` seconds. node_id: 20 bytes where valid."""

    base: BaseFields
    node_id: bytes
    signer: Signer
    stake: tuple[TransferableOutput, ...]
    validator_rewards_owner: OutputOwners
    delegator_rewards_owner: OutputOwners
    validator_authority: OutputOwners
    delegation_shares: int
    auto_compound_reward_shares: int
    period_s: int


@dataclass(frozen=True, slots=True)
class SetAutoRenewedValidatorConfigTx:
    """Changes how a validator renews itself. staking_tx_id: the transaction by which it joined."""

    base: BaseFields
    staking_tx_id: TxID
    auth: Input
    auto_compound_reward_shares: int
    period_s: int


@dataclass(frozen=True, slots=True)
class RewardAutoRenewedValidatorTx:
    """Proposes to end a cycle, at `end_s`, with its reward if committed. It has no inputs and no credentials."""

    staking_tx_id: TxID
    end_s: int


ADD_AUTO_RENEWED_VALIDATOR_TX: Final = Layout(
    AddAutoRenewedValidatorTx,
    base=BASE,
    node_id=SIZED,
    signer=SIGNER,
    stake=OUTPUTS,
    validator_rewards_owner=OWNER,
    delegator_rewards_owner=OWNER,
    validator_authority=OWNER,
    delegation_shares=U32,
    auto_compound_reward_shares=U32,
    period_s=U64,
)
SET_AUTO_RENEWED_VALIDATOR_CONFIG_TX: Final = Layout(
    SetAutoRenewedValidatorConfigTx,
    base=BASE,
    staking_tx_id=ID,
    auth=AUTHORITY,
    auto_compound_reward_shares=U32,
    period_s=U64,
)
REWARD_AUTO_RENEWED_VALIDATOR_TX: Final = Layout(RewardAutoRenewedValidatorTx, staking_tx_id=ID, end_s=U64)
