"""Subnets and blockchains: made, given away, made elastic, turned into L1s.

Source of truth: avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`.
"""

from __future__ import annotations

from dataclasses import replace

from warpseal.chains.p_subnets import CreateChainTx, CreateSubnetTx, TransferSubnetOwnershipTx, TransformSubnetTx
from warpseal.ledger.effects import ChainMade, SubnetMade, SubnetOwned, SubnetTransformed
from warpseal.ledger.effects_builder import BlockDraft, Draft
from warpseal.ledger.p_state import Subnet, Transformation
from warpseal.ledger.params import RewardConfig
from warpseal.warp.ids import ChainID, SubnetID


def create_subnet(block: BlockDraft, draft: Draft, tx: CreateSubnetTx) -> None:
    """A subnet comes to be, under the transaction's id."""
    subnet_id = SubnetID(draft.tx.id)
    if subnet_id in block.state.subnets:
        raise block.fault("the same subnet twice", draft.tx)
    block.state.subnets[subnet_id] = Subnet(subnet_id, tx.owner)
    draft.subnet = SubnetMade(subnet_id, tx.owner)


def create_chain(block: BlockDraft, draft: Draft, tx: CreateChainTx) -> None:
    """A blockchain comes to be, under the transaction's id."""
    known_subnet(block, draft, tx.subnet_id)
    chain_id = ChainID(draft.tx.id)
    block.state.chains[chain_id] = tx.subnet_id
    draft.chain = ChainMade(chain_id, tx.subnet_id, tx.chain_name, tx.vm_id)


def transfer_subnet(block: BlockDraft, draft: Draft, tx: TransferSubnetOwnershipTx) -> None:
    """A subnet gets a new owner."""
    subnet = known_subnet(block, draft, tx.subnet_id)
    if subnet is not None:
        block.state.subnets[tx.subnet_id] = replace(subnet, owner=tx.new_owner)
    draft.subnet = SubnetOwned(tx.subnet_id, tx.new_owner)


def transform_subnet(block: BlockDraft, draft: Draft, tx: TransformSubnetTx) -> None:
    """A subnet becomes elastic: whoever stakes its asset may validate."""
    subnet = known_subnet(block, draft, tx.subnet_id)
    if subnet is not None:
        if subnet.transformation is not None or subnet.conversion is not None:
            raise block.fault("the subnet is no permissioned one any more", draft.tx)
        period_s = block.state.params.rewards.minting_period_s
        rewards = RewardConfig(tx.max_consumption_rate, tx.min_consumption_rate, period_s, tx.maximum_supply)
        transformation = Transformation(draft.tx.id, tx.asset_id, rewards)
        block.state.subnets[tx.subnet_id] = replace(subnet, transformation=transformation)
    block.state.supplies[tx.subnet_id] = tx.initial_supply
    block.supplies.add(tx.subnet_id)
    draft.subnet = SubnetTransformed(tx.subnet_id, tx.asset_id)


def known_subnet(block: BlockDraft, draft: Draft, subnet_id: SubnetID) -> Subnet | None:
    """Return the subnet; None where it may be from before what was indexed. Raises LedgerFault where it cannot be."""
    subnet = block.state.subnets.get(subnet_id)
    if subnet is None and block.state.is_complete:
        raise block.fault(f"there is no subnet {subnet_id.hex()}", draft.tx)
    return subnet
