"""Everything that can go wrong towards a caller, each with its stable code; statuses are in api/errors.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar


class WarpsealError(Exception):
    """Base of every error that reaches a caller. `code` is stable; the text is for people."""

    code: ClassVar[str] = "internal_error"

    def detail(self) -> Mapping[str, Any]:
        """Return what a program may want to know beyond the code, as JSON-ready values."""
        return {}


class StartupError(Exception):
    """The program cannot start; the text says what to change. Ends the process with exit code 1."""


class InvalidRequest(WarpsealError):
    """The request cannot be understood.

    field: the part of it, in the specification's spelling.
    """

    code = "invalid_request"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason

    def detail(self) -> Mapping[str, Any]:
        return {"field": self.field, "reason": self.reason}


class UndecodableBody(InvalidRequest):
    """The body is not a JSON object of the documented types."""

    code = "undecodable_body"


class UnknownField(InvalidRequest):
    """The body holds a key that no dialect knows."""

    code = "unknown_field"


class UndecodableMessage(InvalidRequest):
    """`message` is not hex."""

    code = "undecodable_message"


class NotAWarpMessage(InvalidRequest):
    """`message` is hex, but neither an unsigned Warp message nor the log data that carries one."""

    code = "not_a_warp_message"


class UndecodableJustification(InvalidRequest):
    """`justification` is not hex."""

    code = "undecodable_justification"


class UnusableJustification(InvalidRequest):
    """A justification came without a message and is none of the two forms that name one."""

    code = "unusable_justification"


class NothingToSign(InvalidRequest):
    """Neither a message nor a justification was given."""

    code = "nothing_to_sign"


class InvalidQuorum(InvalidRequest):
    """The quorum is not an integer of 0..100."""

    code = "invalid_quorum"


class InvalidQuorumBuffer(InvalidRequest):
    """The buffer is not an integer of 0..100, or quorum and buffer exceed 100 together."""

    code = "invalid_quorum_buffer"


class InvalidTimeout(InvalidRequest):
    """The timeout is not a positive number of seconds up to the configured maximum."""

    code = "invalid_timeout"


class InvalidSigningSubnet(InvalidRequest):
    """The signing subnet id is neither base58-check nor hex of 32 bytes."""

    code = "invalid_signing_subnet"


class WrongNetwork(WarpsealError):
    """The message belongs to another network than the one this daemon serves."""

    code = "wrong_network"

    def __init__(self, message_network_id: int, network_id: int) -> None:
        super().__init__(f"the message is of network {message_network_id}; this daemon serves network {network_id}")
        self.message_network_id = message_network_id
        self.network_id = network_id

    def detail(self) -> Mapping[str, Any]:
        return {"messageNetworkId": self.message_network_id, "networkId": self.network_id}


class NetworkNotServed(WarpsealError):
    """The path names a network that this daemon does not serve."""

    code = "network_not_served"

    def __init__(self, name: str, served: Sequence[str], network_id: int) -> None:
        names = ", ".join(served)
        super().__init__(
            f"network {name[:64]!r} is not served here; this daemon serves {names} (network id {network_id})"
        )
        self.served = tuple(served)

    def detail(self) -> Mapping[str, Any]:
        return {"served": list(self.served)}


class NotFound(WarpsealError):
    """There is no such path."""

    code = "not_found"


class UnknownChain(WarpsealError):
    """The P-Chain knows no blockchain of this id."""

    code = "unknown_chain"

    def __init__(self, chain_id: str) -> None:
        super().__init__(f"no blockchain with id {chain_id} is known to the P-Chain")
        self.chain_id = chain_id

    def detail(self) -> Mapping[str, Any]:
        return {"blockchainId": self.chain_id}


class UnknownSubnet(WarpsealError):
    """The P-Chain knows no subnet of this id."""

    code = "unknown_subnet"

    def __init__(self, subnet_id: str) -> None:
        super().__init__(f"no subnet with id {subnet_id} is known to the P-Chain")
        self.subnet_id = subnet_id

    def detail(self) -> Mapping[str, Any]:
        return {"signingSubnetId": self.subnet_id}


class SubnetNotConverted(WarpsealError):
    """A justification names a subnet that is not an L1, so there is no conversion to attest."""

    code = "subnet_not_converted"

    def __init__(self, subnet_id: str) -> None:
        super().__init__(f"subnet {subnet_id} has not been converted to an L1")
        self.subnet_id = subnet_id


class NoValidators(WarpsealError):
    """The signing subnet has no validators at the height that the caller named."""

    code = "no_validators"

    def __init__(self, subnet_id: str, height: int) -> None:
        super().__init__(f"subnet {subnet_id} has no validators at P-Chain height {height}")
        self.subnet_id = subnet_id
        self.height = height

    def detail(self) -> Mapping[str, Any]:
        return {"signingSubnetId": self.subnet_id, "pChainHeight": str(self.height)}


class HeightTooOld(WarpsealError):
    """The named height lies further back than `max-p-chain-lookback` allows."""

    code = "height_too_old"

    def __init__(self, height: int, oldest: int, lookback: int) -> None:
        super().__init__(
            f"P-Chain height {height} is older than {oldest}, the oldest that max-p-chain-lookback={lookback} allows"
        )
        self.height = height
        self.oldest = oldest

    def detail(self) -> Mapping[str, Any]:
        return {
            "pChainHeight": str(self.height),
            "oldest": str(self.oldest),
            "setting": "max-p-chain-lookback",
        }


class HeightTooNew(WarpsealError):
    """The named height lies so far beyond the tip of the P-Chain that waiting for it makes no sense."""

    code = "height_too_new"

    def __init__(self, height: int, tip: int) -> None:
        super().__init__(f"P-Chain height {height} does not exist yet; the P-Chain is at {tip}")
        self.height = height
        self.tip = tip

    def detail(self) -> Mapping[str, Any]:
        return {"pChainHeight": str(self.height), "tip": str(self.tip)}


class TooManyRequests(WarpsealError):
    """Too many requests are in flight, from everybody or from this client."""

    code = "too_many_requests"

    def __init__(self, limit: int, *, per_client: bool) -> None:
        whose = "from this client address" if per_client else "in all"
        super().__init__(f"{limit} requests are in flight {whose}, which is the limit; try again shortly")
        self.limit = limit
        self.per_client = per_client

    def detail(self) -> Mapping[str, Any]:
        return {"limit": self.limit, "scope": "client" if self.per_client else "daemon"}


class NodeFailure(StrEnum):
    """How an upstream node failed, as far as a caller may know."""

    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP_STATUS = "http_status"
    WRONG_NETWORK = "wrong_network"
    BAD_ANSWER = "bad_answer"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class NodeAttempt:
    """One failed try: the node's position in its configured list (from 0) and the class of failure."""

    position: int
    failure: NodeFailure


