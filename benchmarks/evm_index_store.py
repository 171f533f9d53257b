"""The database of an EVM chain at size: the rate of writing from first to last, the bytes, the
times of pages.

Facts are made up and written, without node and decoding.

2,000,000 NFT transfers of ERC-721 and ERC-1155 (a sixth of all tokens in one collection, few
holders have most) are written 8,000 at a time, then a document for each token. Caches are limited
as in index_store. Then a client asks a server on one core for pages over HTTP from the other: 20
drawn pages of each kind, 480 requests, the first 80 do not count. Half as many ICM messages are
sent by two other chains to each other, 25 a block and direction, and received in the next block;
they are joined, and pages of 100 of them are requested, each from a drawn time on.
`.venv/bin/python -m benchmarks.evm_index_store --transfers 100000` is a trial; `--url` names a
PostgreSQL database.

python -m benchmarks.evm_index_store --transfers 100000 [--url postgresql://USER@HOST/NAME]
[--write]
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import page_cache
from benchmarks.evm_index_made_up import (
    BEGIN_S,
    CHAIN_ID,
    EVM_CHAIN_ID,
    MESSAGE_CHAINS,
    MadeUpMessages,
    MadeUpNfts,
)
from benchmarks.evm_index_responses import measure_message_pages, measure_pages
from benchmarks.report import Aim, Figure, Report, run_sized
from warpseal.chains.evm.facts import TokenStandard
from warpseal.chains.evm.nft_document import NftFields
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.records import ContractFacts, EvmChainIdentity, IcmOptions, TokenDocument
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.indexer.worker import GC_THRESHOLDS, gc_disabled
from warpseal.resources.evm import ErcType, MetadataStatus
from warpseal.warp.ids import ChainID

T = TypeVar("T")

FULL, QUICK = 2_000_000, 20_000
# 8,000 transfers, about what the indexer writes at once when it is behind.
_BATCH_BLOCKS = 160
# Approximate sizes; the limit of the page cache is set before the first write.
_EXPECTED_BYTES = 170
_PAGES_OF_CACHED = 2 / 3
_LAST_OF_FIRST = Aim(0.5, at_least=True)
_PER_TRANSFER = Aim(300)
# Of both sides together, the blocks included.
_MESSAGE_BYTES = 330
_PER_MESSAGE = Aim(350)
_ATTRIBUTES = (
    '[{"trait_type":"Background","value":"Blue"},{"trait_type":"Level","value":7,"max_value":100}]'
)


@dataclass(slots=True)
class WriteRun:
    """The writing of a chain: (transfers so far, seconds so far, processor seconds so far) by
    batch.
    """

    points: list[tuple[int, float, float]] = field(default_factory=lambda: [(0, 0.0, 0.0)])
    bytes_before_documents: int = 0
    documents: int = 0
    documents_s: float = 0.0

    @property
    def transfers(self) -> int:
        """Return the number of transfers."""
        return self.points[-1][0]

    def rate(self, begin: float, end: float, clock: int = 1) -> float:
        """Return transfers a second between two parts of the chain, 0 to 1.

        clock: place of the seconds in a point: 1 for time that passed, 2 for processor time.
        """
        chosen = [
            point
            for point in self.points
            if begin * self.transfers <= point[0] <= end * self.transfers
        ]
        return (chosen[-1][0] - chosen[0][0]) / max(chosen[-1][clock] - chosen[0][clock], 1e-9)


def run(quick: bool) -> Report:
    """Write a chain and read its pages."""
    size = QUICK if quick else FULL
    return measure(size)


def measure(transfers: int, url: str = "") -> Report:
    """Write transfers and read pages.

    url: URL of a server; empty for a new SQLite file.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="warpseal-evm-index-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cache_bytes = max(4096, int(transfers * _EXPECTED_BYTES / 10 * _PAGES_OF_CACHED))
        settings = IndexSettings(url, cache_bytes=cache_bytes)
        chain = MadeUpNfts()
        write_run = _write(chain, settings, transfers, folder)
        databases = _databases(folder)
        page_cache.drop(databases)
        if databases:
            stack.enter_context(page_cache.dropped(databases[0].parent))
        pages = measure_pages(chain, settings, folder)
    messages = _measure_messages(transfers // 2, url)
    notes = (
        (
            f"{write_run.transfers} transfers, {sum(chain.next_ids)} tokens, {len(chain.holders)}"
            " holders; the pages of the writer and of the readers have at most"
            f" {cache_bytes / 2**20:.0f} MiB each, its log half as much"
        ),
    )
    return Report(
        "evm_index_store", transfers < FULL, (*_figures(write_run), *pages, *messages), notes
    )


def _measure_messages(count: int, url: str) -> Sequence[Figure]:
    """Write ICM messages between two chains, join them, and read their pages."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warpseal-icm-")))
        cache_bytes = max(4096, int(count * _MESSAGE_BYTES / 10 * _PAGES_OF_CACHED))
        settings, chain = IndexSettings(url, cache_bytes=cache_bytes), MadeUpMessages()
        writers = {
            chain_id: _message_writer(chain_id, settings, folder) for chain_id in MESSAGE_CHAINS
        }
        began = time.process_time()
        for batch in _batches(chain.blocks(count), _BATCH_BLOCKS):
            for chain_id, writer in writers.items():
                writer.write([blocks[chain_id] for blocks in batch])
            for source, destination in (MESSAGE_CHAINS, MESSAGE_CHAINS[::-1]):
                _, after = writers[source].icm.cursors().get(destination, (0, -1))
                arrivals = writers[destination].icm.received(after, 1 << 20)
                assert arrivals is not None
                writers[source].icm.deliver([arrivals])
        spent = time.process_time() - began
        for writer in writers.values():
            writer.close()
        size = sum(file.stat().st_size for file in _files(folder))
        if databases := _databases(folder):
            page_cache.drop(databases)
            stack.enter_context(page_cache.dropped(databases[0].parent))
        spent_us = spent / count * 10**6
        figures = [Figure("ICM: made up, written and joined, processor time", spent_us, "us")]
        if size:
            name = "ICM: store, blocks included"
            figures.append(Figure(name, size / count, "bytes/message", _PER_MESSAGE))
        return (*figures, *measure_message_pages(chain, settings, folder))


def _message_writer(chain_id: ChainID, settings: IndexSettings, folder: Path) -> EvmIndexWriter:
    """Return the writer of a chain that has no block yet."""
    options = IcmOptions(1, is_indexed=lambda other: other in MESSAGE_CHAINS)
    engine = writing_evm_index(evm_index_url(settings, folder, chain_id), settings, chain_id)
    writer = EvmIndexWriter(engine, settings, icm=options)
    writer.start(EvmChainIdentity(chain_id, EVM_CHAIN_ID + chain_id[0], bytes(32)))
    writer.begin(0, MadeUpMessages.block_hash(chain_id, -1))
    return writer


def _write(chain: MadeUpNfts, settings: IndexSettings, transfers: int, folder: Path) -> WriteRun:
    url = evm_index_url(settings, folder, CHAIN_ID)
    writer = EvmIndexWriter(writing_evm_index(url, settings, CHAIN_ID), settings)
    write_run = WriteRun()
    spent = [0.0, 0.0]

    def timed(work: Callable[[], object]) -> float:
        began, busy = time.perf_counter(), time.process_time()
        with gc_disabled():
            work()
        spent[0] += time.perf_counter() - began
        spent[1] += time.process_time() - busy
        return time.perf_counter() - began

    gc.set_threshold(*GC_THRESHOLDS)
    blocks = chain.blocks(transfers)
    first = next(blocks)
    writer.start(EvmChainIdentity(CHAIN_ID, EVM_CHAIN_ID, first.hash))
    writer.begin(0, first.parent_hash)
    writer.write([first])
    for batch in _batches(blocks, min(_BATCH_BLOCKS, max(1, transfers // 2_500))):
        timed(lambda batch=batch: writer.write(batch))  # type: ignore[misc]
        write_run.points.append((chain.transfers, *spent))  # type: ignore[arg-type]
        page_cache.drop(_databases(folder))
    write_run.bytes_before_documents = sum(file.stat().st_size for file in _files(folder))
    writer.contracts.write([*_contracts(chain)])
    for documents in _batches(_documents(chain), 5_000):
        write_run.documents_s += timed(partial(writer.documents.write, documents))
        write_run.documents += len(documents)
    writer.close()
    return write_run


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.db*") if file.is_file()]


def _databases(folder: Path) -> list[Path]:
    """Return the database without its log, which counts as cached."""
    return list(folder.rglob("*.db"))


def _contracts(chain: MadeUpNfts) -> Iterator[ContractFacts]:
    for number, address in enumerate(chain.contracts):
        is_721 = chain.standard(number) is TokenStandard.ERC721
        erc_type = ErcType.ERC721 if is_721 else ErcType.ERC1155
        yield ContractFacts(
            address, erc_type, f"Collection {number}", f"C{number}", None, chain.height
        )


_IMAGES: Final = "ipfs://bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi"
_DOCUMENTS: Final = "ipfs://bafybeihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


def _documents(chain: MadeUpNfts) -> Iterator[TokenDocument]:
    """Yield a document of about 400 bytes for every token."""
    for number, address in enumerate(chain.contracts):
        for token_id in range(chain.next_ids[number]):
            fields = NftFields(
                name=f"Collection {number} #{token_id}",
                description=(
                    "A token of a synthetic collection, described in a sentence of usual length."
                ),
                image_uri=f"{_IMAGES}/{token_id}.png",
                attributes=_ATTRIBUTES,
            )
            uri = f"{_DOCUMENTS}/{token_id}.json"
            yield TokenDocument(address, token_id, MetadataStatus.INDEXED, BEGIN_S, uri, fields)


def _figures(write_run: WriteRun) -> Sequence[Figure]:
    first, last = write_run.rate(0.0, 0.1), write_run.rate(0.9, 1.0)
    figures = [
        Figure("NFT transfers written, whole run", write_run.rate(0.0, 1.0), "transfers/s"),
        Figure("NFT transfers written, first tenth", first, "transfers/s"),
        Figure("NFT transfers written, last tenth", last, "transfers/s"),
        Figure("last tenth of the first", last / first, "x", _LAST_OF_FIRST),
        # More exact if the machine has other load, but without the time of waiting for the disk.
        Figure(
            "the same by processor time",
            write_run.rate(0.9, 1.0, 2) / write_run.rate(0.0, 0.1, 2),
            "x",
        ),
        Figure(
            "documents written",
            write_run.documents / max(write_run.documents_s, 1e-9),
            "documents/s",
        ),
    ]
    if write_run.bytes_before_documents:
        size = write_run.bytes_before_documents / write_run.transfers
        figures.append(
            Figure(
                "store without documents, blocks included", size, "bytes/transfer", _PER_TRANSFER
            )
        )
    return figures


if __name__ == "__main__":
    os.nice(5)
    run_sized(__doc__, "--transfers", QUICK, measure)
