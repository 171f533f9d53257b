"""Everything that can go wrong towards a caller, each with its stable code; statuses are in api/http/errors.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil
from typing import Any, ClassVar


class WarpsealError(Exception):
    """Base of every error that reaches a caller. `code` is stable; the text is for people.

    detail: facts for programs beyond the code, JSON-ready.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(self, text: str = "", **detail: Any) -> None:
        super().__init__(text)
        self._detail = detail

    def detail(self) -> Mapping[str, Any]:
        """Return the facts for programs beyond the code."""
        return self._detail

    def add_detail(self, **detail: Any) -> None:
        """Add to the detail of this error."""
        self._detail |= detail


class StartupError(Exception):
    """The program cannot start; the text says what to change. Ends the process with exit code 1."""


class CallRefused(Exception):
    """A refused call of the node API; its text is the error of the JSON-RPC reply, whose status is 200.

    data: of the error, such as what a contract returned with a revert.
    """

    def __init__(self, text: str = "", data: bytes = b"") -> None:
        super().__init__(text)
        self.data = data


# The process and its databases.


class ShuttingDown(WarpsealError):
    """The daemon is stopping and takes no new work."""

    code = "shutting_down"


class StillStarting(WarpsealError):
    """The daemon is starting, and no node has reported the network id yet."""

    code = "starting"

    def __init__(self) -> None:
        super().__init__("the daemon is starting; no node has reported the network id yet")


class InternalError(WarpsealError):
    """An internal error of the daemon."""

    code = "internal_error"


class StoreDown(WarpsealError):
    """The database cannot be read or written now."""

    code = "store_down"
    _text: ClassVar[str] = "the store is not available: {}"

    def __init__(self, reason: str) -> None:
        super().__init__(self._text.format(reason))
        self.reason = reason

    def __reduce__(self) -> tuple[type[StoreDown], tuple[str]]:
        """Pickle the reason: the worker process of the index raises these errors."""
        return StoreDown, (self.reason,)


class IndexDamaged(StoreDown):
    """The index cannot be read, or its content contradicts itself or the blocks in it: it must be made again."""

    code = "index_damaged"
    _text = "the index is damaged: {}"

    def __reduce__(self) -> tuple[type[StoreDown], tuple[str]]:
        """Pickle the reason."""
        return IndexDamaged, (self.reason,)


class IndexMoved(StoreDown):
    """Another process has written to the index meanwhile; it must be opened again.

    chain: whose blocks it wrote.
    """

    code = "index_moved"

    def __init__(self, chain: str) -> None:
        super().__init__(f"another process has written blocks of the {chain}")


# The HTTP of a request, before it is understood.


