"""What was spent lately stands apart; all rows are derived anew."""

from __future__ import annotations

from alembic import op

from warpseal.index.schema import create_row_tables

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the tables that follow from the blocks, empty."""
    create_row_tables(op.get_bind())
