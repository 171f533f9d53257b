"""P-Chain transactions about subnets and their blockchains: creation, transformation, change of owner.

Source of truth: avalanchego `vms/platformvm/txs/{create_chain,create_subnet,transform_subnet}_tx.go`,
`transfer_subnet_ownership_tx.go`. A subnet's id, and a blockchain's, is that of the transaction that created it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import ID, SIZED, TEXT, U8, U32, U64, ListOfFixed
from warpseal.chains.components import BaseFields, Input, OutputOwners
from warpseal.chains.ids import AssetID
from warpseal.chains.layout import Layout
from warpseal.chains.p_components import AUTHORITY, BASE, OWNER
from warpseal.warp.ids import SubnetID


@dataclass(frozen=True, slots=True)
class CreateSubnetTx:
    """Creates a permissioned subnet."""

    base: BaseFields
    owner: OutputOwners


@dataclass(frozen=True, slots=True)
class CreateChainTx:
    """Creates a blockchain on a subnet. vm_id and fx_ids: 32 bytes each."""

    base: BaseFields
    subnet_id: SubnetID
    chain_name: str
    vm_id: bytes
    fx_ids: tuple[bytes, ...]
    genesis: bytes
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class TransformSubnetTx:
    """Makes a permissioned subnet elastic. Rates, fee and uptime are parts per million; durations seconds."""

    base: BaseFields
    subnet_id: SubnetID
    asset_id: AssetID
    initial_supply: int
    maximum_supply: int
    min_consumption_rate: int
    max_consumption_rate: int
    min_validator_stake: int
    max_validator_stake: int
    min_stake_duration_s: int
    max_stake_duration_s: int
    min_delegation_fee: int
    min_delegator_stake: int
    max_validator_weight_factor: int
    uptime_requirement: int
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class TransferSubnetOwnershipTx:
    """Gives a permissioned subnet a new owner."""

    base: BaseFields
    subnet_id: SubnetID
    subnet_auth: Input
    new_owner: OutputOwners


CREATE_SUBNET_TX: Final = Layout(CreateSubnetTx, base=BASE, owner=OWNER)
CREATE_CHAIN_TX: Final = Layout(
    CreateChainTx,
    base=BASE,
    subnet_id=ID,
    chain_name=TEXT,
    vm_id=ID,
    fx_ids=ListOfFixed(ID, "fx ids"),
    genesis=SIZED,
    subnet_auth=AUTHORITY,
)
TRANSFORM_SUBNET_TX: Final = Layout(
    TransformSubnetTx,
    base=BASE,
    subnet_id=ID,
    asset_id=ID,
    initial_supply=U64,
    maximum_supply=U64,
    min_consumption_rate=U64,
    max_consumption_rate=U64,
    min_validator_stake=U64,
    max_validator_stake=U64,
    min_stake_duration_s=U32,
    max_stake_duration_s=U32,
    min_delegation_fee=U32,
    min_delegator_stake=U64,
    max_validator_weight_factor=U8,
    uptime_requirement=U32,
    subnet_auth=AUTHORITY,
)
TRANSFER_SUBNET_OWNERSHIP_TX: Final = Layout(
    TransferSubnetOwnershipTx, base=BASE, subnet_id=ID, subnet_auth=AUTHORITY, new_owner=OWNER
)
