"""The first version of all tables."""

from __future__ import annotations

from alembic import op

from warpseal.usage.schema import METADATA

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables. A later version changes them explicitly, and this one then spells them out."""
    METADATA.create_all(op.get_bind())
