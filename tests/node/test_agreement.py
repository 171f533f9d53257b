"""Replies of several HTTP nodes of which `p-chain-quorum` must agree: right, few calls, and liars
are found out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AbstractAsyncContextManager, suppress
from hashlib import sha256
from random import Random
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import stopped_clock
from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NO_CHAIN,
    RecordedNode,
    RefusedCall,
    build_settings,
    connect,
    open_upstream,
    recorded_result,
    serve_nodes,
)
from warpseal.node.upstream import Upstream
from warpseal.upstream.errors import HeightAhead, NodesDisagree, NodeUnavailable
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import open_session
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, ValidationID, id_text, parse_id

SETS = "platform.getValidatorsAt"
HEIGHT = "platform.getHeight"
PROPOSED = "platform.getProposedHeight"
SUBNET = "platform.getSubnet"
CURRENT = "platform.getCurrentValidators"
VALIDATION = "platform.getL1Validator"
OTHER = SubnetID(b"\x66" * 32)
VALIDATION_ID = ValidationID(parse_id("2JRupqWf57oyuM9ARJ218CTRSKvfzcQaKYh6x4fHMjonVzY2Fd"))
TIP = 19
TRUE_CONVERSION = parse_id(recorded_result(SUBNET, subnetID=id_text(L1))["conversionID"])
TRUE_WEIGHTS = [
    int(listed["weight"]) for listed in recorded_result(CURRENT, subnetID=id_text(L1))["validators"]
]


class Contradictions:
    """Counts what the nodes are blamed for, by position and method."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, str]] = Counter()

    def observe_call(self, method: str, outcome: str, seconds: float) -> None:
        """Calls themselves are counted by the nodes."""

    def count_disagreement(self, position: int, method: str) -> None:
        self.counts[position, method] += 1


def honest_set(height: int = TIP) -> dict[str, Any]:
    validator_set: dict[str, Any] = recorded_result(SETS, height=height, subnetID=id_text(L1))
    return validator_set


def heavier_set(params: Any) -> Any:
    """Return the set that was asked for, with another weight of its first member."""
    members = recorded_result(SETS, **params)
    name = next(iter(members))
    return {**members, name: {**members[name], "weight": "77777"}}


def subnet_without_conversion() -> dict[str, Any]:
    return {**recorded_result(SUBNET, subnetID=id_text(L1)), "conversionID": id_text(bytes(32))}


def ahead(params: Any) -> Any:
    height = int(params["height"])
    text = (
        f"unfinalized height with SubnetID = x: current P-chain height ({height - 1}) < requested"
        " P-Chain height"
    )
    raise RefusedCall(f"{text} ({height})")


def open_agreeing(
    *nodes: RecordedNode, quorum: int = 2, observer: Contradictions | None = None, **changes: Any
) -> AbstractAsyncContextManager[Upstream]:
    return open_upstream(*nodes, observer=observer, p_chain_quorum=quorum, **changes)


async def test_a_set_costs_one_call_of_each_node_that_must_agree_and_no_more() -> None:
    nodes = RecordedNode(), RecordedNode(), RecordedNode()
    async with open_agreeing(*nodes) as upstream:
        first = await upstream.platform.validators_at(L1, TIP)
        assert await upstream.platform.validators_at(L1, TIP) is first
    assert [node.calls[SETS] for node in nodes] == [2, 2, 0]
    assert len(first) == len(honest_set())


async def test_with_a_quorum_of_one_a_single_node_is_called() -> None:
    nodes = RecordedNode(), RecordedNode({SETS: heavier_set})
    async with open_agreeing(*nodes, quorum=1) as upstream:
        await upstream.platform.validators_at(L1, TIP)
        assert await upstream.platform.proposed_height() == TIP
        assert (await upstream.platform.subnet(L1)) is not None
        await upstream.platform.current_validations(L1)
        assert await upstream.platform.l1_validator(VALIDATION_ID) is not None
    assert [call for call in nodes[1].calls if call != "info.getNetworkID"] == []


async def test_nodes_that_order_a_set_differently_agree() -> None:
    reversed_set = dict(reversed(honest_set().items()))
    nodes = RecordedNode(), RecordedNode({SETS: reversed_set}), RecordedNode()
    async with open_agreeing(*nodes) as upstream:
        first = await upstream.platform.validators_at(L1, TIP)
        assert await upstream.platform.validators_at(L1, TIP) is first
    assert nodes[2].calls[SETS] == 0