class BodyTooLarge(WarpsealError):
    """The request body is longer than this daemon takes."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        text = f"the request body is longer than the {limit_bytes} bytes that are allowed"
        super().__init__(text, limitBytes=limit_bytes)


class HeaderTooLarge(WarpsealError):
    """The request line and header fields are longer than this daemon takes."""

    code = "header_too_large"

    def __init__(self, limit_bytes: int) -> None:
        text = f"the request header is longer than the {limit_bytes} bytes that are allowed"
        super().__init__(text, limitBytes=limit_bytes)


class ReceiveTimeout(WarpsealError):
    """The request did not arrive in full within the time that is allowed for it."""

    code = "receive_timeout"

    def __init__(self, allowed_s: float) -> None:
        super().__init__(f"the request did not arrive in full within {allowed_s:g} s", allowedSeconds=allowed_s)


class MalformedHTTP(WarpsealError):
    """The bytes on the connection are not HTTP/1.1."""

    code = "malformed_http"

    def __init__(self) -> None:
        super().__init__("the request is not valid HTTP/1.1")


class NotFound(WarpsealError):
    """There is no such path."""

    code = "not_found"


class MethodNotAllowed(WarpsealError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        text = f"method {method[:32]} is not allowed here; use {' or '.join(allowed)}"
        super().__init__(text, allowed=list(allowed))
        self.allowed = tuple(allowed)


class UnknownTransferCoding(WarpsealError):
    """A body has another transfer coding than chunked."""

    code = "unknown_transfer_coding"

    def __init__(self, coding: str) -> None:
        super().__init__(f"expected the transfer coding chunked, or a Content-Length, got {coding!r}")


class TooManyConnections(WarpsealError):
    """Too many connections to this port are open."""

    code = "too_many_connections"

    def __init__(self) -> None:
        super().__init__("too many connections are open; try again later")


# The request itself, and the objects that it names.


class InvalidRequest(WarpsealError):
    """The request cannot be understood.

    field: the part of it, in the specification's spelling.
    """

    code = "invalid_request"

    def __init__(self, field: str, reason: str, **detail: Any) -> None:
        super().__init__(f"{field}: {reason}", field=field, reason=reason, **detail)
        self.field = field
        self.reason = reason


class UndecodableBody(InvalidRequest):
    """The body is empty, compressed, not JSON, or not a JSON object of the documented types."""

    code = "undecodable_body"


class UnknownField(InvalidRequest):
    """The body holds a key that no dialect knows."""

    code = "unknown_field"


class UndecodableMessage(InvalidRequest):
    """A message is not hex."""

    code = "undecodable_message"


class NotAWarpMessage(InvalidRequest):
    """A message is hex, but no Warp message of the expected kind, unsigned or signed, in any of its forms."""

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


class WrongSigningSubnet(InvalidRequest):
    """The named subnet does not run the source chain, so that its validators sign none of the chain's messages."""

    code = "wrong_signing_subnet"


class InvalidDestination(InvalidRequest):
    """The destination is neither P, X, C nor a blockchain id: base58-check, or hex of 32 bytes."""

    code = "invalid_destination"


class DestinationMismatch(InvalidRequest):
    """The message of the transaction is verified on another chain than the named destination."""

    code = "destination_mismatch"


class WarpDisabled(InvalidRequest):
    """The destination verifies no Warp messages."""

    code = "warp_disabled"


class ConflictingSpellings(InvalidRequest):
    """Two spellings of one field, or the same spelling twice, carry different values."""

    code = "conflicting_spellings"


class FieldTooLarge(InvalidRequest):
    """A message, a justification or the data of a call is longer than this daemon takes."""

    code = "field_too_large"

    def __init__(self, field: str, limit_bytes: int) -> None:
        super().__init__(field, f"longer than the {limit_bytes} bytes that are allowed", limitBytes=limit_bytes)


class AllZeroes(InvalidRequest):
    """The message consists of zero bytes only, and so does the justification."""

    code = "only_zeroes"


class WrongNetwork(WarpsealError):
    """The message belongs to another network than the one this daemon serves."""

    code = "wrong_network"

    def __init__(self, message_network_id: int, network_id: int) -> None:
        text = f"the message is of network {message_network_id}; this daemon serves network {network_id}"
        super().__init__(text, messageNetworkId=message_network_id, networkId=network_id)


class NetworkNotServed(WarpsealError):
    """The path names a network that this daemon does not serve."""

    code = "network_not_served"

    def __init__(self, name: str, served: Sequence[str], network_id: int) -> None:
        names = ", ".join(served)
        text = f"network {name[:64]!r} is not served here; this daemon serves {names} (network id {network_id})"
        super().__init__(text, served=list(served))


class UnknownChain(WarpsealError):
    """The P-Chain knows no blockchain of this id, or this daemon serves no EVM chain of this name.

    evm_name: the name in the path; None: the P-Chain was asked.
    """

    code = "unknown_chain"

    def __init__(self, chain_id: str = "", *, evm_name: str | None = None) -> None:
        if evm_name is None:
            super().__init__(f"no blockchain with id {chain_id} is known to the P-Chain", blockchainId=chain_id)
        else:
            text = f"no EVM chain {evm_name[:64]!r} is served here; GET /v1/chains lists those of this daemon"
            super().__init__(text, chainId=evm_name[:64])


class UnknownSubnet(WarpsealError):
    """The P-Chain knows no subnet of this id."""

    code = "unknown_subnet"

    def __init__(self, subnet_id: str) -> None:
        super().__init__(f"no subnet with id {subnet_id} is known to the P-Chain", signingSubnetId=subnet_id)


