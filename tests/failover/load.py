"""Load on a daemon while its database fails over: signing, forwarded calls that usage counts, and
their results.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any

import aiohttp

from tests.integration.daemon import AGGREGATE_PATH
from warpseal_simnet.values import SimMessage

USAGE_PATH = "/v1/primaryNetworkRpcUsageMetrics?network=fuji&timeInterval=monthly"
_NODE_PATH = "/ext/bc/P"
_HEIGHT = {"jsonrpc": "2.0", "id": 1, "method": "platform.getHeight", "params": {}}
_RATE = 50
# As many as are new among the requests of a second.
_NEW_RATE = 10
_CALLS_RATE = 5
_REPEATABLE = 2_000


@dataclass
class Load:
    """Requests at a rate, of which a fifth are for new messages, and all that was answered.

    signed: the signed messages by message.
    statuses: number of responses by status and code.
    latencies_s: latencies of successful requests.
    calls: forwarded calls that were answered.
    """

    session: aiohttp.ClientSession
    urls: list[str]
    messages: Iterator[SimMessage]
    rnd: Random = field(default_factory=lambda: Random(1))
    signed: dict[int, set[str]] = field(default_factory=dict)
    by_number: list[SimMessage] = field(default_factory=list)
    statuses: Counter[tuple[int, str]] = field(default_factory=Counter)
    without_retry: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    calls: int = 0

    async def run(self) -> None:
        """Send until cancelled; then wait for all responses."""
        tasks: set[asyncio.Task[None]] = set()
        number, began = 0, monotonic()
        try:
            while True:
                task = asyncio.create_task(self._post(is_new=number % (_RATE // _NEW_RATE) == 0))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                if number % (_RATE // _CALLS_RATE) == 0:
                    task = asyncio.create_task(self._call())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                number += 1
                await asyncio.sleep(began + number / _RATE - monotonic())
        finally:
            await asyncio.gather(*tasks)

    def _url(self) -> str:
        return self.rnd.choice(self.urls)

    async def _post(self, *, is_new: bool) -> None:
        if is_new or not self.signed:
            self.by_number.append(next(self.messages))
            number = len(self.by_number) - 1
        else:
            number = self.rnd.choice([*self.signed][-_REPEATABLE:])
        began = monotonic()
        body = {"message": self.by_number[number].unsigned.raw.hex()}
        status, reply = await self._send(self._url() + AGGREGATE_PATH, body)
        if status == 200:
            self.signed.setdefault(number, set()).add(reply["signed-message"])
            self.latencies_s.append(monotonic() - began)

    async def _call(self) -> None:
        status, _ = await self._send(self._url() + _NODE_PATH, _HEIGHT)
        self.calls += status == 200

    async def _send(self, url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            async with self.session.post(url, json=body) as response:
                reply = await response.json()
                status, code = response.status, str(reply.get("code", ""))
                if status != 200 and "Retry-After" not in response.headers:
                    self.without_retry.append(f"{status} {reply}")
        except (aiohttp.ClientError, TimeoutError) as error:
            reply, status, code = {}, 0, type(error).__name__
        self.statuses[status, code] += 1
        return status, reply


async def usage_total(session: aiohttp.ClientSession, url: str) -> int:
    """Return how many calls the usage counts; -1 if it cannot be read now."""
    async with session.get(url + USAGE_PATH) as response:
        if response.status != 200:
            return -1
        buckets = (await response.json())["metrics"]
    return sum(value["totalRequests"] for bucket in buckets for value in bucket["values"])
