"""What can be spent and was made lately stands apart; all rows are derived anew."""

from __future__ import annotations

from alembic import op

from warpseal.index.schema import make_rows

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables that follow from the blocks, empty."""
    make_rows(op.get_bind())
