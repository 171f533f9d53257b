"""The first version of all tables."""

from __future__ import annotations

from alembic import op

from warpseal.index.evm.schema import create_all_tables
from warpseal.store.migrate import own_connection

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables.

    A later version changes the stored tables explicitly, which this one then spells out, and calls
    `create_derived_tables` for all others.
    """
    create_all_tables(own_connection(op.get_bind()))
