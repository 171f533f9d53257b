"""Keeping connections open: one pong for all waiting pings, own pings, and the silence timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import stopped_clock, until
from tests.peers.fixtures import (
    Requester,
    all_connected,
    client,
    introduce,
    let_pass,
    on_a_thread,
    plan,
    started_network,
)
from warpseal.peers import pong_scheduler
from warpseal.peers.network import PeerNetwork
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.peer import PeerSession
from warpseal_simnet.settings import NodeSettings

NEVER_S = 1_000.0


def session(network: SimulatedNetwork) -> PeerSession:
    """Return the first validator's side of its only connection."""
    (connection,) = network._listeners[0].admitted.values()
    session = connection._session
    assert session is not None
    return session


@asynccontextmanager
async def silent_network(folder: Path) -> AsyncIterator[tuple[SimulatedNetwork, PeerNetwork]]:
    """Connect to one validator that pings only when a test says so."""
    settings = NodeSettings(ping_interval_s=NEVER_S, read_timeout_s=NEVER_S)
    async with started_network(
        folder, plan(1, settings=settings), ping_interval_s=1.0, silence_timeout_s=NEVER_S
    ) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        yield network, peers


def is_pong_owed(network: SimulatedNetwork) -> bool:
    return session(network)._ping_is_out


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_stalls_and_dropped_pongs_close_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = NodeSettings(ping_interval_s=0.1, read_timeout_s=0.6)
    network_plan = plan(4, "0-1:lost-pongs=1", settings=nodes)
    async with started_network(
        tmp_path, network_plan, ping_interval_s=0.09, silence_timeout_s=0.6
    ) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        bytes_received = sum(connection.bytes_received for connection in peers.connected.values())
        with stopped_clock() as clock:
            monkeypatch.setattr(pong_scheduler, "monotonic", lambda: clock.now_s)
            for _ in range(6):
                await let_pass(clock, 0.25)
                clock.advance(
                    0.15
                )  # A stall of the loop: all timers are overdue before a socket is read.
        assert peers.totals.disconnects == {}
        assert peers.totals.dials == 4
        assert (
            sum(connection.bytes_received for connection in peers.connected.values())
            > bytes_received
        )


async def test_stalls_make_no_extra_pong(tmp_path: Path) -> None:
    nodes = NodeSettings(ping_interval_s=0.1, read_timeout_s=NEVER_S)
    network_plan = plan(4, "0-1:lost-pongs=1", settings=nodes)
    timeouts = {"ping_interval_s": 0.09, "silence_timeout_s": NEVER_S}
    async with started_network(tmp_path, network_plan, allow_violations=True, **timeouts) as (
        network,
        peers,
    ):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        for _ in range(6):
            await asyncio.sleep(0.25)
            time.sleep(0.15)  # noqa: ASYNC251 (a stall of the loop is what is tested)
        assert peers.totals.disconnects == {}
        assert peers.totals.dials == 4
    # Pings that may have waited for long stay unanswered, on a busy machine several in a row.
    assert set(network.violations.by_kind()) <= {"unanswered_pings"}


async def test_two_pings_that_arrive_together_get_one_pong(tmp_path: Path) -> None:
    network_plan = plan(1, settings=NodeSettings(ping_interval_s=NEVER_S, read_timeout_s=NEVER_S))
    async with started_network(tmp_path, network_plan) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        for pings in (1, 2, 3):
            for _ in range(pings):
                session(network)._tick()
            await until(lambda: not is_pong_owed(network))
            await asyncio.sleep(0.05)
        assert peers.totals.disconnects == {}


