"""Transactions as resources, in the specification's words with the SDKs' keys beside them."""

from __future__ import annotations

from warpseal.api.data.encoding.genesis import evm_genesis, genesis_text
from warpseal.api.data.encoding.outputs import (
    asset_type,
    avm_utxo,
    encode_amount,
    encode_amounts,
    encode_signers,
    or_unset,
    p_utxo,
    sums,
)
from warpseal.api.data.encoding.text import (
    NetworkText,
    account_text,
    hex_text,
    node_text,
    percent_text,
    shared_id_text,
)
from warpseal.api.data.schema.base import UNSET, UnsetType
from warpseal.api.data.schema.enums import (
    C_CHAIN_TX_TYPES,
    X_CHAIN_TX_TYPES,
    PrimaryNetworkAssetCap,
    PrimaryNetworkTxType,
    tx_type,
)
from warpseal.api.data.schema.transactions import (
    AssetCreated,
    BlockchainInfo,
    BlsCredentials,
    CChainTransaction,
    EvmInput,
    EvmOutput,
    L1ValidatorDetails,
    L1ValidatorManagerDetails,
    PChainTransaction,
    SubnetOwnershipInfo,
    XChainTransaction,
    XChainVertex,
)
from warpseal.history.outputs import Amount
from warpseal.history.transactions import (
    AssetCreation,
    BlsKey,
    CTransaction,
    L1Change,
    Manager,
    NewBlockchain,
    Owner,
    PTransaction,
    Transaction,
    Vertex,
    XTransaction,
)
from warpseal.warp.ids import id_text


def p_transaction(tx: PTransaction, words: NetworkText) -> PChainTransaction:
    """Return a transaction of the P-Chain."""
    source, destination = chain_texts(tx, words)
    return PChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind),
        block_timestamp=tx.time,
        block_number=str(tx.height),
        block_hash=id_text(tx.block_id),
        consumed_utxos=tuple([p_utxo(utxo, words) for utxo in tx.consumed]),
        emitted_utxos=tuple([p_utxo(utxo, words) for utxo in tx.emitted]),
        value=encode_amounts(tx.value),
        amount_burned=encode_amounts(tx.burned),
        amount_staked=encode_amounts(tx.staked),
        amount_l1_validator_balance_burned=encode_amounts(tx.l1_funded),
        source_chain=source,
        destination_chain=destination,
        memo=hex_text(tx.memo),
        start_timestamp=or_unset(tx.start),
        end_timestamp=or_unset(tx.end),
        delegation_fee_percent=fee_text(tx.delegation_fee_shares),
        node_id=UNSET if tx.node_id is None else node_text(tx.node_id),
        subnet_id=UNSET if tx.subnet_id is None else shared_id_text(tx.subnet_id),
        l1_validator_manager_details=_manager(tx.manager),
        l1_validator_details=tuple([_l1_change(one) for one in tx.l1_changes]) or UNSET,
        estimated_reward=_estimated_reward(tx),
        reward_tx_hash=UNSET if tx.reward_tx_id is None else id_text(tx.reward_tx_id),
        staking_tx_hash=UNSET if tx.staking_tx_id is None else id_text(tx.staking_tx_id),
        reward_addresses=words.addresses(tx.reward_addresses) or UNSET,
        subnet_ownership_info=_owner(tx.subnet_owner, words),
        bls_credentials=bls_credentials(tx.bls),
        blockchain_info=_new_blockchain(tx.blockchain),
    )


def x_transaction(tx: XTransaction, words: NetworkText) -> XChainTransaction:
    """Return a transaction of the X-Chain."""
    created = sums(tx.emitted)
    source, destination = chain_texts(tx, words)
    return XChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind, X_CHAIN_TX_TYPES),
        block_timestamp=tx.time,
        timestamp=tx.time,
        chain_format="non-linear" if tx.block_id is None else "linear",
        block_number=UNSET if tx.height is None else str(tx.height),
        block_height=or_unset(tx.height),
        block_hash=UNSET if tx.block_id is None else id_text(tx.block_id),
        vertices=UNSET if tx.block_id is not None else tuple([vertex(one) for one in tx.vertices]),
        consumed_utxos=tuple([avm_utxo(utxo, words) for utxo in tx.consumed]),
        emitted_utxos=tuple([avm_utxo(utxo, words) for utxo in tx.emitted]),
        amount_unlocked=encode_amounts(sums(tx.consumed)),
        amount_created=encode_amounts(created),
        value=encode_amounts(created),
        amount_burned=encode_amounts(lost(sums(tx.consumed), created)),
        amount_staked=(),
        amount_l1_validator_balance_burned=(),
        source_chain=source,
        destination_chain=destination,
        memo=hex_text(tx.memo),
        asset_created=asset_created(tx.asset_created),
        approximate=tx.is_time_approximate or UNSET,
    )


def c_transaction(tx: CTransaction, words: NetworkText) -> CChainTransaction:
    """Return an atomic transaction of the C-Chain."""
    unlocked, created = atomic_amounts(tx)
    source, destination = chain_texts(tx, words)
    return CChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind, C_CHAIN_TX_TYPES),
        block_timestamp=tx.time,
        timestamp=tx.time,
        block_number=str(tx.height),
        block_height=tx.height,
        block_hash=hex_text(tx.block_id),
        consumed_utxos=tuple([avm_utxo(utxo, words) for utxo in tx.consumed]),
        emitted_utxos=tuple([avm_utxo(utxo, words) for utxo in tx.emitted]),
        amount_unlocked=encode_amounts(unlocked),
        amount_created=encode_amounts(created),
        value=encode_amounts(created),
        amount_burned=encode_amounts(lost(unlocked, created)),
        amount_staked=(),
        amount_l1_validator_balance_burned=(),
        source_chain=source,
        destination_chain=destination,
        memo="0x",
        evm_inputs=evm_inputs(tx),
        evm_outputs=evm_outputs(tx),
    )


