"""How many metadata documents of NFTs are fetched in a second: a call for the URI, a GET, a row in
the index.

The index process has a chain of NFTs and the mode `all`: it calls each token's URI and reads the
document over HTTP. One process is the node and the server of the documents.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import uvloop

from benchmarks.evm_index_run import evm_index, index_file, indexer, until_height
from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, Report

BLOCKS, QUICK_BLOCKS = 600, 30
_TIMEOUT_S = 180.0
_POLL_S = 0.05


def run(quick: bool) -> Report:
    """Index a chain of NFTs with the mode `all`, and count the documents."""
    blocks = QUICK_BLOCKS if quick else BLOCKS
    with tempfile.TemporaryDirectory(prefix="warpseal-evm-") as name:
        folder = Path(name)
        with running(
            ["--chain", f"nfts:{blocks}"], folder / "node.log", module="benchmarks.evm_index_node"
        ) as node:
            figures = uvloop.run(_fetch(node, folder / "data", blocks))
    notes = (
        (
            "60 collections whose documents lie at eight hosts, all of them one process on this"
            " machine; mode `all`"
        ),
    )
    return Report("evm_index_documents", quick, figures, notes)


async def _fetch(node: Process, folder: Path, blocks: int) -> tuple[Figure, ...]:
    facts = json.loads(node.ready_line)
    hosts = [f"127.0.0.{2 + number}" for number in range(8)]
    with indexer(
        facts, folder, {"metadata": "all", "traces": "off"}, metadata_allowed_hosts=hosts
    ) as process:
        async with evm_index(folder, facts["chains"][0]) as index:
            await until_height(index, blocks, process)
        file = index_file(folder, facts["chains"][0])
        first, began, cpu_s = _count(file, "documents"), time.perf_counter(), process.cpu_s()
        # Burnt tokens have no owner, and are not fetched.
        tokens = _count(file, "owners")
        async with asyncio.timeout(_TIMEOUT_S):
            # Another process writes the documents.
            while (documents := _count(file, "documents")) < tokens:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
        took_s, cpu_s = time.perf_counter() - began, process.cpu_s() - cpu_s
    with closing(sqlite3.connect(file)) as database:
        ((good,),) = database.execute(
            "SELECT count(*) FROM documents WHERE fields IS NOT NULL"
        ).fetchall()
    return (
        Figure(
            "documents fetched",
            (documents - first) / took_s,
            "documents/s",
            Aim(300, at_least=True),
        ),
        Figure(
            "documents for a second of the indexer's processor time",
            (documents - first) / cpu_s,
            "documents/s",
        ),
        Figure("held tokens whose document was not read", tokens - good, "", Aim(0)),
    )


def _count(file: Path, table: str) -> int:
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file)) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    return 0
