"""The last block of each UTC day; all rows are derived again."""

from __future__ import annotations

from alembic import op

from warpseal.index.evm.schema import create_derived_tables

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the derived tables, empty."""
    create_derived_tables(op.get_bind())
