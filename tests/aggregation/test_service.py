"""The service as a whole: what it reports, what it refuses, and how it behaves among a thousand
validators.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from tests.aggregation.fixtures import (
    CHAIN,
    HEIGHT,
    SUBNET,
    AggregatorSetup,
    leaves_nothing_open,
    members,
    message,
    node,
    refuses,
    request,
    signature,
    signs,
    silent,
    wrong,
)
from tests.aggregation.memory_archive import MemoryArchive
from tests.aggregation.verifier import assert_valid
from tests.aggregation.virtual_time import InlineExecutor, now, run
from warpseal.aggregation import verification
from warpseal.aggregation.errors import InvalidTimeout, QuorumImpossible, QuorumNotReached
from warpseal.aggregation.members import MemberRecord
from warpseal.aggregation.service import SignatureAggregator
from warpseal.aggregation.settings import AggregationSettings
from warpseal.node.p_chain import Subnet
from warpseal.peers.statistics import Unreachable
from warpseal.validators.errors import UnknownChain
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, id_text
from warpseal.warp.message import UnsignedMessage

MANY = 1_000
T = TypeVar("T")
# In floats, this time + 55 - this time is 55.00000000000001.
INEXACT_NOW = 107.449


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 55.1, float("nan")])
def test_a_timeout_beyond_the_bounds_is_refused(timeout_s: float) -> None:
    async def main() -> None:
        with pytest.raises(InvalidTimeout):
            await AggregatorSetup(members([1])).service.aggregate(request(timeout_s=timeout_s))

    run(main())


def test_no_signature_leaves_that_was_forbidden_while_it_was_stored() -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([1] * 5), archive=MemoryArchive(commit_s=1.0))
        forbidden = set[UnsignedMessage]()

        def check_allowed(subject: UnsignedMessage, _: SubnetID | None) -> None:
            if subject in forbidden:
                raise UnknownChain("forbidden by the test")

        service = setup.build_service(check_allowed=check_allowed, clock=now)
        await service.aggregate(request())
        storing = asyncio.create_task(service.aggregate(request(is_pinned=True)))
        await asyncio.sleep(0.5)
        forbidden.add(message())
        with pytest.raises(UnknownChain):
            await storing

    run(main())


def test_the_longest_timeout_is_within_bounds_when_it_remains_until_a_deadline() -> None:
    settings = AggregationSettings()
    deadline = INEXACT_NOW + settings.max_timeout_s
    assert deadline - INEXACT_NOW > settings.max_timeout_s
    assert settings.timeout_s(settings.remaining_s(deadline, INEXACT_NOW)) == settings.max_timeout_s
    assert settings.timeout_s(settings.remaining_s(INEXACT_NOW - 1, INEXACT_NOW)) == 0.001


def test_no_signature_leaves_that_was_forbidden_while_validators_were_asked_or_later() -> None:
    async def main() -> None:
        setup, forbidden = AggregatorSetup(members([1] * 5)), set[UnsignedMessage]()

        def check_allowed(subject: UnsignedMessage, _: SubnetID | None) -> None:
            if subject in forbidden:
                raise UnknownChain("forbidden by the test")

        service = setup.build_service(check_allowed=check_allowed, clock=now)
        setup.network.scripts = dict.fromkeys(range(1, 6), signs(1.0))
        asking = asyncio.create_task(service.aggregate(request()))
        await asyncio.sleep(0.5)
        forbidden.add(message())
        with pytest.raises(UnknownChain):
            await asking
        # The result that did not leave is kept.
        forbidden.clear()
        aggregation = await service.aggregate(request())
        assert aggregation.cached
        assert service.first_signed is not None
        assert service.first_signed.signed_message == aggregation.signed_message
        forbidden.add(message())
        requests = len(setup.network.asked_numbers())
        for refused in (request(), request(stored_only=True), request(is_pinned=True)):
            with pytest.raises(UnknownChain):
                await service.aggregate(refused)
        no_message = service.first_signed is None
        assert (no_message, len(setup.network.asked_numbers())) == (True, requests)
        assert await service.aggregate(request(about=message(b"another")))

    run(main())


def test_a_message_that_is_signed_ahead_waits_for_callers_of_others_and_serves_its_own() -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([20] * 5))
        setup.network.scripts = {1: silent}
        service = setup.service
        ahead = replace(request(about=message(b"ahead")), is_ahead=True)
        other = asyncio.create_task(service.aggregate(request(100, about=message(b"other"))))
        await asyncio.sleep(0.1)
        assert not service.admission.is_idle
        for is_joined in (True, False):
            early = asyncio.create_task(
                service.aggregate(replace(ahead, message=message(b"%d" % is_joined)))
            )
            await asyncio.sleep(1.0)
            assert not early.done()
            if is_joined:
                joined = await service.aggregate(request(about=message(b"%d" % is_joined)))
                assert joined.signed_message == (await early).signed_message
            else:
                other.cancel()
                await asyncio.wait((other,))
                await early
        assert service.admission.is_idle

    run(main())


def test_every_request_is_reported_with_its_outcome_and_its_stages() -> None:
    async def main() -> AggregatorSetup:
        setup = AggregatorSetup(members([20] * 5))
        await setup.service.aggregate(request(67))
        await setup.service.aggregate(request(67))
        assert not setup.metrics.aggregations
        # The report of a signed message follows the response.
        await asyncio.sleep(0)
        with pytest.raises(UnknownChain):
            await setup.service.aggregate(
                request(about=message(chain=ChainID(bytes(31) + b"\x01")))
            )
        setup.network.scripts = {1: silent}
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(100, about=message(b"late"), timeout_s=1.0))
        caller = asyncio.create_task(setup.service.aggregate(request(100, about=message(b"gone"))))
        await asyncio.sleep(0.5)
        caller.cancel()
        await asyncio.wait((caller,))
        return setup

    outcomes = run(main()).metrics.aggregations
    assert [outcome for outcome, _ in outcomes] == [
        "ok",
        "ok",
        "unknown_chain",
        "quorum_not_reached",
        "cancelled",
    ]
    stages = [set(stages) for _, stages in outcomes]
    collected = {"validators", "connect", "collect", "verify", "total"}
    assert stages == [
        collected,
        {"validators", "total"},
        {"total"},
        collected,
        {"validators", "total"},
    ]
    assert outcomes[3][1]["collect"] == pytest.approx(1.0)
    assert outcomes[3][1]["total"] == pytest.approx(1.0)


def test_a_round_leaves_nothing_for_the_cycle_collector() -> None:
    """Else each round of a thousand validators would bring a pause of milliseconds nearer."""

    async def sign(setup: AggregatorSetup, texts: tuple[bytes, ...]) -> None:
        results = [setup.service.aggregate(request(67, about=message(text))) for text in texts]
        await asyncio.gather(*results)
        # The round ends in the turns after its response.
        for _ in range(5):
            await asyncio.sleep(0)

    async def main() -> list[object]:
        setup = AggregatorSetup(members([20] * 5))
        # What the first request makes once.
        await sign(setup, (b"first",))
        gc.collect()
        gc.disable()
        try:
            await sign(setup, (b"alone",))
            await sign(setup, (b"together", b"together", b"another"))
            return [item for item in gc.get_objects() if isinstance(item, MemberRecord)]
        finally:
            gc.enable()

    assert run(main()) == []


def test_one_log_line_reports_the_outcome_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([20] * 5))
        await setup.service.aggregate(request(67))
        setup.network.scripts = {1: refuses(7), 2: refuses(7)}
        setup.sets.others[PRIMARY_NETWORK] = setup.members
        with pytest.raises(QuorumImpossible):
            await setup.service.aggregate(request(67, about=message(chain=P_CHAIN)))

    with caplog.at_level(logging.DEBUG, "warpseal.aggregation"):
        run(main())
    good, bad = caplog.records
    assert (good.levelno, bad.levelno) == (logging.DEBUG, logging.INFO)
    assert (
        vars(good).items()
        >= {
            "outcome": "ok",
            "message_id": id_text(message().id),
            "signing_subnet_id": id_text(SUBNET),
            "height": HEIGHT,
            "signers": 4,
            "signed_weight": 80,
            "total_weight": 100,
        }.items()
    )
    assert "collect_s" in vars(good)
    assert vars(bad)["outcome"] == "quorum_impossible"
    assert vars(bad)["verdict"] == "never"
    assert vars(bad)["counts"] == {"conversion_id_mismatch": 2}
    assert any("conversion" in hint for hint in vars(bad)["hints"])


def test_the_advice_about_the_signing_subnet_reaches_the_caller() -> None:
    async def main() -> QuorumNotReached:
        setup = AggregatorSetup(members([20] * 5))
        setup.chains.subnets[SUBNET] = Subnet(SUBNET, bytes(32), CHAIN, bytes(20))
        setup.sets.others[PRIMARY_NETWORK] = setup.members
        setup.network.scripts = dict.fromkeys(range(1, 6), silent)
        with pytest.raises(QuorumNotReached) as raised_error:
            await setup.service.aggregate(
                request(67, about=message(chain=P_CHAIN), justification=SUBNET, timeout_s=1.0)
            )
        return raised_error.value

    error = run(main())
    assert f"name {id_text(SUBNET)} as the signing subnet" in error.detail["hints"][0]
    assert error.detail["signing_subnet_id"] == id_text(PRIMARY_NETWORK)
    assert error.detail["validators"][0].reason == "no_answer"


def test_the_details_of_a_failure_are_ready_for_json() -> None:
    async def main() -> QuorumNotReached:
        setup = AggregatorSetup(members([20] * 4, keyless=20))
        setup.network.disconnected = {node(1)}
        setup.network.unreachable_nodes = {node(1): Unreachable("no_address")}
        with pytest.raises(QuorumNotReached) as error:
            await setup.service.aggregate(request(67))
        return error.value

    detail = to_builtins(run(main()).detail)
    assert detail["verdict"] == "wait"
    assert (detail["signed_weight"], detail["required_weight"], detail["total_weight"]) == (
        "0",
        "67",
        "100",
    )
    assert detail["p_chain_height"] == str(HEIGHT)
    assert detail["counts"] == {"no_bls_key": 1, "no_address": 1, "not_asked": 3}
    assert {"nodeIds": (), "weight": "20", "reason": "no_bls_key", "verdict": "never"} in detail[
        "validators"
    ]


def test_memory_stays_within_its_bound() -> None:
    async def main() -> None:
        setup = AggregatorSetup(
            members([1] * 12), AggregationSettings(cache_bytes=40_000, signature_cache_size=3)
        )
        for number in range(20):
            about = message(b"%d" % number)
            result = await setup.service.aggregate(request(67, about=about))
            assert_valid(result.signed_message, about.raw, setup.members, 67)
            assert sum(cache.size_bytes for cache in setup.service.caches.samples()) <= 40_000

    run(main())


class CountingExecutor(InlineExecutor):
    """Counts the checks that it is given."""

    checks = 0

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        self.checks += 1
        return super().submit(work, *args, **kwargs)


@pytest.mark.parametrize(("count", "requests", "checks"), [(5, 1, 0), (5, 2, 2), (20, 1, 1)])
def test_only_the_sum_of_a_small_set_is_verified_without_a_thread_if_no_other_round_is_open(
    count: int, requests: int, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_SMALL_SET", 8)
    setup, executor = AggregatorSetup(members([10] * count)), CountingExecutor()
    service = setup.build_service(executor=executor, random=Random(1), clock=now)

    async def main() -> None:
        async with leaves_nothing_open(setup), asyncio.TaskGroup() as tasks:
            for number in range(requests):
                tasks.create_task(service.aggregate(request(67, about=message(bytes([number])))))

    run(main())
    assert executor.checks == checks


def test_a_request_for_the_proposed_set_of_a_chain_that_is_known_waits_for_nothing() -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([20] * 5))
        setup.sets.by_height[HEIGHT] = setup.members
        aggregation = await setup.service.aggregate(request(67))
        assert_valid(aggregation.signed_message, message().raw, setup.members, 67)
        assert (aggregation.height, setup.sets.calls) == (HEIGHT, [])

    run(main())


# Among a thousand, on a real loop with real threads. Bounds are of CPU time of the loop's thread,
# and generous.


def many() -> AggregatorSetup:
    return AggregatorSetup(members([100 + number % 7 for number in range(MANY)]))


def threaded(setup: AggregatorSetup, executor: ThreadPoolExecutor) -> SignatureAggregator:
    return setup.build_service(executor=executor, random=Random(1))


def presign(about: UnsignedMessage, bad: set[int]) -> None:
    for number in range(1, MANY + 1):
        signature(number, b"something else" if number in bad else about.raw)


class LongestTurn:
    """Measures the CPU time of the longest turn of the loop: for that long it was held up, other
    work aside.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0

    async def run(self) -> None:
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            after_s = time.thread_time()
            self.cpu_s = max(self.cpu_s, after_s - before_s)
            before_s = after_s


