"""Raw blocks go through decoder, ledger and store, and into a plain model without any of these:
both agree after each.

The histories are those of `tests/ledger`: delegations, rewards paid and refused, aborts, elastic
subnets, L1 validators, from before Banff to behind Etna, Cortina's delegation fees in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.index.fixtures import open_writer, small_settings
from tests.ledger.histories import History
from tests.ledger.made_up_network import PARAMS, UPGRADES
from tests.ledger.model import Model
from warpseal.follow.blocks import RawBlock
from warpseal.index import consistency
from warpseal.index.columns import decode_owners
from warpseal.index.database import index_url, reading_index
from warpseal.index.read_session import ReadSession
from warpseal.index.schema import ALL_UNSPENT
from warpseal.index.validator_sets import read_all_members, read_members
from warpseal.indexer.processors import PChainProcessor
from warpseal.indexer.settings import IndexerSettings
from warpseal.store.connection import Connection
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID
from warpseal.warp.validator_set import ValidatorEntry

# The long one goes beyond Etna.
LONG = (0, 950)
HISTORIES = [LONG, (1, 250)]
# A server answers more slowly than a file.
ON_A_SERVER = (2, 120)
_PENDING, _ACTIVE = 0, 1
SETTINGS = IndexerSettings(checkpoint_blocks=50, checkpoint_s=3_600)


@pytest.fixture(params=[*HISTORIES, ON_A_SERVER], ids=lambda item: f"seed {item[0]}")
def history(request: pytest.FixtureRequest) -> tuple[int, int]:
    """A seed, and how many blocks."""
    parameters: tuple[int, int] = request.param
    return parameters


def test_store_and_model_agree_after_every_block(
    request: pytest.FixtureRequest, history: tuple[int, int]
) -> None:
    seed, blocks = history
    is_server = history == ON_A_SERVER
    url = request.getfixturevalue("postgres_url" if is_server else "file_url")
    chain_history = History(seed)
    reading = reading_index(index_url(small_settings(url), None), small_settings(url))
    with open_writer(url, PARAMS) as writer, reading.connect() as connection:
        work = PChainProcessor(writer, PARAMS, chain_history.genesis, SETTINGS)
        assert work.resume() is None
        assert work.begin(RawBlock(chain_history.genesis.block.raw, False), 0)
        assert_rows_equal_model(connection, chain_history.model)
        sets = [chain_history.model.sets()]
        for height in range(1, blocks + 1):
            work.write(height, [RawBlock(chain_history.next_block().raw, False)])
            assert_rows_equal_model(connection, chain_history.model)
            sets.append(chain_history.model.sets())
            if height % 97 == 0:
                # As after a crash: nothing but what is written is known.
                work = PChainProcessor(writer, PARAMS, chain_history.genesis, SETTINGS)
                assert work.resume() is not None
        with connection.snapshot():
            assert_sets_equal(connection, sets)
    reading.dispose()
    if history == LONG:
        assert chain_history.model.time > UPGRADES.etna_s
        assert chain_history.model.l1


@pytest.fixture
def file_url(tmp_path: Any) -> str:
    """Return the URL of an index in a file."""
    return f"sqlite:///{tmp_path}/index.db"


def assert_rows_equal_model(connection: Connection, model: Model) -> None:
    """Assert that the rows say what the model says."""
    with connection.snapshot():
        _assert_rows_equal_model(connection, model)


def _assert_rows_equal_model(connection: Connection, model: Model) -> None:
    reading = ReadSession(connection)
    last = reading.rows(
        "SELECT time, supply, fees, active FROM blocks WHERE chain = 0 ORDER BY key DESC LIMIT 1"
    )
    assert tuple(last[0]) == (
        model.time,
        model.supply[PRIMARY_NETWORK],
        model.accrued,
        model.active(),
    )
    assert unspent(reading) == {
        key: (coin[0], coin[1], tuple(coin[5])) for key, coin in model.coins.items()
    }
    assert stakings(reading, _ACTIVE) == {
        item.tx_id: (item.start, item.end, item.weight, item.reward) for item in model.current
    }
    assert set(stakings(reading, _PENDING)) == {entry.tx_id for entry in model.waiting}
    balances = {key: consistency.l1_balance(connection, key) for key in model.l1}  # type: ignore[arg-type]
    assert balances == {key: change.balance for key, change in model.l1.items()}


def assert_sets_equal(connection: Connection, sets: list[Any]) -> None:
    """Assert that the index has the validator sets of the model after every block, and none of
    later ones.
    """
    reading = ReadSession(connection)
    for height, expected in enumerate(sets):
        all_members = read_all_members(reading, height)
        assert all_members is not None
        assert {subnet: as_members(members) for subnet, members in all_members.items()} == expected
        for subnet in (SubnetID(bytes(31) + b"\x01"), *all_members):
            assert read_members(reading, subnet, height) == all_members.get(subnet, ())
    assert read_members(reading, PRIMARY_NETWORK, len(sets)) is None
    assert reading.rows("SELECT count(*) FROM set_snapshots WHERE height > 0")[0][0] > 0


def as_members(entries: Sequence[ValidatorEntry]) -> dict[bytes, Any]:
    """Return members as the model lists them."""
    return {entry.node_id: (entry.public_key, entry.weight) for entry in entries}


def unspent(reading: ReadSession) -> dict[bytes, Any]:
    """Return what can be spent on the P-Chain, by id: asset, amount, owners."""
    rows = reading.rows(
        "SELECT prefix, rest, asset, amount, owner, owners"
        f" FROM {ALL_UNSPENT} AS u"
        " WHERE held_on = 0"
    )
    owners = [_owners(owner, several) for *_, owner, several in rows]
    reading.load_ids(
        {key for row in rows for key in [row[2]]} | {key for some in owners for key in some}
    )
    return {
        (prefix % 2**64).to_bytes(8, "big") + bytes(rest): (
            reading.id_of(asset),
            amount,
            tuple(reading.id_of(key) for key in some),
        )
        for (prefix, rest, asset, amount, *_), some in zip(rows, owners, strict=True)
    }


def _owners(owner: int | None, several: bytes | None) -> tuple[int, ...]:
    if several is not None:
        return tuple(decode_owners(bytes(several))[1])
    return () if owner is None else (owner,)


def stakings(reading: ReadSession, state: int) -> dict[bytes, Any]:
    """Return the stakings in a state, by transaction: begin, end, weight, what it may earn."""
    text = (
        "SELECT t.tx_id, s.start_s, s.end_s, s.weight, coalesce(s.potential, 0)"
        " FROM stakings s JOIN txs t ON t.key = s.tx WHERE s.state = ?"
    )
    return {bytes(tx_id): tuple(rest) for tx_id, *rest in reading.rows(text, state)}