class NodeUnavailable(WarpsealError):
    """No configured node gave a usable answer."""

    code = "node_unavailable"

    def __init__(self, what: str, attempts: Sequence[NodeAttempt] = ()) -> None:
        tried = "; ".join(f"node {a.position}: {a.failure}" for a in attempts)
        super().__init__(f"no usable answer for {what}" + (f" ({tried})" if tried else ""))
        self.attempts = tuple(attempts)

    def detail(self) -> Mapping[str, Any]:
        return {"nodes": [{"position": a.position, "failure": a.failure.value} for a in self.attempts]}


class Verdict(StrEnum):
    """Whether waiting helps."""

    WAIT = "wait"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class MissingValidator:
    """One member of the canonical set whose signature is missing, and why.

    public_key: 48 bytes, or None for weight without a key. error_code and error_message: the last refusal.
    """

    node_ids: tuple[str, ...]
    public_key: bytes | None
    weight: int
    reason: str
    error_code: int | None = None
    error_message: str | None = None

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "nodeIds": list(self.node_ids),
            "weight": str(self.weight),
            "reason": self.reason,
        }
        if self.public_key is not None:
            shown["publicKey"] = "0x" + self.public_key.hex()
        if self.error_code is not None:
            shown["errorCode"] = self.error_code
        if self.error_message:
            shown["errorMessage"] = self.error_message
        return shown


@dataclass(frozen=True, slots=True)
class QuorumShortfall:
    """What is missing for a quorum. counts: validators by reason; missing: heaviest first, at most 50."""

    verdict: Verdict
    signed_weight: int
    required_weight: int
    total_weight: int
    height: int
    signing_subnet_id: str
    counts: Mapping[str, int]
    missing: tuple[MissingValidator, ...]
    retry_after_s: float | None = None
    hints: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "verdict": self.verdict.value,
            "signedWeight": str(self.signed_weight),
            "requiredWeight": str(self.required_weight),
            "totalWeight": str(self.total_weight),
            "pChainHeight": str(self.height),
            "signingSubnetId": self.signing_subnet_id,
            "counts": dict(self.counts),
            "validators": [validator.as_json() for validator in self.missing],
        }
        if self.hints:
            shown["hints"] = list(self.hints)
        return shown


class QuorumNotReached(WarpsealError):
    """The quorum was not reached, and waiting may help.

    at_deadline: the caller's time ran out; else it failed at once, because the quorum cannot be reached now.
    """

    code = "quorum_not_reached"

    def __init__(self, shortfall: QuorumShortfall, *, at_deadline: bool) -> None:
        super().__init__(
            f"failed to reach a threshold of stake: {shortfall.signed_weight} of {shortfall.required_weight} "
            f"required weight has signed (total {shortfall.total_weight})"
        )
        self.shortfall = shortfall
        self.at_deadline = at_deadline

    def detail(self) -> Mapping[str, Any]:
        return self.shortfall.as_json()


class QuorumImpossible(WarpsealError):
    """The quorum can never be reached: the weight that is lost for good makes it unreachable."""

    code = "quorum_impossible"

    def __init__(self, shortfall: QuorumShortfall) -> None:
        super().__init__(
            f"this quorum cannot be reached: of total weight {shortfall.total_weight}, "
            f"{shortfall.required_weight} is required, and too much of it is lost for good"
        )
        self.shortfall = shortfall

    def detail(self) -> Mapping[str, Any]:
        return self.shortfall.as_json()


class ShuttingDown(WarpsealError):
    """The daemon is stopping and takes no new work."""

    code = "shutting_down"


class InternalError(WarpsealError):
    """A fault of the daemon itself."""

    code = "internal_error"
