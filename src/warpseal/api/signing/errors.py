"""Errors of requests for signatures: each names the field, in the specification's spelling."""

from __future__ import annotations

from warpseal.errors import InvalidRequest


class UndecodableBody(InvalidRequest):
    """The body is empty, compressed, not JSON, or not a JSON object of the documented types."""

    code = "undecodable_body"
    reference_text = "Could not decode request body"


class UndecodableMessage(InvalidRequest):
    """A message is not hex."""

    code = "undecodable_message"
    reference_text = "Could not decode message"


class NotAWarpMessage(InvalidRequest):
    """A message is hex, but no Warp message of the expected kind, unsigned or signed, in any of its
    forms.
    """

    code = "not_a_warp_message"
    reference_text = "Error unpacking warp message"


class UndecodableJustification(InvalidRequest):
    """`justification` is not hex."""

    code = "undecodable_justification"
    reference_text = "Could not decode justification"


class InvalidQuorum(InvalidRequest):
    """The quorum is not an integer of 0..100."""

    code = "invalid_quorum"
    reference_text = "Invalid quorum number"


class InvalidQuorumBuffer(InvalidRequest):
    """The buffer is not an integer of 0..100, or quorum and buffer exceed 100 together."""

    code = "invalid_quorum_buffer"
    reference_text = "Invalid quorum buffer number"


class InvalidDestination(InvalidRequest):
    """The destination is neither P, X, C nor a blockchain id: base58-check, or hex of 32 bytes."""

    code = "invalid_destination"


class ConflictingSpellings(InvalidRequest):
    """Two spellings of one field, or the same spelling twice, carry different values."""

    code = "conflicting_spellings"


class FieldTooLarge(InvalidRequest):
    """A message, a justification or the data of a call is longer than this daemon takes."""

    code = "field_too_large"

    def __init__(self, field: str, limit_bytes: int) -> None:
        super().__init__(
            field, f"longer than the {limit_bytes} bytes that are allowed", limit_bytes=limit_bytes
        )


class AllZeroes(InvalidRequest):
    """The message consists of zero bytes only, and so does the justification."""

    code = "only_zeroes"
    reference_text = "Must provide either message or justification"


class MalformedTransactionHash(InvalidRequest):
    """A transaction hash is neither base58-check nor hex of 32 bytes."""

    code = "malformed_transaction_hash"
