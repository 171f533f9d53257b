"""The database of an EVM chain's index: a SQLite file, or a schema in a PostgreSQL database."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from warpseal.errors import StartupError
from warpseal.index.database import translate_errors, writing_index
from warpseal.index.evm.migrations import VERSIONS
from warpseal.index.evm.schema import create_first_tables
from warpseal.index.settings import EVM_INDEX, IndexSettings
from warpseal.store.connection import Engine
from warpseal.store.engine import reading_engine
from warpseal.store.migrate import Migrations
from warpseal.store.url import StoreUrl, in_schema, resolve_url
from warpseal.warp.ids import ChainID, MalformedID, id_text, parse_id

FOLDER: Final = "evm"
MIGRATIONS: Final = Migrations(VERSIONS, create_first_tables)

# Half as many reads of pages as with 4 KiB, if few of them stay in memory.
_PAGE_BYTES: Final = 8_192
_SCHEMA_DIGITS: Final = 16
_SCHEMA: Final = re.compile(rf"warpseal_evm_[0-9a-f]{{{_SCHEMA_DIGITS}}}")
_SCHEMAS: Final = """
    SELECT n.nspname
    FROM pg_namespace n
    JOIN pg_class c ON c.relnamespace = n.oid
    WHERE c.relname = 'chain'
"""


def evm_index_url(settings: IndexSettings, folder: Path | None, chain_id: ChainID) -> StoreUrl:
    """Return the URL of a chain's index.

    It is the URL of the chain's entry, or a file in a folder, or a schema of `index-url`.

    folder: the network's folder of a daemon; the folder of the file that `index-url` names wins.
    Raises StartupError if there is no place for the index.
    """
    name, place = f"{id_text(chain_id)}.db", settings.place(EVM_INDEX, chain_id)
    url = resolve_url(place.url, None if folder is None else folder / FOLDER, name)
    if url is None:
        raise StartupError(
            "index-url is not set, and there is no folder for the indexes of EVM chains"
        )
    if place.url and url.path is not None and chain_id not in settings.chains:
        return StoreUrl.for_file(url.path.parent / FOLDER / name)
    return in_schema(url, schema_name(chain_id), place.read_urls)


def schema_name(chain_id: ChainID) -> str:
    """Return the PostgreSQL schema of a chain's index."""
    return f"warpseal_evm_{chain_id.hex()[:_SCHEMA_DIGITS]}"


def find_chains(url: StoreUrl) -> set[ChainID]:
    """Return the chains with an index in the folder, or on the server, of any chain's index.

    Raises StoreDown.
    """
    if url.path is not None:
        chains = set[ChainID]()
        for path in url.path.parent.glob("*.db"):
            with suppress(MalformedID):
                chains.add(ChainID(parse_id(path.stem)))
        return chains
    engine = reading_engine(url)
    try:
        with translate_errors(engine), engine.connect() as connection:
            names = [name for (name,) in connection.fetch(_SCHEMAS) if _SCHEMA.fullmatch(name)]
            queries = [f"SELECT chain_id FROM {name}.chain" for name in names]
            return {ChainID(bytes(raw)) for query in queries for (raw,) in connection.fetch(query)}
    finally:
        engine.dispose()


def writing_evm_index(url: StoreUrl, settings: IndexSettings, chain_id: ChainID) -> Engine:
    """Return the engine of the one connection that writes, the database upgraded.

    Raises StartupError, StoreDown.
    """
    # Most changed pages are changed again by the next blocks, so a longer log saves more writes
    # than it costs reads.
    shared = replace(settings, cache_bytes=settings.cache_bytes * 3 // 4)
    return writing_index(
        url,
        shared,
        MIGRATIONS,
        schema_name(chain_id),
        log_of_cache=1.0,
        page_bytes=_PAGE_BYTES,
        has_lock=True,
    )
