"""Readings of validators and of the fee are of one chain time, with the number of active validators
if it is known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.data.memory_index import MemoryIndex
from tests.api.data.values import Block
from tests.node.recorded_node import L1, PERMISSIONED, RecordedNode, open_upstream, recorded_result
from warpseal.chains.ids import BlockID
from warpseal.ledger.chain_time import advance_excess, l1_fee_price
from warpseal.ledger.params import MAINNET, L1FeeConfig
from warpseal.node.p_chain import L1FeeState
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import ChainProgress
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.limits import CallOrigin
from warpseal.validators.forecast.service import (
    ActiveSource,
    FeeStates,
    ForecastReader,
    SubnetReading,
)
from warpseal.warp.ids import SubnetID, id_text

STATE = "platform.getValidatorFeeState"
CONFIG = "platform.getValidatorFeeConfig"
CURRENT = "platform.getCurrentValidators"
RECORDED_AT = 1_795_226_807
LOCAL = L1FeeConfig(10_000, 1, 865_617, 20_000)


def state_json(excess: int, second: int, config: L1FeeConfig = LOCAL) -> dict[str, Any]:
    """Return a fee state some seconds after the recorded one."""
    return {
        "excess": excess,
        "price": l1_fee_price(config, excess),
        "timestamp": f"2026-11-21T02:07:{second:02}Z",
    }


def replies_in_turn(*replies: dict[str, Any]) -> Any:
    """Return a reply that gives one after another, and the last one for ever."""
    waiting: Iterator[dict[str, Any]] = iter(replies)
    return lambda _: next(waiting, replies[-1])


@asynccontextmanager
async def reader_of(
    node: RecordedNode, index: MemoryIndex | None = None
) -> AsyncIterator[ForecastReader]:
    async with open_upstream(node) as upstream:
        yield ForecastReader(upstream.platform, lambda: index)


async def read(
    node: RecordedNode, subnet_id: SubnetID = L1, index: MemoryIndex | None = None
) -> SubnetReading:
    async with reader_of(node, index) as reader:
        return await reader.read(subnet_id, CallOrigin.CALLER)


def p_index(active: int | None, time: int = RECORDED_AT, first_height: int = 0) -> MemoryIndex:
    """Return an index whose newest P-Chain block has this number of active validators."""

    def block(height: int, active: int | None) -> Block:
        return Block(
            chain=PrimaryChain.P,
            height=height,
            block_id=BlockID(bytes(32)),
            parent_id=BlockID(bytes(32)),
            kind="ApricotStandardBlock",
            time=time,
            tx_ids=(),
            size_bytes=1,
            active_l1_validators=active,
        )

    fresh = ChainProgress(
        chain=PrimaryChain.P, height=19, node_height=19, block_time=time, first_height=first_height
    )
    return MemoryIndex(chains=[fresh], all_blocks=[block(18, 9), block(19, active)])


async def test_the_recorded_l1_is_read_at_the_time_of_the_chain_with_the_minimum_price() -> None:
    node = RecordedNode()
    reading = await read(node)
    assert reading.fee.state == L1FeeState(0, 1, RECORDED_AT)
    assert (reading.fee.config, reading.fee.active, reading.fee.source) == (
        LOCAL,
        None,
        ActiveSource.MINIMUM,
    )
    assert [validation.balance for validation in reading.validations] == [
        99_999_999_949,
        101_999_999_779,
        99_999_999_779,
        0,
    ]
    assert (node.calls[STATE], node.calls[CURRENT], node.calls[CONFIG]) == (2, 1, 1)


async def test_balances_are_read_again_if_a_block_came_in_between() -> None:
    recorded = recorded_result(CURRENT, subnetID=id_text(L1))["validators"]
    later = [{**entry, "balance": str(max(0, int(entry["balance"]) - 2))} for entry in recorded]
    states = replies_in_turn(state_json(0, 1), state_json(0, 3))
    node = RecordedNode(
        {STATE: states, CURRENT: replies_in_turn({"validators": recorded}, {"validators": later})}
    )
    reading = await read(node)
    assert reading.fee.state.time_s == RECORDED_AT + 16
    assert reading.validations[0].balance == 99_999_999_947
    assert (node.calls[STATE], node.calls[CURRENT]) == (3, 2)


async def test_a_chain_with_a_block_between_all_calls_is_read_three_times_at_most() -> None:
    node = RecordedNode({STATE: replies_in_turn(*(state_json(0, second) for second in range(20)))})
    assert (await read(node)).fee.state.time_s == RECORDED_AT + 16
    assert (node.calls[STATE], node.calls[CURRENT]) == (4, 3)


async def test_stakes_need_no_second_reading() -> None:
    node = RecordedNode({STATE: replies_in_turn(*(state_json(0, second) for second in range(20)))})
    assert (await read(node, PERMISSIONED)).validations[0].end_unix_s == 1_826_757_159
    assert node.calls[CURRENT] == 1


async def test_two_readings_of_the_excess_give_the_number_of_active_validators() -> None:
    states = (state_json(1_000, 1), state_json(1_000, 1), *[state_json(1_000 + 5 * 70, 6)] * 2)
    async with reader_of(RecordedNode({STATE: replies_in_turn(*states)})) as reader:
        first = (await reader.read(L1, CallOrigin.CALLER)).fee
        assert (first.active, first.source) == (None, ActiveSource.UNKNOWN)
        second = (await reader.read(L1, CallOrigin.CALLER)).fee
        assert (second.active, second.source) == (10_070, ActiveSource.SLOPE)


@pytest.mark.parametrize(
    ("index", "source"),
    [
        (p_index(3), ActiveSource.INDEX),
        (p_index(3, RECORDED_AT - 60), ActiveSource.INDEX),
        (p_index(3, RECORDED_AT - 61), ActiveSource.MINIMUM),
        (p_index(3, RECORDED_AT + 61), ActiveSource.MINIMUM),
        (p_index(3, first_height=7), ActiveSource.MINIMUM),
        (p_index(None), ActiveSource.MINIMUM),
        (MemoryIndex(), ActiveSource.MINIMUM),
    ],
)
async def test_an_index_near_the_tip_has_the_number(
    index: MemoryIndex, source: ActiveSource
) -> None:
    fee = (await read(RecordedNode(), index=index)).fee
    assert (fee.source, fee.active) == (source, 3 if source is ActiveSource.INDEX else None)


async def test_the_minimum_price_is_assumed_if_the_index_cannot_be_read() -> None:
    index = p_index(3)
    index.error = StoreDown("a test wants it")
    assert (await read(RecordedNode(), index=index)).fee.source is ActiveSource.MINIMUM


async def test_parameters_are_read_again_when_they_do_not_give_the_price() -> None:
    changed = {**recorded_result(CONFIG), "minPrice": 512}
    states = replies_in_turn(
        state_json(0, 1), state_json(0, 1), *[{**state_json(0, 2), "price": 512}] * 2
    )
    node = RecordedNode({STATE: states, CONFIG: replies_in_turn(recorded_result(CONFIG), changed)})
    async with reader_of(node) as reader:
        assert (await reader.read(L1, CallOrigin.CALLER)).fee.config.min_price == 1
        assert (await reader.read(L1, CallOrigin.CALLER)).fee.config.min_price == 512
        await reader.read(L1, CallOrigin.CALLER)
    assert node.calls[CONFIG] == 2


async def test_a_price_that_no_parameters_give_is_no_reply() -> None:
    with pytest.raises(NodeUnavailable, match=STATE):
        await read(RecordedNode({STATE: {**state_json(0, 1), "price": 2}}))


@given(
    active=st.integers(0, 20_000),
    excess=st.integers(1, 2**40),
    seconds=st.integers(1, 86_400),
    noise=st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=5),
)
def test_the_slope_of_the_excess_gives_the_number_exactly(
    active: int, excess: int, seconds: int, noise: list[tuple[int, int]]
) -> None:
    config, time_s = MAINNET.l1_fee, 1_800_000_000
    later = advance_excess(config, active, excess, seconds)
    states = FeeStates()
    for other, at in noise:
        # Older states, and states of nodes that are ahead or lie.
        if not time_s <= at < time_s + seconds:
            states.add(L1FeeState(other, 1, at))
    states.add(L1FeeState(excess, 1, time_s))
    state = states.active_before(L1FeeState(later, 1, time_s + seconds), config)
    assert state == (active if later else None)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ((5, 100), (9, 100)),
        ((5, 101), (9, 100)),
        ((0, 100), (9, 101)),
        ((9, 100), (0, 101)),
        ((2**64 - 1, 100), (2**63, 101)),
        ((5, 100), (2**64 - 1, 101)),
        ((5, 100), (5 + 10_001, 101)),
        ((20_002, 100), (1, 101)),
        ((5, 100), (6, 100 + 86_401)),
    ],
)
def test_a_slope_that_says_nothing_gives_no_number(
    earlier: tuple[int, int], later: tuple[int, int]
) -> None:
    states = FeeStates()
    states.add(L1FeeState(earlier[0], 1, earlier[1]))
    assert states.active_before(L1FeeState(later[0], 1, later[1]), MAINNET.l1_fee) is None


def test_a_number_that_changed_between_two_readings_is_their_mean() -> None:
    states = FeeStates()
    states.add(L1FeeState(1_000, 1, 100))
    after = advance_excess(
        MAINNET.l1_fee, 10_011, advance_excess(MAINNET.l1_fee, 10_010, 1_000, 3), 3
    )
    assert states.active_before(L1FeeState(after, 1, 106), MAINNET.l1_fee) == 10_011


def test_the_newest_earlier_reading_counts_and_few_are_kept() -> None:
    states = FeeStates()
    for second in range(1_000):
        states.add(L1FeeState(10_000 + 7 * second, 1, second))
    states.add(L1FeeState(1, 1, 0))
    assert (
        states.active_before(L1FeeState(10_000 + 7 * 999 + 9, 1, 1_000), MAINNET.l1_fee) == 10_009
    )
    assert len(states._states) == 16
