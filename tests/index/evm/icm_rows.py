"""Writers of the indexes of chains with ICM, the joining of deliveries, and what the rows say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.index.evm.fixtures import small_settings
from tests.index.evm.histories import GENESIS_PARENT
from tests.index.evm.icm_histories import (
    REGISTRY,
    A,
    B,
    IcmHistory,
    expected_receives,
    expected_sends,
)
from warpseal.chains.evm.icm_events import ChangeKind, Outcome, message_id
from warpseal.index.database import reading_index
from warpseal.index.evm import consistency
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.keys import IcmState, unpack
from warpseal.index.evm.records import EvmChainIdentity, IcmOptions
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.store.connection import Connection
from warpseal.warp.ids import ChainID

OPTIONS = IcmOptions(12_345, registries=(REGISTRY,), is_indexed=lambda chain_id: chain_id in (A, B))
Place = str | Mapping[ChainID, str]
"""The value of `index-url`, or the folder of the network, of all chains or of each."""


@contextmanager
def icm_writer(
    url: str,
    chain_id: ChainID,
    options: IcmOptions | None = OPTIONS,
    *,
    first: int = 0,
    parent: bytes = GENESIS_PARENT,
    settings: IndexSettings | None = None,
) -> Iterator[EvmIndexWriter]:
    """Hold the index of a chain open for writing, begun at its first block."""
    settings = settings or small_settings(url)
    engine = writing_evm_index(evm_index_url(settings, None, chain_id), settings, chain_id)
    writer = EvmIndexWriter(engine, settings, lambda: 0.0, options)
    try:
        while writer.rebuild(60.0) is not None:
            pass
        if writer.start(EvmChainIdentity(chain_id, chain_id[0], b"g" * 32, first)) is None:
            writer.begin(first, parent)
        yield writer
    finally:
        writer.close()


@contextmanager
def icm_writers(
    url: str, settings: IndexSettings | None = None
) -> Iterator[dict[ChainID, EvmIndexWriter]]:
    """Hold the indexes of both chains open for writing."""
    with ExitStack() as stack:
        yield {
            chain_id: stack.enter_context(icm_writer(url, chain_id, settings=settings))
            for chain_id in (A, B)
        }


def join(
    writers: dict[ChainID, EvmIndexWriter], limit: int = 1_000, random: Random | None = None
) -> None:
    """Copy deliveries into the indexes of the sources.

    random: leaves out some, which the next call copies.
    """
    for source, writer in writers.items():
        for destination in writers.values():
            while random is None or random.random() < 0.7:
                batch = destination.icm.received(-1, 1)
                if batch is None:
                    break
                epoch, after = writer.icm.cursors().get(batch.destination, (0, -1))
                batch = destination.icm.received(after if epoch == batch.epoch else -1, limit)
                assert batch is not None
                rows = [row for row in batch.rows if row.source == source]
                writer.icm.deliver([batch._replace(rows=rows)])
                if batch.upto == after:
                    break


@contextmanager
def reading(url: Place, chain_id: ChainID) -> Iterator[Connection]:
    """Hold a connection that reads the index of a chain."""
    url = url if isinstance(url, str) else url[chain_id]
    settings = small_settings(url if ":" in url else "")
    engine = reading_index(evm_index_url(settings, Path(url), chain_id), settings)
    with engine.connect() as connection, connection.snapshot():
        yield connection
    engine.dispose()


def stored_sends(connection: Connection, source: ChainID) -> list[tuple[Any, ...]]:
    """Return what the rows say about sent messages, as `expected_sends` does."""
    ids = _ids(connection)
    rows = connection.records(
        "SELECT s.*, d.outcome, o.state, d.destination AS delivered_to FROM icm_sends s"
        " LEFT JOIN icm_deliveries d ON d.send = s.key"
        " LEFT JOIN icm_open o ON o.send = s.key AND o.destination = s.destination ORDER BY s.key",
    )
    changes = _changes(connection)
    result = []
    for row in rows:
        assert row.delivered_to in (None, row.destination)
        result.append(
            (
                message_id(ids[row.messenger], source, ChainID(ids[row.destination]), row.nonce),
                ids[row.sender],
                ids[row.recipient],
                unpack(bytes(row.gas_limit)),
                ids[row.fee_asset],
                unpack(bytes(row.fee)),
                bytes(row.body),
                changes.get(row.key, []),
                "" if row.outcome is None else Outcome(row.outcome).name.lower(),
                "" if row.state is None else IcmState(row.state).name.lower(),
            )
        )
    return result


def stored_receives(connection: Connection, destination: ChainID) -> list[tuple[Any, ...]]:
    """Return what the rows say about received messages, as `expected_receives` does."""
    ids, changes = _ids(connection), _changes(connection)
    result = []
    for row in connection.records("SELECT * FROM icm_receives ORDER BY key"):
        later = changes.get(row.key, [])
        outcome = "executed" if later else Outcome(row.outcome).name.lower()
        id_ = message_id(ids[row.messenger], ChainID(ids[row.source]), destination, row.nonce)
        assert (row.body is None) == (ids[row.source] in (A, B))
        result.append((id_, ids[row.sender], ids[row.recipient], outcome, later))
    return result


def joined(url: Place, history: IcmHistory) -> Callable[[], bool]:
    """Return whether the indexes have all messages and deliveries of a history."""

    def is_joined() -> bool:
        for chain_id, chain in history.chains.items():
            with reading(url, chain_id) as connection:
                if stored_sends(connection, chain_id) != expected_sends(history, chain):
                    return False
        return True

    return is_joined


def _ids(connection: Connection) -> dict[int, bytes]:
    return {0: bytes(20)} | {
        key: bytes(raw) for key, raw in connection.fetch("SELECT key, id FROM ids")
    }


def _changes(connection: Connection) -> dict[int, list[str]]:
    """Return the kinds of changes by message, found by the derived rows."""
    text = (
        "SELECT m.message, c.kind FROM icm_message_changes m JOIN icm_changes c ON c.key = m.change"
        " ORDER BY m.message, m.change"
    )
    changes: dict[int, list[str]] = {}
    for message, kind in connection.fetch(text):
        changes.setdefault(message, []).append(ChangeKind(kind).name.lower())
    return changes


def assert_consistent(url: Place, chains: Sequence[ChainID] = (A, B)) -> None:
    """Check that all rows fit together."""
    for chain_id in chains:
        with reading(url, chain_id) as connection:
            assert list(consistency.find_inconsistencies(connection)) == []


def assert_as_the_model(url: Place, history: IcmHistory) -> None:
    """Check the rows of both chains, all deliveries joined, against the model."""
    assert_consistent(url)
    for chain_id, chain in history.chains.items():
        with reading(url, chain_id) as connection:
            assert stored_sends(connection, chain_id) == expected_sends(history, chain)
            assert stored_receives(connection, chain_id) == expected_receives(chain)
            ((raw, unmatched),) = connection.fetch(
                "SELECT (SELECT count(*) FROM warp_sends), (SELECT count(*) FROM icm_unmatched)"
            )
            assert (raw, unmatched) == (chain.raw, 0)
            ((unknown,),) = connection.fetch("SELECT unknown_logs FROM chain")
            assert unknown == chain.unknown
