"""A synthetic P-Chain of any length: few addresses have most transactions, and most outputs are
spent soon.

It builds effects and bytes without checks, because it measures the index, not the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from warpseal.chains.components import (
    BaseFields,
    BaseTx,
    Credential,
    ExportTx,
    ImportTx,
    Input,
    OutputOwners,
    TransferableInput,
    TransferableOutput,
    TransferInput,
    TransferOutput,
)
from warpseal.chains.ids import Address, AssetID, BlockID, TxID, UtxoID, utxo_id
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import (
    P_TX,
    AddPermissionlessDelegatorTx,
    AddValidatorTx,
    CreateChainTx,
    IncreaseL1ValidatorBalanceTx,
    PSignedTx,
    RewardType,
    RewardValidatorTx,
    StakingTerms,
    SubnetValidator,
)
from warpseal.index.records import PRecord
from warpseal.ledger.effects import (
    BlockEffects,
    ChainCreated,
    PeriodClosed,
    StakingPeriod,
    TxEffects,
    TxOutcome,
)
from warpseal.ledger.outputs import Consumed, LedgerOutput
from warpseal.ledger.params import MAINNET
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, ValidationID

PARAMS = MAINNET
AVAX: AssetID = PARAMS.staking_asset_id
NAVAX = 10**9
BEGIN_S = 1_710_000_000
RAREST = "IncreaseL1ValidatorBalanceTx"
BUSIEST_NODE_DELEGATIONS = 5_000

_NODES = 200
_NEW_ADDRESS = 0.12
_RECENT = 4_000
_TXS_A_BLOCK = (1, 1, 2, 3)


class MadeUpChain:
    """A sequence of blocks.

    addresses: the addresses in the blocks so far, the busiest first.
    blockchains: the blockchains that were created so far.
    """

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.addresses: list[Address] = [self._address() for _ in range(100)]
        self.nodes = [NodeID(self.random.randbytes(20)) for _ in range(_NODES)]
        self.blockchains: list[ChainID] = []
        self.txs = 0
        self._height = -1
        self._parent = BlockID(bytes(32))
        self._time = BEGIN_S
        self._unspent: list[LedgerOutput] = []
        self._staked: list[tuple[StakingPeriod, LedgerOutput]] = []
        self._busiest = 0

    def blocks(self, txs: int) -> Iterator[PRecord]:
        """Yield blocks until the chain has this number of transactions."""
        yield self._genesis()
        while self.txs < txs:
            if self._staked and self.random.random() < 0.04:
                yield from self._reward()
            else:
                yield self._standard()

    def _address(self) -> Address:
        return Address(self.random.randbytes(20))

    def _random_address(self) -> Address:
        if self.random.random() < _NEW_ADDRESS:
            self.addresses.append(self._address())
            return self.addresses[-1]
        return self.addresses[int(len(self.addresses) * self.random.random() ** 6)]

    def _record(
        self, kind: str, txs: Sequence[PSignedTx], effects: Sequence[TxEffects], **more: Any
    ) -> PRecord:
        self._height += 1
        if self._height:
            block = PBlock.build(kind, self._parent, self._height, self._time, tuple(txs))
        else:
            block = _first()
        self._parent = block.id
        none: tuple[Any, ...] = ()
        optional: dict[str, Any] = {
            "settled": None,
            "emitted": none,
            "started": none,
            "ended": none,
            "l1_deactivated": none,
            "supplies": none,
        }
        optional |= more
        done = BlockEffects(
            block=block,
            time_s=self._time,
            supply=4 * 10**17 + self._height,
            l1_accrued_fees=self._height,
            l1_active=7,
            l1_excess=0,
            txs=tuple(effects),
            **optional,
        )
        return PRecord(done, block.raw)

    def _genesis(self) -> PRecord:
        outputs = [
            _output(TxID(bytes(32)), index, 10**15, self._random_address())
            for index in range(5_000)
        ]
        self._unspent += outputs
        opened = [self._validator(node_id) for node_id in self.nodes]
        return self._record("ApricotCommitBlock", (), opened, emitted=tuple(outputs))

    def _validator(self, node_id: NodeID) -> TxEffects:
        owner = OutputOwners(0, 1, (self._random_address(),))
        end_s, weight = BEGIN_S + 400 * 86_400, 2_000_000 * NAVAX
        stake = (TransferableOutput(AVAX, TransferOutput(weight, 0, 1, owner.addresses)),)
        tx = P_TX.build(
            AddValidatorTx(
                _base((), ()), StakingTerms(node_id, BEGIN_S, end_s, weight), stake, owner, 20_000
            )
        )
        out = replace(_output(tx.id, 0, weight, owner.addresses[0]), staked=True)
        period = _period(tx.id, node_id, BEGIN_S, end_s, weight, owner, shares=20_000)
        return self._effects(tx, (), (out,), 0, opened=period)

    def _standard(self) -> PRecord:
        self._time += self.random.choice((0, 1, 2, 5))
        effects = [self._tx(place) for place in range(self.random.choice(_TXS_A_BLOCK))]
        self.txs += len(effects)
        return self._record("BanffStandardBlock", [effect.tx for effect in effects], effects)

    def _tx(self, place: int) -> TxEffects:
        roll = self.random.random()
        if roll < 0.68:
            return self._transfer(place)
        if roll < 0.80:
            return self._crossing(place, exports=True)
        if roll < 0.92:
            return self._crossing(place, exports=False)
        if roll < 0.9998:
            return self._delegate(place)
        if roll < 0.9999:
            return self._create_chain(place)
        return self._transfer(place, is_rare=True)

    def _inputs(self) -> list[LedgerOutput]:
        outputs = []
        for _ in range(self.random.choice((1, 1, 2))):
            recent = self.random.random() < 0.8
            at = (
                len(self._unspent)
                - 1
                - (self.random.randrange(min(_RECENT, len(self._unspent))) if recent else 0)
            )
            if not recent:
                at = self.random.randrange(len(self._unspent))
            self._unspent[at], self._unspent[-1] = self._unspent[-1], self._unspent[at]
            outputs.append(self._unspent.pop())
        return outputs

    def _transfer(self, place: int, *, is_rare: bool = False) -> TxEffects:
        spent = self._inputs()
        owner = self.addresses[0] if is_rare else self._random_address()
        outs = self._outs(sum(output.amount for output in spent), (owner, spent[0].addresses[0]))
        base = _base(outs, spent)
        unsigned: Any = BaseTx(base)
        if is_rare:
            unsigned = IncreaseL1ValidatorBalanceTx(base, ValidationID(bytes(32)), 1)
        tx = self._signed(unsigned, spent)
        return self._effects(tx, spent, self._make_outputs(tx, outs), place)

    def _crossing(self, place: int, *, exports: bool) -> TxEffects:
        spent = self._inputs()
        total = sum(output.amount for output in spent)
        owner = spent[0].addresses[0]
        if exports:
            outs = self._outs(total, (owner, self._random_address()))
            tx = self._signed(ExportTx(_base(outs[:1], spent), PARAMS.c_chain_id, outs[1:]), spent)
            out = replace(
                _output(tx.id, 1, outs[1].output.amount, owner), held_on=PARAMS.c_chain_id
            )
            return self._effects(tx, spent, (*self._make_outputs(tx, outs[:1]), out), place)
        foreign = replace(
            _output(TxID(self.random.randbytes(32)), 0, 5 * NAVAX, owner),
            created_on=PARAMS.c_chain_id, is_complete=False,
        )  # fmt: skip
        outs = self._outs(total + foreign.amount, (owner,))
        tx = self._signed(
            ImportTx(_base(outs, spent), PARAMS.c_chain_id, (_input(foreign),)), (*spent, foreign)
        )
        rebuilt = Consumed(foreign.id, PARAMS.c_chain_id, AVAX, foreign.amount, len(spent), foreign)
        done = self._effects(tx, spent, self._make_outputs(tx, outs), place)
        return replace(done, consumed=(*done.consumed, rebuilt))

    def _delegate(self, place: int) -> TxEffects:
        spent = self._inputs()
        total, owner = (
            sum(output.amount for output in spent),
            OutputOwners(0, 1, (spent[0].addresses[0],)),
        )
        node_id = self.nodes[0]
        if self._busiest >= BUSIEST_NODE_DELEGATIONS:
            node_id = self.random.choice(self.nodes[1:])
        self._busiest += node_id == self.nodes[0]
        outs = self._outs(total, (owner.addresses[0],))
        weight = total // 3
        stake = (TransferableOutput(AVAX, TransferOutput(weight, 0, 1, owner.addresses)),)
        end_s = self._time + 30 * 86_400
        validator = SubnetValidator(
            StakingTerms(node_id, self._time, end_s, weight), PRIMARY_NETWORK
        )
        tx = self._signed(
            AddPermissionlessDelegatorTx(_base(outs, spent), validator, stake, owner), spent
        )
        out = replace(_output(tx.id, len(outs), weight, owner.addresses[0]), staked=True)
        period = _period(tx.id, node_id, self._time, end_s, weight, owner, shares=None)
        if node_id != self.nodes[0]:
            self._staked.append((period, out))
        return self._effects(tx, spent, (*self._make_outputs(tx, outs), out), place, opened=period)

    def _create_chain(self, place: int) -> TxEffects:
        spent = self._inputs()
        outs = self._outs(sum(output.amount for output in spent), (spent[0].addresses[0],))
        vm_id, base = self.random.randbytes(32), _base(outs, spent)
        genesis = self.random.randbytes(2_000) * 7
        unsigned = CreateChainTx(
            base, PRIMARY_NETWORK, f"chain {place}", vm_id, (), genesis, Input((0,))
        )
        tx = self._signed(unsigned, spent)
        creation = ChainCreated(ChainID(tx.id), PRIMARY_NETWORK, unsigned.chain_name, vm_id)
        self.blockchains.append(creation.chain_id)
        return self._effects(tx, spent, self._make_outputs(tx, outs), place, chain=creation)

    def _reward(self) -> Iterator[PRecord]:
        period, stake = self._staked.pop(self.random.randrange(len(self._staked)))
        tx = P_TX.build(RewardValidatorTx(period.tx_id))
        proposed = replace(self._effects(tx, (), (), 0), outcome=TxOutcome.PROPOSED)
        self.txs += 1
        yield self._record("BanffProposalBlock", (tx,), (proposed,))
        paid = _output(
            period.tx_id, stake.output_index + 1, period.weight // 100 + 1, stake.addresses[0]
        )
        paid = replace(paid, reward=RewardType.DELEGATOR)
        closed = PeriodClosed(period.tx_id, tx.id, self._time, True, delegator_reward=paid.amount)
        freed = replace(stake, staked=False)
        done = replace(
            proposed, outcome=TxOutcome.COMMITTED, emitted=(paid,), released=(freed,), closed=closed
        )
        self._unspent += [paid, freed]
        yield self._record("BanffCommitBlock", (), (), settled=done)

    def _outs(self, total: int, owners: Sequence[Address]) -> tuple[TransferableOutput, ...]:
        share = max(1, (total - 1000) // len(owners))
        return tuple(
            TransferableOutput(AVAX, TransferOutput(share, 0, 1, (owner,))) for owner in owners
        )

    def _make_outputs(
        self, tx: PSignedTx, outs: Sequence[TransferableOutput]
    ) -> tuple[LedgerOutput, ...]:
        outputs = [
            _output(tx.id, index, out.output.amount, out.output.owners.addresses[0])
            for index, out in enumerate(outs)
        ]
        self._unspent += outputs
        return tuple(outputs)

    def _signed(self, unsigned: Any, spent: Sequence[LedgerOutput]) -> PSignedTx:
        return P_TX.build(unsigned, tuple(Credential((self.random.randbytes(65),)) for _ in spent))

    def _effects(
        self,
        tx: PSignedTx,
        spent: Sequence[LedgerOutput],
        emitted: tuple[LedgerOutput, ...],
        place: int,
        **more: Any,
    ) -> TxEffects:
        consumed = tuple(
            Consumed(utxo_id.id, utxo_id.created_on, AVAX, utxo_id.amount, index)
            for index, utxo_id in enumerate(spent)
        )
        return TxEffects(
            tx,
            self._height + 1,
            place,
            TxOutcome.ACCEPTED,
            consumed,
            emitted,
            burned=((AVAX, 1000),),
            **more,
        )


def _first() -> PBlock:
    return PBlock.build("ApricotCommitBlock", BlockID(bytes(32)), 0)


def _base(outs: Sequence[TransferableOutput], spent: Sequence[LedgerOutput]) -> BaseFields:
    return BaseFields(PARAMS.network_id, P_CHAIN, tuple(outs), tuple(map(_input, spent)), b"")


def _input(out: LedgerOutput) -> TransferableInput:
    return TransferableInput(out.tx_id, out.output_index, AVAX, TransferInput(out.amount, (0,)))


def _output(tx_id: TxID, index: int, amount: int, owner: Address) -> LedgerOutput:
    output_id: UtxoID = utxo_id(tx_id, index)
    return LedgerOutput(output_id, tx_id, index, AVAX, amount, (owner,), 1, 0, 0, P_CHAIN, P_CHAIN)


def _period(
    tx_id: TxID,
    node_id: NodeID,
    start_s: int,
    end_s: int,
    weight: int,
    owner: OutputOwners,
    shares: int | None,
) -> StakingPeriod:
    is_delegation = shares is None
    delegation_owner = None if is_delegation else owner
    return StakingPeriod(
        tx_id=tx_id,
        subnet_id=PRIMARY_NETWORK,
        node_id=node_id,
        start_s=start_s,
        end_s=end_s,
        weight=weight,
        is_delegation=is_delegation,
        shares=shares,
        potential_reward=weight // 100 + 1,
        stake_asset_id=AVAX,
        validation_owner=owner,
        delegation_owner=delegation_owner,
        signer=None,
    )
