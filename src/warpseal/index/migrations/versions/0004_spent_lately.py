"""Recent spends have a table of their own; all rows are derived again."""

from __future__ import annotations

from alembic import op

from warpseal.index.schema import create_row_tables
from warpseal.store.migrate import own_connection

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the derived tables, empty."""
    create_row_tables(own_connection(op.get_bind()))