@pytest.mark.parametrize("place", [0, 1])
async def test_one_node_that_lies_about_a_set_is_outvoted_named_rested_and_counted(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [RecordedNode(), RecordedNode(), RecordedNode()]
    nodes[place].replies[SETS] = heavier_set
    observer = Contradictions()
    async with open_agreeing(*nodes, observer=observer) as upstream:
        with stopped_clock() as clock, caplog.at_level(logging.WARNING):
            entries = await upstream.platform.validators_at(L1, TIP)
            assert 77_777 not in {entry.weight for entry in entries}
            assert sum(entry.weight for entry in entries) == sum(
                int(v["weight"]) for v in honest_set().values()
            )
            assert observer.counts == {(place, SETS): 1}
            assert [result.disagrees for result in await upstream.platform.probe()] == [
                position == place for position in range(3)
            ]
            (record,) = (
                log_record
                for log_record in caplog.records
                if "contradicts" in log_record.getMessage()
            )
            assert (vars(record)["node"], vars(record)["position"]) == (nodes[place].uri, place)
            # It rests: neither sets nor other calls are sent to it, whatever their origin.
            before = Counter(nodes[place].calls)
            for origin in CallOrigin:
                await upstream.platform.validators_at(L1, 12, origin)
                await upstream.blocks.tip()
            clock.advance(59.0)
            await upstream.platform.validators_at(L1, 12)
            assert nodes[place].calls == before
            clock.advance(1.0)
            await upstream.platform.validators_at(L1, 12)
            assert nodes[place].calls[SETS] == before[SETS] + 1
    assert observer.counts == {(place, SETS): 2}


async def test_two_nodes_that_agree_on_a_lie_win() -> None:
    liars = RecordedNode({SETS: heavier_set}), RecordedNode({SETS: heavier_set})
    observer = Contradictions()
    async with open_agreeing(RecordedNode(), *liars, observer=observer) as upstream:
        entries = await upstream.platform.validators_at(L1, TIP)
    assert 77_777 in {entry.weight for entry in entries}
    assert observer.counts == {(0, SETS): 1}


async def test_without_enough_equal_replies_the_error_has_classes_and_blames_no_node() -> None:
    nodes = RecordedNode(), RecordedNode({SETS: heavier_set}), RecordedNode({SETS: {}})
    observer = Contradictions()
    async with open_agreeing(*nodes, observer=observer) as upstream:
        with pytest.raises(NodesDisagree) as error:
            await upstream.platform.validators_at(L1, TIP)
    assert isinstance(error.value, NodeUnavailable)
    assert [reply_class.positions for reply_class in error.value.classes] == [(0,), (1,), (2,)]
    assert len({reply_class.digest for reply_class in error.value.classes}) == 3
    detail = error.value.detail
    assert detail["quorum"] == 2
    assert detail["classes"] == error.value.classes
    assert "127.0.0.1" not in f"{error.value}{detail}"
    assert observer.counts == {}


async def test_a_node_that_fails_is_replaced_and_too_few_replies_are_no_agreement() -> None:
    broken, other = RecordedNode({SETS: {"x": 1}}), RecordedNode()
    async with open_agreeing(broken, RecordedNode(), other) as upstream:
        assert await upstream.platform.validators_at(L1, TIP)
        assert other.calls[SETS] == 1
    async with open_agreeing(broken, RecordedNode()) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.validators_at(L1, TIP)
        assert [attempt.position for attempt in error.value.attempts] == [0]
        assert not isinstance(error.value, NodesDisagree)


async def test_a_node_that_lags_neither_agrees_nor_differs() -> None:
    lagging, observer = RecordedNode({SETS: ahead}), Contradictions()
    async with open_agreeing(
        lagging, RecordedNode(), RecordedNode(), observer=observer
    ) as upstream:
        assert await upstream.platform.validators_at(L1, TIP)
    async with open_agreeing(lagging, RecordedNode(), observer=observer) as upstream:
        with pytest.raises(HeightAhead) as error:
            await upstream.platform.validators_at(L1, TIP)
        assert error.value.tip == TIP - 1
    assert observer.counts == {}


async def test_the_proposed_height_is_the_one_that_enough_nodes_have_reached() -> None:
    def at(height: int) -> RecordedNode:
        return RecordedNode({PROPOSED: {"height": str(height)}, HEIGHT: {"height": str(height)}})

    for heights, expected in (((10**9, 20, 19), 20), ((5, 20, 19), 19), ((20, 20, 20), 20)):
        async with open_agreeing(*map(at, heights)) as upstream:
            assert await upstream.platform.proposed_height() == expected
            assert await upstream.platform.height() == expected
    down = RecordedNode({PROPOSED: {"height": "-1"}})
    async with open_agreeing(at(20), down) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.proposed_height()
        assert [attempt.position for attempt in error.value.attempts] == [1]


async def test_a_node_that_forges_heights_rests_and_is_counted() -> None:
    heights = {"forged": 10**9, "honest": 20}
    forger = RecordedNode({PROPOSED: lambda _: {"height": str(heights["forged"])}})
    others = [
        RecordedNode({PROPOSED: lambda _: {"height": str(heights["honest"])}}) for _ in range(2)
    ]
    observer = Contradictions()
    async with open_agreeing(forger, *others, observer=observer) as upstream:
        with stopped_clock() as clock:
            for second in range(70):
                assert await upstream.platform.proposed_height(CallOrigin.DAEMON) == 20 + second
                heights["honest"] += 1
                clock.advance(1.0)
    assert observer.counts == {(0, PROPOSED): 1}
    assert forger.calls[PROPOSED] == 61


async def test_a_subnet_and_its_chains_come_from_the_nodes_that_agree() -> None:
    liar = RecordedNode(
        {
            SUBNET: {
                **recorded_result(SUBNET, subnetID=id_text(L1)),
                "conversionID": id_text(OTHER),
            },
            "platform.validatedBy": {"subnetID": id_text(OTHER)},
            "platform.validates": {"blockchainIDs": [id_text(NO_CHAIN)]},
        }
    )
    observer = Contradictions()
    for method in (SUBNET, "platform.validatedBy", "platform.validates"):
        async with open_agreeing(
            liar, RecordedNode(), RecordedNode(), observer=observer
        ) as upstream:
            if method == SUBNET:
                subnet = await upstream.platform.subnet(L1)
                assert subnet is not None
                assert subnet.conversion_id == parse_id(
                    recorded_result(SUBNET, subnetID=id_text(L1))["conversionID"]
                )
            elif method == "platform.validatedBy":
                assert await upstream.platform.validated_by(L1_CHAIN) == L1
            else:
                assert await upstream.platform.blockchains_of(L1) == (L1_CHAIN,)
        assert observer.counts[0, method] == 1


async def test_a_node_that_denies_existing_data_is_blamed_only_at_the_height_of_others() -> None:
    def missing(_: Any) -> Any:
        raise RefusedCall("not found")

    for height, disagreements in ((TIP, 1), (TIP - 1, 0)):
        denying = RecordedNode({SUBNET: missing, HEIGHT: {"height": str(height)}})
        observer = Contradictions()
        async with open_agreeing(
            denying, RecordedNode(), RecordedNode(), observer=observer
        ) as upstream:
            subnet = await upstream.platform.subnet(L1)
        assert subnet is not None
        assert subnet.is_l1
        assert observer.counts[0, SUBNET] == disagreements


async def test_a_node_that_does_not_know_of_a_conversion_yet_is_no_liar() -> None:
    lagging = RecordedNode({SUBNET: subnet_without_conversion(), HEIGHT: {"height": "3"}})
    observer = Contradictions()
    async with open_agreeing(
        lagging, RecordedNode(), RecordedNode(), observer=observer
    ) as upstream:
        subnet = await upstream.platform.subnet(L1)
    assert subnet is not None
    assert subnet.is_l1
    assert observer.counts == {}


async def test_a_node_that_forges_the_height_of_a_lagging_node_puts_no_blame_on_it() -> None:
    lagging = RecordedNode({SUBNET: subnet_without_conversion(), HEIGHT: {"height": "3"}})
    framing, observer = RecordedNode({HEIGHT: {"height": "3"}}), Contradictions()
    async with open_agreeing(framing, lagging, RecordedNode(), observer=observer) as upstream:
        subnet = await upstream.platform.subnet(L1)
    assert subnet is not None
    assert subnet.is_l1
    assert observer.counts == {}


async def test_a_transaction_that_no_node_has_is_unknown() -> None:
    async with open_agreeing(RecordedNode(), RecordedNode(), RecordedNode()) as upstream:
        assert await upstream.platform.validated_by(NO_CHAIN) is None
        assert await upstream.platform.validated_by(C_CHAIN) == PRIMARY_NETWORK


async def test_current_validations_are_checked_against_a_second_node() -> None:
    nodes = RecordedNode(), RecordedNode(), RecordedNode()
    async with open_agreeing(*nodes, quorum=3) as upstream:
        assert len(await upstream.platform.current_validations(L1)) == 4
    assert [node.calls[CURRENT] for node in nodes] == [1, 1, 0]


def with_balance(balance: str) -> dict[str, Any]:
    first, *others = recorded_result(CURRENT, subnetID=id_text(L1))["validators"]
    return {"validators": [{**first, "balance": balance}, *others]}


async def test_a_forged_height_excuses_no_amount_and_a_third_node_outvotes_it() -> None:
    forged = {
        CURRENT: with_balance("1"),
        "platform.getValidatorFeeState": {
            "excess": 9,
            "price": 512,
            "timestamp": "2026-11-21T02:06:47Z",
        },
        "platform.getTimestamp": {"timestamp": "2030-01-01T00:00:00Z"},
        HEIGHT: {"height": str(TIP + 1)},
    }
    observer = Contradictions()

    async def read(upstream: Upstream) -> tuple[Any, ...]:
        platform = upstream.platform
        calls = (platform.current_validations(L1), platform.fee_state(), platform.chain_time_s())
        return tuple(await asyncio.gather(*calls, return_exceptions=True))

    async with open_agreeing(RecordedNode(), quorum=1) as upstream:
        honest = await read(upstream)
    async with open_agreeing(RecordedNode(forged), RecordedNode(), observer=observer) as upstream:
        for error in await read(upstream):
            assert isinstance(error, NodesDisagree)
            assert [reply_class.positions for reply_class in error.classes] == [(0,), (1,)]
    async with open_agreeing(
        RecordedNode(forged), RecordedNode(), RecordedNode(), observer=observer
    ) as upstream:
        assert await read(upstream) == honest
    # A node at another height lags, or lies: no node can say.
    assert observer.counts == {}


async def test_nodes_that_accept_a_block_at_different_times_agree_a_moment_later() -> None:
    times = iter(["2026-11-21T02:06:40Z"] * 2)
    heights = iter([str(TIP - 1)] * 2)
    late = RecordedNode(
        {
            "platform.getTimestamp": lambda _: {"timestamp": next(times, "2026-11-21T02:06:47Z")},
            HEIGHT: lambda _: {"height": next(heights, str(TIP))},
        }
    )
    other = RecordedNode({"platform.getTimestamp": {"timestamp": "2026-11-21T02:06:47Z"}})
    async with open_agreeing(late, other) as upstream:
        assert await upstream.platform.chain_time_s() == 1_795_226_807


async def test_the_list_of_subnets_is_that_of_nodes_that_agree() -> None:
    listed = recorded_result("platform.getSubnets")
    forged = {
        "subnets": [*listed["subnets"], {"id": id_text(OTHER), "controlKeys": [], "threshold": "0"}]
    }
    liar, observer = RecordedNode({"platform.getSubnets": forged}), Contradictions()
    async with open_agreeing(liar, RecordedNode(), observer=observer) as upstream:
        with pytest.raises(NodesDisagree):
            await upstream.platform.subnets()
    async with open_agreeing(liar, RecordedNode(), RecordedNode(), observer=observer) as upstream:
        assert OTHER not in await upstream.platform.subnets()
    assert observer.counts == {(0, "platform.getSubnets"): 1}


async def test_a_balance_that_differs_at_the_same_height_is_a_contradiction() -> None:
    liar, observer = RecordedNode({CURRENT: with_balance("1")}), Contradictions()
    async with open_agreeing(liar, RecordedNode(), observer=observer) as upstream:
        with pytest.raises(NodesDisagree) as error:
            await upstream.platform.current_validations(L1)
        assert [reply_class.positions for reply_class in error.value.classes] == [(0,), (1,)]
    async with open_agreeing(liar, RecordedNode(), RecordedNode(), observer=observer) as upstream:
        current = await upstream.platform.current_validations(L1)
    assert current[0].balance == 99_999_999_949
    assert observer.counts == {(0, CURRENT): 1}


async def test_a_node_that_lists_a_validation_twice_is_not_used() -> None:
    listed = recorded_result(CURRENT, subnetID=id_text(L1))["validators"]
    for repeated in ([*listed, listed[0]], [listed[0], {**listed[0], "weight": "1"}, *listed[1:]]):
        liar = RecordedNode({CURRENT: {"validators": repeated}})
        async with open_agreeing(liar, RecordedNode(), RecordedNode()) as upstream:
            current = await upstream.platform.current_validations(L1)
        assert [validation.weight for validation in current] == TRUE_WEIGHTS
        async with open_upstream(liar) as upstream:
            with pytest.raises(NodeUnavailable):
                await upstream.platform.current_validations(L1)


async def test_members_that_change_while_nodes_are_read_are_compared_again() -> None:
    """The second node accepts a block a moment later than the first one."""
    listed = recorded_result(CURRENT, subnetID=id_text(L1))["validators"]
    replies = iter([{"validators": listed[:3]}, {"validators": listed}])
    second, observer = RecordedNode({CURRENT: lambda _: next(replies)}), Contradictions()
    async with open_agreeing(RecordedNode(), second, observer=observer) as upstream:
        assert len(await upstream.platform.current_validations(L1)) == 4
    assert observer.counts == {}


async def test_a_list_without_the_right_validators_is_not_used_even_at_a_forged_height() -> None:
    none: dict[str, list[Any]] = {"validators": []}
    liar = RecordedNode({CURRENT: none, HEIGHT: {"height": str(10**9)}})
    async with open_agreeing(liar, RecordedNode()) as upstream:
        with pytest.raises(NodesDisagree):
            await upstream.platform.current_validations(L1)
    async with open_agreeing(liar, RecordedNode(), RecordedNode()) as upstream:
        assert len(await upstream.platform.current_validations(L1)) == 4


async def test_the_state_of_an_l1_validation_is_checked_against_a_second_node() -> None:
    recorded = recorded_result(VALIDATION, validationID=id_text(VALIDATION_ID))
    liar = RecordedNode({VALIDATION: {**recorded, "weight": "1"}})
    observer = Contradictions()
    async with open_agreeing(liar, RecordedNode(), RecordedNode(), observer=observer) as upstream:
        validator = await upstream.platform.l1_validator(VALIDATION_ID)
        assert validator is not None
        assert validator.state is not None
        assert validator.state.weight == int(recorded["weight"])
        assert await upstream.platform.l1_validator(VALIDATION_ID, at_least=10**6) is None
    assert observer.counts == {(0, VALIDATION): 1}


def broken(_: Any) -> Any:
    return web.Response(status=500, text="no")


def denying(_: Any) -> Any:
    raise RefusedCall("not found")


def lies_of(name: str) -> dict[str, Any]:
    """Return a lie of a node; of equal names the same lie."""
    weight = str(1_000_000 + sum(name.encode()))
    members, listed = honest_set(), recorded_result(CURRENT, subnetID=id_text(L1))["validators"]
    first = next(iter(members))
    return {
        SETS: {**members, first: {**members[first], "weight": weight}},
        SUBNET: {
            **recorded_result(SUBNET, subnetID=id_text(L1)),
            "conversionID": id_text(sha256(name.encode()).digest()),
        },
        CURRENT: {"validators": [{**listed[0], "weight": weight}, *listed[1:]]},
        PROPOSED: {"height": str(10**6 + len(name))},
        HEIGHT: {"height": str(10**6 + len(name))},
    }


FAILURES: tuple[dict[str, Any], ...] = (
    dict.fromkeys((SETS, SUBNET, CURRENT, PROPOSED), broken),
    {
        SETS: ahead,
        SUBNET: subnet_without_conversion(),
        CURRENT: with_balance("99999999950"),
        HEIGHT: {"height": "3"},
    },
    {SUBNET: denying, PROPOSED: {"height": "2"}, HEIGHT: {"height": "2"}},
    {},
)


async def test_fewer_liars_than_the_quorum_never_decide_and_no_honest_node_is_blamed() -> None:
    """Random networks of nodes that are right, lag, fail, or lie, alone or together."""
    rng, agreed = Random(14), 0
    nodes = [RecordedNode() for _ in range(5)]
    async with serve_nodes(*nodes) as uris, open_session() as session:
        for _ in range(60):
            count = rng.randint(2, len(nodes))
            quorum = rng.randint(2, count)
            liars = set(rng.sample(range(count), rng.randint(0, quorum - 1)))
            for place in range(count):
                own_or_common = lies_of(rng.choice(("all", f"node {place}")))
                nodes[place].replies = dict(
                    own_or_common if place in liars else rng.choice(FAILURES)
                )
            observer = Contradictions()
            upstream = connect(
                session, build_settings(*uris[:count], p_chain_quorum=quorum), observer
            )
            platform = upstream.platform
            with suppress(NodeUnavailable, HeightAhead):
                assert {entry.weight for entry in await platform.validators_at(L1, TIP)} == {
                    int(member["weight"]) for member in honest_set().values()
                }
                agreed += 1
            with suppress(NodeUnavailable):
                subnet = await platform.subnet(L1)
                assert subnet is None or subnet.conversion_id in (None, TRUE_CONVERSION)
                agreed += 1
            with suppress(NodeUnavailable):
                assert await platform.proposed_height() in (TIP, 2)
                agreed += 1
            if len(liars) < 2:
                with suppress(NodeUnavailable):
                    current = await platform.current_validations(L1)
                    assert [validation.weight for validation in current] == TRUE_WEIGHTS
                    agreed += 1
            assert {position for position, _ in observer.counts} <= liars
    assert agreed > 60