class SubnetNotConverted(WarpsealError):
    """A justification names a subnet that is not an L1, so there is no conversion to attest."""

    code = "subnet_not_converted"

    def __init__(self, subnet_id: str) -> None:
        super().__init__(f"subnet {subnet_id} has not been converted to an L1")


class NoValidators(WarpsealError):
    """The signing subnet has no validators at the height that the caller named."""

    code = "no_validators"

    def __init__(self, subnet_id: str, height: int) -> None:
        text = f"subnet {subnet_id} has no validators at P-Chain height {height}"
        super().__init__(text, signingSubnetId=subnet_id, pChainHeight=str(height))


class HeightTooOld(WarpsealError):
    """The named height lies further back than `max-p-chain-lookback` allows."""

    code = "height_too_old"

    def __init__(self, height: int, oldest: int, lookback: int) -> None:
        super().__init__(
            f"P-Chain height {height} is older than {oldest}, the oldest that max-p-chain-lookback={lookback} allows",
            pChainHeight=str(height),
            oldest=str(oldest),
            setting="max-p-chain-lookback",
        )
        self.height = height
        self.oldest = oldest


class HeightTooNew(WarpsealError):
    """The named height lies so far beyond the tip of the P-Chain that waiting for it makes no sense."""

    code = "height_too_new"

    def __init__(self, height: int, tip: int) -> None:
        text = f"P-Chain height {height} does not exist yet; the P-Chain is at {tip}"
        super().__init__(text, pChainHeight=str(height), tip=str(tip))
        self.height = height
        self.tip = tip


class TooManyRequests(WarpsealError):
    """Too many requests are in flight, from everybody or from this client."""

    code = "too_many_requests"

    def __init__(self, limit: int, *, per_client: bool) -> None:
        whose, scope = ("from this client address", "client") if per_client else ("in all", "daemon")
        text = f"{limit} requests are in flight {whose}, which is the limit; try again shortly"
        super().__init__(text, limit=limit, scope=scope)


class Overloaded(WarpsealError):
    """New messages arrive faster than they are signed, and this one could not be signed within its timeout.

    expected_s: seconds until a result could be expected.
    """

    code = "overloaded"

    def __init__(self, expected_s: float, waiting: int) -> None:
        text = (
            f"the daemon cannot keep up: {waiting} new messages wait, and a result is expected in about "
            f"{expected_s:.0f} s, after the timeout of this request; try again then"
        )
        super().__init__(text, expectedSeconds=ceil(expected_s), waiting=waiting)
        self.retry_after_s = expected_s


# Upstream nodes.


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

    def __init__(self, subject: str, attempts: Sequence[NodeAttempt] = ()) -> None:
        tried = "; ".join(f"node {a.position}: {a.failure}" for a in attempts)
        nodes = [{"position": a.position, "failure": a.failure.value} for a in attempts]
        super().__init__(f"no usable answer for {subject}" + (f" ({tried})" if tried else ""), nodes=nodes)
        self.attempts = tuple(attempts)


class DestinationUnavailable(WarpsealError):
    """No configured node reports the epoch or the Warp rules of the destination."""

    code = "destination_unavailable"

    def __init__(self, chain_id: str, reason: str, attempts: Sequence[NodeAttempt] = ()) -> None:
        nodes = [{"position": a.position, "failure": a.failure.value} for a in attempts]
        super().__init__(f"destination {chain_id}: {reason}", destinationBlockchainId=chain_id, nodes=nodes)


@dataclass(frozen=True, slots=True)
class AnswerClass:
    """Nodes that gave the same answer: their positions in the configured list (from 0), and a digest of the answer."""

    positions: tuple[int, ...]
    digest: str


