"""Recorded usage: nothing is lost or doubled however it is taken, and memory is bounded whatever
clients send.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warpseal.runtime.throttle import Throttle
from warpseal.usage.calls import OTHER, CallOutcome, UsageLabels, UsageTotals
from warpseal.usage.fold import fold
from warpseal.usage.recorder import UsageBounds, UsageRecorder
from warpseal.usage.response_times import bucket_of

DAY_S = 86_400
HOUR_S = 3_600

labels_of_few = st.builds(
    UsageLabels,
    path=st.sampled_from(["/ext/bc/P", "/ext/bc/C/rpc"]),
    method=st.sampled_from(["eth_call", "eth_getLogs", "none"]),
    status=st.sampled_from([200, 499]),
    api_key=st.sampled_from(["", "a"]),
    country=st.sampled_from(["XX", "DE"]),
    user_agent=st.sampled_from(["curl", "viem", OTHER]),
)
call_batches = st.tuples(
    labels_of_few,
    st.sampled_from(CallOutcome),
    st.integers(1, 200),
    st.none() | st.floats(0, 100_000),
    st.integers(1, 5),
)


def added_up(
    batches: Iterable[Mapping[int, Mapping[UsageLabels, UsageTotals]]],
) -> dict[UsageLabels, UsageTotals]:
    sums: dict[UsageLabels, UsageTotals] = defaultdict(UsageTotals)
    for minutes in batches:
        for totals in minutes.values():
            for labels, added in totals.items():
                sums[labels].add(added)
    return dict(sums)


def by_path_and_status(
    totals: Mapping[UsageLabels, UsageTotals],
) -> dict[tuple[str, int], UsageTotals]:
    sums: dict[tuple[str, int], UsageTotals] = defaultdict(UsageTotals)
    for labels, added in totals.items():
        sums[labels.path, labels.status].add(added)
    return dict(sums)


@given(st.lists(st.tuples(call_batches, st.integers(-7_200, 7_200), st.booleans()), max_size=40))
def test_any_split_of_takes_and_any_clock_steps_give_the_same_totals(
    steps: list[tuple[tuple[UsageLabels, CallOutcome, int, float | None, int], int, bool]],
) -> None:
    now = 1_800_000_000.0
    recorder = UsageRecorder(now=lambda: now)
    expected: dict[UsageLabels, UsageTotals] = defaultdict(UsageTotals)
    minutes = Counter[int]()
    batches = []
    for (labels, outcome, credits, time_ms, calls), clock_step_s, takes in steps:
        now += clock_step_s
        recorder.record(labels, outcome, credits, time_ms, calls)
        minutes[int(now) // 60] += calls
        is_invalid = outcome is CallOutcome.INVALID
        expected[labels].add(
            UsageTotals(
                calls,
                calls if is_invalid else 0,
                calls if outcome is CallOutcome.FAILED else 0,
                credits * calls,
                credits * calls if is_invalid else 0,
                Counter({bucket_of(time_ms): calls}) if time_ms is not None else Counter(),
            )
        )
        if takes:
            batches.append(recorder.take())
    batches.append(recorder.take())
    assert added_up(batches) == expected
    assert minutes == sum(
        (
            Counter({minute: sum(sums.requests for sums in totals.values())})
            for part in batches
            for minute, totals in part.items()
        ),
        Counter[int](),
    )
    assert recorder.take() == {}


@given(
    st.lists(
        st.tuples(st.sampled_from(["eth_call", "eth_getLogs"]), st.integers(-90, 90)), max_size=40
    )
)
def test_deferred_calls_count_in_the_minutes_in_which_they_ended(
    calls: list[tuple[str, int]],
) -> None:
    now = 1_800_000_000.0
    recorder = UsageRecorder(now=lambda: now)

    def record(method: str, status: int, times: Sequence[float]) -> None:
        labels = UsageLabels("/p", method, status, "", "XX", "none")
        recorder.record_times(labels, CallOutcome.SUCCESSFUL, 10, times)

    expected = Counter[tuple[int, str]]()
    for method, clock_step_s in calls:
        now += clock_step_s
        recorder.defer(record, method, 200, time_ms=2.0)
        expected[int(now) // 60, method] += 1
    by_method = {method: usage.requests for (_, method), usage in recorder.since_start.items()}
    assert by_method == Counter(method for method, _ in calls)
    minute_totals = recorder.take()
    assert expected == {
        (minute, labels.method): sums.requests
        for minute, totals in minute_totals.items()
        for labels, sums in totals.items()
    }
    assert all(
        sums
        == UsageTotals(
            sums.requests, 0, 0, 10 * sums.requests, 0, Counter({bucket_of(2.0): sums.requests})
        )
        for totals in minute_totals.values()
        for sums in totals.values()
    )
    assert recorder.take() == {}


def test_many_deferred_calls_are_summed_before_they_are_read() -> None:
    recorder = UsageRecorder(now=lambda: 0.0)
    recorded: list[int] = []
    for _ in range(3_000):
        recorder.defer(lambda _, times: recorded.append(len(times)), "eth_call", time_ms=1.0)
    assert len(recorded) >= 2
    assert recorder.take() == {}
    assert sum(recorded) == 3_000


def test_combinations_beyond_the_bound_lose_agent_then_key_then_method_and_country() -> None:
    recorder = UsageRecorder(UsageBounds(combinations=40), now=lambda: 0.0)

    def record(**fields: Any) -> None:
        labels = UsageLabels("/ext/bc/P", "m", 200, "", "XX", "a")._replace(**fields)
        recorder.record(labels, CallOutcome.SUCCESSFUL, 10)

    for number in range(36):
        record(user_agent=f"agent{number}")
    record(user_agent="beyond", api_key="k1")
    record(user_agent="agent3")
    for number in range(10):
        record(user_agent="beyond", api_key=f"k{number}")
    for number in range(10):
        record(user_agent="beyond", api_key="k", method=f"m{number}")
    (totals,) = recorder.take().values()
    folded = [labels for labels in totals if labels.user_agent == OTHER]
    assert totals[UsageLabels("/ext/bc/P", "m", 200, "", "XX", "agent3")].requests == 2
    assert [labels[1:5] for labels in folded] == [
        ("m", 200, "k1", "XX"),
        ("m", 200, "k0", "XX"),
        ("m", 200, OTHER, "XX"),
        (OTHER, 200, OTHER, OTHER),
    ]
    assert sum(sums.requests for sums in totals.values()) == 58


def test_the_bound_of_a_minute_holds_over_all_takes_of_it_and_ends_with_it() -> None:
    now = 0.0
    recorder = UsageRecorder(UsageBounds(combinations=100), now=lambda: now)
    seen: set[UsageLabels] = set()
    for number in range(1_000):
        recorder.record(
            UsageLabels("/p", f"m{number}", 200, "", "XX", "none"), CallOutcome.SUCCESSFUL, 1
        )
        if number % 50 == 0:
            seen.update(*recorder.take().values())
    seen.update(*recorder.take().values())
    assert len(seen) <= 100
    now = 60.0
    recorder.record(UsageLabels("/p", "new", 200, "", "XX", "none"), CallOutcome.SUCCESSFUL, 1)
    assert [labels.method for totals in recorder.take().values() for labels in totals] == ["new"]


def test_minutes_that_are_not_taken_fold_and_memory_stays_bounded() -> None:
    now = 0.0
    recorder = UsageRecorder(UsageBounds(combinations=100), now=lambda: now)
    for number in range(5_000):
        now = number // 100 * 60.0
        recorder.record(
            UsageLabels("/p", f"m{number}", 200, "", "XX", "none"), CallOutcome.FAILED, 2
        )
    minute_totals = recorder.take()
    assert sum(map(len, minute_totals.values())) <= 4 * 100 + 50
    assert by_path_and_status(added_up([minute_totals])) == {
        ("/p", 200): UsageTotals(5_000, 0, 5_000, 10_000, 0)
    }


def test_a_day_has_a_bounded_number_of_agents_and_a_client_adds_few_of_them_an_hour() -> None:
    now = 0.0
    recorder = UsageRecorder(now=lambda: now)
    assert [recorder.admit_agent(f"a{number}", "one") for number in range(12)][9:] == [
        "a9",
        OTHER,
        OTHER,
    ]
    assert recorder.admit_agent("a3", "one") == "a3"
    assert recorder.admit_agent("none", "one") == "none"
    assert [recorder.admit_agent(OTHER, "three")] + [
        recorder.admit_agent(f"a{number}", "three") for number in range(20, 30)
    ] == [OTHER, *(f"a{number}" for number in range(20, 30))]
    now = HOUR_S
    assert recorder.admit_agent("a11", "one") == "a11"
    admitted = {recorder.admit_agent(f"b{number}", f"client{number}") for number in range(2_000)}
    assert len(admitted - {OTHER}) == 500 - 21
    assert recorder.admit_agent("a3", "two") == "a3"
    now = DAY_S
    assert recorder.admit_agent("c", "two") == "c"


@given(st.lists(st.tuples(labels_of_few, st.integers(1, 9)), max_size=60), st.integers(1, 30))
def test_folding_keeps_the_bound_and_exact_totals_by_path_and_status(
    given_calls: list[tuple[UsageLabels, int]], bound: int
) -> None:
    totals: dict[UsageLabels, UsageTotals] = defaultdict(UsageTotals)
    for number, (labels, calls) in enumerate(given_calls):
        totals[labels].add(UsageTotals(calls, 0, 0, calls * 10, 0, Counter({number % 7: calls})))
    before = {
        labels: UsageTotals(sums.requests, credits=sums.credits) for labels, sums in totals.items()
    }
    folded = fold(totals, bound, Throttle(1.0))
    assert len(folded) <= max(bound, len(by_path_and_status(totals)))
    assert by_path_and_status(folded) == by_path_and_status(totals)
    assert folded == dict(totals) or len(totals) > bound
    assert {
        labels: UsageTotals(sums.requests, credits=sums.credits) for labels, sums in totals.items()
    } == before
    for level in ("method", "country"):
        lost = [labels for labels in folded if getattr(labels, level) == OTHER]
        assert all(labels.user_agent == labels.api_key == OTHER for labels in lost)


def test_the_busiest_combinations_stay_whole() -> None:
    totals = {
        UsageLabels("/p", "m", 200, "", "XX", f"a{number}"): UsageTotals(number)
        for number in range(1, 11)
    }
    folded = fold(totals, 4, Throttle(1.0))
    assert {labels.user_agent: sums.requests for labels, sums in folded.items()} == {
        "a10": 10,
        "a9": 9,
        "a8": 8,
        OTHER: sum(range(1, 8)),
    }
