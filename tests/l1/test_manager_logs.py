"""Registrations in the logs of a manager's chain, newest first, in ranges that nodes accept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tests import paths
from tests.eventually import TIMEOUT_S, stopped_clock
from warpseal.forwarding.evm.log_filter import SEND_WARP_MESSAGE, EvmLog, LogFilter, LogsRefused
from warpseal.l1.errors import ManagerLogsProgress
from warpseal.l1.manager_logs import ManagerLogs, parse_registration_log
from warpseal.l1.settings import L1Settings
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID, SubnetID, ValidationID, parse_id
from warpseal.warp.l1_messages import PChainOwner, RegisterL1Validator
from warpseal.warp.message import WARP_PRECOMPILE, AddressedCall, UnsignedMessage

LOCALNET = paths.LOCALNET
CHAIN = ChainID(parse_id("vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj"))
MANAGER = bytes.fromhex("4ac1d98d9cef99ec6546ded4bd550b0b287aad6d")
REGISTERED = ValidationID(parse_id("2JRupqWf57oyuM9ARJ218CTRSKvfzcQaKYh6x4fHMjonVzY2Fd"))
PATIENT = L1Settings(logs_timeout_s=TIMEOUT_S)


@dataclass
class Chain:
    """An EVM chain: logs by block; ranges longer than `longest` are refused."""

    tip: int
    logs_at: dict[int, list[EvmLog]] = field(default_factory=dict)
    longest: int = 10**9
    is_away: bool = False
    requested: list[tuple[int, int]] = field(default_factory=list)
    senders: set[bytes] = field(default_factory=set)
    on_read: Callable[[], None] = lambda: None

    async def block_number(self) -> int:
        if self.is_away:
            raise NodeUnavailable("eth_blockNumber")
        return self.tip

    async def logs(self, log_filter: LogFilter) -> tuple[EvmLog, ...]:
        self.on_read()
        await asyncio.sleep(0)
        assert log_filter.address == WARP_PRECOMPILE
        assert log_filter.topics[0] == SEND_WARP_MESSAGE
        self.senders.add(log_filter.topics[1])
        self.requested.append((log_filter.first, log_filter.last))
        if log_filter.last - log_filter.first + 1 > self.longest:
            raise LogsRefused
        return tuple(self._between(log_filter.first, log_filter.last))

    def _between(self, first: int, last: int) -> Iterable[EvmLog]:
        for block in sorted(self.logs_at):
            if first <= block <= last:
                yield from self.logs_at[block]


def registration(number: int) -> RegisterL1Validator:
    no_owner = PChainOwner(0, ())
    return RegisterL1Validator(
        SubnetID(bytes(32)), number.to_bytes(20, "big"), bytes(48), 9, no_owner, no_owner, 1
    )


def log_of(block: int, payload: bytes, chain: ChainID = CHAIN) -> EvmLog:
    return EvmLog(
        block, UnsignedMessage.build(1, chain, AddressedCall(MANAGER, payload).encode()).raw
    )


def test_the_recorded_registration_is_in_the_recorded_logs() -> None:
    lines = [json.loads(line) for line in (LOCALNET / "l1.jsonl").read_text().splitlines()]
    logs = next(line["result"] for line in lines if line["method"] == "eth_getLogs")
    read = [EvmLog(int(item["blockNumber"], 16), bytes.fromhex(item["data"][2:])) for item in logs]
    registrations = [
        entry for entry in (parse_registration_log(CHAIN, log) for log in read) if entry is not None
    ]
    assert [entry.validation_id for entry in registrations] == [REGISTERED]


def test_other_messages_and_those_of_other_chains_are_no_registrations() -> None:
    payload = registration(1).encode()
    assert parse_registration_log(CHAIN, log_of(1, payload)) == registration(1)
    assert parse_registration_log(ChainID(bytes(32)), log_of(1, payload)) is None
    assert parse_registration_log(CHAIN, log_of(1, b"other")) is None
    assert parse_registration_log(CHAIN, EvmLog(1, b"")) is None
    assert parse_registration_log(CHAIN, EvmLog(1, bytes(96))) is None


async def test_logs_are_read_newest_first_and_once() -> None:
    chain = Chain(tip=100_000, logs_at={99_500: [log_of(99_500, registration(1).encode())]})
    logs = ManagerLogs({CHAIN: chain}, PATIENT)
    log = await logs.find(registration(1).validation_id, CHAIN, MANAGER)
    assert log is not None
    assert log.payload == registration(1).encode()
    assert chain.requested == [(98_001, 100_000)]
    assert chain.senders == {bytes(12) + MANAGER}
    chain.tip = 100_010
    chain.logs_at |= {
        100_005: [log_of(100_005, registration(2).encode())],
        7: [log_of(7, registration(3).encode())],
    }
    assert await logs.find(registration(2).validation_id, CHAIN, MANAGER) is not None
    assert chain.requested[1] == (100_001, 100_010)
    assert await logs.find(registration(3).validation_id, CHAIN, MANAGER) is not None
    spans = sorted(chain.requested)
    assert all(before[1] < after[0] for before, after in pairwise(spans))


async def test_the_ranges_grow_while_the_chain_accepts_them() -> None:
    chain = Chain(tip=99_999)
    assert await ManagerLogs({CHAIN: chain}, PATIENT).find(REGISTERED, CHAIN, MANAGER) is None
    spans = [last - first + 1 for first, last in chain.requested]
    assert spans == [2_000, 4_000, 8_000, 16_000, 32_000, 38_000]


async def test_after_the_oldest_block_only_new_blocks_are_read() -> None:
    chain = Chain(tip=100)
    logs = ManagerLogs({CHAIN: chain}, PATIENT)
    validation_id = registration(1).validation_id
    for _ in range(2):
        assert await logs.find(validation_id, CHAIN, MANAGER) is None
    assert chain.requested == [(0, 100)]
    chain.tip, chain.logs_at = 110, {105: [log_of(105, registration(1).encode())]}
    assert await logs.find(validation_id, CHAIN, MANAGER) is not None
    assert chain.requested == [(0, 100), (101, 110)]


async def test_a_chain_that_accepts_single_blocks_only_is_read() -> None:
    chain = Chain(tip=20, longest=1, logs_at={0: [log_of(0, registration(1).encode())]})
    logs = ManagerLogs({CHAIN: chain}, L1Settings())
    assert await logs.find(registration(1).validation_id, CHAIN, MANAGER) is not None


async def test_refused_ranges_are_split() -> None:
    chain = Chain(tip=5_000, longest=300, logs_at={10: [log_of(10, registration(1).encode())]})
    logs = ManagerLogs({CHAIN: chain}, L1Settings())
    assert await logs.find(registration(1).validation_id, CHAIN, MANAGER) is not None
    assert await logs.find(registration(9).validation_id, CHAIN, MANAGER) is None
    assert logs.progress(CHAIN, MANAGER) == ManagerLogsProgress(
        configured=True, from_block="0", to_block="5000"
    )


async def test_a_search_stops_at_its_timeout_and_the_next_search_continues_it() -> None:
    with stopped_clock() as clock:
        chain = Chain(
            tip=10_000_000,
            logs_at={0: [log_of(0, registration(1).encode())]},
            on_read=lambda: clock.advance(TIMEOUT_S / 6),
        )
        logs = ManagerLogs({CHAIN: chain}, PATIENT)
        assert await logs.find(registration(1).validation_id, CHAIN, MANAGER) is None
        first = logs.progress(CHAIN, MANAGER).from_block
        assert await logs.find(registration(1).validation_id, CHAIN, MANAGER) is None
        assert int(str(logs.progress(CHAIN, MANAGER).from_block)) < int(str(first)) < 10_000_000


async def test_an_unavailable_or_unconfigured_chain_has_no_registration() -> None:
    logs = ManagerLogs({CHAIN: Chain(tip=5, is_away=True)}, PATIENT)
    assert await logs.find(REGISTERED, CHAIN, MANAGER) is None
    assert await logs.find(REGISTERED, ChainID(bytes(32)), MANAGER) is None
    assert await logs.find(REGISTERED, CHAIN, b"short") is None
    assert logs.progress(ChainID(bytes(32)), MANAGER) == ManagerLogsProgress(configured=False)
    assert logs.has_chain(CHAIN)
    refused = ManagerLogs({CHAIN: Chain(tip=5, longest=0)}, PATIENT)
    assert await refused.find(REGISTERED, CHAIN, MANAGER) is None
