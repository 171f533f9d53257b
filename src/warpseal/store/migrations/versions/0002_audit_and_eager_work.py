"""How many shares of a message wait to be verified alone, and the L1 transactions to be aggregated unasked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_UNAUDITED = sa.text("for_ever = 1 AND candidates > 0")
_COUNT = (
    "UPDATE messages SET candidates ="
    " (SELECT count(*) FROM shares WHERE shares.message_key = messages.key AND shares.verified = 0)"
)


def upgrade() -> None:
    """Add `messages.candidates`, counted, and the table of eager tasks."""
    op.add_column("messages", sa.Column("candidates", sa.Integer(), nullable=False, server_default="0"))
    op.execute(_COUNT)
    op.create_index("messages_unaudited", "messages", ["key"], sqlite_where=_UNAUDITED, postgresql_where=_UNAUDITED)
    op.create_table(
        "eager_tasks",
        sa.Column("tx_id", sa.LargeBinary(), primary_key=True),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
    )
    op.create_index("eager_tasks_due", "eager_tasks", ["due_at"])
