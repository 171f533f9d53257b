"""Settings of the index database; docs/index.md says what they mean to an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import field

from warpseal.runtime.settings import (
    MEBIBYTE,
    Group,
    Parser,
    Settings,
    integer,
    json_object,
    list_of,
    setting,
)
from warpseal.store.settings import database_url, replica_url
from warpseal.store.url import redacted_url
from warpseal.warp.ids import ChainID

PRIMARY_INDEX: Final = "primary"
EVM_INDEX: Final = "evm"
INDEX_PARTS: Final = (PRIMARY_INDEX, EVM_INDEX)
"""The parts of `index-url`: the index of the primary chains, and those of EVM chains."""


class IndexPlace(NamedTuple):
    """Where an index is.

    url: URL of the database; empty for a file in the daemon's folder.
    read_urls: URLs of replicas of the server.
    """

    url: str = ""
    read_urls: tuple[str, ...] = ()


def by_part(parse: Parser[Any]) -> Parser[Any]:
    """Accept a value for both parts, or an object with a value for one of them or for each."""

    def parse_parts(value: Any, path: str) -> Any:
        if isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{")):
            return json_object(value, path, dict.fromkeys(INDEX_PARTS, parse), required=set())
        return parse(value, path)

    return parse_parts


def index_url(value: Any, path: str) -> str:
    """Accept the URL of an index."""
    return database_url(
        value, path, "to index nothing, leave out index-chains and every index of evm-chains"
    )


def _redacted(value: Any) -> Any:
    """Return the value of `index-url` or `index-read-urls` without secrets."""
    if isinstance(value, Mapping):
        return {part: _redacted(item) for part, item in value.items()}
    return redacted_url(value) if isinstance(value, str) else tuple(map(redacted_url, value))


class IndexSettings(Settings, frozen=True):
    """url: empty: index.db in the daemon's folder; a PostgreSQL database gets a schema for the
    index.

    read_urls: replicas of the servers in `url`.
    chains: places of the EVM chains whose entries name one.
    cache_bytes: memory for SQLite pages of the writing process, and the most for all readers of one
        process.
    recent_outputs, cached_addresses: entries in the writer's memory.
    raw_bytes: size of the blocks that are compressed together.
    changes_per_snapshot: lowest number of changes of a validator set before its next snapshot.
    readers: number of connections that read.
    refresh_s: interval at which the heights are read.
    node_height_ttl_s: lifetime of the last known height of a node.
    """

    url: str | Mapping[str, str] = setting(
        "",
        "index-url",
        by_part(index_url),
        "URL of the index, sqlite:///PATH or postgresql://USER@HOST/NAME; unset: a file in"
        " data-dir",
        "URL|JSON",
        group=Group.INDEX,
        display=_redacted,
    )
    cache_bytes: int = setting(
        256 * MEBIBYTE,
        "index-cache-bytes",
        integer(MEBIBYTE, 10**12),
        "memory for pages of the index, bytes",
        group=Group.INDEX,
    )
    recent_outputs: int = 200_000
    cached_addresses: int = 200_000
    raw_bytes: int = 256 * 1024
    changes_per_snapshot: int = 256

    readers: int = 2
    max_queued_reads: int = 64
    read_timeout_s: float = 10.0
    refresh_s: float = 0.5
    node_height_ttl_s: float = 60.0
    read_urls: tuple[str, ...] | Mapping[str, tuple[str, ...]] = setting(
        (),
        "index-read-urls",
        by_part(list_of(replica_url)),
        "URLs of replicas of the PostgreSQL server of index-url, from which requests read",
        "URLS|JSON",
        group=Group.INDEX,
        display=_redacted,
    )
    chains: Mapping[ChainID, IndexPlace] = field(default_factory=dict)

    def place(self, part: str, chain_id: ChainID | None = None) -> IndexPlace:
        """Return where an index is.

        part: name out of INDEX_PARTS.
        chain_id: id of an EVM chain.
        """
        if chain_id is not None and chain_id in self.chains:
            return self.chains[chain_id]
        url = self.url.get(part, "") if isinstance(self.url, Mapping) else self.url
        read_urls = (
            self.read_urls.get(part, ()) if isinstance(self.read_urls, Mapping) else self.read_urls
        )
        return IndexPlace(url, read_urls)
