"""Errors of a request itself, or of the objects that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warpseal.errors.base import WarpsealError


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
