"""The schema versions of the index: stored tables are changed, derived ones dropped."""

from __future__ import annotations

from typing import Final

from warpseal.index.schema import SET_CHANGES, SET_MEMBERS, SET_SNAPSHOTS, create_row_tables
from warpseal.store.connection import Connection
from warpseal.store.migrate import Migration
from warpseal.store.tables import TableIndex, Tables, declare_table

_FIRST_TABLES: Final = Tables()
declare_table(
    _FIRST_TABLES,
    "raws",
    "number key, chain int16, form int16, first int64, last int64, body bytes",
    TableIndex("raws_of_chain", "chain", "form", "first"),
)
declare_table(_FIRST_TABLES, "begun", "chain key, is_complete int16")
_RENAMES: Final = (
    "DROP INDEX raws_of_chain",
    "ALTER TABLE raws RENAME TO raw_blocks",
    "ALTER TABLE raw_blocks RENAME COLUMN form TO kind",
    "CREATE INDEX raw_blocks_of_chain ON raw_blocks (chain, kind, first)",
    "ALTER TABLE begun RENAME TO chain_origin",
)
# Derived tables of these names are no tables any more.
_DROPPED: Final = ("notes", "unspent_lately", "spent_lately", "early", "address_parts")


def _create_first_tables(connection: Connection) -> None:
    _FIRST_TABLES.create_all(connection)
    create_row_tables(connection)


def _rename_tables(connection: Connection) -> None:
    """Give tables the names of their content."""
    for text in (*_RENAMES, *(f"DROP TABLE IF EXISTS {name}" for name in _DROPPED)):
        connection.run(text)
    create_row_tables(connection)


def _add_validator_sets(connection: Connection) -> None:
    """Create the tables of the sets, which begin with the next start, and keep all other rows."""
    for table in (SET_MEMBERS, SET_CHANGES, SET_SNAPSHOTS):
        # An earlier step of the same upgrade may have created them with all others.
        table.create(connection, if_missing=True)


VERSIONS: Final = (
    Migration("0001", _create_first_tables),
    # The blocks in which balances of L1 validators ran out.
    Migration("0002", create_row_tables),
    # Recent unspent outputs have a table of their own, and then recent spends.
    Migration("0003", create_row_tables),
    Migration("0004", create_row_tables),
    Migration("0005", _rename_tables),
    Migration("0006", _add_validator_sets),
    # Rewards that auto-renewed validators kept, and the time of Helicon on public networks.
    Migration("0007", create_row_tables),
)
