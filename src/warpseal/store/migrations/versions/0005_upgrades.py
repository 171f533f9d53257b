"""Which version of the program upgraded the store, so that an older program can name it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "upgrades",
        sa.Column("schema_version", sa.String(32), primary_key=True),
        sa.Column("program_version", sa.Text(), nullable=False),
        sa.Column("upgraded_at", sa.Double(), nullable=False),
    )
