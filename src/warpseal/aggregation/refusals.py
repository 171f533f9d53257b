"""Meaning of a validator's refusal: whether it holds, its reason, and what helps. Pure.

Source of truth: avalanchego `vms/platformvm/network/warp.go` for the P-Chain,
`network/p2p/error.go` for negative codes, `graft/*/warp/verifier_backend.go` and
`vms/saevm/cchain/warp/verifier.go` for EVM chains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from warpseal.aggregation.members import IMPOSSIBLE, PENDING, UNAVAILABLE, ShareStatus
from warpseal.warp.ids import P_CHAIN
from warpseal.warp.l1_messages import parse_uptime_message
from warpseal.warp.message import UnsignedMessage

_UPTIME_NOT_REACHED_CODE: Final = 2


class Refusal(Struct, frozen=True):
    """The meaning of one error code of one kind of chain.

    reason: stable name of the refusal.
    advice: sentence for the operator.
    status: state of the share after the refusal.
    """

    reason: str
    advice: str
    status: ShareStatus = IMPOSSIBLE


P_CHAIN_REFUSALS: Final[Mapping[int, Refusal]] = {
    1: Refusal(
        "not_an_addressed_call",
        "The P-Chain signs addressed calls only: build the message as an AddressedCall.",
    ),
    2: Refusal("source_address_not_empty", "A message of the P-Chain has an empty source address."),
    3: Refusal(
        "payload_unparsable", "The payload inside of the addressed call is no L1 message (ACP-77)."
    ),
    4: Refusal(
        "payload_type_not_signable",
        "The P-Chain signs conversions, registrations and weights; the L1's own chain signs the"
        " rest.",
    ),
    5: Refusal(
        "justification_unparsable",
        "Send the justification that this message needs: 32 bytes of a subnet id for a conversion,"
        " an L1ValidatorRegistrationJustification for a removal.",
    ),
    6: Refusal(
        "subnet_not_converted",
        "The validators do not know of the subnet's conversion (yet): check that"
        " ConvertSubnetToL1Tx is accepted and that the justification names the right subnet.",
        PENDING,
    ),
    7: Refusal(
        "conversion_id_mismatch",
        "The subnet was converted with other data: rebuild the conversion id from the transaction"
        " as it is.",
    ),
    8: Refusal(
        "justification_kind_missing",
        "Send the justification that this message needs: an L1ValidatorRegistrationJustification"
        " that names an initial validator or a registration message.",
    ),
    9: Refusal(
        "justification_subnet_id_malformed",
        "The subnet id in the justification must have 32 bytes.",
    ),
    10: Refusal(
        "validation_id_mismatch",
        "The justification proves another validation than the one in the message.",
    ),
    11: Refusal(
        "validation_unknown",
        "No such validation exists (yet): wait for RegisterL1ValidatorTx, or, once it was removed,"
        " ask for registered = false.",
        PENDING,
    ),
    12: Refusal(
        "validation_still_exists",
        "The validator is not removed (yet): wait for SetL1ValidatorWeightTx with weight 0.",
        PENDING,
    ),
    13: Refusal(
        "registration_unparsable",
        "The justification must hold the RegisterL1Validator payload itself, without any wrapping.",
    ),
    14: Refusal(
        "validation_may_still_be_registered",
        "The registration has not expired (yet): that it never happened can be attested after its"
        " expiry.",
        PENDING,
    ),
    15: Refusal(
        "nonce_impossible",
        "A weight message with the largest nonce removes the validator: ask for registered ="
        " false.",
    ),
    16: Refusal(
        "nonce_mismatch",
        "Only the latest weight change can be attested: the validators know another nonce (now).",
        PENDING,
    ),
    17: Refusal(
        "weight_mismatch",
        "Only the latest weight change can be attested: the validators know another weight (now).",
        PENDING,
    ),
}

_NEGATIVE: Final[Mapping[int, Refusal]] = {
    -1: Refusal(
        "request_rejected",
        "The validators reject the request itself: check the message's network id and source"
        " chain id.",
    ),
    -2: Refusal(
        "no_signature_handler",
        "The source chain's VM on these validators does not sign Warp messages (ACP-118).",
    ),
}

_UPTIME_NOT_REACHED: Final = Refusal(
    "uptime_not_reached",
    "These validators have measured less uptime than the message claims: ask for fewer seconds.",
    UNAVAILABLE,
)

_OTHER_ADVICE: Final[Mapping[int, str]] = {
    1: (
        "The validators do not know the message (yet): check that its block is accepted on the"
        " source chain."
    ),
    2: (
        "The validators cannot verify the message (yet): its block is not accepted, or a value does"
        " not hold."
    ),
    3: "The validators have not seen the message (yet): check that its block is accepted.",
    4: "The validators have not accepted the block of this hash (yet).",
}
_UNDEFINED: Final = Refusal(
    "refused", "The validators had trouble of their own: they are asked again.", PENDING
)


class RefusalRules(Struct, frozen=True):
    """The refusals of one message: they depend on its source chain and on its kind."""

    p_chain: bool
    uptime: bool

    @classmethod
    def of(cls, message: UnsignedMessage) -> RefusalRules:
        """Return the rules for a message."""
        return cls(message.source_chain_id == P_CHAIN, parse_uptime_message(message) is not None)

    def refusal(self, code: int) -> Refusal:
        """Return the meaning of an error code (any int32). A code without a rule is retryable."""
        if code in _NEGATIVE:
            return _NEGATIVE[code]
        if self.p_chain:
            return P_CHAIN_REFUSALS.get(code, _UNDEFINED)
        if self.uptime and code == _UPTIME_NOT_REACHED_CODE:
            return _UPTIME_NOT_REACHED
        return Refusal("refused", _OTHER_ADVICE.get(code, _UNDEFINED.advice), PENDING)

    def advice(self, codes: Iterable[int]) -> tuple[str, ...]:
        """Return advice for refusal codes, in their order, each text once."""
        return tuple(dict.fromkeys(self.refusal(code).advice for code in codes))
