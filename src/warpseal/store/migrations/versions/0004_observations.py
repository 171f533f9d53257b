"""For how long each daemon observed its peers, and of that was connected to them: by validation, and by hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the two tables."""
    op.create_table(
        "observed_validations",
        sa.Column("observer", sa.LargeBinary(), primary_key=True),
        sa.Column("validation_id", sa.LargeBinary(), primary_key=True),
        sa.Column("node_id", sa.LargeBinary(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("observed_ms", sa.BigInteger(), nullable=False),
        sa.Column("connected_ms", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "observed_hours",
        sa.Column("hour", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("observer", sa.LargeBinary(), primary_key=True),
        sa.Column("node_id", sa.LargeBinary(), primary_key=True),
        sa.Column("observed_ms", sa.Integer(), nullable=False),
        sa.Column("connected_ms", sa.Integer(), nullable=False),
        sqlite_with_rowid=False,
    )