class NodesDisagree(NodeUnavailable):
    """Nodes gave different answers, and fewer than p-chain-quorum of them agree."""

    code = "nodes_disagree"

    def __init__(
        self, subject: str, quorum: int, classes: Sequence[AnswerClass], attempts: Sequence[NodeAttempt] = ()
    ) -> None:
        said = "; ".join(f"{found.digest}: node {', '.join(map(str, found.positions))}" for found in classes)
        text = f"the nodes disagree about {subject}, and {quorum} must agree ({said})"
        shown = [{"positions": list(found.positions), "digest": found.digest} for found in classes]
        nodes = [{"position": a.position, "failure": a.failure.value} for a in attempts]
        WarpsealError.__init__(self, text, quorum=quorum, classes=shown, nodes=nodes)
        self.attempts = tuple(attempts)
        self.classes = tuple(classes)


# A missed quorum: the missing validators, the reasons, and whether waiting helps.


class Verdict(StrEnum):
    """Whether waiting helps."""

    WAIT = "wait"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class MissingConnection:
    """A node that is not connected. Times are Unix seconds.

    address: the last one that was dialed, else the first one known, else empty. last_error: of the last dial or
    connection, empty before the first. since: start of the disconnection. next_try_at: None if no dial is planned.
    """

    node_id: str
    address: str
    last_error: str
    since: float
    next_try_at: float | None

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {"nodeId": self.node_id}
        if self.address:
            content["address"] = self.address
        if self.last_error:
            content["lastError"] = self.last_error
        content["disconnectedSince"] = _rfc3339(self.since)
        if self.next_try_at is not None:
            content["nextTryAt"] = _rfc3339(self.next_try_at)
        return content


@dataclass(frozen=True, slots=True)
class MissingValidator:
    """One member of the canonical set whose signature is missing, and why.

    public_key: 48 bytes, or None for weight without a key. error_code and error_message: the last refusal.
    connections: of the nodes that are not connected, if none of them is. validation_id, balance (nAVAX), state: of an
    L1 validator without enough balance.
    """

    node_ids: tuple[str, ...]
    public_key: bytes | None
    weight: int
    reason: str
    error_code: int | None = None
    error_message: str | None = None
    connections: tuple[MissingConnection, ...] = ()
    validation_id: str | None = None
    balance: int | None = None
    state: str | None = None

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {"nodeIds": list(self.node_ids), "weight": str(self.weight), "reason": self.reason}
        if self.public_key is not None:
            content["publicKey"] = "0x" + self.public_key.hex()
        if self.error_code is not None:
            content["errorCode"] = self.error_code
        if self.error_message:
            content["errorMessage"] = self.error_message
        if self.balance is not None:
            content |= {"validationId": self.validation_id, "balance": str(self.balance), "state": self.state}
        if self.connections:
            content["connections"] = [connection.as_json() for connection in self.connections]
        return content


@dataclass(frozen=True, slots=True)
class QuorumShortfall:
    """The weight that a quorum lacks. counts: validators by reason; missing: heaviest first, at most 50.

    refused_weight: of all validators that refused the message with an error code. failed_keys: of all validators that
    cannot be reached, did not answer or did not sign; those that were not asked are not among them.
    """

    verdict: Verdict
    signed_weight: int
    required_weight: int
    total_weight: int
    height: int
    signing_subnet_id: str
    counts: Mapping[str, int]
    missing: tuple[MissingValidator, ...]
    retry_after_s: float | None = None
    hints: tuple[str, ...] = ()
    refused_weight: int = 0
    failed_keys: frozenset[bytes] = frozenset()

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
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
            content["hints"] = list(self.hints)
        return content


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(int(unix_s), UTC).isoformat().replace("+00:00", "Z")


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
        return {**self.shortfall.as_json(), **self._detail}


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
        return {**self.shortfall.as_json(), **self._detail}


# Signed messages of P-Chain transactions: missing, not yet, or never again.


class MalformedTransactionHash(InvalidRequest):
    """A transaction hash is neither base58-check nor hex of 32 bytes."""

    code = "malformed_transaction_hash"


class ProofMismatch(InvalidRequest):
    """The registration that the caller names is none, or that of another validation."""

    code = "proof_mismatch"


