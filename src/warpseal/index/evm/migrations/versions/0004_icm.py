"""Messages of ICM: an index that has blocks knows them from its next block on."""

from __future__ import annotations

from alembic import op

from warpseal.index.evm.schema import create_icm_tables
from warpseal.store.migrate import own_connection

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables, empty; a database of this version has all of them."""
    connection = own_connection(op.get_bind())
    if connection.has_table("icm_sends"):
        return
    op.execute("ALTER TABLE chain ADD COLUMN icm_first BIGINT NOT NULL DEFAULT -1")
    create_icm_tables(connection)
