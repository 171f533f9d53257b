"""Signed messages by transaction, end to end, with real node clients, real sockets and a real
store.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.eventually import finish, until
from tests.integration.daemon import run_network
from tests.l1.fixtures import PLAN, L1Setup, build_request, run_service, started_l1_service
from warpseal.aggregation.errors import InvalidTimeout, QuorumNotReached
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.l1 import service
from warpseal.l1.errors import (
    FollowerProgress,
    MessageSuperseded,
    OriginNotIndexed,
    ProofMismatch,
    TransactionNotFound,
)
from warpseal.l1.explain import ExplainedTruth
from warpseal.l1.request import PresentStatement
from warpseal.l1.settings import L1Settings
from warpseal.messages.attestation import Attestation
from warpseal.messages.errors import NoMessage, SigningBlocked
from warpseal.store.values import SigningBlock, SigningBlockKind
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal.warp.message import SignedMessage, UnsignedMessage
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.rpc import Outage, OutageKind

# The longest timeout that a request may have.
LONGEST_S = 55.0
# Lookups expire at once, so that a test sees each change.
QUICK = L1Settings(validity_ttl_s=0.0, miss_ttl_s=0.0, recheck_interval_s=0.05)
NO_HASHES = L1Settings(
    validity_ttl_s=0.0, miss_ttl_s=0.0, recheck_interval_s=0.05, bootstrap_indices=0
)
# Half of the weight is silent, so that an aggregation lasts until its timeout.
SILENT_PLAN = Plan(
    validators=3,
    l1s=(L1Plan(validators=4, spare=1),),
    messages=0,
    rules=(parse_rule("l1-0/0,1:silent"),),
)


def validation_id_of(transaction: Transaction) -> ValidationID:
    assert transaction.validation_id is not None
    return transaction.validation_id


async def deliver(running: L1Setup, transaction: Transaction, **changes: object) -> None:
    """Assert that the transaction's message is signed and that the L1's manager accepts it."""
    result = await running.messages.get(build_request(transaction.tx_id, **changes))
    assert result.superseded is None
    delivery = running.network.manager(running.l1).deliver(result.signed_message)
    assert delivery.accepted, delivery.reason


async def test_the_manager_accepts_every_message_about_an_l1(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        await deliver(running, p_chain.conversion_of(running.l1))
        registration = p_chain.register(running.l1)
        await deliver(running, registration)
        await deliver(running, p_chain.set_weight(validation_id_of(registration), 2_000))
        await deliver(running, p_chain.remove(validation_id_of(registration)))


async def test_the_message_equals_the_one_that_the_p_chain_attests(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation_id_of(registration))
        assert removal.attested is not None
        result = await running.messages.get(
            build_request(removal.tx_id, registration_tx_id=registration.tx_id)
        )
        assert (
            SignedMessage.parse(result.signed_message).unsigned.raw == removal.attested.unsigned.raw
        )
        assert result.signing_subnet_id == running.l1


async def test_the_primary_network_signs_for_a_manager_on_the_c_chain(tmp_path: Path) -> None:
    plan = Plan(
        validators=4, l1s=(L1Plan(validators=2, spare=1, manager="C"),), messages=0, height=20
    )
    async with started_l1_service(tmp_path, plan, QUICK) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        result = await running.messages.get(build_request(conversion.tx_id))
        assert result.signing_subnet_id == PRIMARY_NETWORK
        await deliver(running, running.network.p_chain.register(running.l1))


async def test_the_height_is_that_of_the_epoch_the_request_or_the_proposed_one(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        running.network.advance(3)
        result = await running.messages.get(build_request(conversion.tx_id))
        assert (result.height, result.height_source) == (20, "epoch")
        result = await running.messages.get(build_request(conversion.tx_id, height=21))
        assert (result.height, result.height_source) == (21, "request")
        result = await running.messages.get(build_request(conversion.tx_id, height=0))
        assert result.height_source == "proposed"
        assert result.height > 20
    plan = Plan(validators=3, l1s=(L1Plan(validators=3),), messages=0, epoch_blocks=0)
    async with started_l1_service(tmp_path / "before", plan, QUICK) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        result = await running.messages.get(build_request(conversion.tx_id))
        assert (result.height, result.height_source) == (20, "proposed")


async def test_a_transaction_is_not_found_until_it_is_accepted(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1, later=True)
        with pytest.raises(TransactionNotFound):
            await running.messages.get(build_request(registration.tx_id))
        with pytest.raises(TransactionNotFound):
            await running.messages.get(build_request(b"\x05" * 32))
        running.network.p_chain.accept(registration)
        await deliver(running, registration)


async def test_an_unknown_transaction_is_requested_from_nodes_once_a_second(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path) as running:
        for _ in range(5):
            with pytest.raises(TransactionNotFound):
                await running.messages.get(build_request(b"\x05" * 32))
        assert running.network.calls["platform.getTx"] == 1
        assert running.network.calls["avm.getTx"] == 1


async def test_equal_concurrent_requests_share_the_calls_to_nodes(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path) as running:
        registration = running.network.p_chain.register(running.l1)
        results = await asyncio.gather(
            *(running.messages.get(build_request(registration.tx_id)) for _ in range(20))
        )
        assert len({result.signed_message for result in results}) == 1
        assert running.network.calls["platform.getTx"] == 1
        assert running.network.calls["platform.getL1Validator"] == 1
        assert running.network.calls["proposervm.getCurrentEpoch"] == 1


async def test_no_message_errors_name_the_type_of_the_transaction(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        for transaction in (
            p_chain.base(),
            p_chain.increase_balance(validation_id_of(registration), 5),
            p_chain.disable(validation_id_of(registration)),
        ):
            with pytest.raises(NoMessage) as error:
                await running.messages.get(build_request(transaction.tx_id))
            assert (error.value.kind, error.value.chain) == (transaction.kind, "P-Chain")
        tx_id, *_ = running.network.x_transactions
        with pytest.raises(NoMessage) as error:
            await running.messages.get(build_request(tx_id))
        assert error.value.chain == "X-Chain"


async def test_a_superseded_message_without_a_stored_signature_is_refused(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        first = p_chain.set_weight(validation_id_of(registration), 2_000)
        p_chain.set_weight(validation_id_of(registration), 3_000)
        before = running.count_signature_requests()
        with pytest.raises(MessageSuperseded) as error:
            await running.messages.get(build_request(first.tx_id))
        result = error.value.detail
        assert result["verdict"] == "never"
        assert result["superseded"].now == PresentStatement(nonce="1", weight="3000")
        newer = "request the transaction that set the validation's weight to 3000 with nonce 1"
        assert str(error.value).endswith(newer)
        assert running.count_signature_requests() == before
        await deliver(running, registration)


async def test_a_superseded_message_with_a_stored_signature_is_served_with_the_current_state(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        first = p_chain.set_weight(validation_id_of(registration), 2_000)
        await deliver(running, registration)
        await deliver(running, first)
        removal = p_chain.remove(validation_id_of(registration))
        before = running.count_signature_requests()
        for transaction in (registration, first):
            result = await running.messages.get(build_request(transaction.tx_id))
            assert result.superseded is not None
            assert result.superseded.now.registered is False
            assert removal.attested is not None
            assert result.superseded.message == "0x" + removal.attested.unsigned.raw.hex()
            assert result.superseded.justification == "0x" + removal.attested.justification.hex()
            assert running.network.manager(running.l1).deliver(result.signed_message).accepted
        assert running.count_signature_requests() == before


async def test_aggregation_stops_when_the_message_is_superseded(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, SILENT_PLAN, QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        first = running.network.p_chain.set_weight(validation_id_of(registration), 2_000)
        request = asyncio.create_task(
            running.messages.get(build_request(first.tx_id, timeout_s=LONGEST_S))
        )
        await until(lambda: running.count_signature_requests() > 0)
        running.network.p_chain.set_weight(validation_id_of(registration), 3_000)
        with pytest.raises(MessageSuperseded):
            await finish(request, LONGEST_S - 5.0)
        # The caller got one reply.
        assert [record.outcome for record in running.aggregator.reports.recent] == [
            "message_superseded"
        ]


async def test_an_aggregation_that_is_not_superseded_has_one_outcome(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, SILENT_PLAN, QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        # Half of the short time that follows is for lookups, which this one does before.
        await running.messages.explain(build_request(registration.tx_id))
        with pytest.raises(QuorumNotReached):
            await running.messages.get(build_request(registration.tx_id, timeout_s=1.0))
        before = running.count_signature_requests()
        request = asyncio.create_task(
            running.messages.get(build_request(registration.tx_id, timeout_s=LONGEST_S))
        )
        await until(lambda: running.count_signature_requests() > before)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert [record.outcome for record in running.aggregator.reports.recent] == [
            "quorum_not_reached",
            "cancelled",
        ]


async def test_a_restarted_daemon_serves_stored_signatures_without_requests_to_validators(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network:
        conversion = network.p_chain.conversion_of(network.subnets[1].subnet_id)
        registration = network.p_chain.register(network.subnets[1].subnet_id)
        async with run_service(network, tmp_path, QUICK) as running:
            first = [
                await running.messages.get(build_request(item.tx_id))
                for item in (conversion, registration)
            ]
        async with run_service(network, tmp_path, QUICK) as running:
            before = running.count_signature_requests()
            again = [
                await running.messages.get(build_request(entry.tx_id))
                for entry in (conversion, registration)
            ]
            assert running.count_signature_requests() == before
        assert [element.signed_message for element in again] == [
            element.signed_message for element in first
        ]


async def test_the_validity_is_unknown_if_all_nodes_are_below_the_transaction(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=3, l1s=(L1Plan(validators=4, spare=1),), messages=0, nodes=2)
    async with started_l1_service(tmp_path, plan, QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        first = running.network.p_chain.set_weight(validation_id_of(registration), 2_000)
        first_node, second_node = running.network.nodes
        second_node.lag = 1
        await deliver(running, first)
        await first_node.down()
        explained = await running.messages.explain(build_request(first.tx_id))
        assert explained.truth == ExplainedTruth(state="unknown")
        check = next(check for check in explained.checks if check.check == "latest_weight")
        assert check.why.startswith("every node that answered is below the height")
        await deliver(running, first)


async def test_lagging_validators_cause_quorum_not_reached_until_they_catch_up(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = p_chain.register(running.l1)
        seats = [
            validator.index for validator in running.network.validators if any(validator.chains)
        ]
        running.network.set_behaviour(seats, "lag=1")

        async def has_refusals_of_all() -> bool:
            with pytest.raises(QuorumNotReached, match="threshold of stake") as error:
                await running.messages.get(build_request(registration.tx_id, timeout_s=3.0))
            return {item.error_code for item in error.value.shortfall.missing} == {11}

        await until(has_refusals_of_all)
        running.network.set_behaviour(seats, "")
        await deliver(running, registration)


async def test_a_timeout_out_of_range_is_refused(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path) as running:
        for timeout_s in (0.0, -1.0, 56.0):
            with pytest.raises(InvalidTimeout):
                await running.messages.get(build_request(bytes(32), timeout_s=timeout_s))
            with pytest.raises(InvalidTimeout):
                await running.messages.explain(build_request(bytes(32), timeout_s=timeout_s))


async def test_a_request_without_any_available_node_raises_node_unavailable(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        await running.network.nodes[0].down()
        with pytest.raises(NodeUnavailable):
            await running.messages.get(build_request(b"\x05" * 32, timeout_s=2.0))


async def test_stored_signatures_are_served_while_no_node_answers(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        transactions = p_chain.conversion_of(running.l1), p_chain.register(running.l1)
        for transaction in transactions:
            await deliver(running, transaction)
        unsigned = p_chain.set_weight(validation_id_of(transactions[1]), 2_000)
        await running.network.nodes[0].down()
        # The proposed height was last learned long ago.
        running.heights._succeeded_at = float("-inf")
        before = running.count_signature_requests()
        results = [
            await running.messages.get(build_request(transaction.tx_id))
            for transaction in transactions
        ]
        for result in results:
            assert running.network.manager(running.l1).deliver(result.signed_message).accepted
        # A conversion stays true; a registration may have ended since.
        assert [result.is_unchecked for result in results] == [False, True]
        assert running.count_signature_requests() == before
        with pytest.raises(NodeUnavailable):
            await running.messages.get(build_request(unsigned.tx_id))


async def test_a_node_that_hangs_ends_a_request_for_an_unknown_transaction(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        running.network.nodes[0].rpc.outages["platform.getTx"] = Outage(OutageKind.HANG)
        with pytest.raises(NodeUnavailable, match="the transaction, its manager's subnet"):
            await running.messages.get(build_request(b"\x05" * 32, timeout_s=0.5))


async def without_newer_sets(
    running: L1Setup, outage: OutageKind = OutageKind.HTTP_500
) -> Transaction:
    """Let no node return a set above that of the epoch; return a signed registration."""
    await deliver(running, running.network.p_chain.conversion_of(running.l1))
    running.network.nodes[0].rpc.outages["platform.getValidatorsAt"] = Outage(outage)
    registration = running.network.p_chain.register(running.l1)
    await deliver(running, registration)
    await until(lambda: (running.heights.last or 0) > 20)
    return registration


async def test_stored_signatures_are_served_for_the_newest_set_in_memory(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        registration = await without_newer_sets(running)
        before = running.count_signature_requests()
        result = await running.messages.get(build_request(registration.tx_id, height=0))
        assert (result.height, result.height_source) == (20, "proposed")
        assert (result.superseded, result.is_unchecked) == (None, False)
        assert running.network.manager(running.l1).deliver(result.signed_message).accepted
        # No signature of this message is stored, and no set of that height is in memory.
        unsigned = p_chain.set_weight(validation_id_of(registration), 2_000)
        for request in (
            build_request(unsigned.tx_id, height=0),
            build_request(registration.tx_id, height=21),
        ):
            with pytest.raises(NodeUnavailable):
                await running.messages.get(request)
        p_chain.remove(validation_id_of(registration))
        result = await running.messages.get(build_request(registration.tx_id, height=0))
        assert result.superseded is not None
        assert result.superseded.now == PresentStatement(registered=False)
        assert running.count_signature_requests() == before


async def test_a_node_that_hangs_until_the_deadline_leaves_time_for_stored_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_STORED_GRACE_S", LONGEST_S)
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = await without_newer_sets(running, OutageKind.HANG)
        result = await running.messages.get(
            build_request(registration.tx_id, height=0, timeout_s=1.0)
        )
        assert result.height == 20


async def test_stored_signatures_are_awaited_for_seconds_and_not_until_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_STORED_TIMEOUT_S", 0.5)
    quorum_reads = 0

    async def find_quorum(_: ChainID) -> None:
        nonlocal quorum_reads
        quorum_reads += 1
        if quorum_reads == 4:
            await asyncio.sleep(2 * LONGEST_S)

    async with started_l1_service(
        tmp_path, settings=QUICK, find_quorum=find_quorum, call_timeout_s=2 * LONGEST_S
    ) as running:
        registration = await without_newer_sets(running)
        request = build_request(registration.tx_id, height=0, timeout_s=LONGEST_S)
        # The set of the proposed height is missing, and then the store is read.
        with pytest.raises(NodeUnavailable):
            await finish(running.messages.get(request), LONGEST_S - 5.0)
        quorum_reads = 4
        running.network.p_chain.remove(validation_id_of(registration))
        running.network.nodes[0].rpc.outages["platform.getValidatorsAt"] = Outage(OutageKind.HANG)
        with suppress(NodeUnavailable):
            await finish(running.messages.get(request), LONGEST_S - 5.0)


async def test_a_blocked_message_is_refused_while_no_node_answers(tmp_path: Path) -> None:
    blocks: list[SigningBlock] = []

    def check(_: UnsignedMessage, __: SubnetID | None) -> None:
        for block in blocks:
            raise SigningBlocked(block)

    async with started_l1_service(tmp_path, settings=QUICK, check_signing=check) as running:
        registration = await without_newer_sets(running)
        blocks.append(SigningBlock(SigningBlockKind.SENDER, "0x", "stolen key", 1))
        with pytest.raises(SigningBlocked):
            await running.messages.get(build_request(registration.tx_id, height=0))


async def test_quorum_and_buffer_together_are_all_of_the_weight_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[AggregationRequest] = []
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        aggregate = running.aggregator.aggregate

        async def note(request: AggregationRequest) -> Aggregation:
            requests.append(request)
            return await aggregate(request)

        monkeypatch.setattr(running.aggregator, "aggregate", note)
        conversion = running.network.p_chain.conversion_of(running.l1)
        for quorum, buffer in ((67, 20), (80, 30)):
            await deliver(running, conversion, quorum=quorum, buffer=buffer)
    assert [(request.quorum, request.buffer) for request in requests] == [(67, 20), (80, 20)]


async def test_every_signed_message_is_reported_with_its_height(tmp_path: Path) -> None:
    signed: list[tuple[bytes, bytes, int]] = []

    def on_signed(tx_id: bytes, attestation: Attestation, height: int) -> None:
        signed.append((tx_id, attestation.message.raw, height))

    async with started_l1_service(tmp_path, settings=QUICK, on_signed=on_signed) as running:
        registration = running.network.p_chain.register(running.l1)
        for _ in range(2):
            await deliver(running, registration)
        assert registration.attested is not None
        reported = (registration.tx_id, registration.attested.unsigned.raw, 20)
        assert signed == [reported, reported]
        # A superseded message is nothing to deliver.
        running.network.p_chain.remove(validation_id_of(registration))
        result = await running.messages.get(build_request(registration.tx_id))
        assert result.superseded is not None
        assert len(signed) == 2


async def test_the_removal_of_an_initial_validator_needs_no_index(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        seat = initial_validation(running)
        removal = running.network.p_chain.remove(seat)
        await deliver(running, removal)
        origin = await running.store.l1.origin(seat)
        assert origin is not None
        assert origin.subnet_id == running.l1


def initial_validation(running: L1Setup) -> ValidationID:
    """Return the ID of the initial validation with index 3."""
    return bootstrap_validation_id(running.l1, 3)


async def test_the_removal_of_a_registered_validator_waits_for_its_origin_or_a_proof(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        p_chain = running.network.p_chain
        other = p_chain.register(running.l1)
        registration = p_chain.register(running.l1)
        removal = p_chain.remove(validation_id_of(registration))
        running.follower["eta"] = 40
        with pytest.raises(OriginNotIndexed) as error:
            await running.messages.get(build_request(removal.tx_id))
        assert error.value.retry_after_s == 40
        assert error.value.detail["progress"].follower == FollowerProgress(eta=40)
        assert error.value.detail["progress"].initial_validators.subnets_tried >= 1
        with pytest.raises(ProofMismatch):
            await running.messages.get(build_request(removal.tx_id, registration_tx_id=other.tx_id))
        with pytest.raises(ProofMismatch):
            await running.messages.get(build_request(removal.tx_id, justification=b"nonsense"))
        await deliver(running, removal, registration_tx_id=registration.tx_id)
        assert await running.store.l1.origin(validation_id_of(registration)) is not None


async def test_the_callers_justification_is_used_and_stored(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation_id_of(registration))
        assert removal.attested is not None
        await deliver(running, removal, justification=removal.attested.justification)
        await deliver(running, removal)


async def test_a_stored_signature_of_a_removal_needs_no_origin(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        registration = network.p_chain.register(network.subnets[1].subnet_id)
        removal = network.p_chain.remove(validation_id_of(registration))
        assert removal.attested is not None
        async with run_service(network, tmp_path, NO_HASHES) as running:
            await deliver(running, removal, justification=removal.attested.justification)
            signed = (await running.messages.get(build_request(removal.tx_id))).signed_message
        async with run_service(network, tmp_path, NO_HASHES) as running:
            before = running.count_signature_requests()
            assert (
                await running.messages.get(build_request(removal.tx_id))
            ).signed_message == signed
            assert running.count_signature_requests() == before


async def test_the_origin_of_a_validation_is_found_in_the_logs_of_the_managers_chain(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK, evm=True) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation_id_of(registration))
        await deliver(running, removal)
        assert running.network.calls["eth_getLogs"] > 0
        assert await running.store.l1.origin(validation_id_of(registration)) is not None
