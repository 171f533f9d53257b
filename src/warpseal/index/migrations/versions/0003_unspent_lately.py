"""What can be spent and was made lately stands apart; all rows are derived anew."""

from __future__ import annotations

from alembic import op

from warpseal.index.schema import create_row_tables

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables that follow from the blocks, empty."""
    create_row_tables(op.get_bind())
