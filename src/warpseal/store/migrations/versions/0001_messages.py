"""Messages, shares, signatures, addresses, origins, L1 transactions and what was read of each chain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_EVICTABLE = sa.text("for_ever = 0")


def upgrade() -> None:
    """Make the tables of version 0001."""
    _messages()
    _shares_and_signatures()
    _addresses()
    _origins()
    _l1_transactions()
    op.create_table(
        "block_ranges",
        sa.Column("chain_id", sa.LargeBinary(), primary_key=True),
        sa.Column("low", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("high", sa.BigInteger(), nullable=False),
        sa.Column("low_parent_id", sa.LargeBinary(), nullable=False),
        sa.Column("high_block_id", sa.LargeBinary(), nullable=False),
    )


def _messages() -> None:
    op.create_table(
        "messages",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("message_id", sa.LargeBinary(), nullable=False, unique=True),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("for_ever", sa.SmallInteger(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
    )
    op.create_index(
        "messages_evictable",
        "messages",
        ["used_at", "size_bytes"],
        sqlite_where=_EVICTABLE,
        postgresql_where=_EVICTABLE,
    )


def _shares_and_signatures() -> None:
    op.create_table(
        "shares",
        sa.Column("message_key", _KEY, sa.ForeignKey("messages.key", ondelete="CASCADE"), primary_key=True),
        sa.Column("public_key", sa.LargeBinary(), primary_key=True),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("verified", sa.SmallInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signatures",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("message_key", _KEY, sa.ForeignKey("messages.key", ondelete="CASCADE"), nullable=False),
        sa.Column("public_keys", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("message_key", "signature", name="signatures_of_message"),
    )


def _addresses() -> None:
    op.create_table(
        "addresses",
        sa.Column("node_id", sa.LargeBinary(), primary_key=True),
        sa.Column("kind", sa.String(8), primary_key=True),
        sa.Column("ip", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("worked_at", sa.Double(), nullable=False),
        sa.Column("signed_at", sa.BigInteger(), nullable=False),
        sa.Column("kept_at", sa.Double(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("addresses_kept_at", "addresses", ["kept_at"])


def _origins() -> None:
    op.create_table(
        "origins",
        sa.Column("validation_id", sa.LargeBinary(), primary_key=True),
        sa.Column("subnet_id", sa.LargeBinary(), nullable=True),
        sa.Column("bootstrap_index", sa.BigInteger(), nullable=True),
        sa.Column("registration", sa.LargeBinary(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("found_at", sa.Double(), nullable=False),
        sqlite_with_rowid=False,
    )


def _l1_transactions() -> None:
    op.create_table(
        "l1_transactions",
        sa.Column("tx_id", sa.LargeBinary(), primary_key=True),
        sa.Column("height", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("block_id", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("subnet_id", sa.LargeBinary(), nullable=True),
        sa.Column("validation_id", sa.LargeBinary(), nullable=True),
    )
    op.create_index("l1_transactions_of_validation", "l1_transactions", ["validation_id", "height", "position"])
    op.create_index("l1_transactions_by_height", "l1_transactions", ["height", "position"])
