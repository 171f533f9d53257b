"""Errors of an aggregation: what cannot be signed, and quorums that were missed."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

from warpseal.errors import RETRY_SOON_S, InvalidRequest, WarpsealError
from warpseal.warp.quorum_shortfall import QuorumShortfall


class UnusableJustification(InvalidRequest):
    """A justification came without a message, and has neither of the two forms that name one."""

    code = "unusable_justification"
    reference_text = "Error unpacking warp message"


class NothingToSign(InvalidRequest):
    """Neither a message nor a justification was given."""

    code = "nothing_to_sign"
    reference_text = "Error unpacking warp message"


class InvalidTimeout(InvalidRequest):
    """The timeout is not a positive number of seconds up to the configured maximum."""

    code = "invalid_timeout"


class WrongSigningSubnet(InvalidRequest):
    """The named subnet does not run the source chain.

    Its validators sign none of the chain's messages.
    """

    code = "wrong_signing_subnet"


class WrongNetwork(WarpsealError):
    """The message belongs to another network than the one this daemon serves."""

    code = "wrong_network"
    http_status = 400

    def __init__(self, message_network_id: int, network_id: int) -> None:
        text = (
            f"the message is of network {message_network_id}; this daemon serves network"
            f" {network_id}"
        )
        super().__init__(text, message_network_id=message_network_id, network_id=network_id)


class SubnetNotConverted(WarpsealError):
    """A justification names a subnet that is not an L1, so there is no conversion to attest."""

    code = "subnet_not_converted"
    http_status = 400

    def __init__(self, subnet_id: str) -> None:
        super().__init__(f"subnet {subnet_id} has not been converted to an L1")


class NoValidators(WarpsealError):
    """The signing subnet has no validators at the height that the caller named."""

    code = "no_validators"
    http_status = 400

    def __init__(self, subnet_id: str, height: int) -> None:
        text = f"subnet {subnet_id} has no validators at P-Chain height {height}"
        super().__init__(text, signing_subnet_id=subnet_id, p_chain_height=str(height))


class Overloaded(WarpsealError):
    """New messages arrive faster than they are signed: this message would miss its timeout.

    expected_s: seconds until the caller should try again, and may expect a result.
    waiting: length of the queue.
    """

    code = "overloaded"
    http_status = 503
    retry_after_s: float = RETRY_SOON_S

    def __init__(self, expected_s: float, waiting: int) -> None:
        text = (
            f"the daemon cannot keep up: {waiting} new messages wait, and this one could not be"
            f" signed within the timeout of its request; try again in {ceil(expected_s)} s"
        )
        super().__init__(text, expected_seconds=ceil(expected_s), waiting=waiting)
        self.retry_after_s = expected_s


class QuorumNotReached(WarpsealError):
    """The quorum was not reached, and waiting may help.

    at_deadline: the caller's time ran out; else it failed at once, because the quorum cannot be
        reached now.
    """

    code = "quorum_not_reached"
    http_status = 503
    v1_status = 503
    retry_after_s: float = RETRY_SOON_S
    deadline_status: ClassVar[int] = 504

    def __init__(self, shortfall: QuorumShortfall, *, at_deadline: bool) -> None:
        text = (
            f"failed to reach a threshold of stake: {shortfall.signed_weight} of"
            f" {shortfall.required_weight} required weight has signed (total"
            f" {shortfall.total_weight})"
        )
        super().__init__(_with_cause(text, shortfall), **shortfall.detail())
        self.shortfall = shortfall
        self.at_deadline = at_deadline
        if at_deadline:
            self.http_status = self.deadline_status
        if shortfall.retry_after_s is not None:
            self.retry_after_s = shortfall.retry_after_s

    def advised(self, hint: str) -> QuorumNotReached:
        """Return the same error with advice that matters more than that which it has."""
        return QuorumNotReached(self.shortfall.advised(hint), at_deadline=self.at_deadline)


class QuorumImpossible(WarpsealError):
    """The quorum can never be reached: the weight that is lost for good makes it unreachable."""

    code = "quorum_impossible"
    http_status = 400

    def __init__(self, shortfall: QuorumShortfall) -> None:
        text = (
            f"this quorum cannot be reached: of total weight {shortfall.total_weight}, "
            f"{shortfall.required_weight} is required, and too much of it is lost for good"
        )
        super().__init__(_with_cause(text, shortfall), **shortfall.detail())
        self.shortfall = shortfall

    def advised(self, hint: str) -> QuorumImpossible:
        """Return the same error with advice that matters more than that which it has."""
        return QuorumImpossible(self.shortfall.advised(hint))


def _with_cause(text: str, shortfall: QuorumShortfall) -> str:
    """Return the text of an error with the cause, since SDKs show nothing but the text."""
    return f"{text}: {shortfall.cause}" if shortfall.cause else text
