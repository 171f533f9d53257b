"""A stored signature in another validator set: the same 96 bytes, the bit set encoded anew, verified once more.

Heavy (a pairing check for each attempt): belongs on a worker thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from warpseal.aggregation.answers import Answer
from warpseal.aggregation.combine import Electorate, check
from warpseal.bls import SHARE_BYTES, MalformedShare, Share, decode_share
from warpseal.store.values import StoredSignature
from warpseal.warp.ids import id_text
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet

log = logging.getLogger("warpseal.aggregation")

# What is kept was verified before it was kept, so the first attempt is right unless the store was tampered with.
_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class Bundle:
    """Shares that are known as a sum only. indices: canonical, of exactly its signers; answer: the sum alone."""

    indices: frozenset[int]
    share: Share
    answer: Answer


def restore(message: UnsignedMessage, electorate: Electorate, signatures: Sequence[StoredSignature]) -> Bundle | None:
    """Return the heaviest of these signatures all of whose signers are in the set, verified as it is encoded there."""
    for _, indices, signature in nlargest(_ATTEMPTS, _fitting(electorate.members, signatures)):
        bundle = _bundle(message, electorate, indices, signature)
        if bundle is not None:
            return bundle
        log.warning("a stored signature does not verify", extra={"message_id": id_text(message.id)})
    return None


def _fitting(
    members: CanonicalValidatorSet, signatures: Sequence[StoredSignature]
) -> Iterator[tuple[int, tuple[int, ...], bytes]]:
    """Yield weight, signers and bytes of those whose signers are all in the set, each once."""
    for one in signatures:
        found = [members.index_of_key(public_key) for public_key in one.public_keys]
        indices = tuple(sorted({index for index in found if index is not None}))
        if indices and len(indices) == len(found) and len(one.signature) == SHARE_BYTES:
            yield members.weight_of(indices), indices, one.signature


def _bundle(
    message: UnsignedMessage, electorate: Electorate, indices: Sequence[int], signature: bytes
) -> Bundle | None:
    try:
        share = decode_share(signature)
    except MalformedShare:
        return None
    signed = SignedMessage(message, encode_signers(indices), signature)
    answer = check(signed.encode(), message, electorate, required=1)
    return None if answer is None else Bundle(frozenset(indices), share, answer)
