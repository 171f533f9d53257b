"""The members of all validator sets, and those that a block changed."""

from __future__ import annotations

from warpseal.chains.ids import TxID
from warpseal.chains.p_txs import ProofOfPossession
from warpseal.ledger.effects import L1Validator, SetChange, StakingPeriod
from warpseal.ledger.validator_sets import CurrentSets
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import PChainOwner

SUBNET, L1 = SubnetID(b"\x01" * 32), SubnetID(b"\x02" * 32)
FIRST, SECOND = NodeID(b"\x01" * 20), NodeID(b"\x02" * 20)
KEY, OTHER_KEY = b"\x11" * 48, b"\x22" * 48
NO_OWNER = PChainOwner(0, ())


def staking(
    weight: int,
    node_id: NodeID = FIRST,
    subnet_id: SubnetID = PRIMARY_NETWORK,
    key: bytes | None = None,
) -> StakingPeriod:
    signer = None if key is None else ProofOfPossession(key, bytes(96))
    return StakingPeriod(
        TxID(bytes(32)), subnet_id, node_id, 0, 1, weight, is_delegation=key is None, signer=signer
    )


def validator(weight: int, *, is_active: bool, node_id: NodeID = FIRST) -> L1Validator:
    return L1Validator(
        ValidationID(bytes(32)),
        L1,
        node_id,
        KEY,
        NO_OWNER,
        NO_OWNER,
        0,
        weight,
        end_accumulated_fee=int(is_active),
    )


def test_a_validator_has_its_stake_and_that_of_its_delegators() -> None:
    sets = CurrentSets()
    sets.add_stake(staking(5, key=KEY))
    sets.add_stake(staking(2))
    assert sets.take_changes() == (SetChange(PRIMARY_NETWORK, FIRST, 7, KEY),)
    sets.add_stake(staking(2), -1)
    assert sets.take_changes() == (SetChange(PRIMARY_NETWORK, FIRST, 5, KEY),)
    sets.add_stake(staking(5, key=KEY), -1)
    assert sets.take_changes() == (SetChange(PRIMARY_NETWORK, FIRST, 0, None),)
    assert sets.members() == sets.take_changes() == ()


def test_a_validator_that_returns_without_a_key_has_none() -> None:
    sets = CurrentSets()
    sets.add_stake(staking(5, key=KEY))
    sets.add_stake(staking(5, key=KEY), -1)
    sets.add_stake(staking(4))
    assert sets.members() == (SetChange(PRIMARY_NETWORK, FIRST, 4, None),)


def test_a_member_that_is_as_before_the_block_has_not_changed() -> None:
    sets = CurrentSets()
    sets.add_stake(staking(5, key=KEY))
    sets.take_changes()
    sets.add_stake(staking(5, key=KEY), -1)
    sets.add_stake(staking(5, key=KEY))
    assert sets.take_changes() == ()
    sets.add_stake(staking(5, key=KEY), -1)
    sets.add_stake(staking(5, key=OTHER_KEY))
    assert sets.take_changes() == (SetChange(PRIMARY_NETWORK, FIRST, 5, OTHER_KEY),)


def test_the_validator_of_a_subnet_inherits_the_key_of_its_node() -> None:
    sets = CurrentSets()
    sets.add_stake(staking(3, subnet_id=SUBNET))
    sets.add_stake(staking(4, SECOND, SUBNET))
    sets.add_stake(staking(5, key=KEY))
    assert sets.members() == (
        SetChange(PRIMARY_NETWORK, FIRST, 5, KEY),
        SetChange(SUBNET, FIRST, 3, KEY),
        SetChange(SUBNET, SECOND, 4, None),
    )


def test_the_inactive_validators_of_an_l1_are_one_member_without_a_key() -> None:
    sets = CurrentSets()
    sets.add_l1_validator(validator(5, is_active=True))
    sets.add_l1_validator(validator(3, is_active=False, node_id=SECOND))
    sets.add_l1_validator(validator(4, is_active=False))
    active, inactive = SetChange(L1, FIRST, 5, KEY), SetChange(L1, EMPTY_NODE_ID, 7, None)
    assert sets.members() == (inactive, active)
    sets.add_l1_validator(validator(4, is_active=False), -1)
    sets.add_l1_validator(validator(5, is_active=True), -1)
    assert sets.members() == (SetChange(L1, EMPTY_NODE_ID, 3, None),)
    # The key of the validator that left is not that of a later one.
    sets.add_stake(staking(1, subnet_id=L1))
    assert sets.members()[-1] == SetChange(L1, FIRST, 1, None)
