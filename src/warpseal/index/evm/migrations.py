"""The schema versions of an EVM chain's index.

They change the stored tables; derived tables are made again, empty. The first version has all
tables of today. A version that changes a stored table spells out its change.
"""

from __future__ import annotations

from typing import Final

from warpseal.index.evm.schema import (
    HOLDER_FACTS,
    create_all_tables,
    create_derived_tables,
    create_icm_tables,
)
from warpseal.store.connection import Connection
from warpseal.store.migrate import Migration

# Collections whose contract was created more than once.
_RECREATED: Final = """
    SELECT c.number
    FROM collections c
    JOIN creations k ON k.contract = c.contract
    GROUP BY c.number
    HAVING count(DISTINCT k.tx) > 1
    LIMIT 1
"""


def _add_days(connection: Connection) -> None:
    """Add the last block of each UTC day, unless the database has them from the start."""
    if not connection.has_table("days"):
        create_derived_tables(connection)


def _add_holders(connection: Connection) -> None:
    """Add the facts of holders of ERC-20 tokens and NFTs, unless the database has them."""
    if connection.has_table("balances"):
        return
    connection.run("ALTER TABLE chain ADD COLUMN holders BIGINT NOT NULL DEFAULT 0")
    for table in HOLDER_FACTS:
        table.create(connection, if_missing=True)
    create_derived_tables(connection)


def _add_icm(connection: Connection) -> None:
    """Add messages of ICM: an index that has blocks knows them from its next block on."""
    if connection.has_table("icm_sends"):
        return
    connection.run("ALTER TABLE chain ADD COLUMN icm_first BIGINT NOT NULL DEFAULT -1")
    create_icm_tables(connection)


def _add_inner_events(connection: Connection) -> None:
    """Add the number of ICM events between a receive and its outcome; earlier rows have none."""
    if not connection.has_column("icm_receives", "inner_events"):
        connection.run("ALTER TABLE icm_receives ADD COLUMN inner_events INTEGER")


def _end_destroyed_contracts(connection: Connection) -> None:
    """Add the index of creations by contract.

    Derived rows are made again if a contract with NFTs was created more than once.
    """
    connection.run("CREATE INDEX IF NOT EXISTS creations_by_contract ON creations (contract)")
    if connection.fetch(_RECREATED):
        create_derived_tables(connection)


VERSIONS: Final = (
    Migration("0001", create_all_tables),
    Migration("0002", _add_days),
    Migration("0003", _add_holders),
    Migration("0004", _add_icm),
    Migration("0005", _add_inner_events),
    Migration("0006", _end_destroyed_contracts),
)
