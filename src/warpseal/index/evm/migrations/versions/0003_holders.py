"""Holders of ERC-20 tokens and NFTs; all derived rows are derived again."""

from __future__ import annotations

from alembic import op

from warpseal.index.evm.schema import HOLDER_FACTS, create_derived_tables
from warpseal.store.migrate import own_connection

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the facts of holders, and create the derived tables, empty; a database of this version has all of them."""
    connection = own_connection(op.get_bind())
    if connection.has_table("balances"):
        return
    op.execute("ALTER TABLE chain ADD COLUMN holders BIGINT NOT NULL DEFAULT 0")
    for table in HOLDER_FACTS:
        table.create(connection, if_missing=True)
    create_derived_tables(connection)
