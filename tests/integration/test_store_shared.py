"""Two daemons on one database: what one of them knows the other one uses, and one of them follows
the P-Chain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.integration.daemon import (
    ASKED_ONCE,
    Daemon,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from tests.integration.l1_daemon import (
    L1Daemon,
    run_l1_daemon,
    validation_id_of,
)
from tests.integration.message_verifier import verify_signed_message
from tests.store.fixtures import shares_in
from warpseal.errors import StartupError
from warpseal.warp.ids import id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

UNCHECKED = "X-Warpseal-Unchecked"
PLAN = Plan(validators=3, l1s=(L1Plan(validators=4, spare=1),), messages=4, epoch_blocks=40)
HEIGHT = PLAN.height


@asynccontextmanager
async def two_daemons(
    network: SimulatedNetwork, folder: Path, url: str, **keys: Any
) -> AsyncIterator[list[L1Daemon]]:
    """Run two daemons on one database, each with a data folder of its own."""
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(
                run_l1_daemon(
                    network, folder / name, {"store-url": url, **keys}, aggregation=ASKED_ONCE
                )
            )
            for name in ("first", "second")
        ]
        for item in both:
            await item.daemon.until_ready()
        yield both


def requests(network: SimulatedNetwork) -> dict[int, int]:
    """Return how many signature requests each validator got."""
    return {validator.index: validator.counts.app_requests for validator in network.validators}


async def signed(run_daemon: L1Daemon, message: SimMessage) -> str:
    """Return the signed message after a look at it."""
    reply = await run_daemon.daemon.aggregate_v1(message, pChainHeight=HEIGHT)
    verify_signed_message(
        run_daemon.network,
        reply.signed,
        message.unsigned.raw,
        message.signing_subnet_id,
        67,
        HEIGHT,
    )
    return reply.signed


async def test_a_signature_of_one_daemon_is_served_by_another(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_network(PLAN) as network,
        two_daemons(network, tmp_path, postgres_url) as (first, second),
    ):
        message = network.messages_of(first.l1)[0]
        registration = network.p_chain.register(first.l1)
        responses = [await signed(first, message), (await first.deliver(registration)).signed]
        before = count_signature_requests(network)
        again = [await signed(second, message), (await second.deliver(registration)).signed]
        assert again == responses
        network.p_chain.remove(validation_id_of(registration))
        reply = await second.daemon.l1_message(registration)
        assert (reply.signed, reply.body["superseded"]["now"]) == (
            responses[1],
            {"registered": False},
        )
        assert count_signature_requests(network) == before


async def test_a_signature_of_one_daemon_is_served_by_another_while_no_node_is_up(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_network(PLAN) as network:
        keys = {"tracked-subnet-ids": [id_text(network.subnets[-1].subnet_id)]}
        async with two_daemons(network, tmp_path, postgres_url, **keys) as (first, second):
            conversion, registration = (
                network.p_chain.conversion_of(first.l1),
                network.p_chain.register(first.l1),
            )
            for transaction in (conversion, registration):
                await first.deliver(transaction)
            unsigned = network.p_chain.set_weight(validation_id_of(registration), 2_000)
            await until(lambda: has_leader_read(first, second, network.p_chain.height))
            await until(lambda: knows_chains(second))
            before = count_signature_requests(network)
            await network.nodes[0].down()
            # The second one has never been asked about this L1.
            replies = [
                await second.deliver(transaction) for transaction in (conversion, registration)
            ]
            assert [reply.headers.get(UNCHECKED) for reply in replies] == [None, "node_unavailable"]
            assert count_signature_requests(network) == before
            await second.expect_error(502, "node_unavailable", unsigned, timeoutSeconds=2)


async def knows_chains(running: L1Daemon) -> bool:
    """Return whether a daemon has read the chains of the primary and of its tracked subnet."""
    series = 'warpseal_node_calls_total{method="platform.validates",outcome="ok"}'
    return (await running.daemon.metrics()).get(series, 0) >= 2


async def test_shares_of_both_make_one_quorum(tmp_path: Path, postgres_url: str) -> None:
    async with (
        run_network(PLAN) as network,
        two_daemons(network, tmp_path, postgres_url) as (first, second),
    ):
        message = network.messages_of(first.l1)[0]
        seats = first.nodes_of_l1()[:4]
        network.set_behaviour(seats[2:], "silent")
        assert (await first.daemon.aggregate_v1(message, timeoutSeconds=1.5)).status == 503
        network.set_behaviour(seats, "")
        network.set_behaviour(seats[:2], "silent")
        await until(lambda: shares_in(postgres_url) == 2)
        before = requests(network)
        await signed(second, message)
        await until(lambda: all(requests(network)[seat] > before[seat] for seat in seats[2:]))
        assert {
            request for request, count in requests(network).items() if count > before[request]
        } == set(seats[2:])


async def leads(daemon: Daemon) -> bool:
    """Return whether a daemon follows the P-Chain for both."""
    return bool((await daemon.ready()).body["follower"]["leader"])


async def test_one_follows_and_the_other_one_takes_over(tmp_path: Path, postgres_url: str) -> None:
    async with run_network(PLAN) as network, AsyncExitStack() as life:
        first = await life.enter_async_context(
            run_l1_daemon(network, tmp_path / "first", {"store-url": postgres_url})
        )
        await first.daemon.until_indexed(network.p_chain.height)
        async with run_l1_daemon(
            network, tmp_path / "second", {"store-url": postgres_url}
        ) as second:
            await second.daemon.until_ready()
            assert await leads(first.daemon)
            assert not await leads(second.daemon)
            await life.aclose()
            registration = network.p_chain.register(second.l1)
            await until(lambda: leads(second.daemon))
            await second.daemon.until_indexed(network.p_chain.height)
            removal = network.p_chain.remove(validation_id_of(registration))
            await second.daemon.until_indexed(network.p_chain.height)
            await second.deliver(removal)


async def has_leader_read(first: L1Daemon, second: L1Daemon, height: int) -> bool:
    """Return whether the leader has read up to a height."""
    followers = [(await item.daemon.ready()).body["follower"] for item in (first, second)]
    return any(
        follower["leader"] and follower.get("height") == str(height) and follower["backfilled"] == 1
        for follower in followers
    )


async def test_eager_work_is_done_by_one_of_them(tmp_path: Path, postgres_url: str) -> None:
    keys = {"eager-l1-messages": True}
    async with (
        run_network(PLAN) as network,
        two_daemons(network, tmp_path, postgres_url, **keys) as (first, second),
    ):
        # Either may lead; the other one looks at what was read every five seconds.
        await until(lambda: has_leader_read(first, second, network.p_chain.height))
        registration = network.p_chain.register(first.l1)

        async def is_signed() -> bool:
            result = await second.daemon.explanation(registration)
            return bool(result.get("stored", {}).get("signatures"))

        await until(is_signed)
        assert max(requests(network).values()) == 1
        before = count_signature_requests(network)
        await second.deliver(registration)
        assert count_signature_requests(network) == before


async def test_a_second_daemon_cannot_use_the_file_of_another(tmp_path: Path) -> None:
    keys = {"store-url": f"sqlite:///{tmp_path}/store.db"}
    async with (
        run_network(PLAN) as network,
        run_l1_daemon(network, tmp_path / "first", keys) as first,
    ):
        await first.daemon.until_ready()
        with pytest.raises(StartupError) as error:
            async with run_daemon(build_config(network, tmp_path / "second", keys)) as second:
                await second.ended
        assert "store.db" in str(error.value)
        assert "in use" in str(error.value)
        await signed(first, network.messages_of(first.l1)[0])
