"""The blocks as they came, and everything that is derived from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from warpseal.index.schema import create_row_tables

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables that are kept, and those that follow from them.

    A later version changes those that are kept in so many words, and calls `make_rows` alone for everything else.
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
    create_row_tables(op.get_bind())