def atomic_amounts(tx: CTransaction) -> tuple[tuple[Amount, ...], tuple[Amount, ...]]:
    """Return what an atomic transaction takes, and what it makes, accounts included."""
    taken = _merged((*sums(tx.consumed), *(one.amount for one in tx.evm_inputs)))
    made = _merged((*sums(tx.emitted), *(one.amount for one in tx.evm_outputs)))
    return taken, made


def lost(taken: tuple[Amount, ...], made: tuple[Amount, ...]) -> tuple[Amount, ...]:
    """Return what was taken and not made again, by asset."""
    left = {one.asset: one.amount for one in made}
    return tuple(
        [Amount(one.asset, one.amount - left.get(one.asset, 0)) for one in taken if one.amount > left.get(one.asset, 0)]
    )


def _merged(amounts: tuple[Amount, ...]) -> tuple[Amount, ...]:
    totals: dict[object, Amount] = {}
    for one in amounts:
        before = totals.get(one.asset)
        totals[one.asset] = one if before is None else Amount(one.asset, before.amount + one.amount)
    return tuple(totals.values())


def evm_inputs(tx: CTransaction) -> tuple[EvmInput, ...] | UnsetType:
    """Return what an export takes from accounts; left out of an import."""
    if not tx.evm_inputs:
        return UNSET
    return tuple(
        [
            EvmInput(
                from_address=account_text(one.address),
                asset=encode_amount(one.amount.asset, one.amount.amount),
                credentials=encode_signers(one.signers),
            )
            for one in tx.evm_inputs
        ]
    )


def evm_outputs(tx: CTransaction) -> tuple[EvmOutput, ...] | UnsetType:
    """Return what an import gives to accounts; left out of an export."""
    if not tx.evm_outputs:
        return UNSET
    return tuple(
        [
            EvmOutput(to_address=account_text(one.address), asset=encode_amount(one.amount.asset, one.amount.amount))
            for one in tx.evm_outputs
        ]
    )


def chain_texts(tx: Transaction, words: NetworkText) -> tuple[str | UnsetType, str | UnsetType]:
    """Return from which chain to which an import or export goes, one of them its own; left out of all others."""
    if tx.source_chain is None and tx.destination_chain is None:
        return UNSET, UNSET
    ends = tx.source_chain, tx.destination_chain
    source, destination = (words.chain(tx.chain) if one is None else shared_id_text(one) for one in ends)
    return source, destination


def _estimated_reward(tx: PTransaction) -> str | UnsetType:
    """Return what a stake would earn; subnets without a token of their own pay nothing to begin with."""
    is_paid = tx.estimated_reward is not None and tx.kind != PrimaryNetworkTxType.ADD_SUBNET_VALIDATOR
    return str(tx.estimated_reward) if is_paid else UNSET


def fee_text(shares: int | None) -> str | UnsetType:
    """Return a fee in percent, or leave it out."""
    return UNSET if shares is None else percent_text(shares)


def bls_credentials(key: BlsKey | None) -> BlsCredentials | UnsetType:
    """Return a BLS key, or leave it out."""
    if key is None:
        return UNSET
    return BlsCredentials(public_key=hex_text(key.public_key), proof_of_possession=hex_text(key.proof_of_possession))


def vertex(one: Vertex) -> XChainVertex:
    """Return a vertex."""
    return XChainVertex(hash=id_text(one.vertex_id), height=one.height, timestamp=one.time)


def asset_created(creation: AssetCreation | None) -> AssetCreated | UnsetType:
    """Return the asset that came into being, or leave it out."""
    if creation is None:
        return UNSET
    asset = creation.asset
    return AssetCreated(
        asset_id=id_text(asset.asset_id),
        name=asset.name,
        symbol=asset.symbol,
        denomination=asset.denomination,
        type=asset_type(asset),
        created_at_timestamp=creation.created_at,
        cap=PrimaryNetworkAssetCap.FIXED if creation.has_fixed_cap else PrimaryNetworkAssetCap.VARIABLE,
    )


def _manager(manager: Manager | None) -> L1ValidatorManagerDetails | UnsetType:
    if manager is None:
        return UNSET
    return L1ValidatorManagerDetails(
        blockchain_id=shared_id_text(manager.chain_id), contract_address=account_text(manager.address)
    )


def _l1_change(one: L1Change) -> L1ValidatorDetails:
    return L1ValidatorDetails(
        validation_id=id_text(one.validation_id),
        validation_id_hex=hex_text(one.validation_id),
        node_id=node_text(one.node_id),
        subnet_id=shared_id_text(one.subnet_id),
        weight=one.weight,
        remaining_balance=one.remaining_navax,
        balance_change=or_unset(one.change_navax),
        bls_credentials=bls_credentials(one.bls),
    )


def _owner(owner: Owner | None, words: NetworkText) -> SubnetOwnershipInfo | UnsetType:
    if owner is None:
        return UNSET
    return SubnetOwnershipInfo(
        locktime=owner.locktime, threshold=owner.threshold, addresses=words.addresses(owner.addresses)
    )


def _new_blockchain(created: NewBlockchain | None) -> BlockchainInfo | UnsetType:
    if created is None:
        return UNSET
    return BlockchainInfo(
        chain_name=created.name,
        vm_id=shared_id_text(created.vm_id),
        genesis_data=evm_genesis(created.genesis) or genesis_text(created.genesis),
    )
