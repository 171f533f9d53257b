"""Transactions per second of UTC days: those of a plain model, for any history, first block and cut
of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random

import pytest
from msgspec.structs import replace

from tests.index.evm.fixtures import open_index, open_writer
from tests.index.evm.histories import START, made_block
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index.evm.schema import create_derived_tables
from warpseal.resources.evm import DailyTps

DAY = 86_400
FIRST_DAY = START // DAY
NOW = 1_900_000_000.5


def days_of(blocks: Sequence[EvmBlockFacts]) -> tuple[int, dict[int, float]] | None:
    """Return the first complete day, and the transactions per second of each later one."""
    blocks = [block for block in blocks if block.number > 0]
    if not blocks:
        return None
    is_partial = blocks[0].number > 1
    first_day = blocks[0].time // DAY + is_partial
    values = {}
    for day in sorted({block.time // DAY for block in blocks if block.time // DAY >= first_day}):
        of_day = [block for block in blocks if block.time // DAY == day]
        earlier = [block for block in blocks if block.time // DAY < day]
        seconds = of_day[-1].time - (earlier[-1] if earlier else blocks[0]).time
        values[day] = sum(block.tx_count for block in of_day) / seconds if seconds else 0.0
    return first_day, values


def make_blocks(random: Random, count: int, first: int, genesis_time: int) -> list[EvmBlockFacts]:
    """Return blocks some hours apart, some at the same second, some after days without blocks."""
    steps = [random.choice((0, 1, 3_600, 20_000, 50_000, 300_000)) for _ in range(count)]
    times = list(accumulate(steps, initial=START))
    blocks = [
        made_block(number, tx_count=random.randrange(5), time=times[number])
        for number in range(count)
    ]
    blocks[0] = replace(blocks[0], time=genesis_time, tx_count=0)
    return blocks[first:]


@pytest.mark.parametrize(
    ("seed", "first", "genesis_time", "server"),
    [
        (1, 0, 0, False),
        (2, 0, START, False),
        (3, 1, 0, False),
        (4, 7, 0, True),
        (5, 0, START - 3 * DAY, True),
    ],
)
async def test_transactions_per_second_of_days_are_those_of_the_model(
    request: pytest.FixtureRequest, seed: int, first: int, genesis_time: int, server: bool
) -> None:
    url = request.getfixturevalue("postgres_url" if server else "file_url")
    random = Random(seed)
    blocks = make_blocks(random, 60, first, genesis_time)
    at = 0
    while at < len(blocks):
        with open_writer(url, first, lambda: NOW) as writer:
            if at == 0 and first:
                writer.begin(first, blocks[0].parent_hash)
            size = random.choice((1, 3, 20))
            writer.write(blocks[at : at + size])
            at += size
    expected = days_of(blocks)
    assert expected is not None
    first_day, values = expected
    async with open_index(url) as index:
        days = await index.daily_tps(0, 2**40)
        assert days is not None
        assert (days.first_day, days.last_day) == (first_day, blocks[-1].time // DAY)
        assert (dict(days.values), days.advanced_at) == (values, int(NOW))
        for _ in range(20):
            low = random.randrange(first_day - 2, days.last_day + 2)
            high = low + random.randrange(10)
            part = await index.daily_tps(low, high)
            assert part is not None
            assert dict(part.values) == {
                day: value for day, value in values.items() if low <= day <= high
            }


async def test_a_chain_with_block_0_only_has_no_days(file_url: str) -> None:
    with open_writer(file_url) as writer:
        writer.write([made_block(0, tx_count=0)])
    async with open_index(file_url) as index:
        assert await index.daily_tps(0, 2**40) == DailyTps(None, FIRST_DAY, {}, 0)


async def test_days_are_derived_again_from_the_blocks(file_url: str) -> None:
    blocks = make_blocks(Random(6), 40, 0, 0)
    with open_writer(file_url) as writer:
        writer.write(blocks)
        with writer._engine.begin() as connection:
            create_derived_tables(connection)
    async with open_index(file_url) as index:
        assert await index.daily_tps(0, 2**40) is None
        with open_writer(file_url):
            pass
        days = await index.daily_tps(0, 2**40)
        assert days is not None
        assert (days.first_day, dict(days.values)) == days_of(blocks)