async def test_a_thousand_validators_are_summed_without_holding_up_the_loop() -> None:
    about, bad = message(b"among many"), {17, 400, 801}
    presign(about, bad)
    setup, longest_turn = many(), LongestTurn()
    setup.network.scripts = {number: wrong(0.01) for number in bad}
    with ThreadPoolExecutor(1) as executor:
        service = threaded(setup, executor)
        async with leaves_nothing_open(setup):
            ticking = asyncio.create_task(longest_turn.run())
            await asyncio.sleep(0.01)
            result = await service.aggregate(request(67, about=about))
            ticking.cancel()
    parsed_message = assert_valid(result.signed_message, about.raw, setup.members, 67)
    assert len(parsed_message.signers) <= 680
    assert longest_turn.cpu_s < 0.25


async def test_an_unreachable_quorum_of_a_thousand_fails_for_little_cpu() -> None:
    about = message(b"hopeless")
    setup = many()
    for number in range(1, 400):
        setup.network.disconnected.add(node(number))
        setup.network.unreachable_nodes[node(number)] = Unreachable("not_connected")
    with ThreadPoolExecutor(1) as executor:
        service = threaded(setup, executor)
        async with leaves_nothing_open(setup):
            started_s = time.thread_time()
            with pytest.raises(QuorumNotReached) as error:
                await service.aggregate(request(67, about=about))
            taken_s = time.thread_time() - started_s
    assert not error.value.at_deadline
    assert error.value.shortfall.counts["not_connected"] == 399
    assert len(error.value.shortfall.missing) == 50
    assert taken_s < 0.5


