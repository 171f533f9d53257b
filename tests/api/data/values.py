"""Plain values of blocks and transactions, and the resources that the index must answer for them.

The plain model of the index is made of these values. `resource_of` and `block_resource` say in the
plainest way how each value becomes the resource that the Data API sends; the index is compared with
them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from warpseal.chains.ids import Address, BlockID, TxID, UtxoID
from warpseal.resources import transactions as resources
from warpseal.resources.base import (
    C_CHAIN_TX_TYPES,
    UNSET,
    X_CHAIN_TX_TYPES,
    PrimaryNetworkAssetCap,
    PrimaryNetworkTxType,
    RewardType,
    UnsetType,
    or_unset,
    tx_type,
)
from warpseal.resources.blocks import PrimaryNetworkBlock, Proposer, ProposerDetails
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.evm_genesis import evm_genesis, genesis_text
from warpseal.resources.outputs import (
    Asset,
    AssetAmount,
    AvmUtxo,
    PrimaryNetworkUtxo,
    UtxoCredential,
    asset_amount,
)
from warpseal.resources.text import (
    NetworkText,
    account_text,
    hex_text,
    node_text,
    percent_text,
    shared_id_text,
)
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID, id_text


class Signer(Struct, frozen=True, gc=False):
    """Who signed for spending: signature (65 bytes) and compressed public key (33 bytes) recovered
    from it.
    """

    signature: bytes
    public_key: bytes | None = None


class Amount(Struct, frozen=True, gc=False):
    """An amount of an asset, in its smallest unit."""

    asset: Asset
    amount: int


class Spending(Struct, frozen=True, gc=False):
    """The transaction that consumed an output.

    time: unix seconds of its block.
    """

    tx_id: TxID
    height: int
    time: int
    signers: tuple[Signer, ...] = ()


class Utxo(Struct, frozen=True, gc=False, kw_only=True):
    """One output of any of the three chains.

    tx_id, output_index: parts of its id; those of a reward are the staking transaction's.
    height, time: height and unix seconds of the block in which it came into being.
    consumed_on: chain on which it can be spent.
    kind: "TRANSFER", "STAKE" or, on the X-Chain, the name of another output.
    locktime, stakeable_locktime: unix seconds, 0 where there is none.
    stake_start, stake_end: the time for which it is staked.
    raw: its codec bytes.
    group_id, payload: fields of an NFT.
    is_incomplete: its origin is not known, its fields come from the input that spent it.
    """

    utxo_id: UtxoID
    tx_id: TxID
    output_index: int
    asset: Asset
    amount: int
    addresses: tuple[Address, ...]
    threshold: int
    created_on: PrimaryChain
    consumed_on: PrimaryChain
    height: int
    time: int
    kind: str = "TRANSFER"
    locktime: int = 0
    stakeable_locktime: int = 0
    spent: Spending | None = None
    staked: bool = False
    stake_start: int | None = None
    stake_end: int | None = None
    reward: RewardType | None = None
    raw: bytes | None = None
    group_id: int | None = None
    payload: bytes | None = None
    is_incomplete: bool = False


class Owner(Struct, frozen=True, gc=False):
    """Who must sign for something, and from when on (unix seconds)."""

    locktime: int
    threshold: int
    addresses: tuple[Address, ...]


class Manager(Struct, frozen=True, gc=False):
    """The contract that manages an L1's validators.

    address: bytes of the contract's address, as many as its chain uses.
    """

    chain_id: ChainID
    address: bytes


class L1Change(Struct, frozen=True, gc=False, kw_only=True):
    """An L1 validator that a transaction touched, as of that transaction.

    remaining_navax: its balance after the transaction's block.
    change_navax: negative where something was returned.
    """

    validation_id: ValidationID
    node_id: NodeID
    subnet_id: SubnetID
    weight: int
    remaining_navax: int
    change_navax: int | None = None
    bls: resources.BlsCredentials | UnsetType = UNSET


class NewBlockchain(Struct, frozen=True, gc=False):
    """What a CreateChainTx creates.

    genesis: the bytes as they are in the transaction.
    """

    name: str
    vm_id: bytes
    genesis: bytes


class PTransaction(Struct, frozen=True, gc=False, kw_only=True):
    """A P-Chain transaction.

    kind: the node's name of its type, or "UNKNOWN".
    time, start, end: unix seconds.
    value, burned, staked, l1_funded: amounts by asset, none of them 0.
    delegation_fee_shares: shares of 1,000,000.
    estimated_reward: nAVAX, or units of the subnet's asset.
    reward_tx_id: transaction that closed this stake.
    staking_tx_id: transaction whose stake this one closes.
    """

    tx_id: TxID
    kind: str
    time: int
    height: int
    block_id: BlockID
    consumed: tuple[Utxo, ...] = ()
    emitted: tuple[Utxo, ...] = ()
    value: tuple[Amount, ...] = ()
    burned: tuple[Amount, ...] = ()
    staked: tuple[Amount, ...] = ()
    l1_funded: tuple[Amount, ...] = ()
    source_chain: ChainID | None = None
    destination_chain: ChainID | None = None
    start: int | None = None
    end: int | None = None
    delegation_fee_shares: int | None = None
    node_id: NodeID | None = None
    subnet_id: SubnetID | None = None
    manager: Manager | None = None
    l1_changes: tuple[L1Change, ...] = ()
    estimated_reward: int | None = None
    reward_tx_id: TxID | None = None
    staking_tx_id: TxID | None = None
    memo: bytes = b""
    reward_addresses: tuple[Address, ...] = ()
    subnet_owner: Owner | None = None
    bls: resources.BlsCredentials | UnsetType = UNSET
    blockchain: NewBlockchain | None = None

    @property
    def chain(self) -> PrimaryChain:
        """Where it was accepted."""
        return PrimaryChain.P


class AssetCreation(Struct, frozen=True, gc=False):
    """An asset that a CreateAssetTx created.

    has_fixed_cap: none can be minted later.
    """

    asset: Asset
    created_at: int
    has_fixed_cap: bool


class XTransaction(Struct, frozen=True, gc=False, kw_only=True):
    """An X-Chain transaction.

    height, block_id: None before the chain had blocks; then `vertices` has the known ones.
    is_time_approximate: the time is a container's, not a block's.
    """

    tx_id: TxID
    kind: str
    time: int
    height: int | None
    block_id: BlockID | None
    consumed: tuple[Utxo, ...] = ()
    emitted: tuple[Utxo, ...] = ()
    memo: bytes = b""
    source_chain: ChainID | None = None
    destination_chain: ChainID | None = None
    asset_created: AssetCreation | None = None
    vertices: tuple[resources.XChainVertex, ...] = ()
    is_time_approximate: bool = False

    @property
    def chain(self) -> PrimaryChain:
        """Where it was accepted."""
        return PrimaryChain.X


class EvmInput(Struct, frozen=True, gc=False):
    """What an export takes from an account.

    address: 20 bytes.
    """

    address: bytes
    amount: Amount
    signers: tuple[Signer, ...] = ()


class EvmOutput(Struct, frozen=True, gc=False):
    """What an import gives to an account.

    address: 20 bytes.
    """

    address: bytes
    amount: Amount


class CTransaction(Struct, frozen=True, gc=False, kw_only=True):
    """An atomic transaction of the C-Chain: "ExportTx" (evm_inputs, emitted) or "ImportTx"
    (consumed, evm_outputs).
    """

    tx_id: TxID
    kind: str
    time: int
    height: int
    block_id: BlockID
    source_chain: ChainID
    destination_chain: ChainID
    consumed: tuple[Utxo, ...] = ()
    emitted: tuple[Utxo, ...] = ()
    evm_inputs: tuple[EvmInput, ...] = ()
    evm_outputs: tuple[EvmOutput, ...] = ()

    @property
    def chain(self) -> PrimaryChain:
        """Where it was accepted."""
        return PrimaryChain.C


Transaction = PTransaction | XTransaction | CTransaction


class Block(Struct, frozen=True, gc=False, kw_only=True):
    """One block.

    kind: the node's name of its type.
    time: unix seconds.
    tx_ids: on the C-Chain the atomic ones only.

    accrued_fees, active_l1_validators, supply: of the P-Chain after this block; None where they are
        not known.
    """

    chain: PrimaryChain
    height: int
    block_id: BlockID
    parent_id: BlockID
    kind: str
    time: int
    tx_ids: tuple[TxID, ...]
    size_bytes: int
    accrued_fees: int | None = None
    active_l1_validators: int | None = None
    supply: int | None = None
    proposer: Proposer | None = None


def resource_of(tx: Transaction, text: NetworkText) -> resources.Transaction:
    """Return a transaction of any chain."""
    if isinstance(tx, PTransaction):
        return p_transaction(tx, text)
    return x_transaction(tx, text) if isinstance(tx, XTransaction) else c_transaction(tx, text)


def p_transaction(tx: PTransaction, text: NetworkText) -> resources.PChainTransaction:
    """Return a transaction of the P-Chain."""
    source, destination = chain_texts(tx, text)
    return resources.PChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind),
        block_timestamp=tx.time,
        block_number=str(tx.height),
        block_hash=id_text(tx.block_id),
        consumed_utxos=tuple([p_utxo(utxo, text) for utxo in tx.consumed]),
        emitted_utxos=tuple([p_utxo(utxo, text) for utxo in tx.emitted]),
        value=asset_amounts(tx.value),
        amount_burned=asset_amounts(tx.burned),
        amount_staked=asset_amounts(tx.staked),
        amount_l1_validator_balance_burned=asset_amounts(tx.l1_funded),
        source_chain=source,
        destination_chain=destination,
        memo=hex_text(tx.memo),
        start_timestamp=or_unset(tx.start),
        end_timestamp=or_unset(tx.end),
        delegation_fee_percent=fee_text(tx.delegation_fee_shares),
        node_id=UNSET if tx.node_id is None else node_text(tx.node_id),
        subnet_id=UNSET if tx.subnet_id is None else shared_id_text(tx.subnet_id),
        l1_validator_manager_details=_manager(tx.manager),
        l1_validator_details=tuple([_l1_change(change) for change in tx.l1_changes]) or UNSET,
        estimated_reward=_estimated_reward(tx),
        reward_tx_hash=UNSET if tx.reward_tx_id is None else id_text(tx.reward_tx_id),
        staking_tx_hash=UNSET if tx.staking_tx_id is None else id_text(tx.staking_tx_id),
        reward_addresses=text.addresses(tx.reward_addresses) or UNSET,
        subnet_ownership_info=_owner(tx.subnet_owner, text),
        bls_credentials=tx.bls,
        blockchain_info=_new_blockchain(tx.blockchain),
    )


def x_transaction(tx: XTransaction, text: NetworkText) -> resources.XChainTransaction:
    """Return a transaction of the X-Chain."""
    created = sums(tx.emitted)
    source, destination = chain_texts(tx, text)
    return resources.XChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind, X_CHAIN_TX_TYPES),
        block_timestamp=tx.time,
        timestamp=tx.time,
        chain_format="non-linear" if tx.block_id is None else "linear",
        block_number=UNSET if tx.height is None else str(tx.height),
        block_height=or_unset(tx.height),
        block_hash=UNSET if tx.block_id is None else id_text(tx.block_id),
        vertices=UNSET if tx.block_id is not None else tx.vertices,
        consumed_utxos=tuple([avm_utxo(utxo, text) for utxo in tx.consumed]),
        emitted_utxos=tuple([avm_utxo(utxo, text) for utxo in tx.emitted]),
        amount_unlocked=asset_amounts(sums(tx.consumed)),
        amount_created=asset_amounts(created),
        value=asset_amounts(created),
        amount_burned=asset_amounts(lost(sums(tx.consumed), created)),
        amount_staked=(),
        amount_l1_validator_balance_burned=(),
        source_chain=source,
        destination_chain=destination,
        memo=hex_text(tx.memo),
        asset_created=asset_created(tx.asset_created),
        approximate=tx.is_time_approximate or UNSET,
    )


def c_transaction(tx: CTransaction, text: NetworkText) -> resources.CChainTransaction:
    """Return an atomic transaction of the C-Chain."""
    unlocked, created = atomic_amounts(tx)
    source, destination = chain_texts(tx, text)
    return resources.CChainTransaction(
        tx_hash=id_text(tx.tx_id),
        tx_type=tx_type(tx.kind, C_CHAIN_TX_TYPES),
        block_timestamp=tx.time,
        timestamp=tx.time,
        block_number=str(tx.height),
        block_height=tx.height,
        block_hash=hex_text(tx.block_id),
        consumed_utxos=tuple([avm_utxo(utxo, text) for utxo in tx.consumed]),
        emitted_utxos=tuple([avm_utxo(utxo, text) for utxo in tx.emitted]),
        amount_unlocked=asset_amounts(unlocked),
        amount_created=asset_amounts(created),
        value=asset_amounts(created),
        amount_burned=asset_amounts(lost(unlocked, created)),
        amount_staked=(),
        amount_l1_validator_balance_burned=(),
        source_chain=source,
        destination_chain=destination,
        memo="0x",
        evm_inputs=evm_inputs(tx),
        evm_outputs=evm_outputs(tx),
    )


def block_resource(block: Block) -> PrimaryNetworkBlock:
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


def p_utxo(utxo: Utxo, text: NetworkText) -> PrimaryNetworkUtxo:
    """Return an output of the P-Chain."""
    spent = utxo.spent
    amount = asset_amount(utxo.asset, utxo.amount)
    return PrimaryNetworkUtxo(
        addresses=text.addresses(utxo.addresses),
        asset=amount,
        consumed_on_chain_id=text.chain_id(utxo.consumed_on),
        created_on_chain_id=text.chain_id(utxo.created_on),
        utxo_id=id_text(utxo.utxo_id),
        amount=amount.amount,
        asset_id=amount.asset_id,
        block_number=str(utxo.height),
        block_timestamp=utxo.time,
        output_index=utxo.output_index,
        tx_hash=id_text(utxo.tx_id),
        utxo_type=utxo.kind,
        platform_locktime=utxo.locktime,
        threshold=utxo.threshold,
        consuming_tx_hash=UNSET if spent is None else id_text(spent.tx_id),
        consuming_block_number=UNSET if spent is None else str(spent.height),
        consuming_block_timestamp=UNSET if spent is None else spent.time,
        stakeable_locktime=utxo.stakeable_locktime or UNSET,
        reward_type=utxo.reward or UNSET,
        staked=utxo.staked or UNSET,
        utxo_start_timestamp=or_unset(utxo.stake_start),
        utxo_end_timestamp=or_unset(utxo.stake_end),
        utxo_bytes=text_or_unset(utxo.raw),
        incomplete=utxo.is_incomplete or UNSET,
    )


def avm_utxo(utxo: Utxo, text: NetworkText) -> AvmUtxo:
    """Return an output of the X-Chain, or an atomic one of the C-Chain."""
    spent = utxo.spent
    amount = asset_amount(utxo.asset, utxo.amount)
    tx_hash = id_text(utxo.tx_id)
    return AvmUtxo(
        addresses=text.addresses(utxo.addresses),
        asset=amount,
        consumed_on_chain_id=text.chain_id(utxo.consumed_on),
        created_on_chain_id=text.chain_id(utxo.created_on),
        utxo_id=id_text(utxo.utxo_id),
        amount=amount.amount,
        asset_id=amount.asset_id,
        block_number=str(utxo.height),
        block_timestamp=utxo.time,
        output_index=utxo.output_index,
        tx_hash=tx_hash,
        utxo_type=utxo.kind,
        platform_locktime=utxo.locktime,
        threshold=utxo.threshold,
        consuming_tx_hash=UNSET if spent is None else id_text(spent.tx_id),
        consuming_block_number=UNSET if spent is None else str(spent.height),
        consuming_block_timestamp=UNSET if spent is None else spent.time,
        utxo_bytes=text_or_unset(utxo.raw),
        incomplete=utxo.is_incomplete or UNSET,
        creation_tx_hash=tx_hash,
        locktime=utxo.locktime,
        timestamp=utxo.time,
        consuming_tx_timestamp=UNSET if spent is None else spent.time,
        credentials=credentials(spent.signers) if spent is not None and spent.signers else UNSET,
        group_id=or_unset(utxo.group_id),
        payload=text_or_unset(utxo.payload),
    )


def sums(utxos: Iterable[Utxo]) -> tuple[Amount, ...]:
    """Return what outputs hold together, by asset, in the order in which the assets first come."""
    totals: dict[Asset, int] = {}
    for utxo in utxos:
        totals[utxo.asset] = totals.get(utxo.asset, 0) + utxo.amount
    return tuple([Amount(asset, total) for asset, total in totals.items()])


def credentials(signers: Iterable[Signer]) -> tuple[UtxoCredential, ...]:
    """Return who signed."""
    return tuple(
        [
            UtxoCredential(
                signature=hex_text(signer.signature),
                public_key=UNSET if signer.public_key is None else hex_text(signer.public_key),
            )
            for signer in signers
        ]
    )


def text_or_unset(raw: bytes | None) -> str | UnsetType:
    """Return hex with 0x, or leave it out."""
    return UNSET if raw is None else hex_text(raw)


def atomic_amounts(tx: CTransaction) -> tuple[tuple[Amount, ...], tuple[Amount, ...]]:
    """Return what an atomic transaction takes, and what it makes, accounts included."""
    inputs = _merged((*sums(tx.consumed), *(evm_input.amount for evm_input in tx.evm_inputs)))
    outputs = _merged((*sums(tx.emitted), *(evm_output.amount for evm_output in tx.evm_outputs)))
    return inputs, outputs


def lost(inputs: tuple[Amount, ...], outputs: tuple[Amount, ...]) -> tuple[Amount, ...]:
    """Return what was taken and not made again, by asset."""
    left = {item.asset: item.amount for item in outputs}
    return tuple(
        [
            Amount(entry.asset, entry.amount - left.get(entry.asset, 0))
            for entry in inputs
            if entry.amount > left.get(entry.asset, 0)
        ]
    )


def _merged(amounts: tuple[Amount, ...]) -> tuple[Amount, ...]:
    totals: dict[object, Amount] = {}
    for amount in amounts:
        before = totals.get(amount.asset)
        totals[amount.asset] = (
            amount if before is None else Amount(amount.asset, before.amount + amount.amount)
        )
    return tuple(totals.values())


def evm_inputs(tx: CTransaction) -> tuple[resources.EvmInput, ...] | UnsetType:
    """Return what an export takes from accounts; left out of an import."""
    if not tx.evm_inputs:
        return UNSET
    return tuple(
        [
            resources.EvmInput(
                from_address=account_text(evm_input.address),
                asset=asset_amount(evm_input.amount.asset, evm_input.amount.amount),
                credentials=credentials(evm_input.signers),
            )
            for evm_input in tx.evm_inputs
        ]
    )


def evm_outputs(tx: CTransaction) -> tuple[resources.EvmOutput, ...] | UnsetType:
    """Return what an import gives to accounts; left out of an export."""
    if not tx.evm_outputs:
        return UNSET
    return tuple(
        [
            resources.EvmOutput(
                to_address=account_text(evm_output.address),
                asset=asset_amount(evm_output.amount.asset, evm_output.amount.amount),
            )
            for evm_output in tx.evm_outputs
        ]
    )


def chain_texts(tx: Transaction, text: NetworkText) -> tuple[str | UnsetType, str | UnsetType]:
    """Return from which chain to which an import or export goes, one of them its own; left out of
    all others.
    """
    if tx.source_chain is None and tx.destination_chain is None:
        return UNSET, UNSET
    ends = tx.source_chain, tx.destination_chain
    source, destination = (
        text.chain_id(tx.chain) if end is None else shared_id_text(end) for end in ends
    )
    return source, destination


def _estimated_reward(tx: PTransaction) -> str | UnsetType:
    """Return what a stake would earn; subnets without a token of their own pay nothing to begin
    with.
    """
    is_paid = (
        tx.estimated_reward is not None and tx.kind != PrimaryNetworkTxType.ADD_SUBNET_VALIDATOR
    )
    return str(tx.estimated_reward) if is_paid else UNSET


def fee_text(shares: int | None) -> str | UnsetType:
    """Return a fee in percent, or leave it out."""
    return UNSET if shares is None else percent_text(shares)


def asset_created(creation: AssetCreation | None) -> resources.AssetCreated | UnsetType:
    """Return the asset that came into being, or leave it out."""
    if creation is None:
        return UNSET
    asset = creation.asset
    return resources.AssetCreated(
        asset_id=id_text(asset.asset_id),
        name=asset.name,
        symbol=asset.symbol,
        denomination=asset.denomination,
        type=asset.type,
        created_at_timestamp=creation.created_at,
        cap=PrimaryNetworkAssetCap.FIXED
        if creation.has_fixed_cap
        else PrimaryNetworkAssetCap.VARIABLE,
    )


def _manager(manager: Manager | None) -> resources.L1ValidatorManagerDetails | UnsetType:
    if manager is None:
        return UNSET
    return resources.L1ValidatorManagerDetails(
        blockchain_id=shared_id_text(manager.chain_id),
        contract_address=account_text(manager.address),
    )


def _l1_change(one: L1Change) -> resources.L1ValidatorDetails:
    return resources.L1ValidatorDetails(
        validation_id=id_text(one.validation_id),
        validation_id_hex=hex_text(one.validation_id),
        node_id=node_text(one.node_id),
        subnet_id=shared_id_text(one.subnet_id),
        weight=one.weight,
        remaining_balance=one.remaining_navax,
        balance_change=or_unset(one.change_navax),
        bls_credentials=one.bls,
    )


def _owner(owner: Owner | None, text: NetworkText) -> resources.SubnetOwnershipInfo | UnsetType:
    if owner is None:
        return UNSET
    return resources.SubnetOwnershipInfo(
        locktime=owner.locktime,
        threshold=owner.threshold,
        addresses=text.addresses(owner.addresses),
    )


def _new_blockchain(created: NewBlockchain | None) -> resources.BlockchainInfo | UnsetType:
    if created is None:
        return UNSET
    return resources.BlockchainInfo(
        chain_name=created.name,
        vm_id=shared_id_text(created.vm_id),
        genesis_data=evm_genesis(created.genesis) or genesis_text(created.genesis),
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


def asset_amounts(amounts: Iterable[Amount]) -> tuple[AssetAmount, ...]:
    """Return amounts as resources."""
    return tuple(asset_amount(amount.asset, amount.amount) for amount in amounts)
