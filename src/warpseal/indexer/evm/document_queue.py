"""Documents that wait to be requested: bounded, urgent first, fair by host and contract.

Pure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from msgspec import Struct

J = TypeVar("J")


class QueuedDocument(Struct, Generic[J], frozen=True, eq=False):
    """A document that waits.

    host: host of the first URL.
    size_bytes: the memory that the document takes in the queue.
    """

    host: str
    contract: bytes
    size_bytes: int
    job: J


class DocumentQueue(Generic[J]):
    """One line for each level of urgency, 0 the most urgent.

    Hosts take turns, and the contracts of a host do.

    max_queued, max_bytes: the bounds of one level.
    max_per_contract: the number of documents at which a contract has its share of a level.
    per_host: the number of running requests at which a host is passed over.
    """

    def __init__(
        self, levels: int, max_queued: int, max_bytes: int, max_per_contract: int, per_host: int
    ) -> None:
        self._levels = tuple(_Level[J]() for _ in range(levels))
        self._max_queued = max_queued
        self._max_bytes = max_bytes
        self._max_per_contract = max_per_contract
        self._per_host = per_host
        self._running: Counter[str] = Counter()

    def room(self, level: int) -> int:
        """Return how many documents can be added without displacing others."""
        queued = self._levels[level]
        return max(0, self._max_queued - queued.count) if queued.size_bytes < self._max_bytes else 0

    def crowded(self, level: int) -> frozenset[bytes]:
        """Return the contracts that have their share of a level."""
        counts: Counter[bytes] = Counter()
        for contracts in self._levels[level].hosts.values():
            for contract, documents in contracts.items():
                counts[contract] += len(documents)
        return frozenset(
            contract for contract, count in counts.items() if count >= self._max_per_contract
        )

    def add(self, level: int, fetch: QueuedDocument[J]) -> Iterator[J]:
        """Add a document; yield the documents that it displaces.

        These are the newest of the host that has most of the level.
        """
        queued = self._levels[level]
        queued.add(fetch)
        while queued.count > self._max_queued or (
            queued.size_bytes > self._max_bytes and queued.count > 1
        ):
            yield queued.drop_newest().job

    def remove(self, contract: bytes, is_match: Callable[[J], bool]) -> QueuedDocument[J] | None:
        """Remove a document of a contract from any level, and return it; None if none matches."""
        for level in self._levels:
            if (document := level.find(contract, is_match)) is not None:
                level.remove(document)
                return document
        return None

    def take(self) -> QueuedDocument[J] | None:
        """Return the next document whose host has a free slot; None without one.

        The slot is taken until `finish`.
        """
        for level in self._levels:
            for host in level.hosts:
                if self._running[host] < self._per_host:
                    self._running[host] += 1
                    return level.take(host)
        return None

    def finish(self, fetch: QueuedDocument[J]) -> None:
        """Free the slot of a document that was taken."""
        # Unlike `subtract`, this forgets hosts without requests.
        self._running -= Counter((fetch.host,))


class _Level(Generic[J]):
    """The documents of a level by host and contract, the next ones to take first."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[bytes, deque[QueuedDocument[J]]]] = {}
        self.count = 0
        self.size_bytes = 0

    def add(self, fetch: QueuedDocument[J]) -> None:
        self.hosts.setdefault(fetch.host, {}).setdefault(fetch.contract, deque()).append(fetch)
        self.count += 1
        self.size_bytes += fetch.size_bytes

    def take(self, host: str) -> QueuedDocument[J]:
        """Remove the first document of a host.

        The host goes to the end of the level, and the contract to the end of the host.
        """
        contracts = self.hosts[host]
        contract, documents = next(iter(contracts.items()))
        fetch = documents[0]
        self.remove(fetch)
        if documents:
            contracts[contract] = contracts.pop(contract)
        if contracts:
            self.hosts[host] = self.hosts.pop(host)
        return fetch

    def drop_newest(self) -> QueuedDocument[J]:
        """Remove the last document of the contract that has most, of the host that has most."""

        def count(contracts: dict[bytes, deque[QueuedDocument[J]]]) -> int:
            return sum(map(len, contracts.values()))

        contracts = max(self.hosts.values(), key=count)
        fetch = max(contracts.values(), key=len)[-1]
        self.remove(fetch)
        return fetch

    def find(self, contract: bytes, is_match: Callable[[J], bool]) -> QueuedDocument[J] | None:
        """Return a document of a contract; None without a match."""
        documents = (
            fetch for contracts in self.hosts.values() for fetch in contracts.get(contract, ())
        )
        return next((fetch for fetch in documents if is_match(fetch.job)), None)

    def remove(self, fetch: QueuedDocument[J]) -> None:
        """Remove a document that waits."""
        contracts = self.hosts[fetch.host]
        contracts[fetch.contract].remove(fetch)
        if not contracts[fetch.contract]:
            del contracts[fetch.contract]
        if not contracts:
            del self.hosts[fetch.host]
        self.count -= 1
        self.size_bytes -= fetch.size_bytes
