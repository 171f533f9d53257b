"""The last block of each UTC day; all rows are derived again."""

from __future__ import annotations

from alembic import op

from warpseal.index.evm.schema import create_derived_tables
from warpseal.store.migrate import own_connection

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the derived tables, empty, unless the database has them from the start."""
    if not own_connection(op.get_bind()).has_table("days"):
        create_derived_tables(own_connection(op.get_bind()))
