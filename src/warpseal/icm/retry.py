"""What to do about an ICM message that is not executed, from what hinders it. Pure; docs/icm.md has the table.

Source of truth: icm-contracts `TeleporterMessenger.sol`, `TeleporterMessengerV2.sol`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from warpseal.icm.resources import IcmCall, IcmRetry, RetryAction, WarpsealBlock
from warpseal.index.evm.records import ReceivedMessage, SentMessage
from warpseal.resources.base import UNSET, UnsetType
from warpseal.resources.text import account_text, hex_text
from warpseal.warp.quorum_shortfall import MissingSigner, Verdict

STORING_S: Final = 60
"""How long a validator may take to store a message that its chain has accepted."""
WORD_BYTES: Final = 32
# Selectors for version 1 and version 2 of the messenger, whose messages have one more field.
_RETRY_EXECUTION: Final = bytes.fromhex("fc2d6197"), bytes.fromhex("0f635b6c")
_RETRY_SEND: Final = bytes.fromhex("8245a1b0"), bytes.fromhex("3ba2b983")
# Refusals of validators of an EVM chain that do not have the message.
_UNKNOWN_MESSAGE_CODES: Final = (1, 2, 3)
_COLLECTING: Final = IcmRetry(action="wait", text="Validators that have not signed yet may still sign.")
_OTHER_SET: Final = ("bit_set", "weight", "signature")


class JoinedMessage(NamedTuple):
    """A message at its source, or where it was received if the source is not indexed. received: None: not known."""

    side: SentMessage | ReceivedMessage
    received: ReceivedMessage | None

    @property
    def is_executed(self) -> bool:
        """Whether its execution is known."""
        return self.received is not None and self.received.is_executed


def advise_retry(message: JoinedMessage, block: WarpsealBlock, now: float) -> IcmRetry | UnsetType:
    """Return what to do, from the other keys of the block; UNSET if these do not say. now: Unix seconds."""
    if block.state == "failed":
        return _advise_execution(message, block)
    if block.state == "received":
        return IcmRetry(action="none", text="The message was received. It has no body, so there is nothing to execute.")
    signature = block.signature
    if signature is UNSET:
        return UNSET
    if signature.state == "blocked":
        return IcmRetry(
            action="none", text=f"The operator of the daemon has disabled its signature: {signature.reason}"
        )
    if signature.state == "signed" and signature.missing is UNSET:
        return _advise_delivery(block)
    if signature.state == "signed":
        return IcmRetry(
            action="sign_again",
            text="The message is signed for the validators of another epoch. Request the signature for the destination "
            "again.",
        )
    if signature.state == "not_asked":
        return IcmRetry(action="wait", text="The signature was not requested here. A relayer requests it to deliver.")
    if signature.missing is UNSET or signature.required_weight is UNSET or signature.total_weight is UNSET:
        return _COLLECTING if signature.state == "collecting" else UNSET
    is_new = now < max(message.side.time, block.resent_at or 0) + STORING_S
    lost = _weights_by_kind(signature.missing, is_new=is_new)
    spare = int(signature.total_weight) - int(signature.required_weight)
    if sum(lost.values()) <= spare:
        return _COLLECTING
    if lost["never"] + lost["unknown"] <= spare:
        return IcmRetry(
            action="top_up",
            text="The quorum needs validators that are inactive or nearly drained. Top up their balances, or remove "
            "them, and request the signature again.",
        )
    if lost["never"] <= spare:
        return IcmRetry(
            action="resend",
            text="Validators that the quorum needs do not have the message. Send it again with "
            "retrySendCrossChainMessage, and request the signature again.",
            call=_call(message, _RETRY_SEND, b""),
        )
    return IcmRetry(action="none", text="Validators that the quorum needs can never sign: change them, or the quorum.")


def _advise_execution(message: JoinedMessage, block: WarpsealBlock) -> IcmRetry:
    execution, text = block.execution, "The message was received, and its execution failed."
    if execution is not UNSET and execution.succeeds is False:
        text += " It would fail again now: see `execution`. First change what makes it fail, then call"
    else:
        text += " Call"
    if execution is not UNSET and execution.gas_required is not UNSET:
        text += f" retryMessageExecution with more than {execution.gas_required} gas."
    else:
        text += " retryMessageExecution with enough gas."
    call = _call(message, _RETRY_EXECUTION, message.side.source)
    return IcmRetry(action="retry_execution", text=text, call=call)


def _advise_delivery(block: WarpsealBlock) -> IcmRetry:
    """Return what to do about a message that is signed."""
    delivery, gas, execution = block.delivery, block.delivery_gas, block.execution
    if delivery is not UNSET and not delivery.verifies_now:
        reason_text = delivery.reason_text or ""
        if delivery.advice is not UNSET:
            advice = delivery.advice
            return IcmRetry(action="wait", text=advice.text, not_before=advice.not_before)
        action: RetryAction = "sign_again" if delivery.reason in _OTHER_SET else "none"
        return IcmRetry(action=action, text=f"The destination refuses the signed message: {reason_text}.")
    if gas is not UNSET and gas.block_limit is not UNSET and int(gas.required) > int(gas.block_limit):
        text = f"Delivery needs {gas.required} gas, and a block of the destination has {gas.block_limit}."
        return IcmRetry(action="raise_gas", text=text)
    if execution is not UNSET and int(execution.gas_required or 0) > int(execution.gas_limit):
        text = f"The execution needs {execution.gas_required} gas, and the message gives it {execution.gas_limit}: it"
        text += " will fail. Deliver the message, then call retryMessageExecution with more gas."
        return IcmRetry(action="raise_gas", text=text)
    if delivery is not UNSET and delivery.reason is not UNSET:
        return IcmRetry(action="wait", text=f"The destination refuses the message now: {delivery.reason_text}.")
    return IcmRetry(action="wait", text="The message is signed and waits for a relayer.")


def _weights_by_kind(missing: Iterable[MissingSigner], *, is_new: bool) -> Counter[str]:
    """Return the weight of validators that do not sign by themselves. is_new: they may not have the message yet."""
    weights = Counter[str]()
    for signer in missing:
        if signer.state is not UNSET or signer.reason in ("inactive", "underfunded"):
            weights["drained"] += int(signer.weight)
        elif signer.verdict is Verdict.NEVER:
            weights["never"] += int(signer.weight)
        elif signer.reason == "refused" and signer.error_code in _UNKNOWN_MESSAGE_CODES and not is_new:
            weights["unknown"] += int(signer.weight)
    return weights


def _call(message: JoinedMessage, selectors: tuple[bytes, bytes], source: bytes) -> IcmCall | UnsetType:
    """Return a call of the messenger with the message. source: the argument before it."""
    side = message.side
    encoded = side.encode()
    if encoded is None:
        return UNSET
    selector = selectors[side.is_v2]
    offset = (len(source) + WORD_BYTES).to_bytes(WORD_BYTES)
    return IcmCall(to=account_text(side.messenger), data=hex_text(selector + source + offset + encoded))
