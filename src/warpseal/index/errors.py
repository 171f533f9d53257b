"""Errors of the index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from warpseal.errors import IndexDamaged, IndexMoved, StoreDown
from warpseal.history.chains import PrimaryChain

__all__ = ["IndexDamaged", "IndexMoved", "OutOfOrder", "RebuildFailed", "StoreDown", "translate_errors"]


@contextmanager
def translate_errors(engine: Engine) -> Iterator[None]:
    """Raise StoreDown for an error of the database, without the password of its URL."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, psycopg.Error, PoolTimeout) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = str(cause).strip() or type(cause).__name__
        password = engine.url.password
        raise StoreDown(reason.replace(str(password), "***") if password else reason) from None


class RebuildFailed(Exception):
    """Rows cannot be derived from the stored blocks from a height of a chain on; a newer version is needed."""

    def __init__(self, chain: PrimaryChain, height: int, reason: str) -> None:
        super().__init__(f"the {chain} from block {height} on: {reason}")
        self.chain = chain
        self.height = height
        self.reason = reason

    def __reduce__(self) -> tuple[type[RebuildFailed], tuple[PrimaryChain, int, str]]:
        """Support pickling between processes."""
        return RebuildFailed, (self.chain, self.height, self.reason)


class OutOfOrder(ValueError):
    """A block does not follow the last one. Nothing was written."""

    def __init__(self, chain: str, height: int, reason: str) -> None:
        super().__init__(f"block {height} of the {chain}: {reason}")
        self.chain = chain
        self.height = height
