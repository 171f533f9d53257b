"""Errors of signed messages of P-Chain transactions: missing, not yet, or never again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpseal.errors.base import WarpsealError
from warpseal.errors.quorum import Verdict
from warpseal.errors.requests import InvalidRequest


class MalformedTransactionHash(InvalidRequest):
    """A transaction hash is neither base58-check nor hex of 32 bytes."""

    code = "malformed_transaction_hash"


class ProofMismatch(InvalidRequest):
    """The registration that the caller names is none, or that of another validation."""

    code = "proof_mismatch"


class TransactionNotFound(WarpsealError):
    """No accepted transaction of this id is known (yet).

    status: what the P-Chain says of it, where a node knows it at all.
    """

    code = "transaction_not_found"

    def __init__(self, tx_id: str, status: str | None = None) -> None:
        status_text = f"is not accepted yet ({status})" if status else "is not known to the P-Chain (yet)"
        super().__init__(f"transaction {tx_id} {status_text}")
        self.tx_id = tx_id
        self.status = status

    def detail(self) -> Mapping[str, Any]:
        return {"txHash": self.tx_id, **({"status": self.status} if self.status else {})}


class NoMessage(WarpsealError):
    """A transaction of this type has no message that validators could sign.

    kind: the node's name of the type; chain: "P-Chain" or "X-Chain".
    """

    code = "no_message"

    def __init__(self, kind: str, chain: str = "P-Chain") -> None:
        article = "an" if kind[:1] in "AEIOU" else "a"
        super().__init__(f"{article} {kind} of the {chain} has no Warp message")
        self.kind = kind
        self.chain = chain

    def detail(self) -> Mapping[str, Any]:
        return {"transactionType": self.kind, "chain": self.chain}


class UndecodableTransaction(WarpsealError):
    """The P-Chain has accepted a transaction that this version of the daemon cannot read."""

    code = "undecodable_transaction"

    def __init__(self, tx_id: str, reason: str) -> None:
        super().__init__(f"transaction {tx_id} cannot be read: {reason}")
        self.tx_id = tx_id
        self.reason = reason

    def detail(self) -> Mapping[str, Any]:
        return {"txHash": self.tx_id, "reason": self.reason}


class MessageSuperseded(WarpsealError):
    """The transaction's message is not true any more, and no stored signature of it reaches the quorum.

    superseded: what is true now, JSON-ready.
    """

    code = "message_superseded"

    def __init__(self, tx_id: str, superseded: Mapping[str, Any]) -> None:
        super().__init__(
            f"the message of transaction {tx_id} is not true any more, so that no validator signs it, "
            "and too few of its signatures are stored"
        )
        self.tx_id = tx_id
        self.superseded = superseded

    def detail(self) -> Mapping[str, Any]:
        return {"verdict": Verdict.NEVER.value, "txHash": self.tx_id, "superseded": dict(self.superseded)}


class OriginNotIndexed(WarpsealError):
    """Where a validation began is not known yet, and validators ask for that before they attest its removal.

    progress: how far each way of finding it has come, JSON-ready.
    """

    code = "origin_not_indexed"

    def __init__(self, validation_id: str, progress: Mapping[str, Any], retry_after_s: float) -> None:
        super().__init__(f"where validation {validation_id} began is not known yet")
        self.validation_id = validation_id
        self.progress = progress
        self.retry_after_s = retry_after_s

    def detail(self) -> Mapping[str, Any]:
        return {"validationId": self.validation_id, "progress": dict(self.progress)}
