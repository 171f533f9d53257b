"""Validator sets are fetched once for all callers, and cached within bounds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import until
from tests.node.recorded_node import L1, RecordedNode, RefusedCall, recorded_result
from tests.validators.fixtures import HEIGHT, SET, made_up_set, nth_key, nth_node, started_services
from warpseal.bls import parse_public_key, public_key_bytes
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import HeightTooNew, HeightTooOld
from warpseal.validators.set_cache import PublicKeyCache
from warpseal.warp.ids import PRIMARY_NETWORK, node_id_text


def beyond_the_tip(tip: int) -> Any:
    """Answer as a node whose P-Chain is at `tip`, and with a set up to there."""

    def reply_to(params: Any) -> Any:
        if params["height"] > tip:
            raise RefusedCall(
                f"failed to get validator set at {params['height']}: failed to fetch validator set"
                f" at unfinalized height with SubnetID = {params['subnetID']}: current P-chain"
                f" height ({tip}) < requested P-Chain height ({params['height']})"
            )
        return made_up_set(3)

    return reply_to


async def test_the_canonical_set_of_an_l1_equals_its_set_among_all_subnets() -> None:
    async with started_services() as services:
        members = await services.sets.at(L1, 19, is_chosen=False)
    listed = recorded_result("platform.getAllValidatorsAt", height="proposed")["validatorSets"]
    expected = listed["2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"]
    assert ["0x" + entry.public_key.hex() for entry in members.validators] == [
        entry["publicKey"] for entry in expected["validators"]
    ]
    assert members.total_weight == int(expected["totalWeight"])
    assert members.keyless_weight == 49_463


async def test_a_thousand_concurrent_callers_make_one_fetch() -> None:
    async with started_services(RecordedNode({SET: made_up_set(100)})) as services:
        validator_sets = await asyncio.gather(
            *(services.sets.at(L1, 19, is_chosen=False) for _ in range(1_000))
        )
        assert len({id(entry) for entry in validator_sets}) == 1
        await services.sets.at(L1, 19, is_chosen=False)
        assert services.set_calls() == 1


async def test_a_caller_at_the_moment_of_the_response_starts_no_second_fetch() -> None:
    async with started_services(RecordedNode({SET: made_up_set(3)})) as services:
        tasks = [asyncio.create_task(services.sets.at(L1, 19, is_chosen=False))]
        while not tasks[0].done():
            tasks.append(asyncio.create_task(services.sets.at(L1, 19, is_chosen=False)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert services.set_calls() == 1


async def test_equal_sets_at_different_heights_are_one_object() -> None:
    async with started_services() as services:
        await services.heights.poll()
        first = await services.sets.at(L1, 9, is_chosen=True)
        assert await services.sets.at(L1, 10, is_chosen=True) is first
        assert await services.sets.at(L1, 19, is_chosen=True) is not first
        assert services.set_calls() == 3


async def test_a_fetch_is_cancelled_with_its_last_waiter_only() -> None:
    release = asyncio.Event()

    async def slow(_: object) -> Any:
        await release.wait()
        return made_up_set(3)

    async with started_services(RecordedNode({SET: slow})) as services:
        waiters = [asyncio.create_task(services.sets.at(L1, 19, is_chosen=False)) for _ in range(3)]
        await until(lambda: services.set_calls() == 1)
        waiters[0].cancel()
        await asyncio.sleep(0.02)
        release.set()
        assert len(await waiters[1]) == 3
        assert await waiters[1] is await waiters[2]
        assert services.set_calls() == 1

        release.clear()
        last = asyncio.create_task(services.sets.at(L1, 20, is_chosen=False))
        await until(lambda: services.set_calls() == 2)
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
        release.set()
        assert len(await services.sets.at(L1, 20, is_chosen=False)) == 3
        assert services.set_calls() == 3


async def test_a_failed_fetch_is_not_kept() -> None:
    async with started_services(
        RecordedNode({SET: lambda _: web.Response(status=500)})
    ) as services:
        with pytest.raises(NodeUnavailable):
            await services.sets.at(L1, 19, is_chosen=False)
        del services.node.replies[SET]
        assert len(await services.sets.at(L1, 19, is_chosen=False)) == 3


async def test_an_empty_set_is_fetched_again_soon() -> None:
    async with started_services(RecordedNode({SET: {}})) as services:
        assert len(await services.sets.at(L1, 19, is_chosen=False)) == 0
        assert len(await services.sets.at(L1, 19, is_chosen=False)) == 0
        assert services.set_calls() == 1
        del services.node.replies[SET]
        await asyncio.sleep(0.6)
        assert len(await services.sets.at(L1, 19, is_chosen=False)) == 3


async def test_a_height_a_little_beyond_the_tip_is_awaited() -> None:
    async with started_services(RecordedNode({SET: beyond_the_tip(19)})) as services:
        await services.heights.poll()
        waiting = asyncio.create_task(services.sets.at(L1, 29, is_chosen=True))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        services.node.replies[SET] = beyond_the_tip(29)
        assert len(await waiting) == 3


async def test_a_height_beyond_the_tip_is_awaited_up_to_the_deadline_of_the_caller() -> None:
    async with started_services(RecordedNode({SET: beyond_the_tip(19)})) as services:
        await services.heights.poll()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await services.sets.at(L1, 20, is_chosen=True)


async def test_a_height_far_beyond_the_tip_is_refused_at_once() -> None:
    async with started_services(RecordedNode({SET: beyond_the_tip(19)})) as services:
        await services.heights.poll()
        with pytest.raises(HeightTooNew) as error:
            await services.sets.at(L1, 30, is_chosen=True)
    assert (error.value.height, error.value.tip) == (30, 19)


async def test_a_proposed_height_above_all_reachable_nodes_is_a_node_error() -> None:
    async with started_services(RecordedNode({SET: beyond_the_tip(19)})) as services:
        with pytest.raises(NodeUnavailable):
            await services.sets.at(L1, 100, is_chosen=False)


async def test_lookback_refuses_only_sets_that_are_not_cached() -> None:
    async with started_services(max_p_chain_lookback=5) as services:
        await services.heights.poll()
        with pytest.raises(HeightTooOld) as error:
            await services.sets.at(L1, 13, is_chosen=True)
        assert error.value.detail["setting"] == "max-p-chain-lookback"
        assert (error.value.height, error.value.oldest) == (13, 14)
        assert len(await services.sets.at(L1, 14, is_chosen=True)) == 4

        await services.sets.at(L1, 13, is_chosen=False)
        assert len(await services.sets.at(L1, 13, is_chosen=True)) == 4


async def test_lookback_never_refuses_an_epoch_height() -> None:
    async with started_services(max_p_chain_lookback=5) as services:
        await services.heights.poll()
        assert len(await services.sets.at(L1, 9, is_chosen=True, epoch=True)) == 4


async def test_a_negative_lookback_refuses_nothing() -> None:
    async with started_services(max_p_chain_lookback=-1) as services:
        assert len(await services.sets.at(L1, 7, is_chosen=True)) == 5


async def test_cached_sets_at_named_heights_are_served_though_no_node_answers() -> None:
    async with started_services() as services:
        await services.heights.poll()
        await services.sets.at(L1, 18, is_chosen=True)
        services.node.replies = {
            HEIGHT: lambda _: web.Response(status=500),
            SET: lambda _: web.Response(status=500),
        }
        services.clock.now += 100
        with pytest.raises(NodeUnavailable):
            services.heights.current()
        assert len(await services.sets.at(L1, 18, is_chosen=True)) == 4
        with pytest.raises(NodeUnavailable):
            await services.sets.at(L1, 17, is_chosen=True)


async def test_named_heights_never_push_out_the_proposed_one() -> None:
    def varied(params: Any) -> Any:
        return made_up_set(20, seed=params["height"])

    async with started_services(
        RecordedNode({SET: varied}),
        set_cache_bytes=60_000,
        max_p_chain_lookback=-1,
    ) as services:
        await services.sets.at(PRIMARY_NETWORK, 19, is_chosen=False)
        for height in range(10):
            await services.sets.at(PRIMARY_NETWORK, height, is_chosen=True)
        assert services.sets.held_bytes <= 60_000
        before = services.set_calls()
        await services.sets.at(PRIMARY_NETWORK, 19, is_chosen=True)
        assert services.set_calls() == before
        await services.sets.at(PRIMARY_NETWORK, 0, is_chosen=True)
        assert services.set_calls() == before + 1


async def test_keys_are_returned_in_canonical_order() -> None:
    async with started_services(RecordedNode({SET: made_up_set(30)})) as services:
        members = await services.sets.at(L1, 19, is_chosen=False)
        keys = services.sets.keys_of(members)
    assert [public_key_bytes(key) for key in keys] == [
        entry.public_key for entry in members.validators
    ]


async def test_keys_of_an_evicted_set_are_still_returned() -> None:
    async with started_services(RecordedNode({SET: made_up_set(3)}), set_cache_bytes=1) as services:
        members = await services.sets.at(L1, 19, is_chosen=False)
        assert services.sets.held_bytes == 0
        assert [public_key_bytes(key) for key in services.sets.keys_of(members)] == [
            entry.public_key for entry in members.validators
        ]


async def test_a_set_with_an_invalid_key_is_refused() -> None:
    broken = {
        **made_up_set(3),
        node_id_text(nth_node(9)): {"publicKey": "0x80" + "11" * 47, "weight": "1"},
    }
    async with started_services(RecordedNode({SET: broken})) as services:
        with pytest.raises(NodeUnavailable):
            await services.sets.at(L1, 19, is_chosen=False)


async def test_a_set_whose_weight_overflows_is_refused() -> None:
    heavy = {
        node_id_text(nth_node(number)): {"publicKey": None, "weight": str(2**64 - 1)}
        for number in range(2)
    }
    async with started_services(RecordedNode({SET: heavy})) as services:
        with pytest.raises(NodeUnavailable):
            await services.sets.at(L1, 19, is_chosen=False)


async def test_large_sets_are_built_off_the_event_loop_and_each_key_is_parsed_once() -> None:
    threads: set[int] = set()
    parsed: list[bytes] = []

    def parse(raw: bytes) -> Any:
        threads.add(threading.get_ident())
        parsed.append(raw)
        return parse_public_key(raw)

    async with started_services(RecordedNode({SET: made_up_set(300)}), parse=parse) as services:
        await services.sets.at(L1, 19, is_chosen=False)
        services.node.replies[SET] = made_up_set(301)
        await services.sets.at(L1, 20, is_chosen=False)
    assert threading.get_ident() not in threads
    assert sorted(parsed) == sorted(nth_key(number) for number in range(301))


async def test_an_unchanged_reply_is_not_built_again() -> None:
    parsed: list[bytes] = []

    def parse(raw: bytes) -> Any:
        parsed.append(raw)
        return parse_public_key(raw)

    node = RecordedNode({SET: made_up_set(30)})
    async with started_services(node, parse=parse, key_cache_keys=1) as services:
        for height in range(5):
            await services.sets.at(L1, height, is_chosen=False)
        assert services.set_calls() == 5
    assert len(parsed) == 30


def test_parsed_keys_are_bounded() -> None:
    keys = PublicKeyCache(max_keys=2)
    for number in range(5):
        assert public_key_bytes(keys.parse(nth_key(number))) == nth_key(number)
    assert len(keys) == 2


async def test_hits_and_misses_are_counted() -> None:
    async with started_services() as services:
        for _ in range(3):
            await services.sets.at(L1, 19, is_chosen=False)
        assert (services.sets.hits, services.sets.misses) == (2, 1)
