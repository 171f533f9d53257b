"""What was signed before: served in any set that it fits, rebuilt where it does not, and never
wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tests.aggregation.fixtures import (
    SUBNET,
    AggregatorSetup,
    index_of,
    leaves_nothing_open,
    members,
    message,
    node,
    public_key,
    request,
    run_steps,
    signature,
    signs,
    silent,
    wrong,
)
from tests.aggregation.memory_archive import MemoryArchive
from tests.aggregation.verifier import ParsedSignedMessage, assert_py_ecc_agrees, assert_valid
from tests.aggregation.virtual_time import now, run
from warpseal import bls
from warpseal.aggregation.errors import QuorumNotReached
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.store.errors import StoreDown
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.quorum_shortfall import Verdict
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

MESSAGE = message()


def share(number: int, *, verified: bool = False, text: bytes = MESSAGE.raw) -> StoredShare:
    """Return the stored share of a key, over the usual message unless another text is given."""
    return StoredShare(public_key(number), signature(number, text), verified)


def aggregate(numbers: Sequence[int], text: bytes = MESSAGE.raw) -> StoredSignature:
    """Return the stored signature of keys."""
    shares = [bls.decode_share(signature(number, text)) for number in numbers]
    return StoredSignature(tuple(public_key(number) for number in numbers), bls.sum_shares(shares))


def archive_of(*entries: StoredShare | StoredSignature) -> MemoryArchive:
    """Return an archive that holds these of the usual message."""
    archive = MemoryArchive(messages={MESSAGE.id: MESSAGE})
    for stored in entries:
        if isinstance(stored, StoredShare):
            archive.shares.setdefault(MESSAGE.id, {})[stored.public_key] = stored
        else:
            archive.signatures.setdefault(MESSAGE.id, []).append(stored)
    return archive


def weighing(weights: dict[int, int]) -> CanonicalValidatorSet:
    """Return a set of these keys with these weights."""
    return build_canonical_set(
        (node(number), public_key(number), weight) for number, weight in weights.items()
    )


def parse_result(
    setup: AggregatorSetup, result: Aggregation, aggregation_request: AggregationRequest
) -> ParsedSignedMessage:
    """Assert that a result is right and return what stands in it."""
    return assert_valid(
        result.signed_message, MESSAGE.raw, setup.members, aggregation_request.quorum
    )


def signers(
    setup: AggregatorSetup, result: Aggregation, aggregation_request: AggregationRequest
) -> set[int]:
    """Return the numbers of the keys that signed."""
    positions = parse_result(setup, result, aggregation_request).signers
    keys = {setup.members.validators[index].public_key for index in positions}
    return {number for number in range(1, 40) if public_key(number) in keys}


async def taken(work: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
    """Return how many seconds `work` took, and its result or error."""
    started = now()
    try:
        result = await work
    except QuorumNotReached as error:
        result = error
    return now() - started, result


# Signatures that still fit.


def test_a_stored_signature_is_served_without_asking_or_connecting_to_validators() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.disconnected = {node(number) for number in range(1, 6)}
        seconds, result = await taken(setup.service.aggregate(request(60)))
        assert signers(setup, result, request(60)) == {1, 2, 3}
        assert seconds == 0.0
        assert setup.network.asks == []
        assert setup.tracked.used == []
        assert not result.cached

    run_steps(AggregatorSetup(members([20] * 5), archive=archive_of(aggregate([1, 2, 3]))), steps)


def test_after_a_key_that_sorts_first_joined_the_same_signature_goes_out_with_other_bits() -> None:
    first = min(range(1, 10), key=lambda number: index_of(members([1] * 9), number))
    others = [number for number in range(1, 10) if number != first]
    before, after = (
        weighing(dict.fromkeys(others, 10)),
        weighing({first: 15, **dict.fromkeys(others, 11)}),
    )
    archive = MemoryArchive()

    async def main() -> None:
        old, new = AggregatorSetup(before, archive=archive), AggregatorSetup(after, archive=archive)
        async with leaves_nothing_open(old), leaves_nothing_open(new):
            then = parse_result(old, await old.service.aggregate(request(67)), request(67))
            again = parse_result(new, await new.service.aggregate(request(50)), request(50))
            assert new.network.asks == []
            assert again.signature == then.signature
            assert again.signers == tuple(index + 1 for index in then.signers)
            assert_py_ecc_agrees(again, after)

    run(main())


def test_a_signature_is_verified_once_per_set_and_then_served_from_memory() -> None:
    archive = archive_of(aggregate([1, 2, 3, 4]))

    async def steps(setup: AggregatorSetup) -> None:
        first = await setup.service.aggregate(request(67))
        second = await setup.service.aggregate(request(80))
        assert (first.cached, second.cached) == (False, True)
        assert first.signed_message == second.signed_message
        assert archive.recalls == [MESSAGE.id]
        assert archive.commits == []

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_stored_signature_without_the_buffer_waits_for_the_buffer_and_is_extended() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {4: signs(0.5), 5: silent}
        seconds, result = await taken(setup.service.aggregate(request(60, 10)))
        assert signers(setup, result, request(70)) == {1, 2, 3, 4}
        assert seconds == pytest.approx(0.5)
        assert set(setup.network.asked_numbers()) <= {4, 5}

    run_steps(AggregatorSetup(members([20] * 5), archive=archive_of(aggregate([1, 2, 3]))), steps)


def test_a_stored_signature_goes_out_alone_when_the_buffer_does_not_come() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {4: silent, 5: silent}
        seconds, result = await taken(setup.service.aggregate(request(60, 10)))
        assert signers(setup, result, request(60)) == {1, 2, 3}
        assert seconds == pytest.approx(2.0)

    run_steps(AggregatorSetup(members([20] * 5), archive=archive_of(aggregate([1, 2, 3]))), steps)


def test_a_stored_signature_that_became_too_light_is_extended_by_the_missing_validators() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {5: wrong(), 6: wrong()}
        result = await setup.service.aggregate(request(67))
        assert signers(setup, result, request(67)) == {1, 2, 3, 4, 7, 8}
        assert setup.network.asked_numbers().count(1) == 0
        assert set(setup.metrics.bad_shares) != set()

    archive = archive_of(aggregate([1, 2, 3, 4]), *(share(number) for number in (1, 2)))
    run_steps(AggregatorSetup(weighing(dict.fromkeys(range(1, 9), 10)), archive=archive), steps)
    assert len(archive.signatures[MESSAGE.id]) == 2


def test_a_bad_cached_share_does_not_spoil_a_stored_signature() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: wrong(), 4: silent, 5: silent}
        hasty = asyncio.create_task(taken(setup.service.aggregate(request(80, timeout_s=1.0))))
        await asyncio.sleep(0.5)
        archive.signatures[MESSAGE.id] = [aggregate([1, 2])]
        setup.network.scripts = {4: signs(0.1), 5: silent}
        other = request(60, justification=b"other")
        result = await setup.service.aggregate(other)
        assert signers(setup, result, other) == {1, 2, 3}
        await hasty

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_the_heaviest_of_several_stored_signatures_is_served() -> None:
    archive = archive_of(
        aggregate([1, 2, 3]), aggregate([1, 2, 3, 4]), aggregate([4, 5]), aggregate([1, 2, 9])
    )

    async def steps(setup: AggregatorSetup) -> None:
        result = await setup.service.aggregate(request(60))
        assert signers(setup, result, request(60)) == {1, 2, 3, 4}

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


# Rebuilding from shares.


def test_when_a_signer_left_the_set_only_validators_whose_share_is_missing_are_asked() -> None:
    archive = archive_of(aggregate([1, 2, 3]), *(share(number) for number in (1, 2, 3)))

    async def steps(setup: AggregatorSetup) -> None:
        result = await setup.service.aggregate(request(67))
        assert signers(setup, result, request(67)) >= {2, 3}
        assert set(setup.network.asked_numbers()) <= {4, 5}
        assert parse_result(setup, result, request(67))

    run_steps(AggregatorSetup(weighing({2: 25, 3: 25, 4: 25, 5: 25}), archive=archive), steps)


def test_stored_shares_that_suffice_are_summed_without_asking_validators() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        setup.activity.list_event = asyncio.Event()
        result = await setup.service.aggregate(request(60))
        assert signers(setup, result, request(60)) == {1, 2, 3}
        assert setup.network.asks == []

    archive = archive_of(*(share(number, verified=number == 2) for number in (1, 2, 3)))
    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)
    assert [set(stored.public_keys) for stored in archive.signatures[MESSAGE.id]] == [
        {public_key(number) for number in (1, 2, 3)}
    ]


@pytest.mark.parametrize("verified", [False, True])
def test_a_stored_share_that_is_bad_is_found_deleted_and_its_validator_asked(
    verified: bool,
) -> None:
    archive = archive_of(
        share(1), share(2, verified=verified, text=b"lie"), share(3, verified=True)
    )

    async def steps(setup: AggregatorSetup) -> None:
        result = await setup.service.aggregate(request(100))
        assert signers(setup, result, request(100)) == {1, 2, 3}
        assert (public_key(2), signature(2, b"lie")) in archive.rejected
        assert archive.shares[MESSAGE.id][public_key(2)].signature == signature(2, MESSAGE.raw)

    run_steps(AggregatorSetup(members([20] * 3), archive=archive), steps)


def test_a_stored_share_that_is_no_point_is_deleted() -> None:
    junk = StoredShare(public_key(2), b"\x80" + b"\xfe" * 95, True)
    archive = archive_of(share(1), junk, StoredShare(public_key(3), b"short", False))

    async def steps(setup: AggregatorSetup) -> None:
        assert parse_result(setup, await setup.service.aggregate(request(100)), request(100))
        assert {key for key, _ in archive.rejected} == {public_key(2), public_key(3)}

    run_steps(AggregatorSetup(members([20] * 3), archive=archive), steps)


def test_a_cached_share_that_differs_from_the_stored_one_is_verified_before_it_is_used() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(60))
        archive.shares[MESSAGE.id][public_key(2)] = share(2, text=b"lie")
        archive.signatures.clear()
        result = await setup.service.aggregate(
            request(100, justification=b"other", stored_only=True)
        )
        assert signers(setup, result, request(100)) == {1, 2, 3, 4, 5}
        assert archive.shares[MESSAGE.id][public_key(2)] == share(2, verified=True)

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_stored_signature_that_does_not_verify_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = aggregate([1, 2, 3]).public_keys
    archive = archive_of(
        aggregate([1, 2, 3], b"lie"),
        StoredSignature(keys, b"\x80" + b"\xfe" * 95),
        StoredSignature(keys, b"short"),
        StoredSignature((), aggregate([1]).signature),
        StoredSignature((*keys, keys[0]), aggregate([1, 2, 3]).signature),
        StoredSignature((b"no key",), aggregate([1]).signature),
    )

    async def steps(setup: AggregatorSetup) -> None:
        result = await setup.service.aggregate(request(67))
        assert parse_result(setup, result, request(67))
        assert setup.network.asks != []

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)
    assert "does not verify" in caplog.text


def test_shares_of_keys_that_are_not_in_the_set_are_left_alone() -> None:
    archive = archive_of(share(7), share(8, text=b"lie"))

    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(67))
        assert archive.rejected == []
        assert {public_key(7), public_key(8)} <= archive.shares[MESSAGE.id].keys()

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_after_a_restart_during_a_collection_only_missing_validators_are_asked() -> None:
    archive = MemoryArchive()

    async def main() -> None:
        first, second = (AggregatorSetup(members([20] * 5), archive=archive) for _ in range(2))
        async with leaves_nothing_open(first), leaves_nothing_open(second):
            first.network.scripts = {3: silent, 4: silent, 5: silent}
            caller = asyncio.create_task(first.service.aggregate(request(80)))
            await asyncio.sleep(0.6)
            assert archive.shares[MESSAGE.id].keys() == {public_key(1), public_key(2)}
            result = await second.service.aggregate(request(80))
            assert parse_result(second, result, request(80))
            assert set(second.network.asked_numbers()) == {3, 4, 5}
            caller.cancel()
            await asyncio.wait((caller,))

    run(main())


# No validator is asked.


def test_stored_shares_suffice_or_the_missing_validators_are_named_at_once() -> None:
    archive = archive_of(aggregate([1, 2]), share(3))

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.disconnected = {node(4)}
        result = await setup.service.aggregate(request(60, 20, stored_only=True))
        assert signers(setup, result, request(60)) == {1, 2, 3}
        seconds, error = await taken(setup.service.aggregate(request(80, stored_only=True)))
        assert isinstance(error, QuorumNotReached)
        assert not error.at_deadline
        assert (error.shortfall.signed_weight, error.shortfall.required_weight) == (60, 80)
        assert {missing.public_key for missing in error.shortfall.missing} == {
            "0x" + public_key(number).hex() for number in (4, 5)
        }
        assert error.shortfall.counts == {"not_asked": 2}
        assert (seconds, setup.network.asks, setup.tracked.used, setup.network.redialled) == (
            0.0,
            [],
            [],
            [],
        )

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_stored_only_caller_does_not_wait_for_a_round_that_asks() -> None:
    archive = archive_of(share(1))

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {2: signs(0.2), 3: signs(3.0)}
        caller = asyncio.create_task(setup.service.aggregate(request(100)))
        await asyncio.sleep(0.1)
        seconds, error = await taken(setup.service.aggregate(request(60, stored_only=True)))
        assert (seconds, error.shortfall.signed_weight) == (0.0, 33)
        await asyncio.sleep(0.2)
        seconds, result = await taken(setup.service.aggregate(request(60, stored_only=True)))
        assert (seconds, signers(setup, result, request(60))) == (0.0, {1, 2})
        assert signers(setup, await caller, request(100)) == {1, 2, 3}

    run_steps(AggregatorSetup(weighing({1: 33, 2: 33, 3: 34}), archive=archive), steps)


def test_a_stored_only_round_begins_to_ask_when_another_caller_joins() -> None:
    archive = archive_of(share(1))
    archive.recall_s = 0.5

    async def steps(setup: AggregatorSetup) -> None:
        quiet = asyncio.create_task(taken(setup.service.aggregate(request(60, stored_only=True))))
        await asyncio.sleep(0.2)
        result = await setup.service.aggregate(request(60))
        assert parse_result(setup, result, request(60))
        assert setup.tracked.used == [SUBNET]
        assert isinstance((await quiet)[1], QuorumNotReached)

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_stored_only_failure_never_has_the_verdict_never() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        with pytest.raises(QuorumNotReached) as error:
            await setup.service.aggregate(request(67, stored_only=True))
        assert error.value.shortfall.verdict is Verdict.NEVER

    run_steps(AggregatorSetup(members([20] * 2, keyless=60), archive=archive_of()), steps)


def test_an_archive_that_cannot_be_read_is_an_error_not_a_missed_quorum() -> None:
    archive = archive_of(share(1), share(2), share(3), share(4))
    archive.recall_s = 3.0

    async def steps(setup: AggregatorSetup) -> None:
        with pytest.raises(StoreDown):
            await setup.service.aggregate(request(60, stored_only=True))
        archive.recall_s = 0.0
        assert parse_result(
            setup, await setup.service.aggregate(request(60, stored_only=True)), request(60)
        )

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_bad_stored_share_is_found_for_a_stored_only_caller() -> None:
    archive = archive_of(
        share(1), share(2, text=b"lie"), share(3), share(4, verified=True, text=b"lie")
    )

    async def steps(setup: AggregatorSetup) -> None:
        _, error = await taken(setup.service.aggregate(request(60, stored_only=True)))
        assert error.shortfall.signed_weight == 40
        assert archive.shares[MESSAGE.id].keys() == {public_key(1), public_key(3)}

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


# A store that is slow.


def test_a_slow_archive_costs_a_second_at_most_and_never_more_than_half_of_the_time() -> None:
    archive = archive_of()
    archive.recall_s = 60.0

    async def steps(setup: AggregatorSetup) -> None:
        seconds, result = await taken(setup.service.aggregate(request(67)))
        assert parse_result(setup, result, request(67))
        assert seconds == pytest.approx(1.0)
        seconds, result = await taken(
            setup.service.aggregate(request(67, justification=b"x", timeout_s=0.8))
        )
        assert seconds <= 0.4

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


# Messages made again.


def test_a_message_made_again_for_another_set_is_counted_if_no_validator_was_asked() -> None:
    async def steps(setup: AggregatorSetup) -> None:
        async def sign(weights: dict[int, int]) -> tuple[int, int]:
            setup.members = setup.sets.latest = weighing(weights)
            parse_result(setup, await setup.service.aggregate(request(67)), request(67))
            return setup.metrics.reissued, len(setup.network.asks)

        setup.members = setup.sets.latest = weighing(dict.fromkeys(range(1, 6), 20))
        await setup.service.aggregate(request(100))
        asks = len(setup.network.asks)
        assert setup.metrics.reissued == 0
        assert await sign(dict.fromkeys(range(1, 6), 20)) == (0, asks)
        assert await sign(dict.fromkeys(range(2, 6), 20)) == (1, asks)
        assert await sign(dict.fromkeys(range(2, 6), 20)) == (1, asks)
        assert await sign({2: 20, 3: 20, 9: 500}) == (1, asks + 1)
        assert await sign(dict.fromkeys(range(2, 6), 30)) == (2, asks + 1)

    run_steps(AggregatorSetup(members([20] * 5), archive=archive_of()), steps)


@pytest.mark.parametrize(
    ("signers_before", "reissued"),
    [([1, 2, 3], 0), ([2, 3, 6], 1)],
    ids=["served-as-it-stands", "signed-for-another-set"],
)
def test_after_a_start_a_stored_signature_that_does_not_serve_counts_as_another_set(
    signers_before: list[int], reissued: int
) -> None:
    async def steps(setup: AggregatorSetup) -> None:
        parse_result(setup, await setup.service.aggregate(request(60)), request(60))
        assert (setup.metrics.reissued, setup.network.asks) == (reissued, [])

    archive = archive_of(
        aggregate(signers_before), *(share(number, verified=True) for number in range(1, 5))
    )
    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)
