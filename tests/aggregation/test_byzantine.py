"""Thousands of seeded rounds with lying, late and changing validators: no result is ever unverified
or below quorum.

Judged by the parser and the arithmetic of `verifier`, blspy and, for a sample, py-ecc.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pytest

from tests.aggregation.fixtures import (
    AggregatorSetup,
    Script,
    SentRequest,
    empty,
    garbage,
    leaves_nothing_open,
    members,
    message,
    node,
    of_another,
    off_curve,
    refuses,
    request,
    signature,
    signs,
    signs_from,
    silent,
    wrong,
)
from tests.aggregation.verifier import ParsedSignedMessage, assert_py_ecc_agrees, assert_valid
from tests.aggregation.virtual_time import now, run
from warpseal.aggregation.errors import QuorumImpossible, QuorumNotReached
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.requests import PeerResponse
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.quorum_shortfall import Verdict
from warpseal.warp.validator_set import CanonicalValidatorSet

ROUNDS_PER_SEED = 50
SEEDS = 50
MAX_VALIDATORS = 12
MESSAGES = [message(b"message %d" % number) for number in range(4)]
LIE = b"something else"


def twice(first: bytes, second: bytes) -> Script:
    """Answer twice, differently."""
    return lambda ask: [
        (0.0, ask.share(first or signature(ask.number, ask.message))),
        (0.01, ask.share(second)),
    ]


def duplicates(ask: SentRequest) -> Iterable[tuple[float, PeerResponse]]:
    """Answer the same three times."""
    return [(0.0, ask.share(signature(ask.number, ask.message)))] * 3


def lies_first(ask: SentRequest) -> Iterable[tuple[float, PeerResponse]]:
    """Lie when asked for the first time, sign later."""
    text = ask.message if ask.times else LIE
    return [(0.0, ask.share(signature(ask.number, text)))]


def behaviour(random: Random, count: int, at: float) -> Script:
    """Return how one validator behaves."""
    liar = random.randrange(1, count + 1)
    scripts: list[Script] = [
        wrong(random.choice([0.0, 0.2])),
        of_another(liar),
        garbage,
        off_curve,
        duplicates,
        lies_first,
        twice(signature(liar, LIE), signature(liar, MESSAGES[0].raw)),
        twice(b"", signature(liar, LIE)),
        silent,
        empty,
        refuses(random.choice([0, 1, 2, 6, 11, -1, -2, 99])),
        signs_from(at + random.choice([0.3, 2.0, 6.0])),
        signs(random.choice([0.1, 0.7, 3.0, 20.0])),
    ]
    return random.choice(scripts)


def validator_set(random: Random) -> CanonicalValidatorSet:
    count = random.randrange(4, MAX_VALIDATORS + 1)
    weights = [random.choice([1, 5, 10, 10, 10, 100, 2**60]) for _ in range(count)]
    return members(weights, keyless=random.choice([0, 0, 0, 3, 50]))


class Scenario:
    """One seed: a setup whose validators and sets change from round to round."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.setup = AggregatorSetup(validator_set(self.random), seed=seed)
        self.results: list[tuple[ParsedSignedMessage, CanonicalValidatorSet]] = []
        self.failed = 0

    async def run_rounds(self) -> None:
        async with leaves_nothing_open(self.setup):
            for _ in range(ROUNDS_PER_SEED // 2):
                self.change_network()
                await asyncio.gather(*(self.ask(self.draw_request()) for _ in range(2)))

    def change_network(self) -> None:
        random, network = self.random, self.setup.network
        if random.random() < 0.3:
            self.setup.members = self.setup.sets.latest = validator_set(random)
        count = len(self.setup.members.validators)
        rate = random.choice([0.0, 0.1, 0.3, 0.6])
        network.scripts = {
            number: behaviour(random, count, now())
            for number in range(1, count + 1)
            if random.random() < rate
        }
        network.disconnected = {
            node(number) for number in range(1, count + 1) if random.random() < rate / 4
        }
        network.unreachable_nodes = {
            node_id: Unreachable("not_connected", now() + random.choice([1.0, 99.0]))
            for node_id in network.disconnected
            if random.random() < 0.5
        }
        self.setup.activity.nodes = frozenset(
            node(number) for number in range(1, count + 1) if random.random() < 0.1
        )
        for number in random.sample(range(1, count + 1), 2):
            loop = asyncio.get_running_loop()
            loop.call_later(random.random() * 4, network.connect, number)
            loop.call_later(random.random() * 4, network.disconnect, number)

    def draw_request(self) -> AggregationRequest:
        random = self.random
        quorum = random.choice([33, 50, 67, 67, 80, 100])
        buffer = random.choice([0, 0, 10, 20])
        return request(
            quorum,
            min(buffer, 100 - quorum),
            about=random.choice(MESSAGES),
            justification=random.choice([b"", b"j"]),
            timeout_s=random.choice([None, 1.0, 5.0]),
        )

    async def ask(self, aggregation_request: AggregationRequest) -> None:
        validators, started = self.setup.members, now()
        patience_s = aggregation_request.timeout_s or 15.0
        try:
            outcome: (
                Aggregation | QuorumNotReached | QuorumImpossible
            ) = await self.setup.service.aggregate(aggregation_request)
        except (QuorumNotReached, QuorumImpossible) as error:
            outcome = error
        if isinstance(outcome, Aggregation):
            assert aggregation_request.message is not None
            parsed_message = assert_valid(
                outcome.signed_message,
                aggregation_request.message.raw,
                validators,
                aggregation_request.quorum,
            )
            self.results.append((parsed_message, validators))
        else:
            never = isinstance(outcome, QuorumImpossible)
            assert outcome.shortfall.verdict is (Verdict.NEVER if never else Verdict.WAIT)
            assert outcome.shortfall.signed_weight < outcome.shortfall.required_weight
            self.failed += 1
        assert now() - started <= patience_s + 0.1


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_result_is_ever_unverified_or_below_quorum(first: int) -> None:
    successes = failed = 0
    for seed in range(first, first + 10):
        scenario = Scenario(seed)
        run(scenario.run_rounds())
        successes += len(scenario.results)
        failed += scenario.failed
    assert successes + failed == 10 * (ROUNDS_PER_SEED // 2) * 2
    assert successes > 100
    assert failed > 50


def test_py_ecc_agrees_with_a_sample() -> None:
    scenario = Scenario(4711)
    run(scenario.run_rounds())
    sample = scenario.random.sample(scenario.results, 2)
    for parsed_message, validators in sample:
        assert_py_ecc_agrees(parsed_message, validators)


def test_an_honest_majority_always_gets_its_result() -> None:
    """Whatever a third of the weight does, the others suffice, unless they cannot be reached."""

    async def main(seed: int) -> None:
        random = Random(seed)
        setup = AggregatorSetup(members([10] * 9), seed=seed)
        async with leaves_nothing_open(setup):
            for about in MESSAGES:
                liars = random.sample(range(1, 10), 2)
                setup.network.scripts = {number: behaviour(random, 9, now()) for number in liars}
                result = await setup.service.aggregate(request(67, about=about))
                assert_valid(result.signed_message, about.raw, setup.members, 67)

    for seed in range(60):
        run(main(seed))


def test_shares_that_liars_sent_never_spoil_later_requests() -> None:
    async def main() -> None:
        setup = AggregatorSetup(members([10] * 6))
        async with leaves_nothing_open(setup):
            for script in (
                wrong(),
                of_another(3),
                lies_first,
                twice(b"", signature(1, LIE)),
                garbage,
            ):
                about = UnsignedMessage.build(
                    88888, MESSAGES[0].source_chain_id, repr(script).encode()
                )
                setup.network.scripts = {1: script, 2: script}
                await setup.service.aggregate(request(50, about=about))
                setup.network.scripts = {}
                result = await setup.service.aggregate(request(100, about=about))
                assert_valid(result.signed_message, about.raw, setup.members, 100)

    run(main())
