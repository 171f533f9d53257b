"""Response times of pages of the index of EVM chains over HTTP: endpoints 10 to 14, ICM; one client
at a time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.evm_index_made_up import (
    BEGIN_S,
    BLOCK_S,
    EVM_CHAIN_ID,
    MESSAGE_CHAINS,
    MadeUpMessages,
    MadeUpNfts,
)
from benchmarks.index_responses import Client
from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, quantile
from warpseal.index.settings import IndexSettings
from warpseal.resources.text import account_text, hex_text
from warpseal.warp.ids import id_text

SAMPLES: Final = 400
_DRAWN: Final = 20
_WARM_UP: Final = 80
_PAGE: Final = 10
_LARGE_PAGE: Final = 500
# The largest page of these endpoints.
_WALKED_PAGE: Final = 100
_DEEP_PAGE: Final = 10_000
_P99: Final = Aim(10)
_LARGE_P99: Final = Aim(60)
_MESSAGES_P99: Final = Aim(20)
_DEPTH: Final = Aim(1.2)
_ZERO: Final = bytes(20)
_CHAIN: Final = f"/v1/chains/{EVM_CHAIN_ID}"


def measure_pages(chain: MadeUpNfts, settings: IndexSettings, folder: Path) -> tuple[Figure, ...]:
    """Return the measured figures.

    folder: folder of the index and of the server's log.
    """
    with serving_index(settings, folder) as (client, _):
        figures = [
            measure_p99(client, name, draw, _P99) for name, draw in _pages(chain, _PAGE).items()
        ]
        large = _pages(chain, _LARGE_PAGE)
        for name in ("12: NFTs of the largest holder", "12: NFTs of any holder"):
            figures.append(
                measure_p99(client, f"{name}, {_LARGE_PAGE} a page", large[name], _LARGE_P99)
            )
        return (*figures, *_depths(client, chain))


def measure_message_pages(
    chain: MadeUpMessages, settings: IndexSettings, folder: Path
) -> Iterator[Figure]:
    """Yield the measured figures of ICM messages.

    folder: folder of the indexes and of the server's log.
    """
    with serving_index(settings, folder, "--messages") as (client, server):
        for name, draw in _message_pages(chain).items():
            before = server.cpu_s()
            yield measure_p99(client, f"ICM: {name}", draw, _MESSAGES_P99)
            spent = (server.cpu_s() - before) / (_WARM_UP + SAMPLES)
            yield Figure(f"ICM: {name}, the server's processor time, mean", spent * 1000, "ms")


def _message_pages(chain: MadeUpMessages) -> Mapping[str, Callable[[], str]]:
    """Return the functions that draw the path of a page of messages, at any time of the chains, by
    name.
    """
    random = Random(7)
    source, destination = map(id_text, MESSAGE_CHAINS)

    def page(path: str, **filters: str) -> str:
        until = BEGIN_S + BLOCK_S * random.randint(chain.height // 10, chain.height)
        text = "".join(f"&{name}={value}" for name, value in filters.items())
        return f"/v1/icm/{path}?pageSize={_WALKED_PAGE}&endTimestamp={until}{text}"

    def of_account(account: bytes) -> str:
        return page(f"addresses/{account_text(account)}/messages")

    return {
        "100 messages": lambda: page("messages"),
        "100 of a source": lambda: page("messages", sourceBlockchainId=source),
        "100 of a destination": lambda: page("messages", destinationBlockchainId=destination),
        "100 of the busiest address": lambda: of_account(chain.accounts[0]),
        "100 of any address": lambda: of_account(random.choice(chain.accounts)),
        "100 from the busiest address": lambda: page(
            "messages", **{"from": account_text(chain.accounts[0])}
        ),
        "a message": lambda: f"/v1/icm/messages/{hex_text(random.choice(chain.ids))}",
    }


@contextmanager
def serving_index(
    settings: IndexSettings, folder: Path, *options: str
) -> Iterator[tuple[Client, Process]]:
    """Yield a client of a server of the index in a folder, which has the last core; this process
    has the first one.
    """
    cores = sorted(os.sched_getaffinity(0))
    arguments = [
        "--folder",
        str(folder),
        "--url",
        str(settings.url),
        "--cache-bytes",
        str(settings.cache_bytes),
        *options,
    ]
    log, module = folder / "server.log", "benchmarks.evm_index_server"
    with running(arguments, log, module=module, core=cores[-1]) as server:
        os.sched_setaffinity(0, {cores[0]})
        try:
            yield Client(server.ready_line), server
        finally:
            os.sched_setaffinity(0, cores)


def measure_p99(client: Client, name: str, draw: Callable[[], str], aim: Aim) -> Figure:
    """Read some drawn pages repeatedly; the first rounds only fill the caches."""
    queries = [draw() for _ in range(_DRAWN)]
    times = [_took_s(client, queries[number % _DRAWN]) for number in range(_WARM_UP + SAMPLES)]
    return Figure(f"p99 over HTTP, {name}", quantile(times[_WARM_UP:], 0.99) * 1000, "ms", aim)


def _pages(chain: MadeUpNfts, size: int) -> Mapping[str, Callable[[], str]]:
    """Return the functions that draw the path of a page, by name; equal chains draw equal paths."""
    random = Random(7)
    largest, collection = chain.holders[0], chain.contracts[0]
    page = f"?pageSize={size}"

    def block() -> str:
        return f"{_CHAIN}/blocks/{random.randint(0, chain.height)}"

    def some_block_range() -> str:
        start = random.randint(0, max(0, chain.height - 5_000))
        return f"{_transfers(largest)}{page}&startBlock={start}&endBlock={start + 5_000}"

    def collectibles_of_a_contract() -> str:
        contract = account_text(random.choice(chain.contracts[:200]))
        return f"{_collectibles(largest)}{page}&contractAddress={contract}"

    queries: dict[str, Callable[[], str]] = {
        "10: a block by number": block,
        "10: a block by hash": lambda: f"{_CHAIN}/blocks/0x{random.choice(chain.hashes).hex()}",
        "11: transfers of the largest holder": lambda: _transfers(largest) + page,
        "11: transfers of any holder": lambda: _transfers(random.choice(chain.holders)) + page,
        "11: transfers of the zero address, oldest first": lambda: (
            _transfers(_ZERO) + page + "&sortOrder=asc"
        ),
        "11: transfers of the largest holder in 5,000 blocks": some_block_range,
        "12: NFTs of the largest holder": lambda: _collectibles(largest) + page,
        "12: NFTs of any holder": lambda: _collectibles(random.choice(chain.holders)) + page,
        "12: NFTs of the largest holder in a collection": collectibles_of_a_contract,
        "13: contracts of the busiest deployer": lambda: _deployments(chain.deployers[0]) + page,
        "13: contracts of any deployer": lambda: (
            _deployments(random.choice(chain.deployers)) + page
        ),
        "14: tokens of the largest collection": lambda: _tokens(collection) + page,
        "14: tokens of any collection": lambda: _tokens(random.choice(chain.contracts)) + page,
        "a token": lambda: f"{_tokens(collection)}/{random.randrange(max(1, chain.next_ids[0]))}",
    }
    return queries


def _transfers(address: bytes) -> str:
    return f"{_CHAIN}/addresses/{account_text(address)}/transactions:listErc1155"


def _collectibles(address: bytes) -> str:
    return f"{_CHAIN}/addresses/{account_text(address)}/balances:listCollectibles"


def _deployments(address: bytes) -> str:
    return f"{_CHAIN}/contracts/{account_text(address)}/deployments"


def _tokens(contract: bytes) -> str:
    return f"{_CHAIN}/nfts/collections/{account_text(contract)}/tokens"


def _took_s(client: Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path)
    return time.perf_counter() - began


def _depths(client: Client, chain: MadeUpNfts) -> list[Figure]:
    """Compare page 1 with page 10,000, or with one in the middle of what a small chain has."""
    paths = {
        "11: transfers of the zero address": _transfers(_ZERO),
        "14: tokens of the largest collection": _tokens(chain.contracts[0]),
    }
    return [_depth(client, name, path) for name, path in paths.items()]


def _depth(client: Client, name: str, path: str) -> Figure:
    size, items, tokens = f"pageSize={_WALKED_PAGE}", 0, [""]
    while items < _DEEP_PAGE * _PAGE:
        body = json.loads(client.get(f"{path}?{size}{tokens[-1] and '&pageToken=' + tokens[-1]}"))
        if not body.get("nextPageToken"):
            break
        items += _WALKED_PAGE
        tokens.append(body["nextPageToken"])
    # In turns, so that other load on the machine affects both.
    deep = tokens[-1] if items >= _DEEP_PAGE * _PAGE else tokens[len(tokens) // 2]
    pages = (f"{path}?pageSize={_PAGE}", f"{path}?pageSize={_PAGE}{deep and '&pageToken=' + deep}")
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_WARM_UP + SAMPLES):
        for page, spent in zip(pages, times, strict=True):
            spent.append(_took_s(client, page))
    first_s, deep_s = (quantile(spent[_WARM_UP:], 0.5) for spent in times)
    reached = min(items, _DEEP_PAGE * _PAGE) // _PAGE
    return Figure(f"{name}: page {reached:,} of page 1, median", deep_s / first_s, "x", _DEPTH)
