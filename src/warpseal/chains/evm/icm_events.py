"""Events of ICM in a block's receipts: of TeleporterMessenger and of the Warp precompile.

Any contract may log the events of a messenger, so that the index decides which addresses count. A
log with the topic of such an event and another shape is counted. Messages are read and written
without an ABI library: their contracts write each in exactly one way. Source of truth:
icm-contracts `ITeleporterMessenger.sol`, `TeleporterMessageV2.sol`, `TeleporterRegistry.sol`,
subnet-evm `IWarpMessenger.sol`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache, partial
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr

from warpseal.chains.evm.blocks import ADDRESS_BYTES, HASH_BYTES, TopicLog, UnknownShape, address_in
from warpseal.chains.keccak import keccak
from warpseal.warp import l1_messages
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID
from warpseal.warp.message import (
    WARP_PRECOMPILE,
    AddressedCall,
    Hash,
    UnsignedMessage,
    unwrap_log_data,
)

MESSENGER_V1: Final = bytes.fromhex("253b2784c75e510dd0ff1da844684a1ac0aa5fcf")
"""Where version 1.0.0 is deployed on every chain; other deployments have other addresses."""
REGISTRIES: Final = (
    bytes.fromhex("7c43605e14f391720e1b37e49c78c4b03a488d98"),
    bytes.fromhex("f86cb19ad8405aefa7d09c778215d2cb6ebfb228"),
)
"""The registries of messengers on the C-Chain of mainnet and of Fuji."""

NO_ACCOUNT: Final = bytes(ADDRESS_BYTES)
_NUMBER_BITS: Final = 63
_PADDING: Final = bytes(HASH_BYTES - ADDRESS_BYTES)
# nonce, sender, (version 2: the messenger,) destination, recipient, gas limit; offsets of relayers,
# receipts and body.
_HEADS: Final = (
    struct.Struct("32s12x20s32s12x20s32s96s"),
    struct.Struct("32s12x20s12x20s32s12x20s32s96s"),
)
_NO_LISTS: Final = bytes(2 * HASH_BYTES)
_WARP_HEAD_BYTES: Final = 42
# Of an addressed call: codec version, type, and the length of the sender.
_CALL_HEAD: Final = b"\0\0\0\0\0\1\0\0\0\x14"
_OFFSET: Final = HASH_BYTES.to_bytes(HASH_BYTES)
_FEE: Final = "(address,uint256)"
_MESSAGE: Final = "(uint256,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
_MESSAGE_V2: Final = _MESSAGE.replace("address,", "address,address,", 1)


class Outcome(IntEnum):
    """Whether the transaction that received a message executed it.

    NONE: it has no body.
    """

    NONE = 0
    EXECUTED = 1
    FAILED = 2


class ChangeKind(IntEnum):
    """The kind of a later event of a message.

    The writer of the index sets RESENT: the contract logs the event of a new message.
    """

    FEE = 1
    RESENT = 2
    RECEIPT = 3
    EXECUTED = 4


class PayloadKind(IntEnum):
    """Payload of a Warp message.

    TELEPORTER: the message of the `IcmSend` before it in its transaction.
    """

    TELEPORTER = 0
    HASH = 1
    REGISTER_L1_VALIDATOR = 2
    L1_VALIDATOR_WEIGHT = 3
    L1_VALIDATOR_REGISTRATION = 4
    SUBNET_TO_L1_CONVERSION = 5
    ADDRESSED_CALL = 6
    UNKNOWN = 7


class MessageFields(NamedTuple):
    """The fields of a message as its contract encodes them.

    origin: the messenger for version 2, None for version 1.
    tail: the lists of relayers and receipts as the ABI encodes them, "" if both are empty.
    """

    nonce: int
    sender: bytes
    origin: bytes | None
    destination: ChainID
    recipient: bytes
    gas_limit: int
    tail: bytes
    body: bytes


class IcmSend(Struct, frozen=True, gc=False):
    """A message that was sent, or sent again. Nonces of events are below 2^63.

    position: the place of the event among the ICM events of its block, from 0.
    warp_sender: the contract that called the Warp precompile: the messenger in version 1, an
        adapter in version 2; "" if its transaction has no Warp message with this message.
    """

    position: int
    tx_index: int
    messenger: bytes
    message_id: bytes
    message: MessageFields
    fee_asset: bytes
    fee: int
    warp_sender: bytes = b""


class IcmReceive(Struct, frozen=True, gc=False):
    """A received message.

    redeemer: the account that the source chain owes the fee.
    inner_events: the number of ICM events between its log and the log of its outcome, such as
        messages that the recipient sends meanwhile.
    """

    position: int
    tx_index: int
    messenger: bytes
    message_id: bytes
    source: ChainID
    message: MessageFields
    deliverer: bytes
    redeemer: bytes
    outcome: Outcome = Outcome.NONE
    inner_events: int = 0


class IcmChange(Struct, frozen=True, gc=False):
    """A later event of a message.

    account, amount: asset and whole fee for FEE, relayer and reward for RECEIPT.
    """

    position: int
    tx_index: int
    messenger: bytes
    message_id: bytes
    kind: ChangeKind
    account: bytes
    amount: int


class WarpSend(Struct, frozen=True, gc=False):
    """A Warp message.

    message: the bytes of the unsigned message.
    """

    position: int
    tx_index: int
    sender: bytes
    kind: PayloadKind
    message: bytes


class NewMessenger(Struct, frozen=True, gc=False):
    """A registry names a messenger."""

    position: int
    tx_index: int
    registry: bytes
    version: int
    messenger: bytes


IcmEvent = IcmSend | IcmReceive | IcmChange | WarpSend | NewMessenger
IcmEvents = tuple[IcmEvent, ...]
"""The ICM events of a block in the order of its logs."""


def decode_message(data: bytes, start: int, *, is_v2: bool = False) -> MessageFields | None:
    """Return the message that begins at `start` and ends with the data.

    A message has only one accepted encoding; the result for any other bytes is None.
    """
    head = _HEADS[is_v2]
    lists_at = start + head.size
    if len(data) < lists_at:
        return None
    *values, _ = head.unpack_from(data, start)
    tail = b"" if data.startswith(_NO_LISTS, lists_at) else _read_tail(data, lists_at)
    if tail is None or data[start:lists_at] != _pack_head(is_v2, values, tail):
        return None
    body_at = lists_at + (len(tail) or len(_NO_LISTS)) + HASH_BYTES
    size = int.from_bytes(data[body_at - HASH_BYTES : body_at])
    end = body_at + size
    if len(data) - end != -size % HASH_BYTES or data.count(0, end) != len(data) - end:
        return None
    origin = values.pop(2) if is_v2 else None
    nonce, sender, destination, recipient, gas = values
    return MessageFields(
        int.from_bytes(nonce),
        sender,
        origin,
        destination,
        recipient,
        int.from_bytes(gas),
        tail,
        data[body_at:end],
    )


def encode_message(fields: MessageFields) -> bytes:
    """Return the bytes from which `decode_message` reads the fields.

    A payload has an offset before these bytes.
    """
    nonce, sender, origin, destination, recipient, gas, tail, body = fields
    senders = (sender,) if origin is None else (sender, origin)
    values = nonce.to_bytes(HASH_BYTES), *senders, destination, recipient, gas.to_bytes(HASH_BYTES)
    head, padding = _pack_head(origin is not None, values, tail), bytes(-len(body) % HASH_BYTES)
    return b"".join((head, tail or _NO_LISTS, len(body).to_bytes(HASH_BYTES), body, padding))


def encode_call(caller: bytes, message: bytes) -> bytes:
    """Return the payload of the Warp message of an encoded message.

    caller: the contract that called the precompile.
    """
    return AddressedCall(caller, _OFFSET + message).encode()


def decode_tail(tail: bytes) -> tuple[tuple[bytes, ...], tuple[tuple[int, bytes], ...]]:
    """Return the relayers, and the receipts: nonce and the account of the reward."""
    words = [tail[at : at + HASH_BYTES] for at in range(0, len(tail), HASH_BYTES)]
    count = int.from_bytes(words[0]) if words else 0
    rest = iter(words[count + 2 :])
    receipts = tuple(
        (int.from_bytes(nonce), reward[-ADDRESS_BYTES:])
        for nonce, reward in zip(rest, rest, strict=True)
    )
    return tuple(word[-ADDRESS_BYTES:] for word in words[1 : count + 1]), receipts


def message_id(messenger: bytes, source: ChainID, destination: ChainID, nonce: int) -> bytes:
    """Return the 32 bytes by which the contracts identify a message.

    The id of its Warp message is another one.
    """
    return keccak(_PADDING + messenger + source + destination + nonce.to_bytes(HASH_BYTES))


class IcmReader:
    """Reads the ICM logs of a block one by one, in their order."""

    def __init__(self) -> None:
        self.events: list[IcmEvent] = []
        # The last sent message and its payload, until its Warp message comes.
        self._sent: tuple[IcmSend, bytes] | None = None
        # Received messages without an outcome, by transaction, contract and id.
        self._received: dict[tuple[int, bytes, bytes], IcmReceive] = {}

    def read_send(self, log: TopicLog, *, is_v2: bool = False) -> None:
        """Read SendCrossChainMessage(indexed messageID, indexed destination, message, feeInfo)."""
        message_id, destination = log.indexed(2)
        contract, data = log.contract(), log.data()
        fields, start = _message_at(data, 1, 3, is_v2=is_v2), 3 * HASH_BYTES
        _expect(fields.destination == destination and fields.origin in (None, contract))
        asset, fee = _fee(data[HASH_BYTES:start])
        send = IcmSend(len(self.events), log.tx_index, contract, message_id, fields, asset, fee)
        self.events.append(send)
        self._sent = send, data[start:]

    def read_receive(self, log: TopicLog) -> None:
        """Read ReceiveCrossChainMessage.

        Its fields are indexed messageID, indexed source, indexed deliverer, redeemer and message.
        """
        message_id, source, deliverer = log.indexed(3)
        contract, data = log.contract(), log.data()
        receive = IcmReceive(
            len(self.events),
            log.tx_index,
            contract,
            message_id,
            ChainID(source),
            message=_message_at(data, 2, 2),
            deliverer=address_in(deliverer),
            redeemer=address_in(data[:HASH_BYTES]),
        )
        self.events.append(receive)
        self._received[log.tx_index, contract, message_id] = receive

    def read_executed(self, log: TopicLog) -> None:
        """Read MessageExecuted(indexed messageID, indexed source): of a receive, or of a retry."""
        message_id, _ = log.indexed(2)
        _expect(not log.data())
        if not self._set_outcome(log, message_id, Outcome.EXECUTED):
            self._add_change(log, message_id, ChangeKind.EXECUTED, NO_ACCOUNT, 0)

    def read_failed(self, log: TopicLog) -> None:
        """Read MessageExecutionFailed(indexed messageID, indexed source, message).

        It follows the log of its receive.
        """
        message_id, _ = log.indexed(2)
        _message_at(log.data(), 1, 1)
        _expect(self._set_outcome(log, message_id, Outcome.FAILED))

    def read_fee(self, log: TopicLog) -> None:
        """Read AddFeeAmount(indexed messageID, feeInfo)."""
        (message_id,) = log.indexed(1)
        self._add_change(log, message_id, ChangeKind.FEE, *_fee(log.data()))

    def read_receipt(self, log: TopicLog) -> None:
        """Read ReceiptReceived.

        Its fields are indexed messageID, indexed destination, indexed relayer and feeInfo.
        """
        message_id, _, relayer = log.indexed(3)
        _, amount = _fee(log.data())
        self._add_change(log, message_id, ChangeKind.RECEIPT, address_in(relayer), amount)

    def read_warp(self, log: TopicLog) -> None:
        """Read SendWarpMessage(indexed sender, indexed messageID, message) of the precompile."""
        sender_word, message_id = log.indexed(2)
        sender, message = address_in(sender_word), unwrap_log_data(log.data())
        if (
            message is None
            or log.contract() != WARP_PRECOMPILE
            or sha256(message).digest() != message_id
        ):
            raise UnknownShape
        if self._take_last_send(log.tx_index, sender, message):
            kind = PayloadKind.TELEPORTER
        else:
            kind = _kind_of(message)
        self.events.append(WarpSend(len(self.events), log.tx_index, sender, kind, message))

    def read_messenger(self, log: TopicLog) -> None:
        """Read AddProtocolVersion(indexed version, indexed protocolAddress) of a registry."""
        word, messenger = log.indexed(2)
        version, position = int.from_bytes(word), len(self.events)
        _expect(not version >> _NUMBER_BITS)
        self.events.append(
            NewMessenger(position, log.tx_index, log.contract(), version, address_in(messenger))
        )

    def _set_outcome(self, log: TopicLog, message_id: bytes, outcome: Outcome) -> bool:
        """Set the outcome of a receive without an outcome of the same transaction.

        Returns whether there is such a receive.
        """
        receive = self._received.pop((log.tx_index, log.contract(), message_id), None)
        if receive is not None:
            # No other code has the event yet.
            force_setattr(receive, "outcome", outcome)
            force_setattr(receive, "inner_events", len(self.events) - receive.position - 1)
        return receive is not None

    def _add_change(
        self, log: TopicLog, message_id: bytes, kind: ChangeKind, account: bytes, amount: int
    ) -> None:
        position, contract = len(self.events), log.contract()
        self.events.append(
            IcmChange(position, log.tx_index, contract, message_id, kind, account, amount)
        )

    def _take_last_send(self, tx_index: int, sender: bytes, message: bytes) -> bool:
        """Match a Warp message with the message that was sent last, and set its `warp_sender`.

        Returns whether the Warp message contains that message.
        """
        if self._sent is None or self._sent[0].tx_index != tx_index:
            return False
        send, encoded = self._sent
        size = HASH_BYTES + len(encoded)
        call = b"".join((_CALL_HEAD, sender, size.to_bytes(4), _OFFSET, encoded))
        if (
            (send.message.origin is None and send.messenger != sender)
            or message[:2] != b"\0\0"
            or message[_WARP_HEAD_BYTES - 4 :] != len(call).to_bytes(4) + call
        ):
            return False
        force_setattr(send, "warp_sender", sender)
        self._sent = None
        return True


ICM_READERS: Final[dict[str, Callable[[IcmReader, TopicLog], None]]] = {
    "SendWarpMessage(address,bytes32,bytes)": IcmReader.read_warp,
    f"SendCrossChainMessage(bytes32,bytes32,{_MESSAGE},{_FEE})": IcmReader.read_send,
    f"SendCrossChainMessage(bytes32,bytes32,{_MESSAGE_V2},{_FEE})": partial(
        IcmReader.read_send, is_v2=True
    ),
    f"AddFeeAmount(bytes32,{_FEE})": IcmReader.read_fee,
    f"ReceiveCrossChainMessage(bytes32,bytes32,address,address,{_MESSAGE})": IcmReader.read_receive,
    "MessageExecuted(bytes32,bytes32)": IcmReader.read_executed,
    f"MessageExecutionFailed(bytes32,bytes32,{_MESSAGE})": IcmReader.read_failed,
    f"ReceiptReceived(bytes32,bytes32,address,{_FEE})": IcmReader.read_receipt,
    "AddProtocolVersion(uint256,address)": IcmReader.read_messenger,
}
"""By the signature of the event."""


def _message_at(data: bytes, place: int, words: int, *, is_v2: bool = False) -> MessageFields:
    """Return the message of an event.

    place: place of the message's offset among the words before the message, from 1.
    words: number of words before the message.
    """
    offset = data[(place - 1) * HASH_BYTES : place * HASH_BYTES]
    fields = decode_message(data, words * HASH_BYTES, is_v2=is_v2)
    if (
        fields is None
        or int.from_bytes(offset) != words * HASH_BYTES
        or fields.nonce >> _NUMBER_BITS
    ):
        raise UnknownShape
    return fields


def _read_tail(data: bytes, start: int) -> bytes | None:
    """Return the lists of relayers and receipts that begin at `start`; None for other bytes."""
    relayers = int.from_bytes(data[start : start + HASH_BYTES])
    if relayers >= len(data):
        return None
    receipts_at = start + HASH_BYTES * (1 + relayers)
    receipts = int.from_bytes(data[receipts_at : receipts_at + HASH_BYTES])
    end = receipts_at + HASH_BYTES * (1 + 2 * receipts)
    if end > len(data):
        return None
    relayer_words = range(start + HASH_BYTES, receipts_at, HASH_BYTES)
    reward_words = range(receipts_at + 2 * HASH_BYTES, end, 2 * HASH_BYTES)
    is_padded = all(
        data[at : at + len(_PADDING)] == _PADDING for at in (*relayer_words, *reward_words)
    )
    return data[start:end] if is_padded else None


# Nearly all messages have no lists.
@lru_cache(maxsize=64)
def _offsets(head_bytes: int, relayers: int, list_bytes: int) -> bytes:
    """Return the offsets of relayers, receipts and body."""
    offsets = head_bytes, head_bytes + HASH_BYTES * (1 + relayers), head_bytes + list_bytes
    return b"".join(offset.to_bytes(HASH_BYTES) for offset in offsets)


def _pack_head(is_v2: bool, values: Sequence[bytes], tail: bytes) -> bytes:
    """Return the words before the lists.

    values: the words before the offsets.
    """
    head = _HEADS[is_v2]
    offsets = _offsets(head.size, int.from_bytes(tail[:HASH_BYTES]), len(tail or _NO_LISTS))
    return head.pack(*values, offsets)


def _fee(words: bytes) -> tuple[bytes, int]:
    """Return asset and amount, which are all of these bytes."""
    _expect(len(words) == 2 * HASH_BYTES)
    return address_in(words[:HASH_BYTES]), int.from_bytes(words[HASH_BYTES:])


def _kind_of(message: bytes) -> PayloadKind:
    """Return the kind of a Warp message that no messenger sent."""
    try:
        payload = UnsignedMessage.parse(message).payload
    except MalformedMessage:
        raise UnknownShape from None
    with suppress(MalformedMessage):
        Hash.parse(payload)
        return PayloadKind.HASH
    with suppress(MalformedMessage):
        call = AddressedCall.parse(payload)
        for kind, parse in _L1_PAYLOADS.items():
            with suppress(MalformedMessage):
                parse(call.payload)
                return kind
        return PayloadKind.ADDRESSED_CALL
    return PayloadKind.UNKNOWN


_L1_PAYLOADS: Final[dict[PayloadKind, Callable[[bytes], object]]] = {
    PayloadKind.REGISTER_L1_VALIDATOR: l1_messages.RegisterL1Validator.parse,
    PayloadKind.L1_VALIDATOR_WEIGHT: l1_messages.L1ValidatorWeight.parse,
    PayloadKind.L1_VALIDATOR_REGISTRATION: l1_messages.L1ValidatorRegistration.parse,
    PayloadKind.SUBNET_TO_L1_CONVERSION: l1_messages.SubnetToL1Conversion.parse,
}


def _expect(is_expected: bool) -> None:
    if not is_expected:
        raise UnknownShape
