"""Over any sets, joins, leaves, weights and junk in the archive: what leaves is right at the height
it names.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.aggregation.fixtures import (
    AggregatorSetup,
    Script,
    garbage,
    leaves_nothing_open,
    message,
    node,
    of_another,
    parsed_key,
    public_key,
    refuses,
    request,
    signature,
    signs,
    silent,
    wrong,
)
from tests.aggregation.memory_archive import MemoryArchive
from tests.aggregation.virtual_time import run
from warpseal import bls
from warpseal.aggregation.errors import QuorumImpossible, QuorumNotReached
from warpseal.aggregation.service import AggregationRequest
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.ids import NodeID
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set, required_weight

MESSAGE = message()
KEYS = range(1, 13)
ACTS = 6


class Scenario:
    """One archive, one network; daemons come and go, and the set changes from act to act."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.archive = MemoryArchive(commit_s=random.choice([0.0, 0.01, 2.0]))
        self.replies = 0
        self.setup = self.daemon()

    async def run_rounds(self) -> None:
        for act in range(ACTS):
            if act and self.random.random() < 0.5:
                self.setup = self.daemon()
            self.setup.sets.latest = self.setup.members = self.members()
            self.setup.network.scripts = {number: self.behaviour() for number in KEYS}
            for _ in range(self.random.randrange(4)):
                self.spoil()
            async with leaves_nothing_open(self.setup):
                requests = [self.draw_request() for _ in range(self.random.randrange(1, 4))]
                await asyncio.gather(*(self.ask(request_) for request_ in requests))

    async def ask(self, aggregation_request: AggregationRequest) -> None:
        members, list_count = self.setup.members, len(self.archive.lists)
        with suppress(QuorumNotReached, QuorumImpossible):
            result = await self.setup.service.aggregate(aggregation_request)
            self.replies += 1
            assert_right(result.signed_message, members, aggregation_request.quorum)
        for shares in self.archive.lists[list_count:]:
            keys = [share.public_key for share in shares]
            assert len(set(keys)) == len(keys)
            assert all(members.index_of_key(key) is not None for key in keys)

    def daemon(self) -> AggregatorSetup:
        return AggregatorSetup(
            self.members(), seed=self.random.randrange(100), archive=self.archive
        )

    def members(self) -> CanonicalValidatorSet:
        chosen = self.random.sample(KEYS, self.random.randrange(2, len(KEYS) + 1))
        entries: list[tuple[NodeID, bytes | None, int]] = [
            (node(number), public_key(number), self.random.choice([1, 5, 10, 10, 10, 2**60]))
            for number in chosen
        ]
        if self.random.random() < 0.2:
            entries.append((NodeID(bytes(20)), None, 5))
        return build_canonical_set(entries)

    def behaviour(self) -> Script:
        good = [signs(), signs(), signs(0.2), silent, refuses(0)]
        return self.random.choice([*good, wrong(), garbage, of_another(self.random.choice(KEYS))])

    def draw_request(self) -> AggregationRequest:
        return request(
            self.random.choice([1, 34, 50, 67, 80, 100]),
            self.random.choice([0, 0, 10]),
            justification=self.random.choice([b"", b"", b"proof"]),
            timeout_s=self.random.choice([0.3, 3.0]),
            is_pinned=self.random.random() < 0.3,
            stored_only=self.random.random() < 0.4,
        )

    def spoil(self) -> None:
        """Put bytes into the archive that no validator signed."""
        random, number = self.random, self.random.choice(KEYS)
        raw = random.choice(
            [
                signature(number, b"lie"),
                signature(random.choice(KEYS), MESSAGE.raw),
                b"\xff" * 96,
                b"",
            ]
        )
        if random.random() < 0.6:
            share = StoredShare(public_key(number), raw, random.random() < 0.5)
            self.archive.shares.setdefault(MESSAGE.id, {})[share.public_key] = share
            return
        keys = tuple(public_key(signer) for signer in random.sample(KEYS, random.randrange(1, 6)))
        signatures = [stored.signature for stored in self.archive.signatures.get(MESSAGE.id, [])]
        signed = StoredSignature(keys, random.choice([raw, *signatures]))
        self.archive.signatures.setdefault(MESSAGE.id, []).append(signed)


def assert_right(raw: bytes, members: CanonicalValidatorSet, quorum: int) -> None:
    """Assert that exactly the named members of the set signed, with enough weight."""
    signed = SignedMessage.parse(raw)
    chosen = [members.validators[index] for index in signed.signer_indices]
    assert signed.unsigned == MESSAGE
    assert sum(validator.weight for validator in chosen) >= required_weight(
        members.total_weight, quorum
    )
    assert bls.verify_aggregate(
        [parsed_key(validator.public_key) for validator in chosen], MESSAGE.raw, signed.signature
    )


# Two rounds of one message found the same bad shares, and the second gave up, since the first had
# dropped them.
@example(2847533)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_every_result_is_right_for_its_set_whatever_is_stored(seed: int) -> None:
    run(Scenario(Random(seed)).run_rounds())


def test_random_scenarios_have_results() -> None:
    scenarios = [Scenario(Random(seed)) for seed in range(5)]
    for scenario in scenarios:
        run(scenario.run_rounds())
    assert sum(scenario.replies for scenario in scenarios) >= 20
