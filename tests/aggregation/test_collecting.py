"""Collecting over a network in memory: waves, patience, sharing, losses, buffers, as callers see
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest
from msgspec import UNSET, to_builtins

from tests.aggregation.fixtures import (
    HEIGHT,
    NETWORK_ID,
    SUBNET,
    AggregatorSetup,
    SentRequest,
    empty,
    garbage,
    index_of,
    members,
    message,
    node,
    of_another,
    off_curve,
    public_key,
    refuses,
    request,
    run_steps,
    signature,
    signs,
    signs_from,
    silent,
    wrong,
)
from tests.aggregation.verifier import ParsedSignedMessage, assert_valid
from tests.aggregation.virtual_time import now
from warpseal.aggregation.errors import QuorumImpossible, QuorumNotReached
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.aggregation.settings import AggregationSettings
from warpseal.errors import InternalError
from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.requests import PeerResponse
from warpseal.runtime.go_time import rfc3339
from warpseal.warp.ids import P_CHAIN, ValidationID, node_id_text
from warpseal.warp.l1_messages import ValidatorUptime
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal.warp.quorum_shortfall import DisconnectedNode, Verdict
from warpseal.warp.validator_set import build_canonical_set


def signed(
    setup: AggregatorSetup, result: Aggregation, aggregation_request: AggregationRequest
) -> ParsedSignedMessage:
    assert aggregation_request.message is not None
    return assert_valid(
        result.signed_message,
        aggregation_request.message.raw,
        setup.members,
        aggregation_request.quorum,
    )


def signer_numbers(setup: AggregatorSetup, parsed_message: ParsedSignedMessage) -> set[int]:
    count = len(setup.members.validators)
    return {
        number
        for number in range(1, count + 1)
        if index_of(setup.members, number) in parsed_message.signers
    }


async def taken(work: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
    """Return how many seconds `work` took, and its result or error."""
    started = now()
    try:
        result = await work
    except (QuorumNotReached, QuorumImpossible, InternalError) as error:
        result = error
    return now() - started, result


# The plain way.


def test_a_message_is_signed_by_the_shortest_prefix() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        result = await setup.service.aggregate(request(60))
        assert signer_numbers(setup, signed(setup, result, request(60))) == {3, 4}
        assert (result.signers, result.height, result.signing_subnet_id, result.cached) == (
            2,
            HEIGHT,
            SUBNET,
            False,
        )
        # The report follows the response.
        await asyncio.sleep(0)
        record = setup.service.reports.recent[-1]
        assert (record.signed_weight, record.total_weight) == (70, 100)
        assert set(record.stages) == {"validators", "connect", "collect", "verify", "total"}
        assert setup.tracked.used == [SUBNET]

    run_steps(AggregatorSetup(members([10, 20, 30, 40])), steps)


def test_every_response_counts_whichever_request_it_answers() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: signs(0.9), 2: signs(1.2)}
        seconds, result = await taken(setup.service.aggregate(request(100)))
        assert signed(setup, result, request(100))
        assert seconds == pytest.approx(1.2)
        assert len(setup.network.asks) > 1

    run_steps(AggregatorSetup(members([50, 50])), steps)


def test_half_the_stake_that_signs_only_after_eight_seconds_needs_one_call() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        for number in (1, 2, 3):
            setup.network.scripts[number] = signs_from(now() + 8.0)
        seconds, result = await taken(setup.service.aggregate(request(67)))
        assert signed(setup, result, request(67))
        assert 8.0 <= seconds <= 12.5

    run_steps(AggregatorSetup(members([20, 20, 20, 20, 20])), steps)


def test_a_message_that_validators_do_not_know_yet_is_probed_and_then_asked_of_all() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        ready_at = now() + 3.0
        setup.network.scripts = {number: signs_from(ready_at) for number in range(1, 41)}
        seconds, result = await taken(setup.service.aggregate(request(67)))
        assert signed(setup, result, request(67))
        assert 3.0 <= seconds <= 4.5
        early = [
            len(numbers) for at, numbers, again in setup.network.asks if again and at < ready_at
        ]
        assert early == [8, 8]

    run_steps(AggregatorSetup(members([1] * 40)), steps)


def test_a_request_that_comes_before_connections_do_waits_for_them() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.disconnected = {node(number) for number in range(1, 6)}
        for number in range(1, 6):
            asyncio.get_running_loop().call_later(2.0 + number, setup.network.connect, number)
        seconds, result = await taken(setup.service.aggregate(request(67)))
        assert signed(setup, result, request(67))
        assert seconds == pytest.approx(6.0)
        # The report follows the response.
        await asyncio.sleep(0)
        stages = setup.service.reports.recent[-1].stages
        assert stages["connect"] == pytest.approx(6.0)
        assert stages["collect"] == pytest.approx(0.0, abs=0.1)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_validator_that_reconnects_is_asked_again() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts[1] = lambda ask: (
            [(0.0, ask.refusal(1))] if ask.at < start + 3 else signs()(ask)
        )
        start = now()
        asyncio.get_running_loop().call_later(1.0, setup.network.disconnect, 1)
        asyncio.get_running_loop().call_later(3.0, setup.network.connect, 1)
        seconds, result = await taken(setup.service.aggregate(request(100)))
        assert signed(setup, result, request(100))
        assert seconds == pytest.approx(3.0)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


# Failing.


def test_permanent_refusals_fail_at_once_with_the_verdict_never() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        about = message(chain=P_CHAIN)
        setup.network.scripts = {1: refuses(7, "provided conversionID"), 2: refuses(7), 3: silent}
        aggregation_request = request(67, about=about, signing_subnet_id=SUBNET)
        seconds, error = await taken(setup.service.aggregate(aggregation_request))
        assert isinstance(error, QuorumImpossible)
        assert seconds < 0.1
        assert error.shortfall.counts["conversion_id_mismatch"] == 2
        assert error.shortfall.missing[0].error_message == "provided conversionID"
        assert error.shortfall.verdict is Verdict.NEVER

    run_steps(AggregatorSetup(members([21, 20, 19, 20, 20])), steps)


def test_an_unreachable_quorum_fails_at_once_and_names_the_time_of_the_next_dial() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        for number in (1, 2):
            setup.network.disconnected.add(node(number))
            setup.network.unreachable_nodes[node(number)] = Unreachable(
                "not_connected", now() + 40.0
            )
        setup.network.next_dial_at = now() + 7.5
        seconds, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumNotReached)
        assert not error.at_deadline
        assert seconds < 0.1
        assert error.shortfall.retry_after_s == pytest.approx(7.5)
        assert set(setup.network.redialled) == {node(1), node(2)}
        assert error.shortfall.counts["not_connected"] == 2

    run_steps(AggregatorSetup(members([20] * 5)), steps)


@pytest.mark.parametrize(
    ("code", "refusal", "reason"),
    [
        # Nodes refuse conversions without a justification with the first, removals with the other.
        (5, "cannot unmarshal", "justification_unparsable"),
        (8, "invalid justification type: <nil>", "justification_kind_missing"),
    ],
)
def test_the_text_names_the_justification_that_a_p_chain_message_needs(
    code: int, refusal: str, reason: str
) -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {number: refuses(code, refusal) for number in range(1, 6)}
        about = message(chain=P_CHAIN)
        _, error = await taken(
            setup.service.aggregate(request(67, about=about, signing_subnet_id=SUBNET))
        )
        text = (
            f"% of the weight refuses to sign ({reason}). Send the justification that this message"
            " needs"
        )
        assert text in str(error)
        assert text in setup.service.reports.recent[-1].reason

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_the_text_names_the_connections_that_a_quorum_lacks_not_the_unasked_nodes() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        for number in range(12, 21):
            setup.network.disconnected.add(node(number))
            setup.network.unreachable_nodes[node(number)] = Unreachable(
                "not_connected", now() + 40.0
            )
            setup.network.connections[node(number)] = DisconnectedNode(
                node_id=f"NodeID-{number}",
                last_error="unreachable: Connection refused",
                disconnected_since=rfc3339(1_000.0),
            )
        _, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumNotReached)
        cause = "55.0 % of the weight is connected; 9 validators are not: connection refused"
        assert str(error).endswith(f"has signed (total 400): {cause}")
        assert error.shortfall.cause == cause
        assert list(error.shortfall.counts) == ["not_connected", "not_asked"]
        reasons = [validator.reason for validator in error.shortfall.missing]
        assert reasons == ["not_connected"] * 9 + ["not_asked"] * 11

    run_steps(AggregatorSetup(members([20] * 20)), steps)


def test_a_missing_connection_is_reported_with_address_error_and_times() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        lost = DisconnectedNode(
            node_id="NodeID-1",
            address="10.0.0.1:9651",
            last_error="unreachable: Connection refused",
            disconnected_since=rfc3339(1_000.9),
            next_try_at=rfc3339(1_060.0),
        )
        for number in (1, 2):
            setup.network.disconnected.add(node(number))
            setup.network.unreachable_nodes[node(number)] = Unreachable(
                "not_connected", now() + 40.0
            )
        setup.network.connections[node(1)] = lost
        # A validator that is connected and silent lacks no connection.
        setup.network.connections[node(3)] = lost
        setup.network.scripts[3] = silent
        _, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumNotReached)
        missing = {validator.node_ids[0]: validator for validator in error.shortfall.missing}
        assert to_builtins(missing[node_id_text(node(1))].connections) == (
            {
                "nodeId": "NodeID-1",
                "address": "10.0.0.1:9651",
                "lastError": "unreachable: Connection refused",
                "disconnectedSince": "1970-01-01T00:16:40Z",
                "nextTryAt": "1970-01-01T00:17:40Z",
            },
        )
        assert missing[node_id_text(node(2))].connections is UNSET
        assert not any(
            validator.connections
            for name, validator in missing.items()
            if name == node_id_text(node(3))
        )

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_quorum_that_lacks_connections_right_after_the_start_says_so() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.started_s_ago = 3.2
        for number in (1, 2):
            setup.network.disconnected.add(node(number))
            setup.network.unreachable_nodes[node(number)] = Unreachable(
                "not_connected", now() + 40.0
            )
        _, error = await taken(setup.service.aggregate(request(67)))
        (hint,) = error.shortfall.hints
        assert hint.startswith("The daemon started 3 s ago and is still connecting")
        assert "weight 60 of 67 required is connected" in hint
        setup.network.started_s_ago = 61.0
        _, error = await taken(setup.service.aggregate(request(67)))
        assert error.shortfall.hints == ()

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_refusals_right_after_the_start_do_not_blame_the_start() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.started_s_ago = 3.2
        setup.network.scripts = {1: silent, 2: silent}
        _, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumNotReached)
        assert error.shortfall.hints == ()

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_quorum_that_no_connection_can_bring_is_not_blamed_on_the_start() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.started_s_ago = 3.2
        setup.network.disconnected.add(node(1))
        _, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumImpossible | QuorumNotReached)
        (hint,) = error.shortfall.hints
        assert "without a BLS key" in hint

    run_steps(AggregatorSetup(members([20] * 3, keyless=40)), steps)


def test_a_redial_before_the_deadline_is_waited_for_and_after_it_not() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        for number in (1, 2):
            setup.network.disconnected.add(node(number))
            setup.network.unreachable_nodes[node(number)] = Unreachable(
                "not_connected", now() + 8.0
            )
            asyncio.get_running_loop().call_later(8.1, setup.network.connect, number)
        impatient = taken(setup.service.aggregate(request(67, timeout_s=5.0)))
        patient = taken(setup.service.aggregate(request(67)))
        (early, error), (late, result) = await asyncio.gather(impatient, patient)
        assert isinstance(error, QuorumNotReached)
        assert early < 0.1
        assert signed(setup, result, request(67))
        assert late == pytest.approx(8.1)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_dial_that_fails_during_the_wait_fails_the_request() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        lost = Unreachable("private_address")
        for number in (1, 2):
            setup.network.disconnected.add(node(number))
            asyncio.get_running_loop().call_later(
                2.0, setup.network.unreachable_nodes.__setitem__, node(number), lost
            )
        seconds, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumNotReached)
        assert 2.0 <= seconds <= 2.3
        assert error.shortfall.counts["private_address"] == 2

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_failed_dial_fails_the_request_at_once() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        lost = Unreachable("not_connected", now() + 99.0)
        setup.network.disconnected = {node(1), node(2)}

        def fail(number: int) -> None:
            setup.network.unreachable_nodes[node(number)] = lost
            setup.network.disconnect(number)

        for number in (1, 2):
            asyncio.get_running_loop().call_later(1.01, fail, number)
        seconds, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumNotReached)
        assert seconds == pytest.approx(1.01)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_silence_lasts_until_the_deadline() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: silent, 2: empty}
        seconds, error = await taken(setup.service.aggregate(request(67, timeout_s=6.0)))
        assert isinstance(error, QuorumNotReached)
        assert error.at_deadline
        assert seconds == pytest.approx(6.0)
        assert error.shortfall.counts == {"no_answer": 1, "empty_answer": 1}
        assert error.shortfall.signed_weight == 60

    run_steps(AggregatorSetup(members([20] * 5)), steps)


@pytest.mark.parametrize("script", [garbage, off_curve, wrong()])
def test_bad_results_lose_weight_for_now(script: Any) -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: script, 2: script}
        seconds, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumNotReached)
        assert not error.at_deadline
        assert seconds < 0.1
        assert error.shortfall.verdict is Verdict.WAIT
        await asyncio.sleep(0)
        assert len(setup.metrics.bad_shares) == 2

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_an_uptime_that_is_not_reached_is_not_asked_again() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        payload = ValidatorUptime(ValidationID(bytes(32)), 80).encode()
        about = UnsignedMessage.build(
            NETWORK_ID, message().source_chain_id, AddressedCall(b"", payload).encode()
        )
        setup.network.scripts = {1: refuses(2), 2: signs(5.0)}
        seconds, result = await taken(setup.service.aggregate(request(80, about=about)))
        assert signed(setup, result, request(80, about=about))
        assert seconds == pytest.approx(5.0)
        assert setup.network.asked_numbers().count(1) == 1

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_weight_without_keys_fails_before_a_validator_is_asked() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        seconds, error = await taken(setup.service.aggregate(request(67)))
        assert isinstance(error, QuorumImpossible)
        assert seconds == 0.0
        assert setup.network.asks == []

    run_steps(AggregatorSetup(members([1] * 60, keyless=40)), steps)


# Buffers.


def test_the_buffer_is_awaited_no_longer_than_allowed() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: silent}
        seconds, result = await taken(setup.service.aggregate(request(67, 20)))
        assert seconds == pytest.approx(2.0)
        assert signer_numbers(setup, signed(setup, result, request(67))) == {2, 3, 4, 5}

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_result_that_missed_its_buffer_serves_the_same_request_again_for_a_while() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: silent}
        await setup.service.aggregate(request(67, 20))
        seconds, result = await taken(setup.service.aggregate(request(67, 20)))
        assert (seconds, result.cached) == (0.0, True)
        await asyncio.sleep(31.0)
        setup.network.scripts = {}
        seconds, result = await taken(setup.service.aggregate(request(67, 20)))
        assert not result.cached
        assert signer_numbers(setup, signed(setup, result, request(87))) == {1, 2, 3, 4, 5}

    run_steps(AggregatorSetup(members([20] * 5)), steps)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, QuorumNotReached),
        ({"height": HEIGHT, "is_epoch_height": True}, QuorumNotReached),
        ({"height": HEIGHT}, QuorumImpossible),
    ],
)
def test_inactive_validators_make_a_quorum_impossible_only_at_a_height_that_the_caller_named(
    changes: dict[str, Any], kind: type[QuorumNotReached | QuorumImpossible]
) -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.activity.list_event = asyncio.Event()
        setup.activity.validations = (CurrentValidation(bytes(32), node(99), 40, 0, 0),)
        asyncio.get_running_loop().call_later(0.3, setup.activity.list_event.set)
        seconds, error = await taken(setup.service.aggregate(request(67, **changes)))
        assert isinstance(error, kind)
        assert seconds == pytest.approx(0.3)
        assert error.shortfall.counts["inactive"] == 1
        assert error.shortfall.missing[0].node_ids == (node_id_text(node(99)),)
        assert setup.network.asks == []

    run_steps(AggregatorSetup(members([1] * 60, keyless=40)), steps)


# Reluctant validators.


def test_an_inactive_validator_that_still_signs_is_used_if_it_is_needed() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.activity.nodes = frozenset({node(4)})
        result = await setup.service.aggregate(request(67))
        assert signer_numbers(setup, signed(setup, result, request(67))) == {2, 4}

    run_steps(AggregatorSetup(members([49_463, 49_463_000, 49_463, 49_463_000])), steps)


def test_no_result_leaves_before_the_inactive_validators_are_known() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.activity.list_event = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, setattr, setup.activity, "nodes", frozenset({node(1)}))
        loop.call_later(0.3, setup.activity.list_event.set)
        seconds, result = await taken(setup.service.aggregate(request(60)))
        assert signer_numbers(setup, signed(setup, result, request(60))) == {2, 3}
        assert seconds == pytest.approx(0.3)
        assert setup.network.asks[0][0] == pytest.approx(now() - 0.3)

    run_steps(AggregatorSetup(members([40, 30, 30])), steps)


def test_an_upstream_node_that_hangs_delays_a_result_by_a_second_at_most() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.activity.list_event = asyncio.Event()
        seconds, result = await taken(setup.service.aggregate(request(60)))
        assert signed(setup, result, request(60))
        assert seconds <= 1.1

    run_steps(AggregatorSetup(members([40, 30, 30])), steps)


# Sharing.


def test_a_hundred_equal_requests_share_one_round() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: signs(0.3)}
        results = await asyncio.gather(*(setup.service.aggregate(request(100)) for _ in range(100)))
        assert len({result.signed_message for result in results}) == 1
        assert sorted(setup.network.asked_numbers()) == [1, 2, 3, 4, 5]

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_callers_of_one_round_keep_their_own_quorum() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: signs(1.4)}
        quick = taken(setup.service.aggregate(request(67)))
        slow = taken(setup.service.aggregate(request(100)))
        (early, first), (late, second) = await asyncio.gather(quick, slow)
        assert early < 0.1
        assert late == pytest.approx(1.4)
        assert len(signed(setup, first, request(67)).signers) == 4
        assert len(signed(setup, second, request(100)).signers) == 5

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_the_deadline_of_one_caller_does_not_end_the_round_of_others() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: signs(4.0)}
        hasty = taken(setup.service.aggregate(request(100, timeout_s=1.0)))
        patient = taken(setup.service.aggregate(request(100)))
        (early, error), (late, result) = await asyncio.gather(hasty, patient)
        assert isinstance(error, QuorumNotReached)
        assert early == pytest.approx(1.0)
        assert late == pytest.approx(4.0)
        assert signed(setup, result, request(100))

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_response_counts_for_a_later_caller_though_it_was_asked_for_one_with_less_time() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: signs(4.0)}
        hasty = asyncio.create_task(taken(setup.service.aggregate(request(100, timeout_s=1.0))))
        await asyncio.sleep(0.5)
        late, result = await taken(setup.service.aggregate(request(100)))
        assert late == pytest.approx(3.5)
        assert signed(setup, result, request(100))
        _, error = await hasty
        assert isinstance(error, QuorumNotReached)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_the_cancellation_of_one_caller_does_not_end_the_round_of_others() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: signs(2.2)}
        first = asyncio.create_task(setup.service.aggregate(request(100)))
        second = asyncio.create_task(setup.service.aggregate(request(100)))
        await asyncio.sleep(1.0)
        first.cancel()
        result = await second
        assert signed(setup, result, request(100))
        assert first.cancelled()
        assert setup.network.asks[0][1].count(1) == 1

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_the_last_caller_that_leaves_ends_the_round() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: silent}
        callers = [asyncio.create_task(setup.service.aggregate(request(100))) for _ in range(3)]
        await asyncio.sleep(0.1)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        await asyncio.sleep(0)
        assert setup.network.is_quiet
        before = len(setup.network.asks)
        await asyncio.sleep(10.0)
        assert len(setup.network.asks) == before

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_caller_that_joins_in_the_tick_of_the_end_is_served() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: signs(0.5)}
        first = asyncio.create_task(setup.service.aggregate(request(100)))
        first.add_done_callback(
            lambda _: joined.append(asyncio.create_task(setup.service.aggregate(request(100))))
        )
        joined: list[asyncio.Task[Aggregation]] = []
        await first
        await asyncio.sleep(0)
        assert signed(setup, await joined[0], request(100))

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_another_justification_starts_another_round_that_uses_the_same_shares() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        # Validators that are asked with the justification "a" sign slowly; with "b" validator 1
        # refuses.
        setup.network.scripts = {2: signs(3.0), 3: signs(3.0)}
        first = asyncio.create_task(setup.service.aggregate(request(100, justification=b"a")))
        await asyncio.sleep(2.0)
        setup.network.scripts = {1: refuses(1), 2: silent, 3: silent}
        seconds, result = await taken(setup.service.aggregate(request(100, justification=b"b")))
        assert signed(setup, result, request(100))
        assert seconds == pytest.approx(1.0)
        assert signed(setup, await first, request(100))

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_refusal_counts_only_with_the_justification_that_drew_it() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        about = message(chain=P_CHAIN)
        setup.network.scripts = {number: refuses(5) for number in range(1, 6)}
        aggregation_request = request(67, about=about, signing_subnet_id=SUBNET)
        _, error = await taken(setup.service.aggregate(aggregation_request))
        assert isinstance(error, QuorumImpossible)
        setup.network.scripts = {}
        proven = request(67, about=about, signing_subnet_id=SUBNET, justification=b"proof")
        assert signed(setup, await setup.service.aggregate(proven), proven)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_no_refusal_outlives_its_round() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        about = message(chain=P_CHAIN)
        aggregation_request = request(67, about=about, signing_subnet_id=SUBNET)
        setup.network.scripts = {number: refuses(5) for number in range(1, 6)}
        await taken(setup.service.aggregate(aggregation_request))
        setup.network.scripts = {}
        assert signed(
            setup, await setup.service.aggregate(aggregation_request), aggregation_request
        )

    run_steps(AggregatorSetup(members([20] * 5)), steps)


# Caches.


def test_a_cached_result_asks_no_validator() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        first = await setup.service.aggregate(request(80))
        asks_before = len(setup.network.asks)
        again = await setup.service.aggregate(request(67))
        assert again.cached
        assert again.signed_message == first.signed_message
        assert len(setup.network.asks) == asks_before
        shares, results = setup.service.caches.samples()
        assert (results.hits, results.misses) == (1, 1)
        assert (shares.hits, shares.misses) == (0, 5)
        # As many as the reference, which aggregates the four signatures again, counts for the
        # second request.
        assert (results.signatures, shares.signatures) == (first.signers, 0)
        assert shares.size_bytes > 0 < results.size_bytes

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_equal_sets_at_different_heights_share_their_results() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(80))
        setup.sets.by_height[HEIGHT + 1] = members([20] * 5)
        setup.heights.height = HEIGHT + 1
        again = await setup.service.aggregate(request(80))
        assert (again.cached, again.height) == (True, HEIGHT + 1)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_another_set_reuses_the_shares() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(100))
        changed = members([20, 20, 20, 20, 30])
        setup.members = setup.sets.latest = changed
        result = await setup.service.aggregate(request(100))
        assert not result.cached
        assert assert_valid(result.signed_message, message().raw, changed, 100)
        assert len(setup.network.asks) == 1

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_a_higher_quorum_asks_only_the_missing_validators() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {5: silent}
        await setup.service.aggregate(request(67))
        setup.network.scripts = {}
        await setup.service.aggregate(request(100))
        assert setup.network.asks[-1][1] == (5,)

    run_steps(AggregatorSetup(members([20] * 5)), steps)


# Bad shares.


def test_a_bad_share_is_rejected_and_the_round_goes_on() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {2: wrong(), 5: signs(0.4)}
        seconds, result = await taken(setup.service.aggregate(request(80)))
        assert signer_numbers(setup, signed(setup, result, request(80))) == {1, 3, 4, 5}
        assert seconds == pytest.approx(0.4)
        assert len(setup.metrics.bad_shares) == 1

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_many_bad_shares_are_searched_until_the_clean_ones_suffice() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        liars = set(range(1, 200, 4))
        for number in range(1, 201):
            delay_s = number / 100
            setup.network.scripts[number] = wrong(delay_s) if number in liars else signs(delay_s)
        result = await setup.service.aggregate(request(67))
        honest = signer_numbers(setup, signed(setup, result, request(67)))
        assert not honest & liars
        assert len(honest) == 134
        assert setup.metrics.bad_shares
        # What was left in doubt is forgotten, not believed: its validators are asked again.
        setup.network.scripts = {}
        everybody = await setup.service.aggregate(request(100))
        assert len(signed(setup, everybody, request(100)).signers) == 200

    run_steps(AggregatorSetup(members([1] * 200)), steps)


def test_a_few_bad_shares_are_all_named_before_the_response() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        liars = {3, 50, 77, 98}
        setup.network.scripts = {number: wrong() for number in liars}
        await setup.service.aggregate(request(67))
        assert set(setup.metrics.bad_shares) == {node_id_text(node(number)) for number in liars}

    run_steps(AggregatorSetup(members([1] * 100)), steps)


def test_a_share_of_an_offender_is_verified_alone_before_it_enters_a_sum() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {2: wrong()}
        await taken(setup.service.aggregate(request(100)))
        assert len(setup.metrics.bad_shares) == 1
        # Again a liar: the others' sum is right at once, so no share is searched.
        about = message(b"second")
        result = await setup.service.aggregate(request(80, about=about))
        assert signer_numbers(setup, signed(setup, result, request(80, about=about))) == {
            1,
            3,
            4,
            5,
        }
        assert len(setup.metrics.bad_shares) == 1
        # Honest now, and needed.
        setup.network.scripts = {}
        third = message(b"third")
        result = await setup.service.aggregate(request(100, about=third))
        assert len(signed(setup, result, request(100, about=third)).signers) == 5

    run_steps(AggregatorSetup(members([20] * 5)), steps)


def test_an_offender_is_trusted_again_after_ten_minutes() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {2: wrong()}
        for seconds, expected in ((0.0, 1), (599.0, 1), (2.0, 2)):
            await asyncio.sleep(seconds)
            # The share of validator 2 is not needed, so it is not verified while its key is
            # suspect.
            await taken(setup.service.aggregate(request(60, about=message(b"after %d" % now()))))
            assert len(setup.metrics.bad_shares) == expected

    run_steps(AggregatorSetup(members([20, 22, 20, 20, 20])), steps)


def test_a_cached_share_that_was_bad_is_deleted_and_its_validator_asked() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        # The heavy ones suffice; the light one's lie is cached, unseen.
        setup.network.scripts = {1: wrong(), 3: signs(0.2)}
        await setup.service.aggregate(request(80))
        assert setup.metrics.bad_shares == []
        setup.network.scripts = {}
        result = await setup.service.aggregate(request(100))
        assert len(signed(setup, result, request(100)).signers) == 3
        assert len(setup.metrics.bad_shares) == 1
        assert setup.network.asks[-1][1] == (1,)

    run_steps(AggregatorSetup(members([10, 40, 50])), steps)


def test_a_bad_share_is_dropped_in_both_open_rounds() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: wrong(), 2: signs(1.0)}
        first = asyncio.create_task(
            setup.service.aggregate(request(100, justification=b"a", timeout_s=20))
        )
        await asyncio.sleep(0.5)
        setup.network.scripts = {1: signs(3.0), 2: signs(1.0)}
        second = asyncio.create_task(
            setup.service.aggregate(request(100, justification=b"b", timeout_s=20))
        )
        _, error = await taken(asyncio.wait_for(first, 30))
        # In the first round validator 1 gave the bad answer itself: its weight is lost there.
        assert isinstance(error, QuorumNotReached)
        result = await second
        assert len(signed(setup, result, request(100)).signers) == 3

    run_steps(AggregatorSetup(members([30, 30, 40])), steps)


def test_colluders_whose_errors_cancel_change_nothing_that_leaves() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: of_another(2), 2: of_another(1)}
        result = await setup.service.aggregate(request(100))
        assert len(signed(setup, result, request(100)).signers) == 4
        # A smaller result that takes one of them but not the other must not be built on that.
        changed = members([20, 1, 60, 60])
        setup.members = setup.sets.latest = changed
        setup.network.scripts = {}
        smaller = await setup.service.aggregate(request(99))
        assert assert_valid(smaller.signed_message, message().raw, changed, 99)

    run_steps(AggregatorSetup(members([20, 20, 60, 60])), steps)


def test_keys_that_cancel_each_other_out_end_in_an_error_not_in_a_loop() -> None:
    # A key and its negation: the sum of both is nothing, and nothing verifies under it.
    raw = public_key(1)
    pair = build_canonical_set(
        [(node(1), raw, 50), (node(2), bytes([raw[0] ^ 0x20]) + raw[1:], 50)]
    )

    def negative(ask: SentRequest) -> Iterable[tuple[float, PeerResponse]]:
        share = signature(1, ask.message)
        return [(0.0, ask.share(bytes([share[0] ^ 0x20]) + share[1:]))]

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {2: negative}
        _, error = await taken(setup.service.aggregate(request(100)))
        assert isinstance(error, InternalError)

    run_steps(AggregatorSetup(pair), steps)


# Settings.


def test_waits_are_settings() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: silent}
        seconds, _ = await taken(setup.service.aggregate(request(67, 20)))
        assert seconds == pytest.approx(0.5)
        seconds, _ = await taken(setup.service.aggregate(request(100)))
        assert seconds == pytest.approx(3.0)

    run_steps(
        AggregatorSetup(
            members([20] * 5), AggregationSettings(buffer_wait_s=0.5, default_timeout_s=3.0)
        ),
        steps,
    )
