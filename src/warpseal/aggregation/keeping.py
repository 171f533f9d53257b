"""What one fan-out hands to the archive: shares in lists, what is known of them, and finished answers."""

from __future__ import annotations

from collections.abc import Iterable

from warpseal.aggregation.answers import Answer
from warpseal.aggregation.ports import Archive
from warpseal.aggregation.shares import Candidate
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.message import SignedMessage, UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet


class Keeper:
    """Knows what is kept already, so that nothing is handed over twice. Used from one event loop."""

    def __init__(self, message: UnsignedMessage, members: CanonicalValidatorSet, archive: Archive) -> None:
        self._message = message
        self._members = members
        self._archive = archive
        self._waiting: dict[bytes, Candidate] = {}
        self._known: dict[bytes, bytes] = {}
        self._signatures: frozenset[StoredSignature] = frozenset()

    def recalled(self, recollection: ArchiveEntry) -> None:
        """Note what is kept."""
        self._known = {one.public_key: one.signature for one in recollection.shares}
        self._signatures = frozenset(recollection.signatures)
        waiting = self._waiting.items()
        self._waiting = {key: one for key, one in waiting if one.proven or self._known.get(key) != one.raw}

    def share(self, public_key: bytes, candidate: Candidate) -> None:
        """Keep a share of a member of the set, at the next `flush`."""
        if self._known.get(public_key) != candidate.raw:
            self._waiting[public_key] = candidate

    def proven(self, shares: Iterable[tuple[bytes, Candidate]]) -> None:
        """Keep shares (with their public keys) as verified alone."""
        self._waiting.update(shares)

    def bad(self, public_key: bytes, signature: bytes) -> None:
        """Have a share deleted that was found bad."""
        waiting = self._waiting.get(public_key)
        if waiting is not None and waiting.raw == signature:
            del self._waiting[public_key]
        if self._known.get(public_key) == signature:
            del self._known[public_key]
        self._archive.reject_share(self._message.id, public_key, signature)

    def flush(self) -> None:
        """Hand over the shares that wait; a list each time, because one call each would cost as much as a share."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            shares = [StoredShare(key, one.raw, one.proven) for key, one in waiting.items()]
            self._archive.keep_shares(self._message, shares)

    async def answer(self, answer: Answer) -> None:
        """Return when an answer is committed, or as long as the archive lets wait."""
        signed = stored_signature(answer, self._members)
        if signed not in self._signatures:
            await self._archive.keep_signature(self._message, signed)


def stored_signature(answer: Answer, members: CanonicalValidatorSet) -> StoredSignature:
    """Return the aggregate of an answer and the public keys of its signers, in canonical order."""
    signed = SignedMessage.parse(answer.signed_message)
    keys = tuple(members.validators[index].public_key for index in signed.signer_indices)
    return StoredSignature(keys, signed.signature)
