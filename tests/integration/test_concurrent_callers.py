"""Many callers at once: all get a reply, equal requests share one round, and a caller that leaves
disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from tests.eventually import until
from tests.integration.daemon import (
    AGGREGATE_PATH,
    ASKED_ONCE,
    Daemon,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.plan import Plan, parse_rule
from warpseal_simnet.rpc import Outage

CROWD = 200


async def test_two_hundred_distinct_requests_at_once_are_all_answered(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=8, l1s=(), messages=CROWD)) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        messages = network.messages_of(PRIMARY_NETWORK)
        assert len(messages) == CROWD
        replies = await asyncio.gather(*(daemon.aggregate(message) for message in messages))
        for message, reply in zip(messages, replies, strict=True):
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_two_hundred_equal_requests_at_once_make_one_fan_out(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=8, l1s=())) as network,
        run_daemon(build_config(network, tmp_path, aggregation=ASKED_ONCE)) as daemon,
    ):
        await daemon.until_connected(8)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        half = CROWD // 2
        replies = await asyncio.gather(
            *(daemon.aggregate(message) for _ in range(half)),
            *(daemon.aggregate_v1(message) for _ in range(half)),
        )
        assert {reply.status for reply in replies[:half]} == {200}
        assert {reply.status for reply in replies[half:]} == {201}
        for signed in {reply.signed for reply in replies}:
            verify_signed_message(network, signed, message.unsigned.raw, PRIMARY_NETWORK, 67)
        assert count_signature_requests(network) == 8
        assert network.calls["platform.getValidatorsAt"] == 1


async def test_the_log_data_of_a_message_is_the_same_request_as_the_message(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=8, l1s=())) as network,
        run_daemon(build_config(network, tmp_path, aggregation=ASKED_ONCE)) as daemon,
    ):
        await daemon.until_connected(8)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        raw = message.unsigned.raw
        # The ABI encoding of one `bytes`: offset, length, content, zeros up to a whole word.
        data = (32).to_bytes(32, "big") + len(raw).to_bytes(32, "big") + raw + bytes(-len(raw) % 32)
        plain, logged = await asyncio.gather(
            daemon.aggregate(message), daemon.post(AGGREGATE_PATH, {"message": "0x" + data.hex()})
        )
        for reply in (plain, logged):
            verify_signed_message(network, reply.signed, raw, PRIMARY_NETWORK, 67)
        assert count_signature_requests(network) == 8


async def test_callers_of_one_message_with_different_quorums_share_its_shares(
    tmp_path: Path,
) -> None:
    async with (
        run_network(Plan(validators=10, l1s=())) as network,
        run_daemon(build_config(network, tmp_path, aggregation=ASKED_ONCE)) as daemon,
    ):
        await daemon.until_connected(10)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        quorums = [1 + place % 100 for place in range(CROWD)]
        replies = await asyncio.gather(
            *(daemon.aggregate(message, quorum_percentage=quorum) for quorum in quorums)
        )
        for quorum, reply in zip(quorums, replies, strict=True):
            verify_signed_message(
                network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, quorum
            )
        assert count_signature_requests(network) == 10


async def test_requests_beyond_the_limit_are_refused_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=8, l1s=(), messages=CROWD, rules=(parse_rule("all:silent"),))
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, {"max-requests-in-flight": 100})) as daemon,
    ):
        await daemon.until_connected(8)
        messages = network.messages_of(PRIMARY_NETWORK)
        clients = [asyncio.create_task(daemon.aggregate(message)) for message in messages]
        await until(lambda: sum(client.done() for client in clients) == 150)
        network.set_behaviour(range(8), "")
        replies = await asyncio.gather(*clients)
        # One client network has half of all places.
        assert Counter(reply.status for reply in replies) == {200: 50, 429: 150}
        turned_away = next(reply for reply in replies if reply.status == 429)
        assert turned_away.body["code"] == "too_many_requests"
        assert int(turned_away.headers["Retry-After"]) >= 1


async def test_new_messages_that_cannot_be_signed_in_time_are_refused_and_known_ones_are_answered(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=4, l1s=(), messages=CROWD, rules=(parse_rule("all:slow=100ms"),))
    # Each validator answers ten requests a second.
    keys, peers = {"request-timeout-seconds": 8}, {"max_outstanding": 1}
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, keys, peers=peers)) as daemon,
    ):
        await daemon.until_connected(4)
        first_message, late_message, *messages = network.messages_of(PRIMARY_NETWORK)
        assert (await daemon.aggregate(first_message)).status == 200
        clients = [asyncio.create_task(daemon.aggregate(message)) for message in messages]
        # The messages whose turn cannot come are refused while others still wait for theirs; a new
        # one is so at once.
        await until(
            lambda: any(client.done() and client.result().status == 503 for client in clients)
        )
        clients.append(asyncio.create_task(daemon.aggregate(late_message, timeout_seconds=2)))
        assert (await clients[-1]).status == 503
        assert (await clients[-1]).body["detail"]["waiting"] > 5
        refused = [client for client in clients if (await client).body.get("code") == "overloaded"]
        assert {client.result().status for client in refused} == {503}
        # Interchain Kit retries only if a text has these words.
        assert all("no signatures" in client.result().body["error"] for client in refused)
        delays_s = [int(client.result().headers["Retry-After"]) for client in refused]
        # No delay is longer than the timeout, and those far behind in the queue come back later
        # than at once.
        assert 1 <= min(delays_s) <= max(delays_s) <= 8
        assert max(delays_s) > 1
        assert Counter(client.result().status for client in clients)[200] > 0
        assert (await daemon.aggregate(first_message)).status == 200
        counted = await daemon.metrics()
        assert (
            counted['warpseal_aggregation_duration_seconds_count{outcome="overloaded"}']
            == len(refused)
            > 0
        )


async def test_clients_that_leave_end_only_their_own_wait(tmp_path: Path) -> None:
    plan = Plan(validators=10, l1s=(), rules=(parse_rule("all:slow=2s"),))
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, aggregation=ASKED_ONCE)) as daemon,
    ):
        await daemon.until_connected(10)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        leaving = [asyncio.create_task(daemon.aggregate(message)) for _ in range(20)]
        staying = [
            asyncio.create_task(daemon.aggregate(message, quorum_percentage=80)) for _ in range(3)
        ]
        await until(lambda: has_taken(daemon, 23))
        for item in leaving:
            item.cancel()
        replies = await asyncio.gather(*staying)
        for reply in replies:
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 80)
        assert count_signature_requests(network) == 10
        await until(lambda: cancelled(daemon, 20))


async def test_no_validator_is_asked_after_the_last_client_leaves(tmp_path: Path) -> None:
    plan = Plan(validators=10, l1s=(), rules=(parse_rule("all:silent"),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(10)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        clients = [asyncio.create_task(daemon.aggregate(message)) for _ in range(5)]
        await until(lambda: has_taken(daemon, 5))
        await until(lambda: count_signature_requests(network) >= 18)
        for client in clients:
            client.cancel()
        await until(lambda: cancelled(daemon, 5))
        before = count_signature_requests(network)
        # Had anybody stayed, a second asking would have come by now.
        await asyncio.sleep(1.3)
        assert count_signature_requests(network) == before


async def test_a_caller_with_a_short_deadline_does_not_end_the_round_of_others(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=10, l1s=(), rules=(parse_rule("all:slow=700ms"),))
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, aggregation=ASKED_ONCE)) as daemon,
    ):
        await daemon.until_connected(10)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        short, long = await asyncio.gather(
            daemon.aggregate(message, timeout_seconds=0.3), daemon.aggregate(message)
        )
        assert short.status == 504
        verify_signed_message(network, long.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)
        assert count_signature_requests(network) == 10


async def test_a_caller_that_leaves_during_a_set_fetch_does_not_end_it_for_others(
    tmp_path: Path,
) -> None:
    async with (
        run_network(Plan(validators=8, l1s=())) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_connected(8)
        network.nodes[0].rpc.outages = {"platform.getValidatorsAt": Outage(delay_s=0.6)}
        message = network.messages_of(PRIMARY_NETWORK)[0]
        leaving = asyncio.create_task(daemon.aggregate(message, pchain_height=11))
        staying = asyncio.create_task(daemon.aggregate(message, pchain_height=11))
        before = network.calls["platform.getValidatorsAt"]
        await asyncio.sleep(0.2)
        leaving.cancel()
        reply = await staying
        verify_signed_message(
            network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67, height=11
        )
        assert network.calls["platform.getValidatorsAt"] - before == 1


async def has_taken(daemon: Daemon, count: int) -> bool:
    """Return whether so many requests have arrived."""
    return (await daemon.metrics())["signature_aggregator_agg_sigs_req_count"] == count


async def cancelled(daemon: Daemon, count: int) -> bool:
    """Return whether so many aggregations ended because their clients left."""
    page = await daemon.metrics()
    return page.get('warpseal_aggregation_duration_seconds_count{outcome="cancelled"}') == count