class TransactionNotFound(WarpsealError):
    """No accepted transaction of this id is known (yet).

    status: its status on the P-Chain, if a node knows it.
    """

    code = "transaction_not_found"

    def __init__(self, tx_id: str, status: str | None = None) -> None:
        status_text = f"is not accepted yet ({status})" if status else "is not known to the P-Chain (yet)"
        super().__init__(f"transaction {tx_id} {status_text}", txHash=tx_id, **({"status": status} if status else {}))
        self.status = status


class NoMessage(WarpsealError):
    """A transaction of this type has no message that validators could sign.

    kind: the node's name of the type; chain: "P-Chain" or "X-Chain".
    """

    code = "no_message"

    def __init__(self, kind: str, chain: str = "P-Chain") -> None:
        article = "an" if kind[:1] in "AEIOU" else "a"
        super().__init__(f"{article} {kind} of the {chain} has no Warp message", transactionType=kind, chain=chain)
        self.kind = kind
        self.chain = chain


class UndecodableTransaction(WarpsealError):
    """The P-Chain has accepted a transaction that this version of the daemon cannot read."""

    code = "undecodable_transaction"

    def __init__(self, tx_id: str, reason: str) -> None:
        super().__init__(f"transaction {tx_id} cannot be read: {reason}", txHash=tx_id, reason=reason)


class MessageSuperseded(WarpsealError):
    """The transaction's message is not true any more, and no stored signature of it reaches the quorum.

    superseded: what is true now, JSON-ready.
    """

    code = "message_superseded"

    def __init__(self, tx_id: str, superseded: Mapping[str, Any]) -> None:
        super().__init__(
            f"the message of transaction {tx_id} is not true any more, so that no validator signs it, "
            "and too few of its signatures are stored",
            verdict=Verdict.NEVER.value,
            txHash=tx_id,
            superseded=dict(superseded),
        )


class OriginNotIndexed(WarpsealError):
    """Where a validation began is not known yet, and validators ask for that before they attest its removal.

    progress: how far each way of finding it has come, JSON-ready.
    """

    code = "origin_not_indexed"

    def __init__(self, validation_id: str, progress: Mapping[str, Any], retry_after_s: float) -> None:
        text = f"where validation {validation_id} began is not known yet"
        super().__init__(text, validationId=validation_id, progress=dict(progress))
        self.retry_after_s = retry_after_s


# The Data API.


class InvalidPageToken(InvalidRequest):
    """A page token is none that this service gave out for this path."""

    code = "invalid_page_token"


class ExpiredPageToken(InvalidRequest):
    """A page token is older than 24 hours."""

    code = "expired_page_token"


class PageTokenMismatch(InvalidRequest):
    """A parameter differs from the request that the page token continues."""

    code = "page_token_mismatch"


class TooManyPageTokens(WarpsealError):
    """The metrics database holds as many page tokens as it may, and the page has a next one."""

    code = "too_many_page_tokens"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} page tokens are valid, and no more are given out", limit=limit)


class IndexNotEnabled(WarpsealError):
    """The request needs an index that this daemon does not keep.

    missing: the chain or the resource. setting: the one that enables it.
    """

    code = "index_not_enabled"

    def __init__(self, missing: str, setting: str = "index-chains") -> None:
        text = f"index not enabled: this daemon does not index {missing}"
        super().__init__(text, missing=missing, setting=setting)


class IndexNotReady(WarpsealError):
    """The index has not begun with a chain that it will have."""

    code = "index_not_ready"

    def __init__(self, chain: str) -> None:
        super().__init__(f"the {chain} is going to be indexed, and its first block is not there yet", chain=chain)


class NotAPrimaryChain(WarpsealError):
    """The path names a blockchain that is none of the three primary ones."""

    code = "not_a_primary_chain"

    def __init__(self, name: str, known: Mapping[str, str]) -> None:
        text = f"blockchain {name[:64]!r} is none of the primary chains: {', '.join(known)}"
        super().__init__(text, blockchainIds=dict(known))


class IndexStale(WarpsealError):
    """The index lags further behind than `max-index-lag-seconds` allows."""

    code = "index_stale"

    def __init__(self, chain: str, lag_s: int, limit_s: float) -> None:
        text = f"the index of the {chain} lags {lag_s} s behind, and {limit_s:g} s are allowed"
        super().__init__(text, chain=chain, lagSeconds=lag_s, allowedSeconds=limit_s)


