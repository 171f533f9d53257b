"""How an L1 validator's balance runs out: at the second, and with what is left."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from tests.ledger.made_up_network import BEGIN_S, C_CHAIN, FEE, bls_key, l1_owner, warp
from tests.ledger.small_chain import ALL_ACTIVE, OWNER, Chain, output, spending
from warpseal.chains.components import BaseTx, Input
from warpseal.chains.p_txs import (
    P_TX,
    ConvertSubnetToL1Tx,
    CreateSubnetTx,
    DisableL1ValidatorTx,
    IncreaseL1ValidatorBalanceTx,
    InitialValidator,
    SetL1ValidatorWeightTx,
)
from warpseal.ledger.effects import BlockEffects, TxEffects
from warpseal.warp.ids import SubnetID, ValidationID
from warpseal.warp.l1_messages import L1ValidatorWeight

PRICE = FEE.min_price


class L1(Chain):
    """An L1 whose validators have these balances."""

    def __init__(self, *balances: int) -> None:
        super().__init__()
        random = Random(1)
        subnet = P_TX.build(CreateSubnetTx(spending(0), OWNER))
        self.accept(subnet)
        validators = tuple(
            InitialValidator(
                bytes([index]) * 20, 5, balance, bls_key(random), l1_owner(random), l1_owner(random)
            )
            for index, balance in enumerate(balances, 1)
        )
        convert = ConvertSubnetToL1Tx(
            spending(1), SubnetID(subnet.id), C_CHAIN, b"", validators, Input((0,))
        )
        (self.converted,) = self.accept(convert)
        self.ids: tuple[ValidationID, ...] = convert.validation_ids

    def wait(self, at_s: int) -> BlockEffects:
        """Let time pass by a block without transactions."""
        return self.block("BanffStandardBlock", at_s=at_s)

    def balance(self, index: int = 0) -> int:
        """Return what is left."""
        return self.state.l1.by_id[self.ids[index]].balance(self.state.l1_accrued_fees)

    def increase(self, amount: int, coin: int) -> TxEffects:
        """Pay for the first validator."""
        (effects,) = self.accept(IncreaseL1ValidatorBalanceTx(spending(coin), self.ids[0], amount))
        return effects


def test_a_balance_lasts_as_long_as_it_pays_the_fee() -> None:
    chain = L1(10 * PRICE)
    assert chain.wait(9).l1_deactivated == ()
    assert (chain.balance(), chain.state.l1.active) == (PRICE, 1)
    (gone,) = chain.wait(10).l1_deactivated
    assert (gone.validation_id, gone.after_transactions) == (chain.ids[0], False)
    assert (chain.balance(), chain.state.l1.active) == (0, 0)


def test_a_balance_too_small_for_another_second_is_forfeited_after_the_transactions() -> None:
    chain = L1(10 * PRICE - 1)
    assert chain.wait(8).l1_deactivated == ()
    effects = chain.wait(9)
    (gone,) = effects.l1_deactivated
    assert gone.after_transactions
    assert effects.l1_active == 0


def test_a_deposit_in_the_same_block_keeps_a_validator_active() -> None:
    chain = L1(10 * PRICE - 1)
    chain.wait(8)
    increase = IncreaseL1ValidatorBalanceTx(spending(2), chain.ids[0], 1)
    effects = chain.block("BanffStandardBlock", increase, at_s=9)
    assert effects.l1_deactivated == ()
    assert effects.txs[0].l1[0].balance == PRICE


def test_a_proposal_block_deactivates_after_its_decisions() -> None:
    chain = L1(2 * 86_400 * PRICE + 1)
    staking = chain.genesis.validators[0].id
    effects = chain.reward(staking, commit=True, at_s=2 * 86_400)
    assert effects.closed is not None
    assert chain.state.l1.active == 0


def test_an_inactive_validator_pays_nothing_and_a_deposit_reactivates_it() -> None:
    chain = L1(0)
    assert chain.state.l1.active == 0
    chain.wait(100)
    assert chain.state.l1_accrued_fees == 100 * PRICE
    effects = chain.increase(7 * PRICE, 2)
    assert (effects.l1[0].balance, effects.l1[0].balance_change) == (7 * PRICE, 7 * PRICE)
    chain.wait(106)
    assert chain.balance() == PRICE


def test_the_fee_rises_above_the_target_and_is_the_same_for_all_validators() -> None:
    chain = L1(*[10**9] * (FEE.target + 2))
    chain.wait(1000)
    assert chain.state.l1_excess == 2 * 1000
    paid = {10**9 - chain.balance(index) for index in range(FEE.target + 2)}
    assert len(paid) == 1
    assert paid.pop() > 1000 * PRICE


def test_disabling_refunds_once_and_an_inactive_validator_gets_no_refund() -> None:
    chain = L1(1000 * PRICE)
    chain.wait(10)
    disable = DisableL1ValidatorTx(spending(2, output(5)), chain.ids[0], Input((0,)))
    (effects,) = chain.accept(disable)
    refund = effects.emitted[-1]
    assert (refund.amount, refund.output_index, refund.tx_id) == (990 * PRICE, 1, effects.tx.id)
    assert effects.l1[0].balance_change == -990 * PRICE
    (again,) = chain.accept(DisableL1ValidatorTx(spending(3), chain.ids[0], Input((0,))))
    assert (again.emitted, again.l1[0].balance_change) == ((), 0)


def test_a_weight_of_zero_refunds_a_validation_and_another_weight_keeps_the_balance() -> None:
    chain = L1(1000 * PRICE, 1000 * PRICE)
    messages = [
        warp(C_CHAIN, b"", L1ValidatorWeight(key, 4, weight).encode())
        for key, weight in zip(chain.ids, (9, 0), strict=True)
    ]
    changed, removed = chain.accept(
        *(
            SetL1ValidatorWeightTx(spending(2 + index), message)
            for index, message in enumerate(messages)
        )
    )
    assert (
        changed.l1[0].validator.weight,
        changed.l1[0].validator.min_nonce,
        changed.l1[0].balance,
    ) == (
        9,
        5,
        1000 * PRICE,
    )
    assert (changed.emitted, changed.l1[0].balance_change) == ((), 0)
    assert (removed.l1[0].validator.weight, removed.emitted[0].amount) == (0, 1000 * PRICE)
    assert list(chain.state.l1.by_id) == [chain.ids[0]]


def test_deposits_are_neither_burned_nor_emitted() -> None:
    chain = L1(300, 700)
    assert chain.converted.l1_balance == 1000
    assert [amount for _, amount in chain.converted.burned] == [20_000_000 * 10**9 - 1000]
    assert chain.converted.emitted == ()


@pytest.mark.parametrize(("etna_s", "accrued"), [(50, 100), (100, 100), (101, 0)])
def test_fees_accrue_from_the_block_before_etna_on(etna_s: int, accrued: int) -> None:
    upgrades = replace(ALL_ACTIVE.upgrades, etna_s=BEGIN_S + etna_s)
    chain = Chain(replace(ALL_ACTIVE, upgrades=upgrades))
    chain.accept(BaseTx(spending(0)), at_s=100)
    assert chain.state.l1_accrued_fees == accrued * PRICE
