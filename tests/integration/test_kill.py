"""Daemons that are killed at any moment: nothing that they answered is lost, and no store is corrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic

import aiohttp
import pytest

from tests.eventually import until
from tests.integration.daemon import AGGREGATE_PATH, run_network, write_config_file
from tests.integration.forked_daemons import DaemonForker, run_daemon_forker
from tests.store.postgres import PostgresServer
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.simnet.values import SimMessage
from warpseal.store.access import open_read_only
from warpseal.store.integrity import IntegrityCheck
from warpseal.store.url import StoreUrl
from warpseal.warp.l1_messages import bootstrap_validation_id

KILLS = 200
LANES = 4
PATIENCE_S = 30.0
GET = "/v1/signatureAggregator/fuji/aggregateSignatures/"
# What took longer may have left before it was committed: nobody waits longer for that.
COMMIT_WAIT_S = 1.0
PLAN = Plan(validators=4, l1s=(L1Plan(shared=True),), messages=10_000, epoch_blocks=0)


@dataclass
class Lane:
    """The place of one daemon at a time: its store, and what it has answered in all its lives.

    number: also of the validator whose weight its P-Chain transactions change. got: their hashes.
    """

    network: SimulatedNetwork
    forker: DaemonForker
    number: int
    rnd: Random
    messages: Iterator[SimMessage]
    posted: list[SimMessage] = field(default_factory=list)
    got: list[str] = field(default_factory=list)

    @property
    def answers(self) -> int:
        """How many answers came."""
        return len(self.posted) + len(self.got)

    async def lives(self, number: int) -> None:
        """Let so many daemons live, one after the other."""
        for _ in range(number):
            await self.live()

    async def live(self) -> None:
        """Let a daemon live, ask it, and kill it at a moment by chance: while it starts, or after some answers."""
        async with self.forker.start() as life:
            if self.rnd.random() < 0.2:
                await asyncio.sleep(self.rnd.uniform(0.0, 0.3))
                return
            asking = asyncio.create_task(self._ask(await life.listening))
            enough = self.answers + self.rnd.randint(0, 8)
            await until(lambda: self.answers >= enough or asking.done())
            await asyncio.sleep(self.rnd.uniform(0.0, 0.02))
            life.kill()
            await asking

    async def asked_again(self) -> list[int]:
        """Ask a last daemon for everything that was ever answered; return the statuses."""
        async with self.forker.start() as life:
            async with aiohttp.ClientSession(await life.listening) as session:
                statuses = [
                    await self._status(session.post(AGGREGATE_PATH, json=_body(message))) for message in self.posted
                ]
                statuses += [await self._status(session.get(GET + tx_hash)) for tx_hash in self.got]
            assert await life.stop() == 0, self.forker.log()
        return statuses

    async def _ask(self, api_url: str) -> None:
        async with aiohttp.ClientSession(api_url) as session, asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(self._post(session))
            tasks.create_task(self._get(session))

    async def _post(self, session: aiohttp.ClientSession) -> None:
        """Ask for one message after another until the daemon is gone."""
        for message in self.messages:
            began = monotonic()
            try:
                status = await self._status(session.post(AGGREGATE_PATH, json=_body(message)))
            except aiohttp.ClientError:
                return
            assert status == 200
            if monotonic() - began < COMMIT_WAIT_S:
                self.posted.append(message)

    async def _get(self, session: aiohttp.ClientSession) -> None:
        """Change a weight, and poll for the message of that; the change before it is superseded by this one."""
        l1 = self.network.subnets[1].subnet_id
        transaction = self.network.p_chain.set_weight(
            bootstrap_validation_id(l1, self.number), self.rnd.randint(900, 1100)
        )
        status = 0
        while status != 201:
            began = monotonic()
            try:
                status = await self._status(session.get(GET + transaction.text))
            except aiohttp.ClientError:
                return
            assert status in (201, 404, 503)
        if monotonic() - began < COMMIT_WAIT_S:
            self.got.append(transaction.text)

    async def _status(self, asking: aiohttp.client._RequestContextManager) -> int:
        async with asyncio.timeout(PATIENCE_S), asking as response:
            await response.read()
            return response.status


def _body(message: SimMessage) -> dict[str, str]:
    return {"message": message.unsigned.raw.hex()}


def asked(network: SimulatedNetwork) -> int:
    return sum(validator.counts.app_requests for validator in network.validators)


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Give a test as many empty stores as it wants: their URLs."""
    numbers = count()
    if request.param == "sqlite":
        yield lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    made: list[str] = []

    def make() -> str:
        made.append(server.create_database())
        return made[-1]

    yield make
    for url in made:
        server.drop_database(url)


async def test_no_answered_signature_is_lost_in_200_kills(fresh_store_url: Callable[[], str], tmp_path: Path) -> None:
    async with run_network(PLAN) as network, AsyncExitStack() as stack:
        messages = iter(network.messages_of(network.subnets[1].subnet_id))
        lanes: dict[str, Lane] = {}
        for number in range(LANES):
            url = fresh_store_url()
            file = write_config_file(network, tmp_path / str(number), {"store-url": url})
            forker = await stack.enter_async_context(run_daemon_forker(file))
            lanes[url] = Lane(network, forker, number, Random(number), messages)
        async with asyncio.TaskGroup() as tasks:
            for lane in lanes.values():
                tasks.create_task(lane.lives(KILLS // LANES))
        for url, lane in lanes.items():
            before = asked(network)
            assert await lane.asked_again() == [200] * len(lane.posted) + [201] * len(lane.got)
            assert asked(network) == before
            faults: list[str] = []
            with open_read_only(StoreUrl.parse(url)) as connection:
                counted = IntegrityCheck(connection, faults.append).run()
            assert faults == []
            assert counted.signatures >= lane.answers
        # The moments were such that something could have been lost.
        assert sum(len(lane.posted) for lane in lanes.values()) > KILLS
        assert sum(len(lane.got) for lane in lanes.values()) > KILLS / 5
