"""Rates of writing indexes into SQLite and into PostgreSQL, as in a backfill, and the bytes that
they take.

The chains are made up: without transfers, with NFT transfers, with ERC-20 transfers and `holders`,
and the P-Chain of index_store, 150,000 items of each. A SQLite file and a PostgreSQL database get
each batch, in turns; the ratio counts. Without `--url` the benchmark starts the PostgreSQL server
of the tests, with `fsync` and autovacuum off: `.venv/bin/python -m benchmarks.index_databases
--items 150000 --url postgresql://USER@HOST/NAME` writes into a server that is configured as yours;
the user may create databases.

python -m benchmarks.index_databases --items 200000 [--url postgresql://USER@HOST/NAME] [--write]

The user of `--url` needs the right to create databases: each kind of chain gets one, which is
dropped behind.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from msgspec.structs import replace

from benchmarks.evm_index_holders import MadeUpErc20
from benchmarks.evm_index_made_up import BLOCK_S, CHAIN_ID, EVM_CHAIN_ID, MadeUpNfts
from benchmarks.index_made_up import PARAMS, MadeUpChain
from benchmarks.report import Aim, Figure, Report, run_sized
from tests.store.postgres import PostgresServer
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index.database import index_url, writing_index
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.records import EvmChainIdentity
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.indexer.worker import GC_THRESHOLDS, gc_disabled
from warpseal.store.connection import Engine

FULL, QUICK = 150_000, 5_000
_LEAST_RATE: Final = Aim(0.5, at_least=True)
_NAME: Final = f"warpseal_benchmark_{os.getpid()}"
_CPU_CLOCK_OF_PROCESS: Final = 2
_SIZE: Final = (
    "SELECT sum(pg_total_relation_size(c.oid))"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind = 'r' AND n.nspname LIKE 'warpseal%'"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of chain.

    items: name of the counted items.
    batch: number of blocks in a transaction.
    blocks: a function that returns blocks with a number of items.
    """

    name: str
    items: str
    batch: int
    blocks: Callable[[int], Iterator[Any]]
    has_holders: bool = False


@dataclass(slots=True)
class Side:
    """One of the two databases.

    took_s: time of its writes.
    cpu_s: their processor time, the server's included.
    """

    engine: Engine
    write: Callable[[Sequence[Any]], object]
    took_s: float = 0.0
    cpu_s: float = 0.0
    _server_pid: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.engine.is_postgresql:
            with self.engine.connect() as connection:
                session = connection.driver
                # Only a process on this machine has a clock here.
                self._server_pid = (
                    session.info.backend_pid if session.info.host.startswith("/") else 0
                )

    def run(self, batch: Sequence[Any]) -> None:
        """Write a batch."""
        began, busy = time.perf_counter(), self._processor_s()
        with gc_disabled():
            self.write(batch)
        self.took_s += time.perf_counter() - began
        self.cpu_s += self._processor_s() - busy

    def _processor_s(self) -> float:
        own_s = time.process_time()
        if not self._server_pid:
            return own_s
        return own_s + time.clock_gettime(~self._server_pid << 3 | _CPU_CLOCK_OF_PROCESS)


def _plain_blocks(count: int) -> Iterator[EvmBlockFacts]:
    chain = MadeUpErc20()
    block = replace(next(chain.blocks(0)), erc20_transfers=())
    for number in range(count):
        yield block
        raw = chain.random.randbytes(32)
        block = replace(
            block, number=number + 1, hash=raw, parent_hash=block.hash, time=block.time + BLOCK_S
        )


KINDS: Final = (
    Kind("P-Chain", "transaction", 8_192, lambda count: MadeUpChain().blocks(count)),
    Kind("EVM blocks", "block", 2_000, _plain_blocks),
    Kind("NFTs", "transfer", 160, lambda count: MadeUpNfts().blocks(count)),
    Kind("ERC-20", "transfer", 400, lambda count: MadeUpErc20().blocks(count), has_holders=True),
)


def run(quick: bool) -> Report:
    """Write a chain of each kind."""
    size = QUICK if quick else FULL
    return measure(size)


def measure(items: int, url: str = "") -> Report:
    """Write chains with this number of items.

    url: URL of a PostgreSQL server; empty for that of the tests.
    """
    with ExitStack() as stack:
        if not url:
            server = PostgresServer()
            stack.callback(server.remove)
            server.set_up()
            url = server.url()
        gc.set_threshold(*GC_THRESHOLDS)
        figures = [figure for kind in KINDS for figure in _measure(kind, items, url)]
    note = (
        f"{items} items of each kind; `index-cache-bytes` is 256 MiB; PostgreSQL's processor time"
        " is its session's"
    )
    return Report("index_databases", items < FULL, tuple(figures), (note,))


def _measure(kind: Kind, items: int, url: str) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="warpseal-databases-") as name,
        _new_database(url) as database,
    ):
        folder = Path(name)
        blocks = kind.blocks(items)
        first = next(blocks)
        sides = [
            _open(kind, first, place, folder)
            for place in (f"sqlite:///{folder}/index.db", database)
        ]
        while batch := list(islice(blocks, kind.batch)):
            for side in sides:
                side.run(batch)
            sides.reverse()
        sqlite, server = sorted(sides, key=lambda side: side.engine.is_postgresql)
        for side in sides:
            side.engine.dispose()
        sqlite_bytes = sum(file.stat().st_size for file in folder.rglob("*.db*"))
        with psycopg.connect(database) as session:
            ((server_bytes,),) = session.execute(_SIZE).fetchall()
    return [
        Figure(f"{kind.name}: SQLite", items / sqlite.took_s, f"{kind.items}s/s"),
        Figure(f"{kind.name}: PostgreSQL", items / server.took_s, f"{kind.items}s/s"),
        Figure(
            f"{kind.name}: rate of PostgreSQL by that of SQLite",
            sqlite.took_s / server.took_s,
            "x",
            _LEAST_RATE,
        ),
        Figure(f"{kind.name}: the same by processor time", sqlite.cpu_s / server.cpu_s, "x"),
        Figure(f"{kind.name}: size in SQLite", sqlite_bytes / items, f"bytes/{kind.items}"),
        Figure(
            f"{kind.name}: size in PostgreSQL", float(server_bytes) / items, f"bytes/{kind.items}"
        ),
    ]


def _open(kind: Kind, first: Any, url: str, folder: Path) -> Side:
    """Create an index that has the first block."""
    settings = IndexSettings(url)
    if not isinstance(first, EvmBlockFacts):
        engine = writing_index(index_url(settings, None), settings)
        writer = IndexWriter(engine, PARAMS, settings)
        writer.write([first])
        return Side(engine, writer.write)
    engine = writing_evm_index(evm_index_url(settings, folder, CHAIN_ID), settings, CHAIN_ID)
    evm_writer = EvmIndexWriter(engine, settings)
    evm_writer.start(
        EvmChainIdentity(CHAIN_ID, EVM_CHAIN_ID, first.hash, has_holders=kind.has_holders)
    )
    evm_writer.begin(0, first.parent_hash)
    evm_writer.write([first])
    return Side(engine, evm_writer.write)


@contextmanager
def _new_database(url: str) -> Iterator[str]:
    """Create a database on a server, and drop it behind."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {_NAME}".encode())
        try:
            yield urlsplit(url)._replace(path=f"/{_NAME}").geturl()
        finally:
            session.execute(f"DROP DATABASE {_NAME}".encode())


if __name__ == "__main__":
    os.nice(5)
    run_sized(__doc__, "--items", QUICK, measure)
