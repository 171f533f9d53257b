"""From chosen shares to a signed message that was verified as it stands in its own bytes. Nothing else leaves.

Heavy (a few milliseconds for a thousand signers): belongs on a worker thread, where the library releases the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpseal.aggregation.answers import Answer
from warpseal.bls import PublicKey, Share, sum_public_keys, sum_shares, verify
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet


@dataclass(frozen=True, slots=True)
class Electorate:
    """A canonical set and its parsed keys, in canonical order."""

    members: CanonicalValidatorSet
    keys: Sequence[PublicKey]


def combine(
    message: UnsignedMessage,
    electorate: Electorate,
    signers: Sequence[int],
    shares: Sequence[Share],
    required: int,
) -> Answer | None:
    """Return the message signed by `signers` (canonical indices; `shares` add up to exactly their signatures).

    None when it is not right: the shares must then be searched for bad ones. required: weight.
    """
    signed = SignedMessage(message, encode_signers(signers), sum_shares(shares))
    return check(signed.encode(), message, electorate, required)


def check(raw: bytes, message: UnsignedMessage, electorate: Electorate, required: int) -> Answer | None:
    """Return `raw` as an answer if it is `message` signed with at least `required` weight of the electorate.

    Keys and weight come from the bit set as parsed from `raw`; the signature is checked once, subgroup included.
    """
    signed = SignedMessage.parse(raw)
    indices = signed.signer_indices
    if signed.unsigned != message or not indices or indices[-1] >= len(electorate.keys):
        return None
    weight = electorate.members.weight_of(indices)
    if weight < required:
        return None
    key = sum_public_keys(electorate.keys[index] for index in indices)
    if not verify(key, message.raw, signed.signature):
        return None
    return Answer(raw, weight, len(indices))
