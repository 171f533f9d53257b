"""How the index stands, as `/ready`, `/ext/health` and the metrics page tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from warpseal.history.chains import PrimaryChain
from warpseal.history.ports import ChainFreshness
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.index import Index
from warpseal.indexer.status import IndexStatus
from warpseal.metrics import IndexSample

STOP = "indexing the x-chain stopped at block 0: wrong_genesis"


class Standing:
    """An index whose P-Chain catches up and whose X-Chain could not even begin."""

    def freshness(self) -> Sequence[ChainFreshness]:
        return (ChainFreshness(PrimaryChain.P, 70, 100, 1_000, first_height=5),)

    def notes(self) -> Mapping[PrimaryChain, ChainStatus]:
        return {
            PrimaryChain.P: ChainStatus(PrimaryChain.P, 100, False, rate_blocks_s=15.0, eta_s=2.0),
            PrimaryChain.X: ChainStatus(PrimaryChain.X, 13, False, "wrong_genesis", 0),
        }

    def pages(self) -> Mapping[PrimaryChain, Mapping[str, int]]:
        return {PrimaryChain.P: Counter(blocks=3)}


def status(index: Any = None) -> IndexStatus:
    made = IndexStatus(now=lambda: 1_030.5)
    made.index = cast(Index | None, index)
    return made


def test_before_there_is_an_index_nothing_is_told_of_it() -> None:
    assert status().beside({"store": "up"}) == {"store": "up"}
    assert list(status().samples()) == []
    assert status().stops() == []


def test_a_chain_that_catches_up_tells_where_it_began_its_rate_and_when_it_will_be_there() -> None:
    assert status(Standing()).beside({})["index"] == {
        "p-chain": {
            "height": "70",
            "nodeHeight": "100",
            "lagBlocks": 30,
            "firstHeight": "5",
            "blocksPerSecond": 15.0,
            "etaSeconds": 2,
        }
    }


def test_a_chain_that_stopped_is_named_even_where_nothing_of_it_was_written() -> None:
    told = status(Standing())
    assert told.stops() == [STOP]
    assert told.beside({"degraded": ["the store is down"]})["degraded"] == ["the store is down", STOP]


def test_metrics_tell_of_each_chain_what_is_known() -> None:
    assert list(status(Standing()).samples()) == [
        IndexSample("p-chain", 70, 100, 5, 30, 15.0, 2.0, None, {"blocks": 3}),
        IndexSample("x-chain", None, 13, None, None, None, None, "wrong_genesis", {}),
    ]
