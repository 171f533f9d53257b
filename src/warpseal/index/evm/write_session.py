"""The transactions of a chain's only writer, with the chain's row and the keys of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from warpseal.index.bulk import IdTable
from warpseal.index.database import translate_bad_rows, translate_errors
from warpseal.index.evm.rows import EvmChainRow, lock_chain, read_chain_row
from warpseal.store.connection import Connection, Engine

ZERO_ADDRESS: Final = bytes(20)


class EvmWriteSession:
    """The state of a writer. After an error the next call loads it from the database again.

    load: loads the state of the parts that read what they wrote.
    capacity: number of ids in memory.
    """

    def __init__(
        self, engine: Engine, capacity: int, load: Callable[[Connection, EvmChainRow | None], None]
    ) -> None:
        self._engine = engine
        self._capacity = capacity
        # Read from the database when the session opens.
        self._ids: IdTable
        self._load = load
        self._chain: EvmChainRow | None = None
        self._is_open = False

    @property
    def keys(self) -> dict[bytes, int]:
        """The keys of addresses that were loaded, and 0 for the zero address."""
        return self._ids.keys

    def chain_row(self) -> EvmChainRow | None:
        """Return the chain's row, which callers do not change; None of an empty index."""
        if not self._is_open:
            with self.reading() as connection:
                self._chain = read_chain_row(connection)
                self._ids = IdTable(connection, self._capacity)
                self._load(connection, self._chain)
            self._is_open = True
        return self._chain

    def started_row(self) -> EvmChainRow:
        """Return the row of a chain that `EvmIndexWriter.start` has named."""
        chain = self.chain_row()
        assert chain is not None, "start() comes first"
        return chain

    def forget(self) -> None:
        """Have the next call load the state again."""
        self._is_open = False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Hold a transaction that only reads."""
        with (
            translate_errors(self._engine),
            self._engine.begin() as connection,
            translate_bad_rows(),
        ):
            yield connection

    @contextmanager
    def adding(self) -> Iterator[Connection]:
        """Hold a transaction for rows of which the writer has nothing in memory.

        Rows that another process writes do no harm.
        """
        with translate_errors(self._engine), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Hold a transaction in which no other process has written. Raises IndexMoved."""
        chain = self.chain_row()
        try:
            with self.adding() as connection:
                if chain is not None:
                    lock_chain(connection, chain)
                yield connection
        except BaseException:
            self._is_open = False
            raise

    @contextmanager
    def advance(self) -> Iterator[tuple[Connection, EvmChainRow]]:
        """Hold a transaction at whose end a changed copy of the chain's row is written."""
        chain = replace(self.started_row())
        with self.transaction() as connection:
            yield connection, chain
            chain.write(connection)
        self._chain = chain

    def load_ids(self, connection: Connection, ids: set[bytes]) -> None:
        """Find or assign the keys of addresses; the zero address has none in the database."""
        ids.discard(ZERO_ADDRESS)
        self._ids.load(connection, ids)
        self._ids.keys[ZERO_ADDRESS] = 0
        self._ids.flush(connection)
