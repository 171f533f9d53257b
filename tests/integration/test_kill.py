"""Daemons that are killed at any moment: nothing that they answered is lost, and no store is
corrupt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic

import aiohttp
import pytest

from tests.eventually import TIMEOUT_S, until
from tests.integration.daemon import (
    AGGREGATE_PATH,
    count_signature_requests,
    run_network,
    write_config_file,
)
from tests.integration.process import start_command
from tests.store.postgres import PostgresServer
from warpseal.store.access import open_read_only
from warpseal.store.integrity import IntegrityCheck
from warpseal.store.url import StoreUrl
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

# Kills for each kind of store; both share most of the code.
KILLS = {"sqlite": 120, "postgresql": 80}
# Longer than a response takes, so that the polls do not use up the processor.
POLL_S = 0.02
SERIES = 4
GET = "/v1/signatureAggregator/fuji/aggregateSignatures/"
# The daemon waits this long for the commit; a later response may have been sent before it.
COMMIT_WAIT_S = 1.0
PLAN = Plan(validators=4, l1s=(L1Plan(shared=True),), messages=10_000, epoch_blocks=0)


@dataclass
class DaemonSeries:
    """Daemons on one store, one after another, and the requests that they answered.

    number: index of the validator whose weight P-Chain transactions change.
    transaction_ids: hashes of these.
    successful_gets: also responses that came too late to be in `transaction_ids`.
    is_killed: whether the daemon was killed that is asked; another process may have its port then.
    """

    network: SimulatedNetwork
    config: Path
    number: int
    rnd: Random
    messages: Iterator[SimMessage]
    signed_messages: list[SimMessage] = field(default_factory=list)
    transaction_ids: list[str] = field(default_factory=list)
    successful_posts: int = 0
    successful_gets: int = 0
    is_killed: bool = False

    @property
    def responses(self) -> int:
        """The number of responses that must be in the store."""
        return len(self.signed_messages) + len(self.transaction_ids)

    async def run(self, number: int) -> None:
        """Run and kill so many daemons, one after another."""
        for _ in range(number):
            await self.run_one()

    async def run_one(self) -> None:
        """Run a daemon, send requests, and kill it at a random moment: while it starts, or after
        some responses.
        """
        async with start_command("serve", "--config", self.config) as daemon:
            if self.rnd.random() < 0.2:
                await asyncio.sleep(self.rnd.uniform(0.0, 0.3))
                return
            api_url, _ = await daemon.listening()
            self.is_killed = False
            request = asyncio.create_task(self._ask(api_url))
            enough = self.responses + self.rnd.randint(0, 4)
            await until(lambda: self.responses >= enough or request.done())
            await asyncio.sleep(self.rnd.uniform(0.0, 0.02))
            self.is_killed = True
            daemon.kill()
            await request

    async def repeat_all(self) -> list[int]:
        """Repeat every answered request at a last daemon; return the statuses."""
        async with start_command("serve", "--config", self.config) as daemon:
            api_url, _ = await daemon.listening()
            async with aiohttp.ClientSession(api_url) as session:
                statuses = [
                    await self._status(session.post(AGGREGATE_PATH, json=_body(message)))
                    for message in self.signed_messages
                ]
                statuses += [
                    await self._status(session.get(GET + tx_hash))
                    for tx_hash in self.transaction_ids
                ]
            daemon.terminate()
            assert await daemon.ended() == 0, "".join(daemon.stderr)
        return statuses

    async def _ask(self, api_url: str) -> None:
        async with aiohttp.ClientSession(api_url) as session, asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(self._post(session))
            tasks.create_task(self._get(session))

    async def _post(self, session: aiohttp.ClientSession) -> None:
        """Aggregate message after message until the daemon is gone."""
        for message in self.messages:
            began = monotonic()
            try:
                status = await self._status(session.post(AGGREGATE_PATH, json=_body(message)))
            except aiohttp.ClientError:
                return
            if status == 404 and self.is_killed:
                return
            assert status == 200
            self.successful_posts += 1
            if monotonic() - began < COMMIT_WAIT_S:
                self.signed_messages.append(message)

    async def _get(self, session: aiohttp.ClientSession) -> None:
        """Change a weight, which supersedes the change before it, and poll for its message."""
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
            if status == 404 and self.is_killed:
                return
            assert status in (201, 404, 503)
            await asyncio.sleep(POLL_S)
        self.successful_gets += 1
        if monotonic() - began < COMMIT_WAIT_S:
            self.transaction_ids.append(transaction.text)

    async def _status(self, asking: aiohttp.client._RequestContextManager) -> int:
        async with asyncio.timeout(TIMEOUT_S), asking as response:
            await response.read()
            return response.status


def _body(message: SimMessage) -> dict[str, str]:
    return {"message": message.unsigned.raw.hex()}


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Return a function that creates an empty store and returns its URL."""
    numbers = count()
    if request.param == "sqlite":
        yield lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    urls: list[str] = []

    def make() -> str:
        urls.append(server.create_database())
        return urls[-1]

    yield make
    for url in urls:
        server.drop_database(url)


async def test_no_answered_signature_is_lost_in_200_kills(
    fresh_store_url: Callable[[], str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kills = KILLS[request.node.callspec.params["fresh_store_url"]]
    async with run_network(PLAN) as network:
        messages = iter(network.messages_of(network.subnets[1].subnet_id))
        series: dict[str, DaemonSeries] = {}
        for number in range(SERIES):
            url = fresh_store_url()
            file = write_config_file(network, tmp_path / str(number), {"store-url": url})
            series[url] = DaemonSeries(network, file, number, Random(number), messages)
        async with asyncio.TaskGroup() as tasks:
            for daemons in series.values():
                tasks.create_task(daemons.run(kills // SERIES))
        for url, daemons in series.items():
            before = count_signature_requests(network)
            assert await daemons.repeat_all() == [200] * len(daemons.signed_messages) + [201] * len(
                daemons.transaction_ids
            )
            assert count_signature_requests(network) == before
            failures: list[str] = []
            with open_read_only(StoreUrl.parse(url)) as connection:
                counted = IntegrityCheck(connection, failures.append).run()
            assert failures == []
            assert counted.signatures >= daemons.responses
        # Enough responses came before a kill.
        assert sum(daemons.successful_posts for daemons in series.values()) > kills
        assert sum(daemons.successful_gets for daemons in series.values()) > kills / 5
