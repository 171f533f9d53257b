"""Up to where the indexes were read for the event log, and the ICM messages that are signed ahead."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "event_sources",
        sa.Column("source", sa.Text(), primary_key=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "icm_tasks",
        sa.Column("message_id", sa.LargeBinary(), primary_key=True),
        sa.Column("source", sa.LargeBinary(), nullable=False),
        sa.Column("destination", sa.LargeBinary(), nullable=False),
        sa.Column("message", sa.LargeBinary(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("set_digest", sa.LargeBinary(), nullable=True),
        sa.Column("ends_at", sa.Double(), nullable=False),
    )
    op.create_index("icm_tasks_due", "icm_tasks", ["due_at"])
    op.create_index("icm_tasks_of_route", "icm_tasks", ["destination", "source", "set_digest"])
