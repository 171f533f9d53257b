"""The expected results of the index, by plain means: effects become values in lists, nothing is
looked up or counted.

The in-memory index of the Data API's tests answers from these lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tests.api.data.memory_index import MemoryIndex
from tests.api.data.values import (
    Amount,
    AssetCreation,
    Block,
    CTransaction,
    EvmInput,
    EvmOutput,
    L1Change,
    Manager,
    NewBlockchain,
    Owner,
    PTransaction,
    Signer,
    Spending,
    Transaction,
    Utxo,
    XTransaction,
)
from tests.index.fixtures import network_text
from tests.index.model_staking import Stake, StakingModel, bls_credentials, reward_owners
from tests.index.plain import PlainIndex
from tests.ledger.model_parts import sum_amounts
from tests.ledger.plain_recovery import plain_public_key
from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import Address, BlockID, TxID, UtxoID
from warpseal.chains.p_txs import ProofOfPossession
from warpseal.index.records import CRecord, PRecord, Record, XPreLinearizationRecord, XRecord
from warpseal.ledger.c_chain import CTxEffects
from warpseal.ledger.effects import (
    AssetSums,
    SubnetConverted,
    SubnetCreated,
    SubnetOwnerChanged,
    TxEffects,
    TxOutcome,
)
from warpseal.ledger.outputs import Consumed, LedgerOutput, OutputKind
from warpseal.ledger.x_chain import Cap, XTxEffects
from warpseal.resources.base import RewardType
from warpseal.resources.blocks import Blockchain
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.outputs import Asset
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID


@dataclass
class Coin:
    """An output, and what became of it."""

    output: LedgerOutput
    height: int
    time: int
    spent: Spending | None = None


@dataclass
class Model(StakingModel):
    """All blocks in the order in which they were given."""

    coins: dict[UtxoID, Coin] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    chains: list[Blockchain] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    block_ids: dict[tuple[PrimaryChain, int], bytes] = field(default_factory=dict)
    proposals: dict[TxID, int] = field(default_factory=dict)
    l1: dict[bytes, tuple[Any, bytes]] = field(default_factory=dict)
    genesis_owners: set[Address] = field(default_factory=set)

    def __post_init__(self) -> None:
        avax = self.params.staking_asset_id
        self.assets[avax] = (Asset(avax, "Avalanche", "AVAX", 9), 0, True)
        self.max_stakes[PRIMARY_NETWORK] = (self.params.max_validator_stake, 5)

    def apply(self, records: Sequence[Record]) -> None:
        """Apply blocks."""
        for record in records:
            match record:
                case PRecord():
                    self._p(record)
                case XRecord():
                    self._block(
                        PrimaryChain.X,
                        record.effects.block.height,
                        record.effects.block.id,
                        record.effects.block.parent_id,
                        "StandardBlock",
                        record.effects.block.time,
                        record.effects.txs,
                        len(record.effects.block.raw),
                        record,
                    )
                    for tx in record.effects.txs:
                        self._xc(tx, record.effects.block.time, False)
                case XPreLinearizationRecord():
                    for tx in record.txs:
                        self._xc(tx, record.time_s, True)
                case CRecord():
                    header = record.effects.header
                    self._block(
                        PrimaryChain.C,
                        header.number,
                        BlockID(header.hash),
                        BlockID(header.parent_hash),
                        "EvmBlock",
                        header.time_s,
                        record.effects.txs,
                        header.size_bytes,
                        record,
                    )
                    for c_tx in record.effects.txs:
                        self._xc(c_tx, header.time_s, False)

    def index(self) -> MemoryIndex:
        """Return an index that has all of it."""
        plain = PlainIndex(
            txs=[self._value(tx, when) for tx, when in self.txs],
            all_blocks=self.blocks,
            blockchains=self.chains,
            all_rewards=[self.reward(*reward) for reward in self.rewards],
            all_validations=self.validations(),
            text=network_text(self.params),
        )
        plain.genesis_owners = frozenset(self.genesis_owners)
        return plain

    # P

    def _p(self, record: PRecord) -> None:
        effects, block = record.effects, record.effects.block
        time = effects.time_s
        for output in effects.emitted:
            self.coins[output.id] = Coin(output, 0, time)
            self.genesis_owners.update(output.addresses)
        for started in effects.started:
            stake = self.stakes[started.tx_id]
            stake.state, stake.potential = "active", started.potential_reward
        for ended in effects.ended:
            self.stakes[ended].state = "completed"
        if effects.settled is not None:
            place = self.proposals.pop(effects.settled.tx.id)
            proposed_at = self.txs[place][1]
            self.txs[place] = (effects.settled, proposed_at)
            self._p_tx(effects.settled, proposed_at, time, block.height)
        for tx in effects.txs:
            self.txs.append((tx, time))
            if tx.outcome is TxOutcome.PROPOSED:
                self.proposals[tx.tx.id] = len(self.txs) - 1
            else:
                self._p_tx(tx, time, time, block.height)
        self._block(
            PrimaryChain.P,
            block.height,
            block.id,
            block.parent_id,
            block.kind,
            time,
            effects.txs if block.height else (),
            len(block.raw),
            record,
            accrued_fees=effects.l1_accrued_fees,
            active_l1_validators=effects.l1_active,
            supply=effects.supply,
        )

    def _p_tx(self, tx: TxEffects, time: int, settled_at: int, height: int) -> None:
        self._spend(tx.consumed, tx.tx.id, tx.height, time, None)
        for output in tx.emitted:
            self.coins[output.id] = Coin(output, height, time)
        if tx.opened is not None:
            is_active = tx.opened.potential_reward is not None
            state = "active" if is_active or tx.opened.start_s <= settled_at else "pending"
            self.stakes[tx.tx.id] = Stake(tx.opened, state, tx.opened.potential_reward)
        if tx.closed is not None and tx.closed.tx_id in self.stakes:
            stake = self.stakes[tx.closed.tx_id]
            stake.state, stake.closed = "completed", tx.closed
            self.rewards += [
                (tx, out, stake, settled_at) for out in tx.emitted if out.reward is not None
            ]
        if tx.removed is not None:
            stake = self.stakes[tx.removed]
            stake.state, stake.removed = "removed", (tx.tx.id, settled_at)
        unsigned: Any = tx.tx.unsigned
        if tx.chain is not None:
            chain = tx.chain
            self.chains.append(
                Blockchain(
                    chain_id=chain.chain_id,
                    subnet_id=chain.subnet_id,
                    vm_id=chain.vm_id,
                    name=chain.name,
                    genesis=unsigned.genesis,
                    height=tx.height,
                    time=time,
                )
            )
        if tx.tx.kind == "TransformSubnetTx" and tx.subnet is not None:
            limits = (unsigned.max_validator_stake, unsigned.max_validator_weight_factor)
            self.max_stakes[tx.subnet.subnet_id] = limits
        for change in tx.l1:
            if change.is_new:
                self.l1[change.validator.validation_id] = (
                    change,
                    _proof(unsigned, change.validator.public_key),
                )

    # X and C

    def _xc(self, tx: XTxEffects | CTxEffects, time: int, past: bool) -> None:
        self._spend(tx.consumed, tx.tx.id, tx.height or 0, time, _signed(tx))
        for output in tx.emitted:
            before = self.coins.get(output.id)
            spent = before.spent if before is not None else None
            self.coins[output.id] = Coin(output, tx.height or 0, time, spent)
        if isinstance(tx, XTxEffects) and tx.asset is not None:
            creation = tx.asset
            asset = Asset(
                creation.asset_id,
                creation.name,
                creation.symbol,
                creation.denomination,
                creation.is_nft,
            )
            self.assets[creation.asset_id] = (asset, time, creation.cap is Cap.FIXED)
        self.txs.append((tx, (time, past)))

    def _spend(
        self,
        consumed: Sequence[Consumed],
        tx_id: TxID,
        height: int,
        time: int,
        signed: Sequence[Any] | None,
    ) -> None:
        for item in consumed:
            coin = self.coins.get(item.id)
            if coin is None:
                assert item.reconstructed is not None
                coin = self.coins[item.id] = Coin(item.reconstructed, 0, 0)
            signers = signed[item.credential] if signed is not None else ()
            coin.spent = Spending(tx_id, height, time, signers)

    def _block(
        self,
        chain: PrimaryChain,
        height: int,
        block_id: BlockID,
        parent_id: BlockID,
        kind: str,
        time: int,
        txs: Sequence[Any],
        size: int,
        record: Any,
        **state: Any,
    ) -> None:
        self.block_ids[chain, height] = block_id
        self.blocks.append(
            Block(
                chain=chain,
                height=height,
                block_id=block_id,
                parent_id=parent_id,
                kind=kind,
                time=time,
                tx_ids=tuple(tx.tx.id for tx in txs),
                size_bytes=size,
                proposer=record.proposer,
                **state,
            )
        )

    # Values

    def _chain(self, chain_id: ChainID) -> PrimaryChain:
        numbers = {P_CHAIN: PrimaryChain.P, self.params.x_chain_id: PrimaryChain.X}
        return numbers.get(chain_id, PrimaryChain.C)

    def _utxo(self, utxo_id: UtxoID) -> Utxo:
        coin = self.coins[utxo_id]
        out = coin.output
        stake = self.stakes[out.tx_id].period if out.staked else None
        reward = None if out.reward is None else RewardType(out.reward.value)
        kind = "STAKE" if out.staked else _KINDS[out.kind]
        return Utxo(
            utxo_id=out.id,
            tx_id=out.tx_id,
            output_index=out.output_index,
            asset=self._asset(out.asset_id),
            amount=out.amount,
            addresses=out.addresses,
            threshold=out.threshold,
            created_on=self._chain(out.created_on),
            consumed_on=self._chain(out.held_on),
            height=coin.height,
            time=coin.time,
            kind=kind,
            locktime=out.locktime,
            stakeable_locktime=out.stakeable_locktime,
            spent=coin.spent,
            staked=out.staked,
            stake_start=None if stake is None else stake.start_s,
            stake_end=None if stake is None else stake.end_s,
            reward=reward,
            group_id=out.group_id,
            payload=out.payload,
            is_incomplete=not out.is_complete,
        )

    def _amounts(self, sums: AssetSums) -> tuple[Amount, ...]:
        return tuple(Amount(self._asset(asset_id), amount) for asset_id, amount in sums)

    def _value(self, tx: Any, when: Any) -> Transaction:
        if isinstance(tx, TxEffects):
            return self._p_value(tx, when)
        time, past = when
        common = {
            "tx_id": tx.tx.id,
            "kind": tx.tx.kind,
            "time": time,
            "consumed": tuple(self._utxo(consumed.id) for consumed in tx.consumed),
            "emitted": tuple(self._utxo(output.id) for output in tx.emitted),
            "source_chain": tx.source_chain_id,
            "destination_chain": tx.destination_chain_id,
        }
        if isinstance(tx, CTxEffects):
            return self._c_value(tx, common)
        creation = None if tx.asset is None else AssetCreation(*self.assets[tx.asset.asset_id])
        return XTransaction(
            **common,
            height=tx.height,
            memo=tx.tx.unsigned.base.memo,
            asset_created=creation,
            block_id=None
            if tx.height is None
            else BlockID(self.block_ids[PrimaryChain.X, tx.height]),
            is_time_approximate=past,
        )

    def _c_value(self, tx: CTxEffects, common: dict[str, Any]) -> CTransaction:
        moved: list[Any] = [*tx.evm_inputs, *tx.evm_outputs]
        amounts = [Amount(self._asset(account.asset_id), account.amount) for account in moved]
        return CTransaction(
            **common,
            height=tx.height,
            block_id=BlockID(self.block_ids[PrimaryChain.C, tx.height]),
            evm_inputs=tuple(
                EvmInput(item.address, amount, signers)
                for item, amount, signers in zip(tx.evm_inputs, amounts, _signed(tx), strict=False)
            ),
            evm_outputs=tuple(
                EvmOutput(entry.address, amount)
                for entry, amount in zip(tx.evm_outputs, amounts, strict=False)
            ),
        )

    def _p_value(self, tx: TxEffects, time: int) -> PTransaction:
        unsigned: Any = tx.tx.unsigned
        stake = self.stakes.get(tx.tx.id)
        emitted = (*tx.released, *tx.emitted)
        subnet = tx.subnet
        fields: dict[str, Any] = {}
        if stake is not None:
            fields.update(
                start=stake.period.start_s,
                end=stake.period.end_s,
                delegation_fee_shares=stake.period.shares,
                estimated_reward=stake.potential,
                reward_addresses=reward_owners(stake.period),
                reward_tx_id=None if stake.closed is None else stake.closed.reward_tx_id,
                node_id=stake.period.node_id,
                subnet_id=stake.period.subnet_id,
            )
        if tx.tx.kind == "RemoveSubnetValidatorTx" and tx.outcome is not TxOutcome.PROPOSED:
            fields.update(node_id=unsigned.node_id, subnet_id=unsigned.subnet_id)
        if tx.tx.kind == "AddSubnetValidatorTx" and tx.outcome is not TxOutcome.PROPOSED:
            validator = unsigned.validator
            fields.update(node_id=validator.validator.node_id, subnet_id=validator.subnet_id)
        if subnet is not None:
            fields["subnet_id"] = subnet.subnet_id
        if isinstance(subnet, SubnetCreated | SubnetOwnerChanged):
            fields["subnet_owner"] = _owner(subnet.owner)
        if isinstance(subnet, SubnetConverted):
            fields["manager"] = Manager(subnet.manager_chain_id, subnet.manager_address)
        if tx.chain is not None:
            fields["subnet_id"] = tx.chain.subnet_id
            fields["blockchain"] = NewBlockchain(tx.chain.name, tx.chain.vm_id, unsigned.genesis)
        if tx.tx.kind == "AddPermissionlessValidatorTx" and isinstance(
            unsigned.signer, ProofOfPossession
        ):
            fields["bls"] = bls_credentials(unsigned.signer.public_key, unsigned.signer.proof)
        if tx.l1_balance:
            fields["l1_funded"] = (
                Amount(self._asset(self.params.staking_asset_id), tx.l1_balance),
            )
        if tx.outcome is not TxOutcome.PROPOSED:
            base = getattr(unsigned, "base", None)
            fields["memo"] = base.memo if base is not None else b""
        return PTransaction(
            tx_id=tx.tx.id,
            kind=tx.api_type,
            time=time,
            height=tx.height,
            block_id=BlockID(self.block_ids[PrimaryChain.P, tx.height]),
            consumed=tuple(self._utxo(consumed.id) for consumed in tx.consumed),
            emitted=tuple(self._utxo(output.id) for output in emitted),
            value=self._amounts(sum_amounts(emitted)),
            burned=self._amounts(tx.burned),
            staked=self._amounts(sum_amounts(out for out in tx.emitted if out.staked)),
            source_chain=tx.source_chain_id,
            destination_chain=tx.destination_chain_id,
            l1_changes=tuple(map(self._l1, tx.l1)),
            staking_tx_id=None if tx.closed is None else tx.closed.tx_id,
            **fields,
        )

    def _l1(self, change: Any) -> L1Change:
        validator = change.validator
        first, proof = self.l1[validator.validation_id]
        return L1Change(
            validation_id=validator.validation_id,
            node_id=validator.node_id,
            subnet_id=validator.subnet_id,
            weight=validator.weight,
            remaining_navax=change.balance,
            change_navax=change.balance_change or None,
            bls=bls_credentials(first.validator.public_key, proof),
        )


def _owner(owner: OutputOwners) -> Owner:
    return Owner(owner.locktime, owner.threshold, owner.addresses)


def _signed(tx: XTxEffects | CTxEffects) -> list[tuple[Signer, ...]]:
    """Return who signed, by credential."""
    digest = sha256(tx.tx.encode_unsigned()).digest()
    return [
        tuple(
            Signer(signature, plain_public_key(digest, signature))
            for signature in credential.signatures
        )
        for credential in tx.tx.credentials
    ]


def _proof(unsigned: Any, public_key: bytes) -> bytes:
    if hasattr(unsigned, "proof_of_possession"):
        return bytes(unsigned.proof_of_possession)
    (proof,) = {
        validator.signer.proof
        for validator in unsigned.validators
        if validator.signer.public_key == public_key
    }
    return bytes(proof)


_KINDS = {
    OutputKind.TRANSFER: "TRANSFER",
    OutputKind.MINT: "MINT",
    OutputKind.NFT_MINT: "NFT_MINT",
    OutputKind.NFT: "NFT",
    OutputKind.PROPERTY_MINT: "PROPERTY_MINT",
    OutputKind.PROPERTY: "PROPERTY",
}
