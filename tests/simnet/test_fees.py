"""L1 validators pay the continuous fee of ACP-77 at every block, and are inactive once their
balance is used up.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simnet.sessions import NOW, Clock, small_network
from warpseal.ledger.chain_time import advance_excess, l1_fee_cost, l1_fee_price
from warpseal.ledger.params import MAINNET, L1FeeConfig
from warpseal.warp.ids import ValidationID
from warpseal_simnet.fees import FeeConfig, FeeState, fee_config
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.p_chain import BALANCE_NAVAX
from warpseal_simnet.plan import InvalidPlan, L1Plan, parse_rule
from warpseal_simnet.state import StateAt
from warpseal_simnet.tx_executor import RejectedTransaction

SURPLUS = FeeConfig(min_price=7, excess_conversion=500, target=2)
SMALL = FeeConfig(min_price=7, excess_conversion=500, target=10)


def clocked_network(*rules: str, **plan: object) -> tuple[SimulatedNetwork, Clock]:
    clock = Clock()
    l1s = (L1Plan(validators=3, spare=1),)
    return (
        small_network(clock, messages=0, l1s=l1s, rules=tuple(map(parse_rule, rules)), **plan),
        clock,
    )


def balances(network: SimulatedNetwork, height: int | None = None) -> list[int]:
    """Return the balances of the L1's initial validators after a block, by default the last one."""
    state = StateAt(network.state, network.p_chain.height if height is None else height)
    validations = state.validations(network.subnets[1].subnet_id)
    return [
        state.balance(validation)
        for validation in sorted(validations, key=lambda validation: validation.node_id)
    ]


def first_validation(network: SimulatedNetwork) -> ValidationID:
    validations = network.state.validations[network.subnets[1].subnet_id]
    return min(validations, key=lambda validation: validation.node_id).id


@given(st.integers(0, 30), st.integers(0, 3_000), st.integers(0, 200))
def test_the_fee_is_that_of_the_ledger(active: int, excess: int, seconds: int) -> None:
    config = L1FeeConfig(SMALL.target, SMALL.min_price, SMALL.excess_conversion)
    state = FeeState(accrued=5, excess=excess, active=active).after(SMALL, seconds)
    assert state.accrued == 5 + l1_fee_cost(config, active, excess, seconds)
    assert state.excess == advance_excess(config, active, excess, seconds)
    assert SMALL.price(excess) == l1_fee_price(config, excess)


@given(
    st.builds(FeeConfig, st.integers(1, 2_000), st.integers(500, 50_000), st.integers(0, 20)),
    st.builds(FeeState, st.integers(0, 9), st.integers(0, 5_000), st.integers(0, 40)),
    st.integers(0, 400),
)
def test_the_fee_of_a_long_time_is_the_sum_of_its_seconds(
    config: FeeConfig, start: FeeState, seconds: int
) -> None:
    accrued, excess = start.accrued, start.excess
    for _ in range(seconds):
        excess = max(0, excess + start.active - config.target)
        accrued += config.price(excess)
    assert start.after(config, seconds) == FeeState(accrued, excess, start.active)


def test_the_price_rises_above_the_target_and_falls_as_validators_run_dry() -> None:
    network, clock = clocked_network("l1-0/0:balance=6000", fees=SURPLUS, etna_height=20)
    state = network.state
    courses = []
    for _ in range(5):
        clock.now += 200
        network.advance()
        fees = state.fees.at(network.p_chain.height)
        courses.append((fees.active, fees.excess, SURPLUS.price(fees.excess)))
    assert courses == [(3, 200, 10), (3, 400, 15), (2, 600, 23), (2, 600, 23), (2, 600, 23)]
    dry = state.validation_of(network.subnets[1].subnet_id, network.validators[4].node_id)
    assert not dry.active
    network.p_chain.disable(first_validation(network))
    clock.now += 1000
    network.advance()
    assert state.fees.at(network.p_chain.height).excess == 0


def test_a_target_that_no_balance_could_pay_for_since_the_conversion_is_refused() -> None:
    with pytest.raises(
        InvalidPlan,
        match=r"3 active L1 validators are too many for a fee target of 2.* AVAX a second",
    ):
        clocked_network(fees=SURPLUS)


