"""Queries of the index benchmark, each for `Index` and over HTTP, drawn at random from a seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import urlencode

from benchmarks.index_made_up import BEGIN_S, PARAMS, RAREST, MadeUpChain
from benchmarks.index_server import KnownKeys
from warpseal.api.data.page_tokens import PageQuery, PageTokens
from warpseal.chains.ids import Address, address_text
from warpseal.index.index import Index
from warpseal.resources.base import SortOrder
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import (
    BlockQuery,
    PageRequest,
    RewardQuery,
    TimeRange,
    TransactionQuery,
    ValidationQuery,
)
from warpseal.warp.ids import NodeID, id_text, node_id_text

PAGE: Final = 10
_PAGE: Final = PageRequest(PAGE)
_NETWORK: Final = "/v1/networks/mainnet"
_CHAIN: Final = f"{_NETWORK}/blockchains/p-chain"
_P: Final = PrimaryChain.P
_ANY_TIME: Final = TimeRange()


@dataclass(frozen=True, slots=True)
class BenchmarkQuery:
    """A query.

    ask: a function that runs it on an index.
    path: the same query over HTTP.
    """

    ask: Callable[[Index], Awaitable[Any]]
    path: str


def queries(chain: MadeUpChain, seed: int) -> Mapping[str, Callable[[], BenchmarkQuery]]:
    """Return the functions that draw a query, by name; equal seeds draw equal queries."""
    random = Random(seed)
    largest, some = chain.addresses[0], chain.addresses

    def sixty_four() -> tuple[Address, ...]:
        return tuple(sorted({largest, *random.sample(some, 63)}))

    before = TimeRange(BEGIN_S - 1000, BEGIN_S - 500)
    three = frozenset([RAREST, "ImportTx", "RewardValidatorTx"])
    queries: dict[str, Callable[[], BenchmarkQuery]] = {
        "newest transactions": transactions,
        "any address": lambda: transactions(addresses=(random.choice(some),)),
        "largest address": lambda: transactions(addresses=(largest,)),
        "largest address, rarest type": lambda: transactions(
            addresses=(largest,), kinds=frozenset([RAREST])
        ),
        "largest address, three types": lambda: transactions(addresses=(largest,), kinds=three),
        "64 addresses": lambda: transactions(addresses=sixty_four()),
        "64 addresses, a type, oldest first": lambda: transactions(
            addresses=sixty_four(), kinds=frozenset(["ExportTx"]), order=SortOrder.ASC
        ),
        "largest address, empty time range": lambda: transactions(
            addresses=(largest,), times=before
        ),
        "largest address, a day in the middle": lambda: transactions(
            addresses=(largest,), times=TimeRange(BEGIN_S + 10**5, BEGIN_S + 186_400)
        ),
        "blocks": blocks,
        "blocks, empty time range": lambda: blocks(before),
        "node with 5,000 delegations": lambda: _validations(chain.nodes[0]),
        "rewards of a node": lambda: _rewards(nodes=(random.choice(chain.nodes),)),
        "rewards of 64 addresses": lambda: _rewards(sixty_four()),
        "chains of 64 addresses": lambda: _chains_of(sixty_four()),
    }
    if chain.blockchains:
        queries["a blockchain"] = lambda: _blockchain(random.choice(chain.blockchains))
    return queries


def transactions(**filters: Any) -> BenchmarkQuery:
    """Return the query for the first page of transactions."""
    query = TransactionQuery(_P, **filters)
    parameters = {
        "addresses": _texts(query.addresses),
        "txTypes": ",".join(sorted(query.kinds)),
        **_times(query.times),
    }
    parameters["sortOrder"] = query.order.value
    return BenchmarkQuery(
        lambda index: index.transactions(query, _PAGE), _url(f"{_CHAIN}/transactions", parameters)
    )


def blocks(times: TimeRange = _ANY_TIME) -> BenchmarkQuery:
    """Return the query for the first page of blocks."""
    query = BlockQuery(_P, times)
    return BenchmarkQuery(
        lambda index: index.blocks(query, _PAGE), _url(f"{_CHAIN}/blocks", _times(times))
    )


async def page_behind(key: int, now: float) -> BenchmarkQuery:
    """Return the query for the page of all transactions after a key.

    now: unix seconds.
    """
    query = PageQuery("listLatestPrimaryNetworkTransactions", _P.value.encode(), {}, PAGE)
    token = await PageTokens(KnownKeys(), lambda: now).encode(query, (key,))
    page = PageRequest(PAGE, (key,))
    path = _url(f"{_CHAIN}/transactions", {"pageToken": token})
    return BenchmarkQuery(lambda index: index.transactions(TransactionQuery(_P), page), path)


def _validations(node_id: NodeID) -> BenchmarkQuery:
    query = ValidationQuery(node_id)
    path = _url(f"{_NETWORK}/validators/{node_id_text(node_id)}", {})
    return BenchmarkQuery(lambda index: index.validations(query, _PAGE), path)


def _rewards(addresses: tuple[Address, ...] = (), nodes: tuple[NodeID, ...] = ()) -> BenchmarkQuery:
    query = RewardQuery(addresses, tuple(sorted(nodes)))
    parameters = {"addresses": _texts(addresses), "nodeIds": ",".join(map(node_id_text, nodes))}
    return BenchmarkQuery(
        lambda index: index.rewards(query, _PAGE), _url(f"{_NETWORK}/rewards", parameters)
    )


def _chains_of(addresses: tuple[Address, ...]) -> BenchmarkQuery:
    path = f"{_NETWORK}/addresses:listChainIds?" + urlencode({"addresses": _texts(addresses)})
    return BenchmarkQuery(lambda index: index.chains_of(addresses, ()), path)


def _blockchain(chain_id: Any) -> BenchmarkQuery:
    return BenchmarkQuery(
        lambda index: index.blockchain(chain_id), f"{_NETWORK}/blockchains/{id_text(chain_id)}"
    )


def _texts(addresses: tuple[Address, ...]) -> str:
    return ",".join(address_text(PARAMS.network_id, address) for address in addresses)


def _times(times: TimeRange) -> dict[str, str]:
    bounds = {"startTimestamp": times.since, "endTimestamp": times.until}
    return {name: str(value) for name, value in bounds.items() if value is not None}


def _url(path: str, parameters: Mapping[str, str]) -> str:
    present = {name: value for name, value in parameters.items() if value}
    return f"{path}?{urlencode({**present, 'pageSize': PAGE})}"
