"""`warpseal simnet --l1-story`: the transactions of an L1, with requests for an aggregator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from warpseal.warp.ids import SubnetID, ValidationID, id_text
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan

SCENARIO_L1: Final = L1Plan(validators=4, unconverted=True, spare=1)

HELP: Final = """\
L1 scenario (--l1-story): one more subnet is converted to an L1. A validator is registered, changes
its weight twice, is funded, disabled and removed. Each transaction is issued first and accepted
--story-pace seconds later. Then one epoch passes, because contracts verify with the validators at
the P-Chain height of their epoch. Each step prints the hash of the transaction and a URL for GET,
and the expected status:
  issued                         404: unknown or not accepted yet; clients poll
  conversion, registration       201: the message for the L1's manager
  weight, until the next one     201; afterwards 201 with "superseded" if it was requested in
                                 time, else 400
  funding, disabling             400: the transaction has no message
  removal                        201: "not registered", with the proof of how the validation started
"""


@dataclass(frozen=True, slots=True)
class _Step:
    """A transaction.

    issue: the function that issues the transaction without accepting it.
    afterwards: the status of a GET after its acceptance.
    """

    title: str
    issue: Callable[[], Transaction]
    afterwards: str


class L1Scenario:
    """Issues and accepts the transactions for the last subnet of a network."""

    def __init__(
        self, network: SimulatedNetwork, api_url: str, pace_s: float, say: Callable[[str], None]
    ) -> None:
        """api_url: URL of the aggregator in printed lines; say: prints a line."""
        self._network = network
        self._api_url = api_url
        self._pace_s = pace_s
        self._say = say
        self._issued: list[Transaction] = []

    @property
    def subnet_id(self) -> SubnetID:
        """The subnet that becomes an L1."""
        return self._network.subnets[-1].subnet_id

    async def run(self) -> None:
        """Run all steps, waiting one pace before each action."""
        self._say(f"scenario: subnet {id_text(self.subnet_id)} becomes an L1")
        steps = list(self._steps())
        for number, step in enumerate(steps, start=1):
            await asyncio.sleep(self._pace_s)
            issued = step.issue()
            self._issued.append(issued)
            self._say(
                f"scenario {number}/{len(steps)}: {step.title}: {issued.kind} {issued.text} is"
                " issued"
            )
            self._say(f"  404: GET {self._path(issued)}")
            await asyncio.sleep(self._pace_s)
            height = self._network.p_chain.accept(issued)
            self._network.advance(self._network.plan.epoch_blocks)
            self._say(
                f"scenario {number}/{len(steps)}: {issued.text} is accepted at height {height}"
            )
            self._say(f"  {step.afterwards}: GET {self._path(issued)}")
        self._say("scenario: complete; the network continues until it is stopped")

    def _steps(self) -> Iterator[_Step]:
        chain = self._network.p_chain
        yield _Step(
            "conversion",
            lambda: chain.convert(self.subnet_id, range(*self._initial), later=True),
            "201",
        )
        yield _Step(
            "registration", lambda: chain.register(self.subnet_id, weight=500, later=True), "201"
        )
        yield _Step("weight", lambda: chain.set_weight(self._validation, 700, later=True), "201")
        yield _Step(
            "weight again",
            lambda: chain.set_weight(self._validation, 900, later=True),
            "201, and the previous change is superseded",
        )
        yield _Step(
            "funding",
            lambda: chain.increase_balance(self._validation, 10**9, later=True),
            "400, no message",
        )
        yield _Step(
            "disabling", lambda: chain.disable(self._validation, later=True), "400, no message"
        )
        yield _Step("removal", lambda: chain.remove(self._validation, later=True), "201")

    @property
    def _validation(self) -> ValidationID:
        validation_id = self._issued[1].validation_id
        assert validation_id is not None
        return validation_id

    @property
    def _initial(self) -> tuple[int, int]:
        """The first and the last index (exclusive) of the initial validators.

        The spare node follows them.
        """
        first = min(
            node.index for node in self._network.validators if self.subnet_id in node.subnets
        )
        return first, first + (SCENARIO_L1.validators or 0)

    def _path(self, transaction: Transaction) -> str:
        network = "mainnet" if self._network.network_id == 1 else "fuji"
        endpoint = f"{self._api_url}/v1/signatureAggregator/{network}/aggregateSignatures"
        return f"{endpoint}/{transaction.text}"