async def test_a_thousand_refusals_fail_for_little_cpu() -> None:
    setup = many()
    setup.sets.others[PRIMARY_NETWORK] = setup.members
    setup.network.scripts = {number: refuses(4) for number in range(1, MANY + 1)}
    with ThreadPoolExecutor(1) as executor:
        service = threaded(setup, executor)
        async with leaves_nothing_open(setup):
            started_s = time.thread_time()
            with pytest.raises(QuorumImpossible):
                await service.aggregate(request(67, about=message(chain=P_CHAIN)))
            taken_s = time.thread_time() - started_s
    assert taken_s < 0.5


def test_the_error_of_a_caller_leaves_if_stored_shares_do_not_suffice() -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([20] * 5))
        refusal = UnknownChain("of the caller")
        with pytest.raises(UnknownChain) as error:
            await setup.service.aggregate(replace(request(stored_only=True), refusal=refusal))
        assert error.value is refusal
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(stored_only=True))
        assert setup.network.asked_numbers() == []

    run(main())


def test_a_look_into_the_store_without_a_result_is_not_reported() -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([20] * 5))
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(stored_only=True))
        assert not setup.service.reports.recent
        await setup.service.aggregate(request(60))
        await asyncio.sleep(0)
        assert [record.outcome for record in setup.service.reports.recent] == ["ok"]

    run(main())


def test_each_aggregation_is_reported_once_and_a_cached_one_is_not() -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([20] * 5))
        for _ in range(3):
            await setup.service.aggregate(request())
        setup.network.scripts = {1: silent}
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(100, about=message(b"other"), timeout_s=1.0))
        reports = setup.service.reports
        outcomes = [record.outcome for record in reports.recent]
        (minute,) = reports.last_hour.minutes(time.time())
        assert len(outcomes) == 2
        assert sorted(minute.outcomes.elements()) == sorted(outcomes)
        assert minute.times.total() == 1

    run(main())
