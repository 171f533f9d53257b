"""A store that fails under a whole daemon: no request fails, and signatures of the outage are
written later.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.eventually import until
from tests.integration.daemon import Daemon, count_signature_requests, run_network
from tests.integration.l1_daemon import (
    L1_PLAN,
    L1Daemon,
    run_l1_daemon,
    until_status,
    validation_id_of,
)
from tests.integration.message_verifier import verify_signed_message
from tests.store.postgres import PostgresServer
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

PLAN = Plan(validators=3, l1s=(L1Plan(validators=4, spare=1),), messages=12, epoch_blocks=40)
QUICK = {"retry_first_s": 0.05, "retry_cap_s": 0.2}

Outage = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def no_logged_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Assert that of all that was logged as an error nothing is about anything but the store."""
    yield
    logger_names = {
        record.name for record in caplog.get_records("call") if record.levelno >= logging.ERROR
    }
    assert logger_names <= {"warpseal.store.writer"}


@pytest.fixture(params=["file-locked", "server-stopped", "server-paused"])
def failing(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Outage]:
    """Return the url of a store, and what makes it fail."""
    if request.param == "file-locked":
        path = tmp_path / "store.db"
        return f"sqlite:///{path}", lambda: _locked(path)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url: str = request.getfixturevalue("postgres_url")
    return url, server.stopped if request.param == "server-stopped" else server.paused


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


async def posted(running: L1Daemon, message: SimMessage) -> None:
    """Assert that a message is signed."""
    reply = await running.daemon.aggregate_v1(message)
    verify_signed_message(
        running.network, reply.signed, message.unsigned.raw, message.signing_subnet_id, 67
    )


async def is_up(daemon: Daemon) -> bool:
    """Return whether the page says that the store works."""
    ready = await daemon.ready()
    assert ready.status == 200
    assert ("degraded" in ready.body) != ready.body["store"]["up"]
    return bool(ready.body["store"]["up"])


async def test_no_post_fails_and_what_was_signed_is_written_later(
    tmp_path: Path, failing: tuple[str, Outage]
) -> None:
    url, outage = failing
    async with run_network(PLAN) as network:
        async with run_l1_daemon(network, tmp_path, {"store-url": url}, store=QUICK) as running:
            first, *others = network.messages_of(running.l1)[:8]
            await running.daemon.until_connected(len(network.validators) - 1)
            await posted(running, first)
            assert await is_up(running.daemon)
            with outage():
                for other in others:
                    await posted(running, other)
                await until(lambda: _is_down(running.daemon))
                ready = await running.daemon.ready()
                assert "kept in memory" in ready.body["degraded"][0]
                await posted(running, first)
            await until(lambda: is_up(running.daemon))
        # Everything was stored: the next daemon asks no validator.
        network.set_behaviour([validator.index for validator in network.validators], "silent")
        before = count_signature_requests(network)
        async with run_l1_daemon(network, tmp_path, {"store-url": url}, store=QUICK) as running:
            for message in (first, *others):
                await posted(running, message)
        assert count_signature_requests(network) == before


async def _is_down(daemon: Daemon) -> bool:
    return not await is_up(daemon)


async def test_l1_messages_are_signed_though_the_store_fails(
    tmp_path: Path, failing: tuple[str, Outage]
) -> None:
    url, outage = failing
    async with run_network(L1_PLAN) as network:
        async with run_l1_daemon(network, tmp_path, {"store-url": url}, store=QUICK) as running:
            conversion = network.p_chain.conversion_of(running.l1)
            await running.deliver(conversion)
            with outage():
                registration = network.p_chain.register(running.l1)
                await running.deliver(registration)
                change = network.p_chain.set_weight(validation_id_of(registration), 900)
                await running.deliver(change)
                removal = network.p_chain.remove(validation_id_of(registration))
                # The registration passed by, so that where it began is known.
                await running.deliver(removal)
            # The L1 may be connected before the Primary Network is.
            await running.daemon.until_ready()
            await until(lambda: is_up(running.daemon))
        before = count_signature_requests(network)
        async with run_l1_daemon(network, tmp_path, {"store-url": url}, store=QUICK) as running:
            for transaction in (conversion, removal):
                await running.deliver(transaction)
            for transaction in (registration, change):
                reply = await running.daemon.l1_message(transaction)
                running.verify(reply, transaction)
                assert reply.body["superseded"]["now"] == {"registered": False}
        assert count_signature_requests(network) == before


async def test_superseded_messages_are_not_reported_as_lost_while_the_store_fails(
    tmp_path: Path, failing: tuple[str, Outage]
) -> None:
    url, outage = failing
    async with run_network(replace(L1_PLAN, messages=1)) as network:
        async with run_l1_daemon(network, tmp_path, {"store-url": url}, store=QUICK) as running:
            registration = network.p_chain.register(running.l1)
            await running.deliver(registration)
            network.p_chain.remove(validation_id_of(registration))
        async with run_l1_daemon(network, tmp_path, {"store-url": url}, store=QUICK) as running:
            await running.daemon.until_ready()
            with outage():
                # Writing shows that it fails.
                await posted(running, network.messages_of(running.l1)[0])
                await until(lambda: _is_down(running.daemon))
                refused = await running.expect_error(503, "store_down", registration)
                assert int(refused.headers["Retry-After"]) >= 1
                explained = await running.daemon.explanation(registration)
                assert "stored" not in explained
                assert {"check": "stored", "ok": None} in [
                    {name: check[name] for name in ("check", "ok")} for check in explained["checks"]
                ]
            running.verify(await until_status(running, 201, registration), registration)