class IndexBehind(WarpsealError):
    """The index of an EVM chain does not have the token yet, and it lacks blocks that may hold it."""

    code = "index_behind"

    def __init__(self, chain: str, height: int, node_height: int) -> None:
        text = f"the index of EVM chain {chain} has no such token at block {height}; the chain is at {node_height}"
        super().__init__(text, chain=chain, height=str(height), nodeHeight=str(node_height))


class BlockNotFound(WarpsealError):
    """The EVM chain has no accepted block of this number or hash (yet)."""

    code = "block_not_found"

    def __init__(self, block: str, chain: str) -> None:
        super().__init__(f"EVM chain {chain} has no block {block} (yet)", blockId=block, chain=chain)


class TokenNotFound(WarpsealError):
    """No token of this contract with this id was ever minted, as far as the index goes back."""

    code = "token_not_found"

    def __init__(self, contract: str, token_id: str) -> None:
        super().__init__(f"contract {contract} has no token {token_id}", address=contract, tokenId=token_id)


class ReindexedRecently(WarpsealError):
    """The metadata of a token may be reindexed once per hour.

    retry_after_s: when the hour is over.
    """

    code = "reindexed_recently"

    def __init__(self, contract: str, token_id: str, retry_after_s: float) -> None:
        text = f"token {token_id} of {contract} was reindexed within the hour; try again in {ceil(retry_after_s)} s"
        super().__init__(text, address=contract, tokenId=token_id)
        self.retry_after_s = retry_after_s


class ReindexUnavailable(WarpsealError):
    """The metadata of a token cannot be fetched within 20 seconds now: the indexer is down, or has too much to do."""

    code = "reindex_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the metadata cannot be fetched now: {reason}", reason=reason)


class ApiKeyRequired(WarpsealError):
    """This daemon serves callers with an API key only."""

    code = "api_key_required"

    def __init__(self) -> None:
        super().__init__("an API key is required: send it as x-service-api-key or x-glacier-api-key")


class ApiKeyRefused(WarpsealError):
    """The API key is unknown or revoked."""

    code = "api_key_refused"

    def __init__(self) -> None:
        super().__init__("this API key is unknown or revoked")


class RateLimited(WarpsealError):
    """The caller has used up its compute units for now.

    limit_units: in window_s seconds. retry_after_s: when there are enough again.
    """

    code = "rate_limited"

    def __init__(self, limit_units: int, window_s: int, retry_after_s: float) -> None:
        text = f"rate limit exceeded: {limit_units} compute units in {window_s} s"
        super().__init__(text, limitUnits=limit_units, windowSeconds=window_s)
        self.retry_after_s = retry_after_s


class AdminTokenRequired(WarpsealError):
    """The request needs the admin token, and has none."""

    code = "admin_token_required"

    def __init__(self) -> None:
        super().__init__("the admin token is required: send it as Authorization: Bearer")


class AdminTokenRefused(WarpsealError):
    """The admin token is wrong; or the daemon has none, and the request comes from another machine."""

    code = "admin_token_refused"

    def __init__(self) -> None:
        super().__init__("only the administrator may read this")


class UsageNotEnabled(WarpsealError):
    """The request needs the usage of RPC routes, which this daemon does not record."""

    code = "usage_not_enabled"

    def __init__(self) -> None:
        super().__init__(
            "usage not enabled: this daemon does not record the usage of RPC routes", setting="usage-enabled"
        )


class UsageDamaged(StoreDown):
    """A stored table of usage is damaged."""

    code = "usage_damaged"
    _text = "stored usage is damaged: {}"

    def __reduce__(self) -> tuple[type[StoreDown], tuple[str]]:
        """Pickle the reason."""
        return UsageDamaged, (self.reason,)


class UsageQueryTooLong(WarpsealError):
    """A query of usage was given up, because it takes too long."""

    code = "usage_query_too_long"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the query takes more than {limit_s:g} s: ask for less time, or with fewer filters")
