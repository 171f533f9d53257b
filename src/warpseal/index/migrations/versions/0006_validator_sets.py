"""Validator sets have tables. The other rows stay: the sets begin with the next start of the indexer."""

from __future__ import annotations

from alembic import op

from warpseal.index.schema import SET_CHANGES, SET_MEMBERS, SET_SNAPSHOTS
from warpseal.store.migrate import own_connection

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the tables of the sets; an earlier step of the same upgrade may have created them with all others."""
    for table in (SET_MEMBERS, SET_CHANGES, SET_SNAPSHOTS):
        table.create(own_connection(op.get_bind()), if_missing=True)
