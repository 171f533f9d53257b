"""The rows that name the transactions of an address, by partition, so that only the newest partition is written.

An address that comes again in the same partition adds no row to the directory of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.keys import chain_of, partition_of
from warpseal.index.schema import ADDRESS_KIND_TXS, ADDRESS_PARTITIONS, ADDRESS_TXS, ANY_KIND


class AddressTxWriter:
    """Collects rows; caches the addresses and types that the newest partition of each chain has."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, set[tuple[int, int]]]] = {}
        self._plain: list[tuple[int, int, int]] = []
        self._by_kind: list[tuple[int, int, int, int]] = []
        self._partitions: list[tuple[int, int, int]] = []

    def forget(self) -> None:
        """Drop the cache and the collected rows."""
        self.__init__()  # type: ignore[misc]

    def add(self, tx: int, kind: int, addresses: Iterable[int]) -> None:
        """Add a transaction that touches addresses."""
        partition = partition_of(tx)
        seen = self._seen(chain_of(tx), partition)
        for address in addresses:
            self._plain.append((partition, address, tx))
            self._by_kind.append((partition, address, kind, tx))
            if (address, kind) not in seen:
                self._add_partition(seen, partition, address, kind)

    def flush(self, connection: Connection, *, is_new: bool = True) -> None:
        """Write the rows. is_new: no row of the transactions exists yet; else existing rows stay."""
        write = bulk.insert if is_new else bulk.insert_new
        write(connection, ADDRESS_TXS, sorted(self._plain))
        write(connection, ADDRESS_KIND_TXS, sorted(self._by_kind))
        bulk.insert_new(connection, ADDRESS_PARTITIONS, sorted(self._partitions))
        self._plain, self._by_kind, self._partitions = [], [], []

    def _seen(self, chain: int, partition: int) -> set[tuple[int, int]]:
        newest, seen = self._newest.get(chain, (-1, set()))
        if partition > newest:
            seen = set()
            self._newest[chain] = (partition, seen)
        # Older partitions are not cached.
        return seen if partition >= newest else set()

    def _add_partition(self, seen: set[tuple[int, int]], partition: int, address: int, kind: int) -> None:
        seen.add((address, kind))
        self._partitions.append((address, kind, partition))
        if (address, ANY_KIND) not in seen:
            seen.add((address, ANY_KIND))
            self._partitions.append((address, ANY_KIND, partition))
