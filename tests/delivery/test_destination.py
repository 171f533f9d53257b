"""Destinations as their nodes report them: the epoch of the next block, the proposed height, the
Warp rules.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web

from tests.delivery.recorded_chains import (
    BLOCK,
    CONFIG,
    EPOCH,
    PROPOSED,
    RECORDED_CONFIGS,
    ChainNode,
    destinations_over,
)
from tests.eventually import TIMEOUT_S, until
from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NO_CHAIN,
    PERMISSIONED_CHAIN,
    RecordedNode,
    recorded_result,
)
from warpseal.chains.proposervm import Epoch
from warpseal.delivery.destination import Destination
from warpseal.delivery.errors import DestinationUnavailable, WarpDisabled
from warpseal.delivery.warp_rules import WarpRules
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.upstream.errors import NodeAttempt, PublicFailure
from warpseal.validators.errors import UnknownChain
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, id_text, parse_id

X_CHAIN = next(
    ChainID(parse_id(chain["id"]))
    for chain in recorded_result("platform.getBlockchains")["blockchains"]
    if chain["name"] == "X-Chain"
)


def epoch(number: int, height: int = 18, start: int = 1_795_226_806) -> dict[str, str]:
    return {"number": str(number), "startTime": str(start), "pChainHeight": str(height)}


async def test_the_recorded_chains_are_read_with_their_epochs_heights_and_rules() -> None:
    async with destinations_over(ChainNode()) as lookup:
        destination = await lookup.destinations.resolve(L1_CHAIN)
        assert destination == Destination(
            L1_CHAIN,
            L1,
            Epoch(18, 30, 1_795_226_806),
            4,
            19,
            WarpRules(67, True, "default"),
            lookup.unix,
        )
        assert (destination.height, destination.sealed_from) == (18, 1_795_226_810)
        c_chain = await lookup.destinations.resolve(C_CHAIN)
        assert (c_chain.subnet_id, c_chain.epoch) == (PRIMARY_NETWORK, Epoch(13, 7, 1_795_226_690))
        assert (c_chain.proposed_height, c_chain.rules) == (19, WarpRules())
        permissioned = await lookup.destinations.resolve(PERMISSIONED_CHAIN)
        assert (permissioned.height, permissioned.rules) == (8, WarpRules(67, True, "default"))


async def test_before_granite_a_chain_verifies_at_its_proposed_height() -> None:
    async with destinations_over(ChainNode({EPOCH: epoch(0, 0, 0)})) as lookup:
        destination = await lookup.destinations.resolve(L1_CHAIN)
    assert (destination.epoch, destination.height, destination.sealed_from) == (NO_EPOCH, 19, None)


async def test_the_p_chain_has_the_default_rules_and_the_x_chain_verifies_nothing() -> None:
    replies = {EPOCH: epoch(5), PROPOSED: {"height": "19"}}
    async with destinations_over(ChainNode(replies)) as lookup:
        destination = await lookup.destinations.resolve(P_CHAIN)
        assert (destination.subnet_id, destination.height, destination.rules) == (
            PRIMARY_NETWORK,
            18,
            WarpRules(),
        )
        with pytest.raises(WarpDisabled, match="it is the X-Chain"):
            await lookup.destinations.resolve(X_CHAIN)
        assert await lookup.destinations.quorum(X_CHAIN) is None


async def test_rules_are_those_of_the_time_of_the_next_block() -> None:
    upgrades = [{"warpConfig": {"blockTimestamp": 2_000_000_000, "quorumNumerator": 80}}]
    config = RECORDED_CONFIGS[L1_CHAIN] | {"upgrades": {"precompileUpgrades": upgrades}}
    node = ChainNode(configs={L1_CHAIN: config})
    async with destinations_over(node) as lookup:
        assert (await lookup.destinations.resolve(L1_CHAIN)).rules == WarpRules(67, True, "default")
        lookup.clock.now, lookup.unix = lookup.clock.now + 2, 2_000_000_000
        assert (await lookup.destinations.resolve(L1_CHAIN)).rules == WarpRules(
            80, False, "upgrade"
        )
        assert await lookup.destinations.quorum(L1_CHAIN) == 80
    assert node.calls[CONFIG] == 1
    ahead = ChainNode({BLOCK: {"timestamp": hex(2_000_000_000)}}, configs={L1_CHAIN: config})
    async with destinations_over(ahead) as lookup:
        assert (await lookup.destinations.resolve(L1_CHAIN)).rules.quorum == 80


async def test_a_disabled_precompile_is_refused_and_no_configuration_means_default_rules() -> None:
    disabled = {"warpConfig": {"blockTimestamp": 0, "disable": True}}
    node = ChainNode(configs={L1_CHAIN: RECORDED_CONFIGS[L1_CHAIN] | disabled})
    async with destinations_over(node) as lookup:
        with pytest.raises(WarpDisabled, match="disabled, or not active yet"):
            await lookup.destinations.resolve(L1_CHAIN)
        assert (await lookup.destinations.resolve(C_CHAIN)).rules == WarpRules()


async def test_a_chain_is_asked_for_its_epoch_each_second_and_its_rules_each_half_minute() -> None:
    node = ChainNode()
    async with destinations_over(node) as lookup:
        for after_s in (0.0, 0.5, 0.4, 0.4, 29.0):
            lookup.clock.now += after_s
            destinations = await asyncio.gather(
                *(lookup.destinations.resolve(L1_CHAIN) for _ in range(20))
            )
            assert len(set(destinations)) == 1
        assert (node.calls[EPOCH], node.calls[PROPOSED], node.calls[CONFIG]) == (3, 3, 2)
        assert node.calls["info.upgrades"] == 1


async def previous_epochs(*numbers: int) -> list[int | None]:
    """Return the previous epoch that is remembered at each of the epochs that a node reports."""
    node, previous_numbers = ChainNode(), list[int | None]()
    async with destinations_over(node) as lookup:
        for number in numbers:
            node.replies[EPOCH] = epoch(number)
            lookup.clock.now += 2
            destination = await lookup.destinations.resolve(L1_CHAIN)
            previous = lookup.destinations.previous_epoch(destination)
            previous_numbers.append(None if previous is None else previous.number)
    return previous_numbers


async def test_the_previous_epoch_is_remembered_and_no_older_epoch_takes_its_place() -> None:
    previous = await previous_epochs(30, 31, 30, 31, 34, 35)
    assert previous == [None, 30, None, 30, None, 34]


async def test_a_forged_epoch_does_not_hide_the_epoch_before_the_current_one_for_ever() -> None:
    previous = await previous_epochs(30, 2**64 - 1, 31, 32)
    assert previous == [None, None, 30, 31]


async def test_an_unknown_chain_is_named_and_one_without_nodes_names_the_missing_setting() -> None:
    bare = RecordedNode(paths=("/ext/P", "/ext/bc/P", "/ext/info"))
    async with destinations_over(bare) as lookup:
        with pytest.raises(UnknownChain):
            await lookup.destinations.resolve(NO_CHAIN)
        with pytest.raises(
            DestinationUnavailable, match="p-chain-api, in info-api, or in evm-chains"
        ) as error:
            await lookup.destinations.resolve(L1_CHAIN)
        with pytest.raises(DestinationUnavailable, match="must serve /ext/bc/P/proposervm"):
            await lookup.destinations.resolve(P_CHAIN)
        assert "127.0.0.1" not in f"{error.value}{error.value.detail}"


async def test_a_node_that_serves_no_proposervm_does_not_make_a_chain_one_without_it() -> None:
    hidden = {method: lambda _: web.Response(status=404) for method in (EPOCH, PROPOSED)}
    async with destinations_over(ChainNode(hidden)) as lookup:
        with pytest.raises(DestinationUnavailable, match="no configured node reports its epoch"):
            await lookup.destinations.resolve(L1_CHAIN)


async def hang(_: object) -> None:
    await asyncio.sleep(TIMEOUT_S)


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (lambda _: web.Response(status=500), "http_status"),
        (hang, "timeout"),
        ("garbage", "bad_answer"),
    ],
)
@pytest.mark.parametrize("method", [EPOCH, PROPOSED, CONFIG])
async def test_the_nodes_of_a_destination_that_fail_are_named_and_no_setting(
    method: str, reply: Any, failure: str
) -> None:
    elsewhere = RecordedNode(paths=("/ext/P", "/ext/bc/P", "/ext/info"))

    async def check(*nodes: RecordedNode) -> None:
        async with destinations_over(*nodes) as lookup:
            with pytest.raises(DestinationUnavailable) as error:
                await lookup.destinations.resolve(L1_CHAIN)
        position = len(nodes) - 1
        text = (
            f"its nodes did not answer: no usable answer for {method} (node {position}: {failure})"
        )
        assert str(error.value) == f"destination {id_text(L1_CHAIN)}: {text}"
        assert error.value.detail["nodes"] == (NodeAttempt(position, PublicFailure(failure)),)

    await asyncio.gather(
        check(ChainNode({method: reply})), check(elsewhere, ChainNode({method: reply}))
    )


async def test_a_hanging_node_is_skipped_although_no_caller_waits_for_its_timeout() -> None:
    async with destinations_over(ChainNode({EPOCH: hang}), ChainNode()) as lookup:

        async def is_found() -> bool:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    return (await lookup.destinations.resolve(L1_CHAIN)).height == 18
            return False

        await until(is_found)


async def test_a_failed_lookup_is_repeated_a_second_later() -> None:
    node = ChainNode({EPOCH: lambda _: web.Response(status=500)})
    async with destinations_over(node) as lookup:
        for _ in range(5):
            with pytest.raises(DestinationUnavailable):
                await lookup.destinations.resolve(L1_CHAIN)
        failed = node.calls[EPOCH]
        del node.replies[EPOCH]
        lookup.clock.now += 1.1
        assert (await lookup.destinations.resolve(L1_CHAIN)).height == 18
        assert node.calls[EPOCH] == failed + 1


async def test_the_last_known_rules_hold_while_no_node_returns_them() -> None:
    node = ChainNode()
    async with destinations_over(node) as lookup:
        await lookup.destinations.resolve(L1_CHAIN)
        node.replies[CONFIG] = lambda _: web.Response(status=500)
        for _ in range(3):
            lookup.clock.now += 40
            assert (await lookup.destinations.resolve(L1_CHAIN)).rules.requires_primary_signers
        lookup.clock.now += 3_600
        with pytest.raises(DestinationUnavailable, match="eth_getChainConfig"):
            await lookup.destinations.resolve(L1_CHAIN)
        assert await lookup.destinations.quorum(L1_CHAIN) == 67


@pytest.mark.parametrize("reply", [{"number": "1"}, {"height": "-1"}, [], "x", {"number": 2**64}])
async def test_malformed_replies_make_a_destination_unavailable(reply: Any) -> None:
    async with destinations_over(ChainNode({EPOCH: reply})) as lookup:
        with pytest.raises(DestinationUnavailable):
            await lookup.destinations.resolve(L1_CHAIN)
