"""Plans are parsed, refused and built as they say; equal plans make equal networks."""

from __future__ import annotations

from random import Random

import pytest

from tests.simnet.sessions import NOW, Clock, small_network
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK
from warpseal.warp.l1_messages import ConversionData, ConversionValidator, bootstrap_validation_id
from warpseal_simnet.build import build_state
from warpseal_simnet.plan import (
    InvalidPlan,
    L1Plan,
    Plan,
    Rule,
    parse_l1,
    parse_rule,
    parse_weights,
    select_members,
)
from warpseal_simnet.proposervm import ChainEpoch
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.state import SimState, StateAt
from warpseal_simnet.warp_config import WarpRule


def state(**plan: object) -> SimState:
    return small_network(None, **plan).state


def test_an_l1_is_parsed_from_its_words() -> None:
    assert parse_l1("validators=5,weights=5/3/1") == L1Plan(5, "5/3/1")
    assert parse_l1("shared,chains=2") == L1Plan(shared=True, chains=2)
    assert parse_l1("unconverted,manager=l1-2,spare=3") == L1Plan(
        unconverted=True, manager="l1-2", spare=3
    )
    assert parse_l1("quorum=80,primary-signers,idle").warp == WarpRule(
        quorum=80, needs_primary_signers=True
    )
    assert parse_l1("no-warp,idle,simplex") == L1Plan(idle=True, simplex=True, warp=None)
    assert parse_l1("validators=1,permissioned") == L1Plan(1, shared=True, permissioned=True)
    for bad in ("validators=0", "validators=x", "size=5", "validators=1,validators=2", "chains=0"):
        with pytest.raises(InvalidPlan):
            parse_l1(bad)
    for bad in ("manager=X", "quorum=32", "quorum=101"):
        with pytest.raises(InvalidPlan):
            parse_l1(bad)


def test_a_rule_is_parsed_from_its_words() -> None:
    assert parse_rule("10%:silent").share == 0.1
    assert parse_rule("l1-0/0,3-5:silent") == Rule(
        parse_rule("all:silent").behaviour, "l1-0", None, (0, 3, 4, 5)
    )
    for bad in ("silent", "120%:silent", "l2/0:silent", "x:silent", "0:nonsense", "10%-20%:silent"):
        with pytest.raises(InvalidPlan):
            parse_rule(bad)


def test_weights_are_equal_falling_random_or_listed() -> None:
    rng = Random(1)
    assert parse_weights("equal:7", 3, rng) == [7, 7, 7]
    assert parse_weights("zipf:100", 4, rng) == [100, 50, 33, 25]
    assert parse_weights("5/3/1", 5, rng) == [5, 3, 1, 5, 3]
    assert all(2 <= weight <= 4 for weight in parse_weights("uniform:2-4", 50, rng))
    for bad in ("equal:0", "5/0", "zipf:2", "much", "uniform:9"):
        with pytest.raises(InvalidPlan):
            parse_weights(bad, 3, rng)


def test_a_share_is_chosen_by_the_seed() -> None:
    rule = parse_rule("30%:silent")
    assert len(select_members(rule, range(10), Random(1))) == 3
    assert select_members(rule, range(10), Random(1)) == select_members(rule, range(10), Random(1))
    with pytest.raises(InvalidPlan):
        select_members(parse_rule("10:silent"), range(10), Random(1))


def test_equal_plans_make_equal_networks_and_other_seeds_others() -> None:
    first, same, other = state(seed=1), state(seed=1), state(seed=2)
    assert [validator.node_id for validator in first.validators] == [
        validator.node_id for validator in same.validators
    ]
    assert [message.unsigned.raw for message in first.messages] == [
        message.unsigned.raw for message in same.messages
    ]
    assert first.subnets == same.subnets
    assert not {validator.node_id for validator in first.validators} & {
        validator.node_id for validator in other.validators
    }


def test_by_default_all_validators_validate_one_l1_as_well() -> None:
    built = state()
    primary, l1 = built.subnets
    assert primary == PRIMARY_NETWORK
    assert {member.node_id for member in built.current_set(l1)} == {
        member.node_id for member in built.validators
    }


