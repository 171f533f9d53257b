"""The sums of the shares and keys of some signers, each made from the sum before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Final, Generic, TypeVar

from warpseal.bls import (
    PublicKey,
    Share,
    add_public_keys,
    add_shares,
    subtract_public_keys,
    subtract_shares,
    sum_shares,
)

P = TypeVar("P")


class RunningSum(Generic[P]):
    """Remembers the last sum: the next one adds what is new and subtracts what is gone.

    A sum that was made while shares came leaves few of them for the moment at which the quorum is
    complete. The result depends on nothing but the points that are passed, since points form a
    group: any way to the same set has the same sum.
    """

    def __init__(self, add: Callable[[P, P], P], subtract: Callable[[P, P], P]) -> None:
        self._add: Final = add
        self._subtract: Final = subtract
        self._points: Mapping[int, P] = {}
        self._total: P | None = None

    @property
    def size(self) -> int:
        """The number of points of the last sum."""
        return len(self._points)

    def sum(self, points: Mapping[int, P]) -> P:
        """Return the sum of at least one point, by the canonical index of its signer."""
        last = self._points
        total = self._total
        new = [point for index, point in points.items() if last.get(index) is not point]
        gone = [point for index, point in last.items() if points.get(index) is not point]
        if total is None or len(new) + len(gone) >= len(points):
            total, *new = points.values()
            gone = []
        for point in new:
            total = self._add(total, point)
        for point in gone:
            total = self._subtract(total, point)
        self._points, self._total = points, total
        return total


class SignerSums:
    """The running sums of one round. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._shares = RunningSum(add_shares, subtract_shares)
        self._keys = RunningSum(add_public_keys, subtract_public_keys)

    @property
    def size(self) -> int:
        """The number of shares that were summed last."""
        return self._shares.size

    def sum_shares(self, signers: Sequence[int], shares: Sequence[Share]) -> bytes:
        """Return the sum of at least one share, as 96 compressed bytes.

        signers: canonical indices, one for each share.
        """
        with self._lock:
            total = self._shares.sum(dict(zip(signers, shares, strict=True)))
        return sum_shares((total,))

    def sum_keys(self, signers: Sequence[int], keys: Sequence[PublicKey]) -> PublicKey:
        """Return the sum of the keys of at least one signer.

        keys: the keys of the whole set, by canonical index.
        """
        with self._lock:
            return self._keys.sum({index: keys[index] for index in signers})
