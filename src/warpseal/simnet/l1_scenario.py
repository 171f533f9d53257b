"""`warpseal simnet --l1-story`: the life of one L1, told transaction by transaction, with what to ask an aggregator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from warpseal.simnet.ledger import Transaction
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan
from warpseal.warp.ids import SubnetID, ValidationID, id_text

SCENARIO_L1: Final = L1Plan(validators=4, unconverted=True, spare=1)

HELP: Final = """\
The story of an L1 (--l1-story): one more subnet is converted, gets a validator, changes its weight twice, funds it,
disables it and removes it. Each transaction is first only issued, then accepted one pace (--story-pace) later; an epoch
passes, since contracts verify with the validators of their epoch's P-Chain height. Every step prints the transaction's
hash and what to GET; ask while it is told, and again afterwards:
  issued                         404: unknown or not accepted yet; clients poll on it
  conversion, registration       201: what the L1's manager is waiting for
  a weight, until the next one   201; later 201 with "superseded" if it was asked for in time, else 400
  funding, disabling             400: such a transaction has no message
  removal                        201: "not registered any more", with the proof of where the validation began
"""


@dataclass(frozen=True, slots=True)
class _Step:
    """One transaction. issue: makes it, not accepted yet; afterwards: what a GET answers once it is accepted."""

    title: str
    issue: Callable[[], Transaction]
    afterwards: str


class L1Scenario:
    """Tells the story of the last subnet of a network."""

    def __init__(self, network: SimulatedNetwork, api_url: str, pace_s: float, say: Callable[[str], None]) -> None:
        """api_url: of the aggregator that the reader asks; say: takes a line."""
        self._network = network
        self._api_url = api_url
        self._pace_s = pace_s
        self._say = say
        self._told: list[Transaction] = []

    @property
    def subnet_id(self) -> SubnetID:
        """The subnet that becomes an L1."""
        return self._network.subnets[-1].subnet_id

    async def tell(self) -> None:
        """Tell it, one pace per step."""
        self._say(f"story: subnet {id_text(self.subnet_id)} becomes an L1")
        chapters = list(self._chapters())
        for number, chapter in enumerate(chapters, start=1):
            await asyncio.sleep(self._pace_s)
            issued = chapter.issue()
            self._told.append(issued)
            self._say(f"story {number}/{len(chapters)}: {chapter.title}: {issued.kind} {issued.text} is issued")
            self._say(f"  404: GET {self._path(issued)}")
            await asyncio.sleep(self._pace_s)
            height = self._network.p_chain.accept(issued)
            self._network.advance(self._network.plan.epoch_blocks)
            self._say(f"story {number}/{len(chapters)}: {issued.text} is accepted at height {height}")
            self._say(f"  {chapter.afterwards}: GET {self._path(issued)}")
        self._say("story: told; the network runs on until it is stopped")

    def _chapters(self) -> Iterator[_Step]:
        chain = self._network.p_chain
        yield _Step("conversion", lambda: chain.convert(self.subnet_id, range(*self._initial), later=True), "201")
        yield _Step("registration", lambda: chain.register(self.subnet_id, weight=500, later=True), "201")
        yield _Step("weight", lambda: chain.set_weight(self._validation, 700, later=True), "201")
        yield _Step(
            "weight again",
            lambda: chain.set_weight(self._validation, 900, later=True),
            "201, and the one before is old",
        )
        yield _Step(
            "funding", lambda: chain.increase_balance(self._validation, 10**9, later=True), "400, it has no message"
        )
        yield _Step("disabling", lambda: chain.disable(self._validation, later=True), "400, it has no message")
        yield _Step("removal", lambda: chain.remove(self._validation, later=True), "201")

    @property
    def _validation(self) -> ValidationID:
        validation_id = self._told[1].validation_id
        assert validation_id is not None
        return validation_id

    @property
    def _initial(self) -> tuple[int, int]:
        """The first and the last index (exclusive) of the initial validators; the spare node comes behind."""
        first = min(one.index for one in self._network.validators if self.subnet_id in one.subnets)
        return first, first + (SCENARIO_L1.validators or 0)

    def _path(self, transaction: Transaction) -> str:
        network = "mainnet" if self._network.network_id == 1 else "fuji"
        return f"{self._api_url}/v1/signatureAggregator/{network}/aggregateSignatures/{transaction.text}"
