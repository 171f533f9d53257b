"""Errors of the signed messages of P-Chain transactions: missing, not yet, or never again."""

from __future__ import annotations

from msgspec import field

from warpseal.errors import RETRY_LATER_S, InvalidRequest, WarpsealError
from warpseal.l1.request import SupersededStatement
from warpseal.resources.base import UNSET, Resource, UnsetType
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
        status_text = (
            f"is not accepted yet ({status})" if status else "is not known to the P-Chain (yet)"
        )
        super().__init__(
            f"transaction {tx_id} {status_text}", tx_hash=tx_id, status=status or UNSET
        )
        self.status = status


class MessageSuperseded(WarpsealError):
    """The transaction's message is not true any more, and no stored signature of it reaches the
    quorum.

    superseded: the present statement.
    """

    code = "message_superseded"
    http_status = 400

    def __init__(self, tx_id: str, superseded: SupersededStatement) -> None:
        text = (
            f"the message of transaction {tx_id} is not true any more, so that no validator signs"
            " it, and too few of its signatures are stored"
        )
        change = superseded.now.change
        newer = f"the transaction that {change}"
        if superseded.by_tx_hash is not UNSET:
            newer = f"transaction {superseded.by_tx_hash}, which {change}"
        super().__init__(
            f"{text}; request {newer}",
            verdict=Verdict.NEVER,
            tx_hash=tx_id,
            superseded=superseded,
        )


class FollowerProgress(Resource, frozen=True, gc=False, kw_only=True):
    """How far the daemon has read the P-Chain, as the detail of an error.

    off: true if the daemon does not read the P-Chain.
    from_, to: heights of the range that was read, and of the end of the backfill.
    percent: share of the backfill that was read.
    eta: seconds until the backfill ends.
    """

    off: bool | UnsetType = UNSET
    from_: str | UnsetType = field(name="from", default=UNSET)
    to: str | UnsetType = UNSET
    percent: float | UnsetType = UNSET
    eta: int | UnsetType = UNSET
    stopped: str | UnsetType = UNSET


class InitialValidatorsProgress(Resource, frozen=True, gc=False, kw_only=True):
    """The number of subnets that were searched for an initial validator, and of all subnets."""

    subnets_tried: int
    subnets: int


class ManagerLogsProgress(Resource, frozen=True, gc=False, kw_only=True):
    """Which blocks of the manager's chain were searched.

    configured: true if the daemon has a node of the chain.
    """

    configured: bool
    from_block: str | UnsetType = UNSET
    to_block: str | UnsetType = UNSET


class OriginProgress(Resource, frozen=True, gc=False, kw_only=True):
    """How far each way of finding the origin of a validation has come."""

    follower: FollowerProgress
    initial_validators: InitialValidatorsProgress
    manager_chain_logs: ManagerLogsProgress


class OriginNotIndexed(WarpsealError):
    """Where a validation began is not known yet, and validators ask for that before they attest its
    removal.
    """

    code = "origin_not_indexed"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, validation_id: str, progress: OriginProgress, retry_after_s: float) -> None:
        text = f"where validation {validation_id} began is not known yet"
        super().__init__(text, validation_id=validation_id, progress=progress)
        self.retry_after_s = retry_after_s