def test_own_shared_and_permissioned_subnets_coexist() -> None:
    built = state(
        l1s=(L1Plan(3, "5/3/1"), L1Plan(2, shared=True), L1Plan(1, permissioned=True, shared=True))
    )
    _, own, shared, permissioned = built.subnets
    assert len(built.validators) == 7
    assert sorted(member.weight for member in built.current_set(own)) == [1, 3, 5]
    assert [validator.validates_primary for validator in built.validators] == [True] * 4 + [
        False
    ] * 3
    assert {member.node_id for member in built.current_set(shared)} == {
        member.node_id for member in built.validators[:2]
    }
    assert built.subnets[permissioned].conversion_id is None
    with pytest.raises(InvalidPlan):
        state(l1s=(L1Plan(9, shared=True),))


def test_conversion_and_validation_ids_follow_from_the_l1() -> None:
    built = state()
    subnet = list(built.subnets.values())[1]
    validations = sorted(
        built.validations[subnet.subnet_id], key=lambda validation: validation.node_id
    )
    assert [validation.id for validation in validations] == [
        bootstrap_validation_id(subnet.subnet_id, i) for i in range(4)
    ]
    initial = tuple(
        ConversionValidator(validation.node_id, validation.public_key or b"", validation.weight)
        for validation in validations
    )
    assert subnet.manager_chain_id in built.chains_of(subnet.subnet_id)
    data = ConversionData(
        subnet.subnet_id, subnet.manager_chain_id, subnet.manager_address, initial
    )
    assert subnet.conversion_id == data.conversion_id


def test_keyless_inactive_and_heavier_validators_exist_from_the_start() -> None:
    rules = (
        parse_rule("0:keyless+weight=5"),
        parse_rule("l1-0/1:inactive"),
        parse_rule("l1-0/2:balance=2047"),
    )
    built = state(rules=rules)
    primary, l1 = built.subnets
    first = next(
        member
        for member in built.current_set(primary)
        if member.node_id == built.validators[0].node_id
    )
    assert (first.public_key, first.weight) == (None, 5)
    members = {member.node_id: member for member in built.current_set(l1)}
    assert built.validators[1].node_id not in members
    assert members[EMPTY_NODE_ID].public_key is None
    validation = built.validation_of(l1, built.validators[2].node_id)
    assert StateAt(built, built.heights.current).balance(validation) == 2047


def test_sets_begin_at_genesis_and_with_the_first_block() -> None:
    built = state()
    primary, l1 = built.subnets
    assert len(built.set_at(primary, 0)) == 4
    assert built.set_at(l1, 0) == ()
    assert built.set_at(l1, 1) == built.current_set(l1)


def test_validators_leave_and_join_at_their_heights() -> None:
    built = state(height=20, rules=(parse_rule("0:leaves=22"), parse_rule("1:joins=23")))
    primary = PRIMARY_NETWORK
    sizes = [len(built.current_set(primary))]
    for _ in range(4):
        built.advance()
        sizes.append(len(built.current_set(primary)))
    assert sizes == [3, 3, 2, 3, 3]
    assert len(built.set_at(primary, 21)) == 3


def test_churn_changes_a_weight_of_each_subnet_every_few_blocks() -> None:
    built = state(churn_every=2)
    primary, l1 = built.subnets
    before = built.current_set(primary), built.current_set(l1)
    built.advance()
    assert (built.current_set(primary), built.current_set(l1)) == before
    built.advance()
    assert built.current_set(primary) != before[0]
    assert built.current_set(l1) != before[1]


def test_epochs_begin_every_few_blocks_and_the_proposed_height_lags() -> None:
    clock = Clock()
    built = small_network(clock, epoch_blocks=3, proposed_lag=1).state
    proposer = built.proposervm[built.chains_of(list(built.subnets)[1])[0]]
    assert (proposer.next_epoch, built.heights.proposed) == (ChainEpoch(1, NOW, 19), 19)
    clock.now += 10
    built.advance(2)
    assert proposer.next_epoch == ChainEpoch(1, NOW, 19)
    built.advance()
    assert proposer.next_epoch == ChainEpoch(2, NOW + 10, 22)


def test_plans_that_cannot_be_built_are_refused() -> None:
    for bad in (
        {"validators": 0},
        {"rsa": 9},
        {"height": 0},
        {"network_id": 0},
        {"epoch_blocks": -1},
        {"epoch_s": -1},
        {"etna_height": 21},
    ):
        with pytest.raises(InvalidPlan):
            build_state(Plan(**{"validators": 2} | bad))  # type: ignore[arg-type]
    with pytest.raises(InvalidPlan):
        build_state(
            Plan(validators=1, rules=(parse_rule("l1-3/all:silent"),), settings=NodeSettings())
        )
