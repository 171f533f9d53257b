"""API keys of callers, and secrets that the daemons of one store share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables of keys and secrets."""
    op.create_table(
        "api_keys",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False, unique=True),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("units_per_minute", sa.BigInteger(), nullable=False),
        sa.Column("units_per_day", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
    )
    op.create_table(
        "secrets",
        sa.Column("kind", sa.String(32), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
