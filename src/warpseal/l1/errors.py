"""Errors of the signed messages of P-Chain transactions: missing, not yet, or never again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpseal.errors import RETRY_LATER_S, InvalidRequest, WarpsealError
from warpseal.l1.request import SupersededStatement
from warpseal.warp.quorum_shortfall import Verdict


class ProofMismatch(InvalidRequest):
    """The proof of the caller is not a registration, or it registers another validation."""

    code = "proof_mismatch"


class TransactionNotFound(WarpsealError):
    """No accepted transaction of this id is known (yet).

    status: its status on the P-Chain, if a node knows it.
    """

    code = "transaction_not_found"
    http_status = 404

    def __init__(self, tx_id: str, status: str | None = None) -> None:
        status_text = f"is not accepted yet ({status})" if status else "is not known to the P-Chain (yet)"
        super().__init__(f"transaction {tx_id} {status_text}", txHash=tx_id, **({"status": status} if status else {}))
        self.status = status


class MessageSuperseded(WarpsealError):
    """The transaction's message is not true any more, and no stored signature of it reaches the quorum.

    superseded: the present statement.
    """

    code = "message_superseded"
    http_status = 400

    def __init__(self, tx_id: str, superseded: SupersededStatement) -> None:
        super().__init__(
            f"the message of transaction {tx_id} is not true any more, so that no validator signs it, "
            "and too few of its signatures are stored",
            verdict=Verdict.NEVER.value,
            txHash=tx_id,
            superseded=superseded,
        )


class OriginNotIndexed(WarpsealError):
    """Where a validation began is not known yet, and validators ask for that before they attest its removal.

    progress: how far each way of finding it has come, JSON-ready.
    """

    code = "origin_not_indexed"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, validation_id: str, progress: Mapping[str, Any], retry_after_s: float) -> None:
        text = f"where validation {validation_id} began is not known yet"
        super().__init__(text, validationId=validation_id, progress=dict(progress))
        self.retry_after_s = retry_after_s