def test_no_more_validators_than_the_capacity_are_active() -> None:
    network, _ = clocked_network(fees=replace(SURPLUS, capacity=3), etna_height=20)
    subnet_id = network.subnets[1].subnet_id
    with pytest.raises(RejectedTransaction, match="max number of active"):
        network.p_chain.register(subnet_id)
    inactive = network.p_chain.register(subnet_id, balance_navax=0).validation_id
    assert inactive is not None
    with pytest.raises(RejectedTransaction, match="max number of active"):
        network.p_chain.increase_balance(inactive, 5)
    network.p_chain.disable(first_validation(network))
    network.p_chain.increase_balance(inactive, 5)


def test_a_public_network_has_its_own_price() -> None:
    assert fee_config(1).price(0) == MAINNET.l1_fee.min_price == 512
    assert fee_config(88888).price(0) == 1


def test_every_block_charges_for_the_seconds_since_the_last_one() -> None:
    network, clock = clocked_network()
    start = network.p_chain.height
    assert balances(network) == [BALANCE_NAVAX] * 3
    clock.now = NOW + 60
    assert balances(network) == [BALANCE_NAVAX] * 3
    network.advance()
    clock.now = NOW + 100
    network.advance(2)
    assert balances(network) == [BALANCE_NAVAX - 100] * 3
    assert balances(network, start + 1) == [BALANCE_NAVAX - 60] * 3
    assert balances(network, start) == [BALANCE_NAVAX] * 3
    # Blocks before the start are spread over thirty days, in which the validators paid as well.
    assert balances(network, 1) == [BALANCE_NAVAX + NOW - network.state.heights.time_of(1)] * 3


def test_a_used_up_balance_makes_a_validator_inactive_until_it_is_funded() -> None:
    network, clock = clocked_network("l1-0/0-2:balance=50")
    subnet_id, before = network.subnets[1].subnet_id, len(network.p_chain.transactions)
    clock.now = NOW + 49
    network.advance()
    assert (balances(network), len(network.state.current_set(subnet_id))) == ([1] * 3, 3)
    clock.now = NOW + 50
    network.advance()
    assert balances(network) == [0] * 3
    assert [member.public_key for member in network.state.current_set(subnet_id)] == [None]
    assert len(network.p_chain.transactions) == before
    clock.now = NOW + 80
    network.p_chain.increase_balance(first_validation(network), 1_000)
    assert sorted(balances(network)) == [0, 0, 1_000]
    assert len(network.state.current_set(subnet_id)) == 2


def test_a_balance_too_low_for_another_second_is_forfeited_behind_the_transactions() -> None:
    network, _ = clocked_network("l1-0/0-2:inactive", network_id=5)
    network.p_chain.increase_balance(first_validation(network), 511)
    assert balances(network) == [0] * 3
    network.p_chain.increase_balance(first_validation(network), 512)
    assert sorted(balances(network)) == [0, 0, 512]


def test_a_balance_is_set_by_transactions_of_one_block() -> None:
    network, clock = clocked_network()
    subnet_id = network.subnets[1].subnet_id
    index = next(node.index for node in network.validators if subnet_id in node.subnets)
    clock.now = NOW + 10
    height = network.set_balance(subnet_id, index, 77)
    assert sorted(balances(network)) == [77, BALANCE_NAVAX - 10, BALANCE_NAVAX - 10]
    kinds = [
        transaction.kind
        for transaction in network.p_chain.transactions
        if transaction.height == height
    ]
    assert kinds == ["DisableL1ValidatorTx", "IncreaseL1ValidatorBalanceTx"]
    network.set_balance(subnet_id, index, 0)
    assert network.set_balance(subnet_id, index, 0) == height + 2
    assert sorted(balances(network))[0] == 0


def test_a_rejected_transaction_leaves_balances_as_they_were() -> None:
    network, clock = clocked_network()
    waiting = network.p_chain.disable(first_validation(network), later=True)
    network.p_chain.remove(first_validation(network))
    clock.now = NOW + 30
    height = network.p_chain.height
    with pytest.raises(RejectedTransaction, match="not found"):
        network.p_chain.accept(waiting)
    assert network.p_chain.height == height
    assert balances(network) == [BALANCE_NAVAX] * 2
