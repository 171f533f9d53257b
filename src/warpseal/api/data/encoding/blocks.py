"""Blocks and blockchains as resources."""

from __future__ import annotations

from warpseal.api.data.encoding.genesis import chain_id_of, evm_genesis, sdk_genesis
from warpseal.api.data.encoding.outputs import or_unset, text_or_unset
from warpseal.api.data.encoding.text import hex_text, node_text, shared_id_text
from warpseal.api.data.schema.base import UNSET, UnsetType
from warpseal.api.data.schema.blocks import BlockchainDetails, PrimaryNetworkBlock, ProposerDetails
from warpseal.history.blocks import Block, Blockchain, Proposer
from warpseal.history.chains import PrimaryChain
from warpseal.warp.ids import id_text


def encode_block(block: Block) -> PrimaryNetworkBlock:
    """Return a block; those of the C-Chain are named by hex, as everywhere."""
    name = hex_text if block.chain is PrimaryChain.C else id_text
    return PrimaryNetworkBlock(
        block_number=str(block.height),
        block_hash=name(block.block_id),
        parent_hash=name(block.parent_id),
        block_timestamp=block.time,
        block_type=block.kind,
        tx_count=len(block.tx_ids),
        transactions=tuple([id_text(tx_id) for tx_id in block.tx_ids]),
        block_size_bytes=block.size_bytes,
        l1_validators_accrued_fees=or_unset(block.accrued_fees),
        active_l1_validators=or_unset(block.active_l1_validators),
        current_supply=UNSET if block.supply is None else str(block.supply),
        proposer_details=_proposer(block.proposer),
    )


def _proposer(proposer: Proposer | None) -> ProposerDetails | UnsetType:
    if proposer is None:
        return UNSET
    return ProposerDetails(
        proposer_id=id_text(proposer.block_id),
        proposer_parent_id=id_text(proposer.parent_id),
        proposer_node_id=UNSET if proposer.node_id is None else node_text(proposer.node_id),
        proposer_p_chain_height=or_unset(proposer.p_chain_height),
        proposer_timestamp=or_unset(proposer.time),
    )


def encode_blockchain(chain: Blockchain, *, for_sdk: bool) -> BlockchainDetails:
    """Return a blockchain; 0 is the EVM chain id of what is no EVM chain.

    for_sdk: what SDKs insist on is 0 where it is not known, and never left out.
    """
    genesis = evm_genesis(chain.genesis)
    if genesis is not None and for_sdk:
        genesis = sdk_genesis(genesis)
    unknown = 0 if for_sdk else None
    evm_chain_id = unknown if chain.genesis is None else chain_id_of(genesis) or 0
    height = unknown if chain.height is None else chain.height
    return BlockchainDetails(
        blockchain_id=id_text(chain.chain_id),
        blockchain_name=chain.name,
        subnet_id=shared_id_text(chain.subnet_id),
        vm_id=shared_id_text(chain.vm_id),
        create_block_timestamp=or_unset(unknown if chain.time is None else chain.time),
        create_block_number=UNSET if height is None else str(height),
        evm_chain_id=or_unset(evm_chain_id),
        genesis_data=genesis or UNSET,
        genesis_data_hex=UNSET if genesis is not None else text_or_unset(chain.genesis or None),
    )
