"""The blocks as they came, and everything that is derived from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from warpseal.index.schema import make_rows

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the table that is kept, and those that follow from it.

    A later version changes `raws` in so many words, and calls `make_rows` alone for everything else.
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
    make_rows(op.get_bind())
