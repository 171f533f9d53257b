"""The last block of each UTC day; all rows are derived again."""

from __future__ import annotations

from alembic import op
from sqlalchemy import inspect

from warpseal.index.evm.schema import create_derived_tables

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the derived tables, empty, unless the database has them from the start."""
    if not inspect(op.get_bind()).has_table("days"):
        create_derived_tables(op.get_bind())
