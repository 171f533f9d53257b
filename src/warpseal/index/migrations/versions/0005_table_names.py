"""Tables have the names of their content; all rows are derived again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from warpseal.index.schema import create_row_tables
from warpseal.store.migrate import own_connection

revision = "0005"
down_revision = "0004"

_DROPPED = ("notes", "unspent_lately", "spent_lately", "early", "address_parts")


def upgrade() -> None:
    """Rename the stored tables, and create the derived ones, empty."""
    op.drop_index("raws_of_chain", "raws")
    op.rename_table("raws", "raw_blocks")
    op.alter_column("raw_blocks", "form", new_column_name="kind")
    op.create_index("raw_blocks_of_chain", "raw_blocks", ["chain", "kind", "first"])
    op.rename_table("begun", "chain_origin")
    for name in _DROPPED:
        op.execute(sa.text(f"DROP TABLE IF EXISTS {name}"))
    create_row_tables(own_connection(op.get_bind()))
