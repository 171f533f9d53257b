"""Transactions of an L1's life are accepted, refused and take effect as on a node; what is attested
is what is true.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simnet.client import call
from tests.simnet.sessions import NOW, Clock, small_network
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.p_txs import AddPermissionlessDelegatorTx, parse_p_tx
from warpseal.messages.attestation import derive_attestation
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, ValidationID, id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal_simnet import p_chain_verifier
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.p_chain import BALANCE_NAVAX
from warpseal_simnet.p_chain_verifier import PChainCode
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.state import StateAt
from warpseal_simnet.tx_executor import RejectedTransaction

ONE_L1 = (L1Plan(shared=True, spare=2),)


@pytest.fixture
def network() -> SimulatedNetwork:
    return small_network(messages=0, l1s=ONE_L1)


def l1_of(network: SimulatedNetwork, place: int = 1) -> SubnetID:
    return network.subnets[place].subnet_id


def registered(network: SimulatedNetwork, **fields: Any) -> tuple[Transaction, ValidationID]:
    registration = network.p_chain.register(l1_of(network), **fields)
    assert registration.validation_id is not None
    return registration, registration.validation_id


def code_of(network: SimulatedNetwork, transaction: Transaction, blocks_ago: int = 0) -> int | None:
    """Return with which code a validator refuses what is attested of a transaction, or None where
    it signs.
    """
    attested = transaction.attested
    assert attested is not None
    state = StateAt(network.state, network.p_chain.height - blocks_ago)
    refusal = p_chain_verifier.refusal_of(state, attested.unsigned, attested.justification)
    return refusal.code if refusal else None


def test_a_registration_makes_a_validator_with_the_next_block(network: SimulatedNetwork) -> None:
    before = network.state.current_set(l1_of(network))
    registration, validation_id = registered(network, weight=77)
    validation = network.state.validation(validation_id)
    assert validation is not None
    assert (registration.height, network.p_chain.height) == (21, 21)
    balance = StateAt(network.state, network.p_chain.height).balance(validation)
    assert (validation.weight, validation.min_nonce, balance, validation.start_time) == (
        77,
        0,
        BALANCE_NAVAX,
        NOW,
    )
    assert len(network.state.current_set(l1_of(network))) == len(before) + 1
    assert network.state.set_at(l1_of(network), 20) == before
    assert code_of(network, registration) is None
    assert code_of(network, registration, blocks_ago=1) == PChainCode.NO_VALIDATION


def test_weights_are_attested_until_the_next_change_and_removals_always(
    network: SimulatedNetwork,
) -> None:
    registration, validation_id = registered(network)
    first, second = (
        network.p_chain.set_weight(validation_id, 5),
        network.p_chain.set_weight(validation_id, 6),
    )
    assert (code_of(network, first), code_of(network, second)) == (PChainCode.WRONG_NONCE, None)
    assert code_of(network, first, blocks_ago=1) is None
    removal = network.p_chain.remove(validation_id)
    assert network.state.validation(validation_id) is None
    assert [code_of(network, tx) for tx in (registration, first, second)] == [
        PChainCode.NO_VALIDATION
    ] * 3
    assert code_of(network, removal) is None
    assert code_of(network, removal, blocks_ago=1) == PChainCode.VALIDATION_EXISTS
    network.advance(4)
    assert code_of(network, removal, blocks_ago=8) == PChainCode.COULD_BE_REGISTERED
    assert code_of(network, removal) is None


def test_an_expired_registration_is_denied_by_chain_time_and_not_by_the_clock() -> None:
    clock = Clock()
    network = small_network(clock, messages=0, l1s=ONE_L1)
    waiting = network.p_chain.register(l1_of(network), expiry=NOW + 60, later=True)
    removal = network.p_chain.remove(registered(network, expiry=NOW + 60, validator=5)[1])
    clock.now += 100
    assert code_of(network, removal, blocks_ago=2) == PChainCode.COULD_BE_REGISTERED
    network.advance()
    with pytest.raises(RejectedTransaction, match="expired"):
        network.p_chain.accept(waiting)
    assert waiting.height is None


def test_initial_validators_are_removed_by_their_index(network: SimulatedNetwork) -> None:
    validation = network.state.validations[l1_of(network)][0]
    removal = network.p_chain.remove(validation.id)
    assert removal.attested is not None
    expected = L1ValidatorRegistrationJustification.bootstrap(l1_of(network), validation.index).raw
    assert removal.attested.justification == expected
    assert code_of(network, removal) is None


def test_a_removed_node_can_register_only_under_a_new_validation_id(
    network: SimulatedNetwork,
) -> None:
    _, first = registered(network, validator=5)
    network.p_chain.remove(first)
    _, second = registered(network, validator=5)
    assert first != second
    assert network.state.validation(first) is None
    assert network.state.validation_of(l1_of(network), network.validators[5].node_id).id == second


def test_a_stake_adds_to_the_weight_of_a_validator(network: SimulatedNetwork) -> None:
    validator, state = network.validators[1], network.state
    before = {entry.node_id: entry.weight for entry in state.current_set(PRIMARY_NETWORK)}
    network.p_chain.delegate(validator.node_id, 25)
    height = network.p_chain.height
    after = {entry.node_id: entry.weight for entry in state.current_set(PRIMARY_NETWORK)}
    assert after == before | {validator.node_id: before[validator.node_id] + 25}
    assert state.set_at(PRIMARY_NETWORK, height - 1) != state.set_at(PRIMARY_NETWORK, height)
    (transaction,) = parse_p_block(network.p_chain.block(height)).txs
    assert isinstance(transaction.unsigned, AddPermissionlessDelegatorTx)
    assert transaction.unsigned.validator.validator.node_id == validator.node_id
    assert transaction.unsigned.stake[0].output.amount == 25


def test_disabling_makes_inactive_and_funding_active_again(network: SimulatedNetwork) -> None:
    registration, validation_id = registered(network)
    validation = network.state.validation(validation_id)
    assert validation is not None
    network.p_chain.disable(validation_id)
    assert not validation.active
    assert code_of(network, registration) is None
    assert network.state.current_set(l1_of(network))[-1].public_key is None
    network.p_chain.increase_balance(validation_id, 9)
    assert validation.active
    assert StateAt(network.state, network.p_chain.height).balance(validation) == 9


def test_a_rejected_transaction_changes_nothing(network: SimulatedNetwork) -> None:
    chain, l1 = network.p_chain, l1_of(network)
    _, validation_id = registered(network, validator=5)
    chain.set_weight(validation_id, 5, nonce=7)
    height = chain.height
    rejections = (
        ("stale nonce", lambda: chain.set_weight(validation_id, 6, nonce=7)),
        ("overflows", lambda: chain.set_weight(validation_id, 6, nonce=2**64 - 1)),
        ("not found", lambda: chain.set_weight(ValidationID(bytes(32)), 6)),
        ("not found", lambda: chain.disable(ValidationID(bytes(32)))),
        ("greater than 0", lambda: chain.increase_balance(validation_id, 0)),
        ("of this node exists", lambda: chain.register(l1, 5)),
        ("greater than 0", lambda: chain.register(l1, 4, weight=0)),
        ("expired", lambda: chain.register(l1, 4, expiry=NOW)),
        ("not yet allowed", lambda: chain.register(l1, 4, expiry=NOW + 24 * 3600 + 1)),
        ("overflow", lambda: chain.register(l1, 4, weight=2**64 - 1)),
        ("converted already", lambda: chain.convert(l1)),
    )
    for reason, attempt in rejections:
        with pytest.raises(RejectedTransaction, match=reason):
            attempt()  # type: ignore[no-untyped-call]
    assert chain.height == height


def test_the_last_validator_stays() -> None:
    network = small_network(messages=0, l1s=(L1Plan(2),))
    removed_id, other = (validation.id for validation in network.state.validations[l1_of(network)])
    network.p_chain.remove(removed_id)
    with pytest.raises(RejectedTransaction, match="last L1 validator"):
        network.p_chain.remove(other)


def test_a_registration_is_never_accepted_twice(network: SimulatedNetwork) -> None:
    _, validation_id = registered(network, validator=5, expiry=NOW + 60)
    network.p_chain.remove(validation_id)
    with pytest.raises(RejectedTransaction, match="already issued"):
        network.p_chain.register(l1_of(network), 5, expiry=NOW + 60)


def test_an_issued_transaction_has_its_id_and_waits_for_its_block(
    network: SimulatedNetwork,
) -> None:
    waiting = network.p_chain.register(l1_of(network), later=True)
    tx_id = waiting.tx_id
    other = network.p_chain.set_weight(network.state.validations[l1_of(network)][0].id, 9)
    network.advance(2)
    assert waiting.height is None
    assert code_of(network, waiting) == PChainCode.NO_VALIDATION
    assert network.p_chain.accept(waiting) == waiting.height == network.p_chain.height == 24
    assert (waiting.tx_id, other.height) == (tx_id, 21)
    assert code_of(network, waiting) is None
    assert waiting.raw[2:] in network.p_chain.block(24)


def test_a_block_contains_the_transactions_before_a_rejected_one(network: SimulatedNetwork) -> None:
    chain = network.p_chain
    first, second = (
        chain.register(l1_of(network), 5, expiry=NOW + 60 + n, later=True) for n in (0, 1)
    )
    with pytest.raises(RejectedTransaction):
        chain.accept(first, second)
    assert (first.height, second.height, chain.height) == (21, None, 21)


def test_an_unconverted_subnet_is_converted_while_the_network_runs() -> None:
    network = small_network(messages=0, l1s=(L1Plan(3, unconverted=True), L1Plan(2)))
    l1, other = l1_of(network), l1_of(network, 2)
    assert network.state.current_set(l1) == ()
    manager = network.state.chains_of(other)[0]
    conversion = network.p_chain.convert(l1, weights=(5, 7, 9), manager_chain_id=manager)
    assert sorted(member.weight for member in network.state.current_set(l1)) == [5, 7, 9]
    assert conversion.attested is not None
    assert conversion.attested.signing_subnet_id == other
    assert conversion.attested.justification == l1
    assert (code_of(network, conversion), code_of(network, conversion, blocks_ago=1)) == (
        None,
        PChainCode.NOT_CONVERTED,
    )


def test_the_plans_weights_were_set_by_transactions(network: SimulatedNetwork) -> None:
    changed = [tx for tx in network.p_chain.transactions if tx.kind == "SetL1ValidatorWeightTx"]
    set_before = [
        validation.id
        for validation in network.state.validations[l1_of(network)]
        if validation.min_nonce
    ]
    assert {tx.validation_id for tx in changed} == set(set_before)
    assert [code_of(network, tx) for tx in changed] == [None] * len(set_before)


def test_weights_that_a_plan_or_a_test_changes_are_changed_by_transactions() -> None:
    network = small_network(messages=0, l1s=(L1Plan(3),), churn_every=1)
    validations = network.state.validations[l1_of(network)]
    network.change_weight(l1_of(network), network.validators[-1].index, 4242)
    network.advance(4)
    changes = [tx for tx in network.p_chain.transactions if (tx.height or 0) > 20]
    assert len(changes) == 6
    for validation in validations:
        last = [tx for tx in network.p_chain.transactions if tx.validation_id == validation.id]
        assert not last or code_of(network, last[-1]) is None


@pytest.mark.parametrize(("manager", "signer"), [("own", 1), ("C", 0), ("l1-1", 2)])
def test_the_attested_message_is_derived_from_the_transaction_bytes(
    manager: str, signer: int
) -> None:
    network = small_network(messages=0, l1s=(L1Plan(3, manager=manager, spare=1), L1Plan(2)))
    chain = network.p_chain
    _, validation_id = registered(network)
    chain.set_weight(validation_id, 5)
    chain.remove(validation_id)
    chain.remove(network.state.validations[l1_of(network)][0].id)
    checked = 0
    for tx in chain.transactions:
        if tx.attested is not None and tx.subnet_id == l1_of(network):
            derived = derive_attestation(parse_p_tx(tx.raw), network.network_id)
            assert derived.message.raw == tx.attested.unsigned.raw
            assert derived.justification in (tx.attested.justification, None)
            signing = network.state.chains[derived.manager_chain_id].subnet_id
            assert signing == tx.attested.signing_subnet_id == network.subnets[signer].subnet_id
            checked += 1
    assert checked == 6


async def test_a_new_node_joins_a_running_network_and_is_registered() -> None:
    async with SimulatedNetwork(Plan(validators=3, messages=0)) as network:
        with pytest.raises(LookupError, match="add_validator"):
            network.p_chain.register(l1_of(network))
        index = await network.add_validator(l1_of(network))
        registration = network.p_chain.register(l1_of(network))
        validation = network.state.validation_of(l1_of(network), network.validators[index].node_id)
        assert (index, validation.id) == (3, registration.validation_id)
        peers = await call(network.node_uri, "/ext/info", "info.peers")
        assert network.validators[index].name in {peer["nodeID"] for peer in peers["peers"]}
        validator = await call(
            network.node_uri,
            "/ext/P",
            "platform.getL1Validator",
            {"validationID": id_text(registration.validation_id or b"")},
        )
        assert (validator["nodeID"], validator["minNonce"]) == (network.validators[index].name, "0")
        assert network.state.primary_key(network.validators[index].node_id) is None
        assert network.state.subnets[PRIMARY_NETWORK].conversion_id is None


def test_a_node_registers_again_with_another_key(network: SimulatedNetwork) -> None:
    subnet_id, chain, node = l1_of(network), network.p_chain, network.validators[4]
    _, first = registered(network, validator=node.index)
    old_key = node.bls_key
    chain.remove(first)
    network.change_bls_key(node.index)
    chain.register(subnet_id, node.index)
    keys = [
        [
            member.public_key
            for member in network.state.set_at(subnet_id, height)
            if member.node_id == node.node_id
        ]
        for height in range(chain.height - 2, chain.height + 1)
    ]
    assert keys == [[old_key], [], [node.bls_key]]
    assert node.bls_key != old_key
    with pytest.raises(ValueError, match="stake"):
        network.change_bls_key(0)
