"""Signed messages by transaction, end to end: real nodes' clients, real validators' sockets, a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.eventually import until
from tests.integration.daemon import run_network
from tests.l1.world import STORY, World, over, wanted, world
from warpseal.errors import (
    InvalidTimeout,
    MessageSuperseded,
    NodeUnavailable,
    NoMessage,
    OriginNotIndexed,
    ProofMismatch,
    QuorumNotReached,
    TransactionNotFound,
)
from warpseal.l1.settings import L1Settings
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.plan import L1Plan, Plan, parse_rule
from warpseal.warp.ids import PRIMARY_NETWORK, ValidationID
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal.warp.message import SignedMessage

# What was looked up is forgotten at once, so that a test sees each change.
QUICK = L1Settings(validity_ttl_s=0.0, miss_ttl_s=0.0, recheck_interval_s=0.05)
NO_HASHES = L1Settings(validity_ttl_s=0.0, miss_ttl_s=0.0, recheck_interval_s=0.05, bootstrap_indices=0)


def validation(transaction: Transaction) -> ValidationID:
    assert transaction.validation_id is not None
    return transaction.validation_id


async def delivered(running: World, transaction: Transaction, **changes: object) -> None:
    """Assert that the transaction's message is signed and that the L1's manager takes it."""
    answer = await running.messages.get(wanted(transaction.tx_id, **changes))
    assert answer.superseded is None
    delivery = running.network.manager(running.l1).deliver(answer.signed_message)
    assert delivery.accepted, delivery.reason


async def test_every_message_in_an_l1s_life_is_taken_by_its_manager(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        await delivered(running, p_chain.conversion_of(running.l1))
        registration = p_chain.register(running.l1)
        await delivered(running, registration)
        await delivered(running, p_chain.set_weight(validation(registration), 2_000))
        await delivered(running, p_chain.remove(validation(registration)))


async def test_the_message_is_the_one_that_the_p_chain_attests(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation(registration))
        assert removal.attested is not None
        answer = await running.messages.get(wanted(removal.tx_id, registration_tx_id=registration.tx_id))
        assert SignedMessage.parse(answer.signed_message).unsigned.raw == removal.attested.unsigned.raw
        assert answer.signing_subnet_id == running.l1


async def test_a_manager_on_the_c_chain_is_signed_for_by_the_primary_network(tmp_path: Path) -> None:
    plan = Plan(validators=4, l1s=(L1Plan(validators=2, spare=1, manager="C"),), messages=0, height=20)
    async with world(tmp_path, plan, QUICK) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        answer = await running.messages.get(wanted(conversion.tx_id))
        assert answer.signing_subnet_id == PRIMARY_NETWORK
        await delivered(running, running.network.p_chain.register(running.l1))


async def test_the_height_is_the_epochs_the_requests_or_the_proposed_one(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        running.network.advance(3)
        answer = await running.messages.get(wanted(conversion.tx_id))
        assert (answer.height, answer.height_source) == (20, "epoch")
        answer = await running.messages.get(wanted(conversion.tx_id, height=21))
        assert (answer.height, answer.height_source) == (21, "request")
        answer = await running.messages.get(wanted(conversion.tx_id, height=0))
        assert answer.height_source == "proposed"
        assert answer.height > 20
    plan = Plan(validators=3, l1s=(L1Plan(validators=3),), messages=0, epoch_blocks=0)
    async with world(tmp_path / "before", plan, QUICK) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        answer = await running.messages.get(wanted(conversion.tx_id))
        assert (answer.height, answer.height_source) == (20, "proposed")


async def test_a_transaction_is_not_found_until_it_is_accepted(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1, later=True)
        with pytest.raises(TransactionNotFound):
            await running.messages.get(wanted(registration.tx_id))
        with pytest.raises(TransactionNotFound):
            await running.messages.get(wanted(b"\x05" * 32))
        running.network.p_chain.accept(registration)
        await delivered(running, registration)


async def test_what_was_not_found_is_not_asked_for_again_within_a_second(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        for _ in range(5):
            with pytest.raises(TransactionNotFound):
                await running.messages.get(wanted(b"\x05" * 32))
        assert running.network.calls["platform.getTx"] == 1
        assert running.network.calls["avm.getTx"] == 1


async def test_equal_questions_at_once_are_asked_once(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        registration = running.network.p_chain.register(running.l1)
        answers = await asyncio.gather(*(running.messages.get(wanted(registration.tx_id)) for _ in range(20)))
        assert len({answer.signed_message for answer in answers}) == 1
        assert running.network.calls["platform.getTx"] == 1
        assert running.network.calls["platform.getL1Validator"] == 1
        assert running.network.calls["proposervm.getCurrentEpoch"] == 1


async def test_transactions_without_a_message_name_their_type(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        for transaction in (
            p_chain.base(),
            p_chain.increase_balance(validation(registration), 5),
            p_chain.disable(validation(registration)),
        ):
            with pytest.raises(NoMessage) as caught:
                await running.messages.get(wanted(transaction.tx_id))
            assert (caught.value.kind, caught.value.chain) == (transaction.kind, "P-Chain")
        (tx_id, *_) = running.network.x_transactions
        with pytest.raises(NoMessage) as caught:
            await running.messages.get(wanted(tx_id))
        assert caught.value.chain == "X-Chain"


async def test_a_superseded_message_that_nobody_signed_before_is_refused_for_ever(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        first = p_chain.set_weight(validation(registration), 2_000)
        p_chain.set_weight(validation(registration), 3_000)
        before = running.asked()
        with pytest.raises(MessageSuperseded) as caught:
            await running.messages.get(wanted(first.tx_id))
        result = caught.value.detail()
        assert result["verdict"] == "never"
        assert result["superseded"]["now"] == {"nonce": "1", "weight": "3000"}
        assert running.asked() == before
        await delivered(running, registration)


async def test_what_was_signed_while_it_was_true_is_served_with_what_is_true_now(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        first = p_chain.set_weight(validation(registration), 2_000)
        await delivered(running, registration)
        await delivered(running, first)
        removal = p_chain.remove(validation(registration))
        before = running.asked()
        for transaction in (registration, first):
            answer = await running.messages.get(wanted(transaction.tx_id))
            assert answer.superseded is not None
            assert answer.superseded["now"] == {"registered": False}
            assert removal.attested is not None
            assert answer.superseded["message"] == "0x" + removal.attested.unsigned.raw.hex()
            assert answer.superseded["justification"] == "0x" + removal.attested.justification.hex()
            assert running.network.manager(running.l1).deliver(answer.signed_message).accepted
        assert running.asked() == before


async def test_a_change_while_validators_are_asked_ends_the_asking(tmp_path: Path) -> None:
    plan = Plan(
        validators=3,
        l1s=(L1Plan(validators=4, spare=1),),
        messages=0,
        rules=(parse_rule("l1-0/0,1:silent"),),
    )
    async with world(tmp_path, plan, QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        first = running.network.p_chain.set_weight(validation(registration), 2_000)
        asking = asyncio.create_task(running.messages.get(wanted(first.tx_id, timeout_s=25.0)))
        await until(lambda: running.asked() > 0)
        started = asyncio.get_running_loop().time()
        running.network.p_chain.set_weight(validation(registration), 3_000)
        with pytest.raises(MessageSuperseded):
            await asking
        assert asyncio.get_running_loop().time() - started < 12


async def test_a_restarted_daemon_answers_without_asking_anybody(tmp_path: Path) -> None:
    async with run_network(STORY) as network:
        conversion = network.p_chain.conversion_of(network.subnets[1].subnet_id)
        registration = network.p_chain.register(network.subnets[1].subnet_id)
        async with over(network, tmp_path, QUICK) as running:
            first = [await running.messages.get(wanted(item.tx_id)) for item in (conversion, registration)]
        async with over(network, tmp_path, QUICK) as running:
            before = running.asked()
            again = [await running.messages.get(wanted(entry.tx_id)) for entry in (conversion, registration)]
            assert running.asked() == before
        assert [element.signed_message for element in again] == [element.signed_message for element in first]


async def test_only_nodes_below_the_transaction_prove_nothing(tmp_path: Path) -> None:
    plan = Plan(validators=3, l1s=(L1Plan(validators=4, spare=1),), messages=0, nodes=2)
    async with world(tmp_path, plan, QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        first = running.network.p_chain.set_weight(validation(registration), 2_000)
        first_node, second_node = running.network.nodes
        second_node.lag = 1
        await delivered(running, first)
        await first_node.down()
        explained = await running.messages.explain(wanted(first.tx_id))
        assert explained["truth"] == {"state": "unknown"}
        await delivered(running, first)


async def test_validators_that_lag_say_not_yet(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        seats = [validator.index for validator in running.network.validators if any(validator.chains)]
        running.network.set_behaviour(seats, "lag=1")
        with pytest.raises(QuorumNotReached) as caught:
            await running.messages.get(wanted(registration.tx_id, timeout_s=1.0))
        assert "threshold of stake" in str(caught.value)
        assert {item.error_code for item in caught.value.shortfall.missing} == {11}
        running.network.set_behaviour(seats, "")
        await delivered(running, registration)


async def test_a_time_that_may_not_be_asked_for_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        for timeout_s in (0.0, -1.0, 56.0):
            with pytest.raises(InvalidTimeout):
                await running.messages.get(wanted(bytes(32), timeout_s=timeout_s))
            with pytest.raises(InvalidTimeout):
                await running.messages.explain(wanted(bytes(32), timeout_s=timeout_s))


async def test_no_node_that_answers_is_told_as_such(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        await running.network.nodes[0].down()
        with pytest.raises(NodeUnavailable):
            await running.messages.get(wanted(b"\x05" * 32, timeout_s=2.0))


async def test_the_removal_of_an_initial_validator_needs_no_index(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        seat = initial(running)
        removal = running.network.p_chain.remove(seat)
        await delivered(running, removal)
        found = await running.store.l1.origin(seat)
        assert found is not None
        assert found.subnet_id == running.l1


def initial(running: World) -> ValidationID:
    """Return an initial validation, that of index 3."""
    return bootstrap_validation_id(running.l1, 3)


async def test_the_removal_of_a_registered_validator_waits_for_its_origin_or_takes_the_callers_proof(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        other = p_chain.register(running.l1)
        registration = p_chain.register(running.l1)
        removal = p_chain.remove(validation(registration))
        running.follower["eta"] = 40
        with pytest.raises(OriginNotIndexed) as caught:
            await running.messages.get(wanted(removal.tx_id))
        assert caught.value.retry_after_s == 40
        assert caught.value.detail()["progress"]["follower"] == {"eta": 40}
        assert caught.value.detail()["progress"]["initialValidators"]["subnetsTried"] >= 1
        with pytest.raises(ProofMismatch):
            await running.messages.get(wanted(removal.tx_id, registration_tx_id=other.tx_id))
        with pytest.raises(ProofMismatch):
            await running.messages.get(wanted(removal.tx_id, justification=b"nonsense"))
        await delivered(running, removal, registration_tx_id=registration.tx_id)
        assert await running.store.l1.origin(validation(registration)) is not None


async def test_the_callers_justification_serves_where_it_proves_the_validation(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation(registration))
        assert removal.attested is not None
        await delivered(running, removal, justification=removal.attested.justification)
        await delivered(running, removal)


async def test_what_was_stored_needs_no_origin(tmp_path: Path) -> None:
    async with run_network(STORY) as network:
        registration = network.p_chain.register(network.subnets[1].subnet_id)
        removal = network.p_chain.remove(validation(registration))
        assert removal.attested is not None
        async with over(network, tmp_path, NO_HASHES) as running:
            await delivered(running, removal, justification=removal.attested.justification)
            signed = (await running.messages.get(wanted(removal.tx_id))).signed_message
        async with over(network, tmp_path, NO_HASHES) as running:
            before = running.asked()
            assert (await running.messages.get(wanted(removal.tx_id))).signed_message == signed
            assert running.asked() == before


async def test_the_logs_of_the_managers_chain_tell_where_a_validation_began(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK, evm=True) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation(registration))
        await delivered(running, removal)
        assert running.network.calls["eth_getLogs"] > 0
        assert await running.store.l1.origin(validation(registration)) is not None
