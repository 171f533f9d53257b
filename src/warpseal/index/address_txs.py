"""Which transactions touch which addresses, as rows: in parts, so that only the tables' newest part is written to.

An address that comes again in the same part costs nothing in the directory of parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.keys import chain_of, partition_of
from warpseal.index.schema import ADDRESS_KIND_TXS, ADDRESS_PARTITIONS, ADDRESS_TXS, ANY_KIND


class AddressTxWriter:
    """Gathers rows; remembers which addresses and types the newest part of each chain has."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, set[tuple[int, int]]]] = {}
        self._plain: list[tuple[int, int, int]] = []
        self._by_kind: list[tuple[int, int, int, int]] = []
        self._parts: list[tuple[int, int, int]] = []

    def forget(self) -> None:
        """Begin anew with what the database has."""
        self.__init__()  # type: ignore[misc]

    def add(self, tx: int, kind: int, addresses: Iterable[int]) -> None:
        """Note whose addresses a transaction touches."""
        part = partition_of(tx)
        seen = self._seen(chain_of(tx), part)
        for address in addresses:
            self._plain.append((part, address, tx))
            self._by_kind.append((part, address, kind, tx))
            if (address, kind) not in seen:
                self._enter(seen, part, address, kind)

    def flush(self, connection: Connection, *, is_new: bool = True) -> None:
        """Write the rows. is_new: none of the transactions has any; else those that are there stay."""
        write = bulk.insert if is_new else bulk.insert_new
        write(connection, ADDRESS_TXS, sorted(self._plain))
        write(connection, ADDRESS_KIND_TXS, sorted(self._by_kind))
        bulk.insert_new(connection, ADDRESS_PARTITIONS, sorted(self._parts))
        self._plain, self._by_kind, self._parts = [], [], []

    def _seen(self, chain: int, part: int) -> set[tuple[int, int]]:
        newest, seen = self._newest.get(chain, (-1, set()))
        if part > newest:
            seen = set()
            self._newest[chain] = (part, seen)
        # Of an older part nothing is remembered.
        return seen if part >= newest else set()

    def _enter(self, seen: set[tuple[int, int]], part: int, address: int, kind: int) -> None:
        seen.add((address, kind))
        self._parts.append((address, kind, part))
        if (address, ANY_KIND) not in seen:
            seen.add((address, ANY_KIND))
            self._parts.append((address, ANY_KIND, part))
