"""The candidates of one fan-out and what is known of them: combining, and searching when a sum was not right.

A thin shell around `combine` and `sieve`: everything heavy runs on a worker thread, one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from warpseal.aggregation.answers import Answer
from warpseal.aggregation.combine import Electorate, combine
from warpseal.aggregation.restoring import Bundle, restore
from warpseal.aggregation.shares import Candidate
from warpseal.aggregation.sieve import Findings, Sieve, Suspicion
from warpseal.aggregation.workbench import Workbench
from warpseal.bls import PublicKey
from warpseal.store.values import StoredSignature
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet

# Measurements after a failure until an answer may leave before all bad ones are named: enough for a dozen.
_THOROUGH_SEARCH: Final = 64
# Measurements in one step on the worker thread, a millisecond each; short ones where each may be the last.
_STEP: Final = 32
_SHORT_STEP: Final = 6
# With many bad ones about, so many new shares are searched before they are tried in a sum.
_NEWCOMERS: Final = 16
_SINGLES_AT_ONCE: Final = 8


class Prover:
    """candidates: by canonical index. One call of an async method at a time.

    A bundle stands for the candidates of its signers: who is in it has no candidate.
    """

    def __init__(
        self,
        message: UnsignedMessage,
        members: CanonicalValidatorSet,
        keys_of: Callable[[CanonicalValidatorSet], Sequence[PublicKey]],
        workbench: Workbench,
    ) -> None:
        self.candidates: list[Candidate | None] = [None] * len(members.validators)
        self.message: Final = message
        self._members = members
        self._keys_of = keys_of
        self._workbench = workbench
        self._bundle: Bundle | None = None
        self._electorate: Electorate | None = None
        self._sieve = Sieve(message.raw)
        self._thorough_until = 0
        self._checked: set[int] = set()
        self._singles: dict[int, Candidate] = {}
        self._newcomers: list[int] = []

    @property
    def has_doubts(self) -> bool:
        """Whether a search could find out more."""
        return bool(self._singles) or bool(self._newcomers) or self._sieve.has_dirty

    @property
    def is_searching(self) -> bool:
        """Whether the search for those who spoilt a sum is still on, whatever can be answered meanwhile."""
        return self._sieve.has_dirty and self._sieve.measurements < self._thorough_until

    @property
    def is_flooded(self) -> bool:
        """Whether so many shares were bad that others are likely to be, too."""
        return self._sieve.has_dirty and self._sieve.measurements >= self._thorough_until

    @property
    def unresolved(self) -> list[int]:
        """Canonical indices in groups known to hold a bad share that was not searched for to the end."""
        return [one.index for one in self._sieve.unresolved if self._stands(one)]

    def doubt(self, index: int) -> None:
        """Verify this candidate singly before it enters a sum."""
        candidate = self.candidates[index]
        if candidate is not None:
            self._singles[index] = candidate

    def drop(self, index: int) -> None:
        """Forget a candidate that was found bad."""
        self.candidates[index] = None
        self._checked.discard(index)
        self._singles.pop(index, None)

    def covers(self, index: int) -> bool:
        """Tell whether the bundle stands for a validator."""
        return self._bundle is not None and index in self._bundle.indices

    def stand(self, indices: Iterable[int]) -> bool:
        """Tell whether nobody's candidate among these was dropped."""
        return all(self.candidates[index] is not None or self.covers(index) for index in indices)

    def vouch(self, index: int) -> None:
        """Search for bad ones among others first: this candidate was right when it was kept."""
        self._checked.add(index)

    async def restore(self, signatures: Sequence[StoredSignature]) -> Bundle | None:
        """Return what is usable here of stored signatures; from now on it stands for its signers."""
        self._bundle = await self._workbench.run(lambda: restore(self.message, self._at_hand(), signatures))
        if self._bundle is not None:
            for index in self._bundle.indices:
                self.drop(index)
        return self._bundle

    async def combine(self, signers: Sequence[int], required: int) -> Answer | None:
        """Return the signed message of these signers, or None when their sum is not right.

        A bundle is indivisible: if one of its signers is wanted, all of them are in.
        """
        used = {index: candidate for index in signers if (candidate := self.candidates[index])}
        shares = [candidate.share for candidate in used.values()]
        indices = tuple(used)
        if self._bundle is not None and any(self.covers(index) for index in signers):
            shares.append(self._bundle.share)
            indices += tuple(self._bundle.indices)
        answer = await self._workbench.run(lambda: combine(self.message, self._at_hand(), indices, shares, required))
        if answer is not None:
            self._checked.update(index for index, one in used.items() if self.candidates[index] is one)
        return answer

    def to_search(self, failed: Iterable[int], signed: Iterable[int]) -> list[int]:
        """Return among which of the signed shares to search when the sum of `failed` was not right.

        Those that were part of a right sum are left out, unless all of `failed` were: then two or more of them
        had cancelled each other out.
        """
        failed = [index for index in failed if not self.covers(index)]
        if all(index in self._checked or self._is_proven(index) for index in failed):
            self._checked.difference_update(failed)
            signed = failed
        return [index for index in signed if self._is_new(index)]

    def newcomers(self, signed: Iterable[int]) -> list[int]:
        """Return shares that no sum has held yet, and search among them, too, from the next step on.

        Nobody while they are few.
        """
        found = [index for index in signed if self._is_new(index)]
        if len(found) < _NEWCOMERS:
            return []
        self._newcomers += found
        return found

    async def search(self, indices: Sequence[int]) -> Findings:
        """Begin to search among these candidates."""
        self._newcomers += indices
        self._thorough_until = self._sieve.measurements + _THOROUGH_SEARCH
        return await self.search_on()

    async def search_on(self) -> Findings:
        """Search a step further: dirty groups first, then those that are to be verified singly."""
        if self._newcomers or self._sieve.has_dirty:
            return self._learn(await self._workbench.run(self._next_step()))
        return self._learn(await self._workbench.run(self._try_singles()))

    def _next_step(self) -> Callable[[], Findings]:
        newcomers, self._newcomers = self._newcomers, []
        candidates = list(self.candidates)
        measurements = _SHORT_STEP if self.is_flooded else _STEP

        def work() -> Findings:
            self._sieve.add(self._suspicions(newcomers, candidates))
            return self._sieve.split(measurements)

        return work

    def _try_singles(self) -> Callable[[], Findings]:
        """Take the heaviest who are to be verified singly; return the work of it."""
        chosen = sorted(self._singles, key=self._weight, reverse=True)[:_SINGLES_AT_ONCE]
        candidates = list(self.candidates)
        for index in chosen:
            del self._singles[index]

        def work() -> Findings:
            self._sieve.add_singly(self._suspicions(chosen, candidates))
            return self._sieve.split(0)

        return work

    def _learn(self, findings: Findings) -> Findings:
        """Note the findings; return them without shares that were dropped meanwhile."""
        standing = Findings(
            tuple(filter(self._stands, findings.clean)),
            tuple(filter(self._stands, findings.proven)),
            tuple(filter(self._stands, findings.bad)),
        )
        self._checked.update(one.index for one in standing.clean)
        for one in standing.proven:
            candidate = self.candidates[one.index]
            if candidate is not None:
                candidate.proven = True
        return standing

    def _stands(self, suspicion: Suspicion) -> bool:
        candidate = self.candidates[suspicion.index]
        return candidate is not None and candidate.share is suspicion.share

    def _suspicions(self, indices: Iterable[int], candidates: Sequence[Candidate | None]) -> list[Suspicion]:
        keys = self._at_hand().keys
        found = ((index, candidates[index]) for index in indices)
        return [Suspicion(index, keys[index], one.share) for index, one in found if one is not None]

    def _at_hand(self) -> Electorate:
        if self._electorate is None:
            self._electorate = Electorate(self._members, self._keys_of(self._members))
        return self._electorate

    def _is_new(self, index: int) -> bool:
        """Tell whether a validator has a candidate that was part of no right sum yet."""
        return index not in self._checked and not self._is_proven(index) and not self.covers(index)

    def _is_proven(self, index: int) -> bool:
        candidate = self.candidates[index]
        return candidate is not None and candidate.proven

    def _weight(self, index: int) -> int:
        return self._members.validators[index].weight
