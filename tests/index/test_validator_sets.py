"""Validator sets of an index: those that recorded nodes reported at every height, and those of an
upgraded index.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chains.exchanges import lines
from tests.chains.p_vectors import genesis_bytes, recording, unchecked
from tests.index.fixtures import open_index, open_writer, small_settings
from tests.index.test_store_and_model import SETTINGS, as_members
from tests.ledger.histories import History
from tests.ledger.made_up_network import PARAMS
from tests.ledger.recorded import p_blocks, params
from warpseal.chains.p_blocks import PGenesis, parse_p_genesis
from warpseal.cli import index_queries
from warpseal.follow.blocks import RawBlock
from warpseal.index.database import index_url
from warpseal.index.validator_sets import SetHeights
from warpseal.indexer.processors import PChainProcessor
from warpseal.ledger.params import Parameters
from warpseal.node.p_chain import decode_validators_at
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import BlockQuery, PageRequest
from warpseal.store.errors import StoreDown
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, parse_id

SET_TABLES = ("set_members", "set_changes", "set_snapshots")


def write_chain(
    url: str, network: Parameters, genesis: PGenesis | None, blocks: list[bytes], first: int
) -> None:
    """Write blocks from height `first` on, behind the genesis if there is one."""
    with open_writer(url, network) as writer:
        work = PChainProcessor(writer, network, genesis, SETTINGS)
        if work.resume() is None:
            begin = genesis.block.raw if genesis is not None else blocks.pop(0)
            assert work.begin(RawBlock(begin, False), first - 1)
        work.write(first, [RawBlock(raw, False) for raw in blocks])


def recorded_sets(calls: Iterable[dict[str, Any]]) -> list[tuple[SubnetID, int, bytes]]:
    """Return the recorded validator sets by subnet and height, as a node sent them."""
    return [
        (
            SubnetID(parse_id(call["params"]["subnetID"])),
            call["params"]["height"],
            json.dumps(call["result"]).encode(),
        )
        for call in calls
        if call["method"] == "platform.getValidatorsAt" and "result" in call
        if isinstance(call["params"]["height"], int)
    ]


async def test_no_number_of_pages_keeps_signing_from_the_sets(tmp_path: Path) -> None:
    url, released = f"sqlite:///{tmp_path}/index.db", threading.Event()
    history = History(1)
    write_chain(url, PARAMS, history.genesis, [history.next_block().raw for _ in range(3)], 1)
    async with open_index(url, PARAMS) as index:
        pages = [
            asyncio.create_task(index._reader.read(lambda _: released.wait())) for _ in range(200)
        ]
        try:
            await asyncio.sleep(0)
            with pytest.raises(StoreDown, match="too many reads"):
                await index.blocks(BlockQuery(PrimaryChain.P), PageRequest(1))
            assert await index.validator_sets.heights() is not None
        finally:
            released.set()
            await asyncio.gather(*pages, return_exceptions=True)


async def check_recorded(
    url: str, network: Parameters, sets: list[tuple[SubnetID, int, bytes]]
) -> None:
    """Assert that the index has the recorded sets."""
    assert {height for _, height, _ in sets} == set(range(20))
    async with open_index(url, network) as index:
        reader = index.validator_sets
        assert await reader.heights() == (0, 19)
        for subnet_id, height, raw in sets:
            expected = tuple(sorted(decode_validators_at(raw)))
            assert await reader.members_at(subnet_id, height) == expected
            every = await reader.all_members_at(height)
            assert every is not None
            assert every.get(subnet_id, ()) == expected
        assert await reader.members_at(PRIMARY_NETWORK, 20) is None
        assert await reader.all_members_at(20) is None


async def test_the_sets_of_a_recorded_network_are_those_of_its_node_at_every_height(
    tmp_path: Path,
) -> None:
    url, genesis = f"sqlite:///{tmp_path}/index.db", parse_p_genesis(genesis_bytes("localnet"))
    write_chain(url, params(), genesis, [block.raw for block in p_blocks()], 1)
    await check_recorded(url, params(), recorded_sets(lines("platform.jsonl")))


async def test_the_sets_of_a_network_with_helicon_are_those_of_its_node_at_every_height(
    any_index_url: str,
) -> None:
    calls = recording("helicon")
    times = next(call["result"] for call in calls if call["method"] == "info.upgrades")
    helicon_s = int(datetime.fromisoformat(times["heliconTime"].replace("Z", "+00:00")).timestamp())
    network = replace(params(), upgrades=replace(params().upgrades, helicon_s=helicon_s))
    blocks = {
        int(call["params"]["height"]): unchecked(call["result"]["block"])
        for call in calls
        if call["method"] == "platform.getBlockByHeight"
    }
    genesis = parse_p_genesis(genesis_bytes("helicon"))
    assert blocks[0] == genesis.block.raw
    write_chain(any_index_url, network, genesis, [blocks[height] for height in range(1, 20)], 1)
    await check_recorded(any_index_url, network, recorded_sets(calls))


async def test_an_index_whose_sets_begin_late_has_sets_from_then_on_and_all_after_a_rebuild(
    any_index_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, history, at_height = any_index_url, History(5), 60
    blocks, sets = [], [history.model.sets()]
    for _ in range(120):
        blocks.append(history.next_block().raw)
        sets.append(history.model.sets())
    write_chain(url, PARAMS, history.genesis, blocks[:at_height], 1)
    with open_writer(url, PARAMS) as writer, writer._engine.begin() as connection:
        for name in SET_TABLES:
            connection.fetch(f"DELETE FROM {name}")
    write_chain(url, PARAMS, history.genesis, blocks[at_height:100], at_height + 1)
    await check_model(url, sets[:101], SetHeights(at_height, 100))
    settings, counts = replace(small_settings(url), refresh_s=0.0), list[tuple[str, int, int]]()
    monkeypatch.setattr(index_queries, "_REBUILD_STEP_S", 0.0)
    index_queries.rebuild_rows(
        index_url(settings, None), PARAMS, settings, lambda *count: counts.append(count)
    )
    assert (counts[0][0], counts[-1]) == ("blocks", ("blocks", 101, 101))
    write_chain(url, PARAMS, history.genesis, blocks[100:], 101)
    await check_model(url, sets, SetHeights(0, 120))


async def check_model(url: str, sets: list[Any], expected_heights: SetHeights) -> None:
    """Assert that the index has the sets of the model at these heights, and no others."""
    async with open_index(url, PARAMS) as index:
        assert await index.validator_sets.heights() == expected_heights
        for height, expected in enumerate(sets):
            members = await index.validator_sets.all_members_at(height)
            if height < expected_heights.oldest:
                assert members is None
            else:
                assert members is not None
                assert {
                    subnet: as_members(entries) for subnet, entries in members.items()
                } == expected


async def test_an_index_without_the_genesis_has_no_sets(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    blocks = [block.raw for block in p_blocks()]
    write_chain(url, params(), None, blocks[:10], 2)
    write_chain(url, params(), None, blocks[10:], 11)
    async with open_index(url, params()) as index:
        assert await index.validator_sets.heights() is None
        assert await index.validator_sets.members_at(PRIMARY_NETWORK, 19) is None
