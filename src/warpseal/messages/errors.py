"""Errors of Warp messages and of the transactions that cause them."""

from __future__ import annotations

from warpseal.errors import RETRY_LATER_S, InvalidRequest, WarpsealError
from warpseal.store.values import SigningBlock


class InvalidSigningSubnet(InvalidRequest):
    """The signing subnet id is neither base58-check nor hex of 32 bytes."""

    code = "invalid_signing_subnet"
    reference_text = "Error parsing signing subnet ID"


class NoMessage(WarpsealError):
    """A transaction of this type has no message that validators could sign.

    kind: the node's name of the type; chain: "P-Chain" or "X-Chain".
    """

    code = "no_message"
    http_status = 400

    def __init__(self, kind: str, chain: str = "P-Chain") -> None:
        article = "an" if kind[:1] in "AEIOU" else "a"
        super().__init__(
            f"{article} {kind} of the {chain} has no Warp message",
            transaction_type=kind,
            chain=chain,
        )
        self.kind = kind
        self.chain = chain


class UndecodableTransaction(WarpsealError):
    """The P-Chain has accepted a transaction that this version of the daemon cannot read."""

    code = "undecodable_transaction"
    http_status = 502
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, tx_id: str, reason: str) -> None:
        super().__init__(
            f"transaction {tx_id} cannot be read: {reason}", tx_hash=tx_id, reason=reason
        )


class UncheckedMessage(WarpsealError):
    """A signing block may name the message of a Warp API call, and the daemon cannot read it."""

    code = "unchecked_message"
    http_status = 403

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the message cannot be compared with the signing blocks: {reason}", reason=reason
        )


class SigningBlocked(WarpsealError):
    """The operator has disabled signing for the chain, destination, sender or id of the message."""

    code = "signing_blocked"
    http_status = 403

    def __init__(self, block: SigningBlock) -> None:
        text = f"the operator has disabled signing for {block.kind} {block.value}: {block.reason}"
        super().__init__(text, kind=str(block.kind), value=block.value, reason=block.reason)
