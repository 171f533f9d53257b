"""Clients of the forwarded routes that know which usage their calls make."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tests.eventually import TIMEOUT_S

SUCCESSFUL, INVALID, FAILED = "successful", "invalid", "failed"
GROUPS: Final = ("requestPath", "rpcMethod", "responseCode", "country", "continent", "userAgent")
AGENTS: Final = {
    "curl/8.5.0": "curl",
    "viem/2.38.5": "viem",
    "python-requests/2.32 (x; y)": "python-requests",
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0": "Firefox",
}
COUNTRIES: Final = {"CH": "EU", "US": "NA", "JP": "AS", "T1": "XX", "XX": "XX"}
MAX_BATCH: Final = 40
CREDITS: Final = {"eth_chainId": 1, "info.getNetworkID": 1, "info.getNothing": 1}


@dataclass(frozen=True)
class Call:
    """A JSON-RPC call and its usage.

    label: label of its method.
    """

    method: str
    params: Any
    outcome: str = SUCCESSFUL
    label: str = ""


EVM_CALLS: Final = (
    Call("eth_chainId", []),
    Call("eth_getBalance", ["0x" + "11" * 20, "latest"]),
    Call("eth_getBalance", ["0x11", "latest"], INVALID),
    Call("warpseal_unknown", [], INVALID, "other"),
    Call("eth_call", [{"to": "0x" + "11" * 20, "data": "0x"}, "latest"]),
)
GATEWAY_CALLS: Final = {
    "/ext/bc/P": (
        Call("platform.getHeight", {}),
        Call("platform.getNothing", {}, INVALID, "other"),
    ),
    "/ext/info": (Call("info.getNetworkID", {}), Call("info.getNothing", {}, INVALID, "other")),
}


@dataclass
class Expected:
    """The usage that clients made, by group and value."""

    requests: dict[str, Counter[str]] = field(
        default_factory=lambda: {group: Counter() for group in GROUPS}
    )
    invalid: dict[str, Counter[str]] = field(
        default_factory=lambda: {group: Counter() for group in GROUPS}
    )
    credits: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.requests["requestPath"].total()

    def add_all(self, other: Expected) -> None:
        """Add the usage of other clients."""
        for group in GROUPS:
            self.requests[group] += other.requests[group]
            self.invalid[group].update(other.invalid[group])
        self.credits += other.credits

    def add(self, labels: dict[str, str], outcome: str, method: str = "", calls: int = 1) -> None:
        """Add calls with these labels."""
        for group in GROUPS:
            self.requests[group][labels[group]] += calls
            self.invalid[group][labels[group]] += calls * (outcome == INVALID)
        credits = CREDITS.get(method, 10) * calls
        self.credits["used"] += credits
        self.credits["wasted"] += credits * (outcome == INVALID)


class UsageClient:
    """One client with a user agent and a country.

    evm_path: the route of the EVM chain.
    """

    def __init__(self, session: aiohttp.ClientSession, evm_path: str, seed: int) -> None:
        self.expected = Expected()
        self._session = session
        self._evm_path = evm_path
        self._random = random.Random(seed)
        self._agent = sorted(AGENTS)[seed % len(AGENTS)]
        self._country = sorted(COUNTRIES)[seed % len(COUNTRIES)]
        self._headers = {
            "User-Agent": self._agent,
            "CF-IPCountry": self._country,
            "X-Forwarded-For": f"203.0.113.{seed + 1}",
        }

    def has_called(self) -> bool:
        """Return whether several requests were answered."""
        return self.expected.total > MAX_BATCH

    async def run(self, url: Callable[[], str], actions: int) -> None:
        """Make random requests."""
        kinds = (self._single, self._single, self._gateway, self._batch, self._bad, self._probe)
        for _ in range(actions):
            await self._random.choice(kinds)(url())
        await self._socket(url())

    async def _single(self, url: str) -> None:
        call = self._random.choice(EVM_CALLS)
        await self._post(url, self._evm_path, encode(call), [call])

    async def _gateway(self, url: str) -> None:
        path, calls = self._random.choice(sorted(GATEWAY_CALLS.items()))
        call = self._random.choice(calls)
        await self._post(url, path, encode(call), [call])

    async def _batch(self, url: str) -> None:
        calls = self._random.choices(EVM_CALLS, k=self._random.randint(1, MAX_BATCH))
        body = b"[" + b",".join(encode(call, number) for number, call in enumerate(calls)) + b"]"
        await self._post(url, self._evm_path, body, calls)

    async def _bad(self, url: str) -> None:
        path = self._random.choice((self._evm_path, *GATEWAY_CALLS))
        body, kind, status = self._random.choice(
            ((b"{", "application/json", 200), (b"{}", "text/plain", 415))
        )
        async with self._session.post(
            url + path, data=body, headers={**self._headers, "Content-Type": kind}
        ) as reply:
            assert reply.status == status
        self.expected.add(self._labels(path, "none", status), INVALID)

    async def _probe(self, url: str) -> None:
        async with self._session.options(url + self._evm_path, headers=self._headers) as reply:
            await reply.read()
        async with self._session.get(url + self._evm_path, headers=self._headers) as reply:
            assert reply.status == 200

    async def _socket(self, url: str) -> None:
        calls = self._random.choices(EVM_CALLS, k=self._random.randint(1, 10))
        path = self._evm_path.removesuffix("/rpc") + "/ws"
        async with self._session.ws_connect(url + path, headers=self._headers) as socket:
            for number, call in enumerate(calls):
                await socket.send_str(encode(call, number).decode())
                assert (await socket.receive_json(timeout=TIMEOUT_S))["id"] == number
                self._expect(path, call, 101)

    async def _post(self, url: str, path: str, body: bytes, calls: Sequence[Call]) -> None:
        headers = {**self._headers, "Content-Type": "application/json"}
        async with self._session.post(url + path, data=body, headers=headers) as reply:
            await reply.read()
            assert reply.status == 200
        for call in calls:
            self._expect(path, call, 200)

    def _expect(self, path: str, call: Call, status: int) -> None:
        self.expected.add(
            self._labels(path, call.label or call.method, status), call.outcome, call.method
        )

    def _labels(self, path: str, method: str, status: int) -> dict[str, str]:
        values = (
            path,
            method,
            str(status),
            self._country,
            COUNTRIES[self._country],
            AGENTS[self._agent],
        )
        return dict(zip(GROUPS, values, strict=True))


def encode(call: Call, number: int = 1) -> bytes:
    """Return a call as JSON."""
    return json.dumps(
        {"jsonrpc": "2.0", "id": number, "method": call.method, "params": call.params}
    ).encode()


async def run_clients(
    clients: Sequence[UsageClient], url: Callable[[], str], actions: int
) -> Expected:
    """Let clients make requests at the same time, and return the usage of all."""
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.run(url, actions))
    total = Expected()
    for client in clients:
        total.add_all(client.expected)
    return total
