"""What to do about an ICM message that is not executed, from what hinders it.

Pure; docs/icm.md has the table.

Source of truth: icm-contracts `TeleporterMessenger.sol`, `TeleporterMessengerV2.sol`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from warpseal.chains.evm.icm_events import decode_tail
from warpseal.icm.resources import (
    IcmCall,
    IcmExecution,
    IcmRetry,
    IcmSignature,
    RetryAction,
    WarpsealBlock,
)
from warpseal.index.evm.records import ReceivedMessage, SentMessage
from warpseal.peers.statistics import UnreachableReason
from warpseal.resources.base import UNSET, UnsetType
from warpseal.resources.text import account_text, hex_text
from warpseal.warp.ids import P_CHAIN
from warpseal.warp.quorum_shortfall import MissingSigner, Verdict

STORING_S: Final = 60
"""How long a validator may take to store a message that its chain has accepted."""
WORD_BYTES: Final = 32
# Selectors for version 1 and version 2 of the messenger, whose messages have one more field.
_RETRY_EXECUTION: Final = bytes.fromhex("fc2d6197"), bytes.fromhex("0f635b6c")
_RETRY_SEND: Final = bytes.fromhex("8245a1b0"), bytes.fromhex("3ba2b983")
# How reverts of the messenger itself begin, and those of retryMessageExecution for which the
# recipient is to blame.
_MESSENGER: Final = "TeleporterMessenger: "
_RECIPIENT_FAILED: Final = (
    f"{_MESSENGER}retry execution failed",
    f"{_MESSENGER}destination address has no code",
)
# Refusals of validators of an EVM chain that do not have the message.
_UNKNOWN_MESSAGE_CODES: Final = (1, 2, 3)
_COLLECTING: Final = IcmRetry(
    action="wait", text="Validators that have not signed yet may still sign."
)
_UNREACHABLE: Final = frozenset(reason.value for reason in UnreachableReason)
_OTHER_SET: Final = ("bit_set", "weight", "signature")
_MAX_NAMED: Final = 3
"""As many accounts, or validators, are named in a text."""


class JoinedMessage(NamedTuple):
    """A message at its source, or where it was received if the source is not indexed.

    received: message at its destination; None if no index has it there.
    """

    side: SentMessage | ReceivedMessage
    received: ReceivedMessage | None

    @property
    def is_executed(self) -> bool:
        """Whether its execution is known."""
        return self.received is not None and self.received.is_executed


class CallTrial(NamedTuple):
    """The result of a call at the latest block.

    succeeds: true if the call succeeds; None if no node executed it.
    gas: gas of its transaction; None if no node estimated it.
    error: reason of the revert, decoded if that is possible.
    """

    succeeds: bool | None = None
    gas: int | None = None
    error: str = ""
    revert_data: bytes = b""


def advise_retry(
    message: JoinedMessage, block: WarpsealBlock, now: float, trial: CallTrial | None = None
) -> IcmRetry | UnsetType:
    """Return the next step, from the other keys of the block; UNSET if these do not say.

    now: Unix seconds.
    trial: result of the call that the advice needs; None if it was not tried, so that the caller
        must not hand it out.
    """
    if block.state == "failed":
        return _advise_execution(message, block, trial)
    if block.state == "received":
        return IcmRetry(
            action="none",
            text="The message was received. It has no body, so there is nothing to execute.",
        )
    refusal = _destination_refusal(message, block)
    if refusal:
        return IcmRetry(action="none", text=f"The destination takes no such message: {refusal}.")
    signature = block.signature
    if signature is UNSET:
        return UNSET
    if signature.state == "blocked":
        return IcmRetry(
            action="none",
            text=f"The operator of the daemon has disabled its signature: {signature.reason}",
        )
    if signature.state == "signed" and signature.missing is UNSET:
        return _advise_delivery(message, block)
    if signature.state == "signed":
        return IcmRetry(
            action="sign_again",
            text=(
                "The message is signed for the validators of another epoch. Request the signature"
                " for the destination again."
            ),
        )
    if signature.state == "not_asked":
        return _advise_request(message, signature)
    if (
        signature.missing is UNSET
        or signature.required_weight is UNSET
        or signature.total_weight is UNSET
    ):
        return _COLLECTING if signature.state == "collecting" else UNSET
    is_new = now < max(message.side.time, block.resent_at or 0) + STORING_S
    lost = _weights_by_kind(signature.missing, is_new=is_new)
    spare = int(signature.total_weight) - int(signature.required_weight)
    if sum(lost.values()) <= spare:
        return _COLLECTING
    if lost["never"] + lost["unknown"] <= spare:
        return IcmRetry(
            action="top_up",
            text=(
                "The quorum needs validators that are inactive or nearly drained. Top up their"
                " balances, or remove them, and request the signature again."
            ),
        )
    if lost["never"] <= spare:
        return _advise_resending(message, trial)
    return IcmRetry(
        action="none",
        text="Validators that the quorum needs can never sign: change them, or the quorum.",
    )


def _destination_refusal(message: JoinedMessage, block: WarpsealBlock) -> str:
    """Return why the destination will never take the message; "" if that is not known."""
    if message.side.destination == P_CHAIN:
        return "no transaction of the P-Chain delivers the message of a messenger"
    delivery = block.delivery
    if (
        delivery is UNSET
        or delivery.statement.accepted is not False
        or delivery.reason == "already_delivered"
    ):
        return ""
    return delivery.statement.text


def _advise_execution(
    message: JoinedMessage, block: WarpsealBlock, trial: CallTrial | None
) -> IcmRetry:
    """Return what to do about a message whose execution failed."""
    text = "The message was received, and its execution failed."
    call = _call(message, _RETRY_EXECUTION, message.side.source)
    if call is UNSET:
        text += (
            " Call retryMessageExecution with the message, whose fields the indexes do not have."
        )
    elif trial is None:
        text += " retryMessageExecution may execute it."
    elif trial.succeeds:
        return _advise_call(
            "retry_execution", f"{text} retryMessageExecution executes it now.", call, trial
        )
    elif trial.succeeds is None:
        text += " No node has tried whether retryMessageExecution executes it now."
        call = UNSET
    elif _blames_recipient(trial, block.execution):
        text += (
            f' It would fail again now: retryMessageExecution reverts with "{trial.error}", and'
            " `execution` has the"
        )
        text += (
            " error of the recipient. First change what makes it fail, then call"
            " retryMessageExecution."
        )
        return _with_revert(IcmRetry(action="retry_execution", text=text), trial)
    else:
        text += (
            f' retryMessageExecution does not execute it: the call reverts with "{trial.error}".'
        )
        return _with_revert(IcmRetry(action="none", text=text), trial)
    return IcmRetry(action="retry_execution", text=text, call=call)


def _advise_resending(message: JoinedMessage, trial: CallTrial | None) -> IcmRetry:
    """Return what to do about a message that validators do not have."""
    text = "Validators that the quorum needs do not have the message."
    call = _call(message, _RETRY_SEND, b"")
    resend_text = (
        f"{text} Send it again with retrySendCrossChainMessage, and request the signature again."
    )
    if call is UNSET or trial is None:
        return IcmRetry(action="resend", text=resend_text, call=call)
    if trial.succeeds:
        return _advise_call("resend", resend_text, call, trial)
    if trial.succeeds is None:
        return IcmRetry(
            action="resend", text=f"{resend_text} No node has tried whether that call succeeds now."
        )
    text += (
        " retrySendCrossChainMessage does not send it again: the call reverts with"
        f' "{trial.error}".'
    )
    return _with_revert(IcmRetry(action="none", text=text), trial)


def _advise_call(action: RetryAction, text: str, call: IcmCall, trial: CallTrial) -> IcmRetry:
    """Return the advice to make a call that succeeds."""
    if trial.gas is None:
        return IcmRetry(action=action, text=text, call=call)
    text += f" The transaction needs {trial.gas} gas."
    return IcmRetry(action=action, text=text, call=replace(call, gas=str(trial.gas)))


def _with_revert(retry: IcmRetry, trial: CallTrial) -> IcmRetry:
    revert_data = hex_text(trial.revert_data) if trial.revert_data else UNSET
    return replace(retry, error=trial.error, revert_data=revert_data)


def _blames_recipient(trial: CallTrial, execution: IcmExecution | UnsetType) -> bool:
    """Return whether a retry reverts in the recipient, so that a change of the recipient helps."""
    if trial.error.startswith(_MESSENGER):
        return trial.error in _RECIPIENT_FAILED
    return execution is UNSET or execution.succeeds is not True


def _advise_request(message: JoinedMessage, signature: IcmSignature) -> IcmRetry:
    """Return what to do about a message whose signature was not requested."""
    if not _lacks_connections(signature):
        text = "The signature was not requested here. A relayer requests it to deliver."
        return IcmRetry(action="wait", text=_with_deliverers(text, message))
    unreachable = [signer for signer in signature.missing or () if signer.reason in _UNREACHABLE]
    nodes = ", ".join(
        f"{next(iter(signer.node_ids))} ({signer.reason})" for signer in unreachable[:_MAX_NAMED]
    )
    others = ", and others" if len(unreachable) > _MAX_NAMED else ""
    share = 100 * int(signature.unreachable_weight or 0) / int(signature.total_weight or 1)
    text = (
        f"The quorum is not connected: validators with {share:.1f} % of the weight are unreachable:"
        f" {nodes}{others}."
    )
    return IcmRetry(
        action="wait",
        text=f"{text} No signature can be made until the daemon reaches more of them.",
    )


def _lacks_connections(signature: IcmSignature) -> bool:
    """Return whether signed weight and reachable validators together are less than the quorum."""
    if not (signature.unreachable_weight and signature.required_weight and signature.total_weight):
        return False
    # Some of those that signed may be unreachable now.
    left = (
        int(signature.total_weight)
        - int(signature.unreachable_weight)
        + int(signature.signed_weight or 0)
    )
    return left < int(signature.required_weight)


def _advise_delivery(message: JoinedMessage, block: WarpsealBlock) -> IcmRetry:
    """Return the next step of a signed message. A failure of its execution comes first."""
    retry = _advise_signed(message, block)
    execution = block.execution
    if execution is UNSET or execution.succeeds is not False:
        return retry
    reason = f": {execution.error}" if execution.error is not UNSET else ""
    return replace(retry, text=f"The execution would fail now{reason}. {retry.text}")


def _advise_signed(message: JoinedMessage, block: WarpsealBlock) -> IcmRetry:
    delivery, gas, execution = block.delivery, block.delivery_gas, block.execution
    if delivery is not UNSET and not delivery.verifies_now:
        reason_text = delivery.reason_text or ""
        if delivery.advice is not UNSET:
            advice = delivery.advice
            return IcmRetry(action="wait", text=advice.text, not_before=advice.not_before)
        action: RetryAction = "sign_again" if delivery.reason in _OTHER_SET else "none"
        return IcmRetry(
            action=action, text=f"The destination refuses the signed message: {reason_text}."
        )
    if (
        gas is not UNSET
        and gas.block_limit is not UNSET
        and int(gas.required) > int(gas.block_limit)
    ):
        text = (
            f"Delivery needs {gas.required} gas, and a block of the destination has"
            f" {gas.block_limit}."
        )
        return IcmRetry(action="raise_gas", text=text)
    if execution is not UNSET and int(execution.gas_required or 0) > int(execution.gas_limit):
        text = (
            f"The execution needs {execution.gas_required} gas, and the message gives it"
            f" {execution.gas_limit}: it"
        )
        text += (
            " will fail. Deliver the message, and then ask here whether retryMessageExecution"
            " executes it."
        )
        return IcmRetry(action="raise_gas", text=_with_deliverers(text, message))
    if delivery is not UNSET and delivery.reason is not UNSET:
        return IcmRetry(
            action="wait", text=f"The destination refuses the message now: {delivery.reason_text}."
        )
    return IcmRetry(
        action="wait",
        text=_with_deliverers("The message is signed and waits for a relayer.", message),
    )


def _with_deliverers(text: str, message: JoinedMessage) -> str:
    """Return the text, and which accounts may deliver the message if not all may."""
    relayers = allowed_relayers(message.side)
    if not relayers:
        return text
    accounts = ", ".join(relayers[:_MAX_NAMED])
    others = f", and {len(relayers) - _MAX_NAMED} others" if len(relayers) > _MAX_NAMED else ""
    return f"{text} Only these accounts may deliver it: {accounts}{others}."


def allowed_relayers(side: SentMessage | ReceivedMessage) -> tuple[str, ...]:
    """Return the accounts that may deliver a message; if there are none, any account may."""
    return tuple(map(account_text, decode_tail(side.tail)[0]))


def _weights_by_kind(missing: Iterable[MissingSigner], *, is_new: bool) -> Counter[str]:
    """Return the weight of validators that do not sign by themselves.

    is_new: they may not have the message yet.
    """
    weights = Counter[str]()
    for signer in missing:
        if signer.state is not UNSET or signer.reason in ("inactive", "underfunded"):
            weights["drained"] += int(signer.weight)
        elif signer.verdict is Verdict.NEVER:
            weights["never"] += int(signer.weight)
        elif (
            signer.reason == "refused"
            and signer.error_code in _UNKNOWN_MESSAGE_CODES
            and not is_new
        ):
            weights["unknown"] += int(signer.weight)
    return weights


def _call(
    message: JoinedMessage, selectors: tuple[bytes, bytes], source: bytes
) -> IcmCall | UnsetType:
    """Return a call of the messenger with the message.

    source: the argument before it.
    """
    side = message.side
    encoded = side.encode()
    if encoded is None:
        return UNSET
    selector = selectors[side.is_v2]
    offset = (len(source) + WORD_BYTES).to_bytes(WORD_BYTES)
    return IcmCall(
        to=account_text(side.messenger), data=hex_text(selector + source + offset + encoded)
    )