async def test_a_ping_that_arrives_during_a_stall_shares_the_overdue_pong(tmp_path: Path) -> None:
    network_plan = plan(1, settings=NodeSettings(ping_interval_s=NEVER_S, read_timeout_s=NEVER_S))
    with on_a_thread(network_plan) as (network, call):
        async with client(network.network_id, tmp_path, pong_delay_s=0.1) as peers:
            introduce(peers, network.validators)
            await all_connected(peers, network.validators)
            await until(lambda: network.validators[0].counts.finished_handshakes == 1)
            ping = session(network)._tick
            (connection,) = peers.connected.values()

            def stall() -> None:
                # Where a loop reads, so that the overdue timer may run before the loop has read
                # again.
                call(ping)
                time.sleep(0.3)

            call(ping)
            seen = connection.bytes_received
            await until(lambda: connection.bytes_received > seen)
            requester = Requester(peers, network, on_response=stall)
            requester.ask()
            await requester.count(1)
            await until(lambda: not is_pong_owed(network))
            await asyncio.sleep(0.3)
            assert peers.totals.disconnects == {}
    assert network.violations.by_kind() == {}


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_pong_that_short_stalls_put_off_for_long_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_network(tmp_path) as (network, peers):
        with stopped_clock() as clock:
            monkeypatch.setattr(pong_scheduler, "monotonic", lambda: clock.now_s)
            session(network)._tick()
            # A step is too short to be seen as a stall, and too long for a check to be conclusive.
            for _ in range(60):
                clock.advance(0.03)
                await asyncio.sleep(0)
            await let_pass(clock, 1.0)
            assert is_pong_owed(network)
            session(network)._tick()
            await let_pass(clock, 0.1)
            assert not is_pong_owed(network)
        assert peers.totals.disconnects == {}


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_stall_before_the_first_ping_is_read_is_seen(tmp_path: Path) -> None:
    async with silent_network(tmp_path) as (network, peers):
        session(network)._tick()
        time.sleep(0.6)  # noqa: ASYNC251 (a stall of the loop is what is tested)
        await asyncio.sleep(0.6)
        assert is_pong_owed(network)
        session(network)._tick()
        await until(lambda: not is_pong_owed(network))
        assert peers.totals.disconnects == {}


async def test_no_pong_is_sent_without_a_ping(tmp_path: Path) -> None:
    network_plan = plan(2, settings=NodeSettings(ping_interval_s=NEVER_S, read_timeout_s=NEVER_S))
    async with started_network(tmp_path, network_plan, ping_interval_s=0.08) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        await asyncio.sleep(0.4)
        assert peers.totals.disconnects == {}


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_own_pings_keep_a_connection_open_if_the_node_never_pings(tmp_path: Path) -> None:
    network_plan = plan(2, settings=NodeSettings(ping_interval_s=NEVER_S, read_timeout_s=0.4))
    async with started_network(
        tmp_path, network_plan, ping_interval_s=0.1, silence_timeout_s=0.5
    ) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        with stopped_clock() as clock:
            await let_pass(clock, 1.0)
        assert peers.totals.disconnects == {}


async def test_a_silent_node_is_disconnected_and_redialed(tmp_path: Path) -> None:
    nodes = NodeSettings(ping_interval_s=NEVER_S, read_timeout_s=NEVER_S)
    network_plan = plan(1, "all:lost-pongs=1", settings=nodes)
    async with started_network(
        tmp_path, network_plan, ping_interval_s=0.1, silence_timeout_s=0.4
    ) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        await until(lambda: peers.totals.disconnects["silent"] >= 1)
        network.set_behaviour(0, "")
        await all_connected(peers, network.validators)
        requester = Requester(peers, network)
        requester.ask()
        await requester.count(1)


async def test_a_node_that_accepts_tcp_and_stays_silent_is_disconnected(tmp_path: Path) -> None:
    network_plan = plan(1, "all:mute")
    async with started_network(
        tmp_path, network_plan, allow_violations=True, tls_timeout_s=0.2
    ) as (network, peers):
        introduce(peers, network.validators)
        await until(lambda: peers.totals.dial_failures.total() >= 1)
        assert set(peers.totals.dial_failures) <= {"tls_timeout", "handshake_timeout", "hung_up"}
        assert network.validators[0].counts.open_connections <= 1
