"""Describes Warp messages of every kind, signed or unsigned, and L1 transactions as JSON.

It never fails: a part that cannot be decoded is shown as bytes, with the offset and the reason.
Numbers that may exceed 2^53 are text. Source of truth: the parsers of `warp/`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, TypeAlias

from warpseal.chains.components import BaseFields
from warpseal.chains.evm.icm_events import MESSENGER_V1, decode_tail
from warpseal.chains.ids import Address, address_text
from warpseal.chains.p_txs import RegisterL1ValidatorTx, SetL1ValidatorWeightTx, parse_p_tx
from warpseal.messages.attestation import derive_attestation
from warpseal.messages.errors import NoMessage, UndecodableTransaction
from warpseal.messages.teleporter import TeleporterMessage, parse_teleporter
from warpseal.runtime.go_time import rfc3339
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import NODE_ID_BYTES, P_CHAIN, ChainID, NodeID, id_text, node_id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    SubnetToL1Conversion,
    ValidatorUptime,
)
from warpseal.warp.message import (
    AddressedCall,
    Hash,
    SignedMessage,
    UnsignedMessage,
    unwrap_log_data,
)

Json = dict[str, Any]
L1Message: TypeAlias = (
    SubnetToL1Conversion
    | RegisterL1Validator
    | L1ValidatorRegistration
    | L1ValidatorWeight
    | ValidatorUptime
)

# A payload has at most 24 KiB. Of a larger message the first part is shown.
MAX_MESSAGE_BYTES: Final = 128 * 1024
_SHOWN_BYTES: Final = 32 * 1024
_PAYLOAD_LENGTH_OFFSET: Final = 2 + 4 + 32
_PAYLOAD_OFFSET: Final = _PAYLOAD_LENGTH_OFFSET + 4
_WORD_BYTES: Final = 32
_TYPE_OFFSET: Final = 2
_TYPE_END: Final = 6
NO_WARP_MESSAGE: Final = "no Warp message"
_L1_MESSAGES: Final[dict[int, type[L1Message]]] = {
    0: SubnetToL1Conversion,
    1: RegisterL1Validator,
    2: L1ValidatorRegistration,
    3: L1ValidatorWeight,
}
_NETWORKS: Final = {1: "mainnet", 5: "fuji", 12345: "local"}


def describe(raw: bytes) -> Json:
    """Describe a message: unsigned or signed, bare or in a log or an access list. Never raises.

    `unread` lists the parts that could not be decoded, with the offset in the part and the reason.
    """
    if len(raw) > MAX_MESSAGE_BYTES:
        reason = f"{len(raw)} bytes are more than any message has"
        return _describe_unknown(raw, MalformedMessage(MAX_MESSAGE_BYTES, reason))
    message, wrapping = unwrap(raw)
    body: Json = {"wrapping": wrapping} if wrapping else {}
    unread: list[Json] = []
    length = int.from_bytes(message[_PAYLOAD_LENGTH_OFFSET:_PAYLOAD_OFFSET], "big")
    try:
        unsigned = UnsignedMessage.parse(message[: _PAYLOAD_OFFSET + length])
    except MalformedMessage as error:
        return body | _describe_unknown(message, error)
    signature = _signature(message, unsigned, unread)
    body |= {"type": "unsigned message" if signature is None else "signed message"}
    body |= describe_unsigned(unsigned, unread)
    if signature is not None:
        body["signature"] = signature
    return body | {"unread": unread}


def describe_unsigned(message: UnsignedMessage, unread: list[Json]) -> Json:
    """Describe an unsigned message; add the parts that could not be decoded to `unread`."""
    body: Json = {"messageId": id_forms(message.id), "networkId": message.network_id}
    if message.network_id in _NETWORKS:
        body["network"] = _NETWORKS[message.network_id]
    body["sourceBlockchainId"] = id_forms(message.source_chain_id)
    if message.source_chain_id == P_CHAIN:
        body["sourceBlockchain"] = "P-Chain"
    return body | {"payload": _payload(message, unread), "unsignedMessage": hex_text(message.raw)}


def describe_transaction(raw: bytes) -> Json:
    """Describe the signed bytes of a P-Chain transaction. Raises MalformedMessage."""
    tx = parse_p_tx(raw)
    body: Json = {
        "type": "P-Chain transaction",
        "transactionId": id_forms(tx.id),
        "transactionType": tx.kind,
    }
    if isinstance(tx.unsigned, RegisterL1ValidatorTx | SetL1ValidatorWeightTx):
        with suppress(MalformedMessage):
            body["askedForBy"] = describe(tx.unsigned.signed_message().encode())
    # Two types have no base, and no message either.
    base = getattr(tx.unsigned, "base", None)
    try:
        attestation = derive_attestation(tx, base.network_id if isinstance(base, BaseFields) else 0)
    except (NoMessage, UndecodableTransaction) as error:
        return body | {"message": None, "reason": str(error)}
    return body | {
        "managerBlockchainId": id_forms(attestation.manager_chain_id),
        "managerAddress": hex_text(attestation.manager_address),
        "justification": _describe_justification(attestation.justification),
        "message": describe(attestation.message.raw),
    }


def _describe_justification(justification: bytes | None) -> str:
    if justification is None:
        return "needed: the proof of the validation's origin"
    return hex_text(justification) if justification else "none is needed"


def unwrap(raw: bytes) -> tuple[bytes, str | None]:
    """Return the bare message and the name of its wrapping.

    A message may be in a log's data, or in the storage keys of an access list.
    """
    logged = unwrap_log_data(raw)
    if logged is not None:
        return logged, "SendWarpMessage log data"
    bare = raw.rstrip(b"\x00")
    if len(raw) % _WORD_BYTES == 0 and bare[-1:] == b"\xff":
        with suppress(MalformedMessage):
            SignedMessage.parse(bare[:-1])
            return bare[:-1], "access list of a delivery"
    return raw, None


def id_forms(raw: bytes) -> Json:
    """Return a 32-byte id as CB58 and as hex."""
    return {"cb58": id_text(raw), "hex": hex_text(raw)}


def hex_text(raw: bytes) -> str:
    """Return bytes as hex after 0x; of more than 32 KiB only the first, and the total."""
    body = "0x" + raw[:_SHOWN_BYTES].hex()
    return body if len(raw) <= _SHOWN_BYTES else f"{body}… ({len(raw)} bytes in all)"


def _describe_unknown(raw: bytes, error: MalformedMessage) -> Json:
    unread = [{"part": "message", "offset": error.offset, "reason": error.reason}]
    return {"type": NO_WARP_MESSAGE, "bytes": hex_text(raw), "unread": unread}


def _signature(raw: bytes, unsigned: UnsignedMessage, unread: list[Json]) -> Json | None:
    rest = raw[len(unsigned.raw) :]
    if not rest:
        return None
    try:
        signed = SignedMessage.parse(raw)
    except MalformedMessage as error:
        offset = error.offset - len(unsigned.raw)
        unread.append({"part": "signature", "offset": offset, "reason": error.reason})
        return {"bytes": hex_text(rest)}
    indices = signed.signer_indices
    return {
        "signers": hex_text(signed.signers),
        "signerCount": len(indices),
        "signerIndices": list(indices),
        "signatureBytes": hex_text(signed.signature),
    }


def _payload(message: UnsignedMessage, unread: list[Json]) -> Json:
    type_id = _type_of(message.payload)
    try:
        if type_id == 0:
            return {"type": "Hash", "blockHash": hex_text(Hash.parse(message.payload).hash)}
        call = AddressedCall.parse(message.payload)
    except MalformedMessage as error:
        unread.append({"part": "payload", "offset": error.offset, "reason": error.reason})
        return {"type": "unknown", "bytes": hex_text(message.payload)}
    return {
        "type": "AddressedCall",
        "sourceAddress": hex_text(call.source_address),
        "call": _call(message, call, unread),
    }


def _call(message: UnsignedMessage, call: AddressedCall, unread: list[Json]) -> Json:
    teleporter = None
    if message.source_chain_id != P_CHAIN:
        teleporter = parse_teleporter(call.source_address, call.payload)
    if teleporter is not None:
        return _teleporter(message.source_chain_id, teleporter, call.source_address)
    kind = _kind_of(message, call)
    try:
        if kind is not None:
            return _l1_message(message, kind.parse(call.payload))
        error = MalformedMessage(0, "unknown kind of call")
    except MalformedMessage as malformed:
        error = malformed
    unread.append({"part": "payload.call", "offset": error.offset, "reason": error.reason})
    return {"type": "unknown", "bytes": hex_text(call.payload)}


def _kind_of(message: UnsignedMessage, call: AddressedCall) -> type[L1Message] | None:
    type_id = _type_of(call.payload)
    if type_id == 0 and message.source_chain_id != P_CHAIN:
        return None if call.source_address else ValidatorUptime
    return None if type_id is None else _L1_MESSAGES.get(type_id)


def _type_of(raw: bytes) -> int | None:
    """Return the type id of bytes that begin with codec version 0."""
    if len(raw) < _TYPE_END or any(raw[:_TYPE_OFFSET]):
        return None
    return int.from_bytes(raw[_TYPE_OFFSET:_TYPE_END], "big")


def _l1_message(message: UnsignedMessage, call: L1Message) -> Json:
    fields: Json
    match call:
        case SubnetToL1Conversion():
            meaning = (
                "the P-Chain attests that a subnet was converted to an L1 with these initial"
                " validators"
            )
            fields = {"conversionId": id_forms(call.conversion_id)}
        case RegisterL1Validator(node_id=raw_id):
            meaning = "an L1 asks the P-Chain to register a validator"
            fields = {
                "validationId": id_forms(call.validation_id),
                "subnetId": id_forms(call.subnet_id),
                "nodeId": (
                    node_id_text(NodeID(raw_id))
                    if len(raw_id) == NODE_ID_BYTES
                    else hex_text(raw_id)
                ),
                "blsPublicKey": hex_text(call.public_key),
                "weight": str(call.weight),
                "expiry": str(call.expiry),
                "expiryTime": _time(call.expiry),
                "remainingBalanceOwner": _owner(message.network_id, call.remaining_balance_owner),
                "disableOwner": _owner(message.network_id, call.disable_owner),
            }
        case L1ValidatorRegistration():
            meaning = "the P-Chain attests that this validation has ended, or can never begin"
            if call.registered:
                meaning = "the P-Chain attests that this validator is registered"
            fields = {"validationId": id_forms(call.validation_id), "registered": call.registered}
        case L1ValidatorWeight():
            meaning = "an L1 asks the P-Chain to change a validator's weight"
            if message.source_chain_id == P_CHAIN:
                meaning = "the P-Chain attests a validator's weight after this change"
            elif not call.weight:
                meaning = "an L1 asks the P-Chain to remove a validator"
            fields = {
                "validationId": id_forms(call.validation_id),
                "nonce": str(call.nonce),
                "weight": str(call.weight),
            }
        case ValidatorUptime():
            meaning = (
                "validators of this L1 attest that a validator was up for at least so many seconds"
            )
            fields = {
                "validationId": id_forms(call.validation_id),
                "uptimeSeconds": str(call.uptime_s),
            }
    return {"type": type(call).__name__, "meaning": meaning, **fields}


def _teleporter(source_chain_id: ChainID, message: TeleporterMessage, sender: bytes) -> Json:
    fields = message.fields
    relayers, receipts = decode_tail(fields.tail)
    body: Json = {"type": "TeleporterMessage" if fields.origin is None else "TeleporterMessageV2"}
    if fields.origin is not None:
        body["originTeleporterAddress"] = hex_text(fields.origin)
    elif sender == MESSENGER_V1:
        body["messenger"] = "TeleporterMessenger v1.0.0"
    return body | {
        "teleporterMessageId": id_forms(message.message_id(source_chain_id)),
        "messageNonce": str(fields.nonce),
        "originSenderAddress": hex_text(fields.sender),
        "destinationBlockchainId": id_forms(fields.destination),
        "destinationAddress": hex_text(fields.recipient),
        "requiredGasLimit": str(fields.gas_limit),
        "allowedRelayerAddresses": [hex_text(relayer) for relayer in relayers],
        "receipts": [
            {
                "receivedMessageNonce": str(received_nonce),
                "relayerRewardAddress": hex_text(reward_address),
            }
            for received_nonce, reward_address in receipts
        ],
        "message": hex_text(fields.body),
    }


def _owner(network_id: int, owner: PChainOwner) -> Json:
    addresses = [address_text(network_id, Address(address)) for address in owner.addresses]
    return {"threshold": owner.threshold, "addresses": addresses}


def _time(unix_s: int) -> str | None:
    """Return the time in UTC, or None beyond the year 9999."""
    try:
        return rfc3339(unix_s)
    except (OverflowError, ValueError, OSError):
        return None
