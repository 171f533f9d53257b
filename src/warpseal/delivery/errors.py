"""Errors of signing for a destination."""

from __future__ import annotations

from collections.abc import Sequence

from warpseal.errors import RETRY_SOON_S, InvalidRequest, WarpsealError
from warpseal.upstream.errors import NodeAttempt


class DestinationMismatch(InvalidRequest):
    """The message of the transaction is verified on another chain than the named destination."""

    code = "destination_mismatch"


class WarpDisabled(InvalidRequest):
    """The destination verifies no Warp messages."""

    code = "warp_disabled"


class DestinationUnavailable(WarpsealError):
    """No configured node reports the epoch or the Warp rules of the destination."""

    code = "destination_unavailable"
    http_status = 502
    retry_after_s: float = RETRY_SOON_S

    def __init__(self, chain_id: str, reason: str, attempts: Sequence[NodeAttempt] = ()) -> None:
        text = f"destination {chain_id}: {reason}"
        super().__init__(text, destination_blockchain_id=chain_id, nodes=tuple(attempts))
