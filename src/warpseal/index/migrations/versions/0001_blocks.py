"""The blocks as a node sent them, and all tables that are derived from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from warpseal.index.schema import create_row_tables
from warpseal.store.migrate import own_connection

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the stored tables and the derived ones.

    A later version changes the stored tables explicitly, and calls `create_row_tables` for all others.
    """
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "raws",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column("chain", sa.SmallInteger(), nullable=False),
        sa.Column("form", sa.SmallInteger(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("raws_of_chain", "raws", ["chain", "form", "first"])
    op.create_table(
        "begun",
        sa.Column("chain", number, primary_key=True, autoincrement=False),
        sa.Column("is_complete", sa.SmallInteger(), nullable=False),
    )
    create_row_tables(own_connection(op.get_bind()))
