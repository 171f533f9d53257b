"""The key `warpseal` of an ICM message in responses; docs/icm.md describes it.

An unknown value is left out.
"""

from __future__ import annotations

from typing import Literal

from warpseal.delivery.report import DeliveryAdvice
from warpseal.delivery.statement import PreflightStatement
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.warp.quorum_shortfall import MissingSigner

MessageState = Literal["sent", "received", "failed"]
"""The state of a message that is not executed. A received message has no body to execute."""
SignatureState = Literal["signed", "collecting", "impossible", "not_asked", "blocked"]
RetryAction = Literal[
    "retry_execution", "none", "wait", "top_up", "resend", "sign_again", "raise_gas"
]


class IcmSignature(Resource, frozen=True, gc=False, kw_only=True):
    """The signature of a message, with weights in the set with which the destination verifies it.

    unreachableWeight: weight of the validators that the daemon tried to reach in vain, if the
        signature was not requested.
    missing: the heaviest validators that have not signed, unreachable ones first, at most 50; left
        out in lists and if the message is signed.
    reason: why the operator has blocked the signature.
    """

    state: SignatureState
    signed_weight: str | UnsetType = UNSET
    required_weight: str | UnsetType = UNSET
    total_weight: str | UnsetType = UNSET
    unreachable_weight: str | UnsetType = UNSET
    missing: tuple[MissingSigner, ...] | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class IcmDelivery(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the destination accepts the signed message, as the preflight says.

    verifiesNext: true if the signature verifies in the destination's next epoch.
    """

    verifies_now: bool
    verifies_next: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    reason_text: str | UnsetType = UNSET
    advice: DeliveryAdvice | UnsetType = UNSET
    statement: PreflightStatement


class IcmExecution(Resource, frozen=True, gc=False, kw_only=True):
    """The call of the recipient.

    succeeds: now, as far as a node executes it. gasRequired: estimated; gasLimit: given.

    error, revertData (hex): of a failed message when it was received, else now.
    """

    succeeds: bool | UnsetType = UNSET
    gas_required: str | UnsetType = UNSET
    gas_limit: str
    error: str | UnsetType = UNSET
    revert_data: str | UnsetType = UNSET


class IcmDeliveryGas(Resource, frozen=True, gc=False, kw_only=True):
    """The gas that a delivery needs, and that of a block.

    required: a lower bound until the message is signed.
    """

    required: str
    block_limit: str | UnsetType = UNSET


class IcmReceiver(Resource, frozen=True, gc=False, kw_only=True):
    """The account that delivered a message, and the one that its source owes the fee."""

    deliverer: str
    redeemer: str


class IcmFee(Resource, frozen=True, gc=False, kw_only=True):
    """The whole fee from a time (Unix seconds) on, in the smallest unit of its ERC-20 token."""

    address: str
    value: str
    timestamp: int


class IcmCall(Resource, frozen=True, gc=False, kw_only=True):
    """The transaction that a retry needs; it succeeds at the latest block.

    data: input of the transaction, hex.
    gas: gas of the whole transaction.
    """

    to: str
    data: str
    gas: str | UnsetType = UNSET


class IcmRetry(Resource, frozen=True, gc=False, kw_only=True):
    """The next step for a message.

    notBefore: Unix seconds before which the step does not help.
    error: why the transaction that a retry needs reverts.
    revertData: hex data of that revert.
    call: transaction that the step needs; left out unless it was tried and succeeds.
    """

    action: RetryAction
    text: str
    not_before: int | UnsetType = UNSET
    call: IcmCall | UnsetType = UNSET
    error: str | UnsetType = UNSET
    revert_data: str | UnsetType = UNSET


class WarpsealBlock(Resource, frozen=True, gc=False, kw_only=True):
    """What hinders a message that is not executed.

    since: Unix seconds of the state.
    resentAt: Unix seconds of the last time that the message was sent again.
    warpMessageId, unsignedMessage: hex.
    allowedRelayerAddresses: accounts that may deliver a message that is not received; empty if any
        account may.

    Lists have state, since, warpMessageId, allowedRelayerAddresses, receivedBy, signature, retry,
    and delivery if the destination does not exist.
    """

    state: MessageState
    since: int
    warp_message_id: str | UnsetType = UNSET
    unsigned_message: str | UnsetType = UNSET
    allowed_relayer_addresses: tuple[str, ...] | UnsetType = UNSET
    signature: IcmSignature | UnsetType = UNSET
    delivery: IcmDelivery | UnsetType = UNSET
    execution: IcmExecution | UnsetType = UNSET
    delivery_gas: IcmDeliveryGas | UnsetType = UNSET
    received_by: IcmReceiver | UnsetType = UNSET
    resent_at: int | UnsetType = UNSET
    fees: tuple[IcmFee, ...] | UnsetType = UNSET
    retry: IcmRetry | UnsetType = UNSET
