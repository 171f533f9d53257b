"""Descriptions of Warp messages: of Fuji, of the recorded network, of avalanchego's example L1, and
of other bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import paths
from tests.warp import fuji, l1_txs
from warpseal.chains.evm.icm_events import MessageFields
from warpseal.messages.describe import MAX_MESSAGE_BYTES, describe
from warpseal.messages.teleporter import TeleporterMessage, parse_teleporter
from warpseal.warp.ids import ChainID, ValidationID, id_text, parse_id
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    SubnetToL1Conversion,
    ValidatorUptime,
)
from warpseal.warp.l1_messages import build_p_chain_message as from_p_chain
from warpseal.warp.message import AddressedCall, Hash, SignedMessage, UnsignedMessage

VECTORS = paths.VECTORS
ICM: dict[str, Any] = json.loads((VECTORS / "icm.json").read_text())
RECORDED: dict[str, Any] = json.loads((VECTORS / "localnet" / "icm.json").read_text())
L1_CHAIN = ChainID(parse_id("rVPmsy4tQrQhQpRE6embdYnmYtwQi8kQAg1ZdaZGzeVdjc4qT"))
VALIDATION = ValidationID(parse_id("S4V9xkctnx3zmGdB8tXy6scsgmxr51w8NTar9WdAw26PWwXiQ"))
SENDER = bytes(range(20))
ZEROS = "0x" + 40 * "0"


def call_of(described: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the call, of a message that was read completely."""
    assert described["unread"] == []
    call: dict[str, Any] = described["payload"]["call"]
    return call


def from_l1(call: AddressedCall) -> bytes:
    return UnsignedMessage.build(12345, L1_CHAIN, call.encode()).raw


def test_a_signed_weight_change_of_fuji_is_described_with_its_signers() -> None:
    result = describe(fuji.SIGNED_WEIGHT)
    assert result["type"] == "signed message"
    assert result["network"] == "fuji"
    assert (
        result["messageId"]["hex"]
        == "0xfdb30089be7689263d2735156f50555e171e29a977d270a59b481ae4ed0446c6"
    )
    assert (
        result["sourceBlockchainId"]["cb58"] == "pLyW2CtL3nRzYPZUDKJV3j7jGvRD6UDdRMLbR46zyvYmMDkyB"
    )
    assert result["payload"]["sourceAddress"] == "0x0feedc0de0000000000000000000000000000000"
    assert result["signature"]["signers"] == "0x06"
    assert result["signature"]["signerIndices"] == [1, 2]
    call = call_of(result)
    assert (call["type"], call["nonce"], call["weight"]) == ("L1ValidatorWeight", "4", "41")
    assert (
        call["validationId"]["hex"]
        == "0x8ccf9ef520784d2fa5d97fbf098b8b4e82ff19408ec423c2970a522ab04b3a04"
    )


def test_a_registration_of_fuji_is_described_with_its_validation_id() -> None:
    call = call_of(describe(fuji.UNSIGNED_REGISTER))
    assert call["type"] == "RegisterL1Validator"
    assert call["validationId"]["cb58"] == "TEwxg8JzAUsqFibtYkaiiYH9G1h5ZfX56zYURXpyaPRCSppC4"
    assert call["subnetId"]["cb58"] == "2DN6PTi2uXNCzzNz1p2ckGcW2eqTfpt2kv2a1h7EV36hYV3XRJ"
    assert call["nodeId"] == "NodeID-CMpZrrUoevB2qPYD3w1TncAzdqQ8qdk4x"
    assert (call["weight"], call["expiry"], call["expiryTime"]) == (
        "10",
        "1764836142",
        "2025-12-04T08:15:42Z",
    )
    assert call["disableOwner"]["threshold"] == 1
    assert call["disableOwner"]["addresses"][0].startswith("P-fuji1")
    assert describe(fuji.SIGNED_REGISTER)["signature"]["signerIndices"] == [3, 4, 8, 14, 18, 22, 23]


def test_every_p_chain_message_is_described_by_its_type() -> None:
    conversion = parse_id("2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz")
    result = describe(from_p_chain(12345, SubnetToL1Conversion(conversion).encode()).raw)
    assert (
        result["messageId"]["hex"]
        == "0x610ea576429060e17e4e8d1d365a50ce3bbbfca43ea794172d358307a44abeb5"
    )
    assert result["sourceBlockchain"] == "P-Chain"
    assert result["payload"]["sourceAddress"] == "0x"
    assert call_of(result)["conversionId"]["cb58"] == id_text(conversion)
    for registered in (True, False):
        payload = L1ValidatorRegistration(VALIDATION, registered).encode()
        call = call_of(describe(from_p_chain(12345, payload).raw))
        assert (call["type"], call["registered"]) == ("L1ValidatorRegistration", registered)
    call = call_of(describe(from_p_chain(12345, L1ValidatorWeight(VALIDATION, 1, 5).encode()).raw))
    assert (call["validationId"]["cb58"], call["nonce"], call["weight"]) == (
        id_text(VALIDATION),
        "1",
        "5",
    )
    assert call["meaning"].startswith("the P-Chain attests")


def test_the_signed_messages_of_the_example_l1_are_described() -> None:
    result = describe(l1_txs.SIGNED_REGISTER)
    assert (
        result["messageId"]["hex"]
        == "0x56bb90ae3574dbca86d4d58d094f829262b2da51945a1fb363b6cf19d7c89054"
    )
    assert call_of(result)["validationId"]["cb58"] == id_text(VALIDATION)
    assert call_of(result)["remainingBalanceOwner"] == {"threshold": 0, "addresses": []}
    assert (
        call_of(describe(l1_txs.SIGNED_WEIGHT))["meaning"]
        == "an L1 asks the P-Chain to change a validator's weight"
    )


def test_the_same_type_number_is_a_conversion_of_the_p_chain_and_an_uptime_of_an_l1() -> None:
    uptime = ValidatorUptime(VALIDATION, 86_400).encode()
    call = call_of(describe(from_l1(AddressedCall(b"", uptime))))
    assert (call["type"], call["uptimeSeconds"]) == ("ValidatorUptime", "86400")
    assert describe(from_l1(AddressedCall(SENDER, uptime)))["payload"]["call"]["type"] == "unknown"
    assert describe(from_p_chain(12345, uptime).raw)["payload"]["call"]["type"] == "unknown"


def test_a_block_hash_is_described() -> None:
    result = describe(UnsignedMessage.build(1, L1_CHAIN, Hash(bytes(31) + b"\x07").encode()).raw)
    assert result["payload"] == {"type": "Hash", "blockHash": "0x" + 62 * "0" + "07"}
    assert result["unread"] == []


def test_log_data_of_fuji_carries_a_teleporter_message() -> None:
    result = describe(bytes.fromhex(ICM["fujiLogData"]))
    assert result["wrapping"] == "SendWarpMessage log data"
    assert (
        result["messageId"]["hex"]
        == "0xc276b9aa0598f40efcb9d8063bb6102150c42ae630df7bea080618646f7c4a70"
    )
    call = call_of(result)
    assert call["type"] == "TeleporterMessage"
    assert call["messenger"] == "TeleporterMessenger v1.0.0"
    assert (
        call["teleporterMessageId"]["hex"]
        == "0x26d4a5d766e878c31f5ad97fa668797b53c9cd7e8b459bb5f0beca579c6485a6"
    )
    assert (call["messageNonce"], call["requiredGasLimit"]) == ("277", "85000")
    assert call["originSenderAddress"] == "0x8578ae7723751446b196bd5124e1bf57b40eb7bc"
    assert call["destinationAddress"] == "0x9660ed66aef60dfba5467afe865f612edbfb5c71"
    assert [receipt["receivedMessageNonce"] for receipt in call["receipts"]] == [
        "4512",
        "4514",
        "4533",
        "4584",
        "4585",
    ]


@pytest.mark.parametrize(
    "entry", RECORDED["messages"], ids=lambda entry: entry["route"] + entry["messageId"][:6]
)
def test_recorded_messages_have_the_ids_that_warp_and_teleporter_gave_them(
    entry: dict[str, str],
) -> None:
    result = describe(bytes.fromhex(entry["unsigned"]))
    assert result["messageId"]["cb58"] == entry["messageId"]
    assert call_of(result)["teleporterMessageId"]["cb58"] == entry["teleporterMessageId"]


def test_delivered_messages_are_read_from_the_access_list() -> None:
    results = [describe(bytes.fromhex(item["storageKeys"])) for item in RECORDED["delivered"]]
    assert {element["wrapping"] for element in results} == {"access list of a delivery"}
    calls = [call_of(entry) for entry in results]
    assert calls[0]["type"] == "SubnetToL1Conversion"
    assert [(call["validationId"]["cb58"], call["registered"]) for call in calls[1:]] == [
        (RECORDED["validationIDs"][0], False),
        (RECORDED["registeredValidationID"], True),
    ]


@pytest.mark.parametrize("nonce", [1, 2, 3])
def test_a_teleporter_id_is_what_the_contracts_compute(nonce: int) -> None:
    message_ids = ICM["messageIds"]
    destination = ChainID(parse_id(message_ids["destination"]))
    fields = MessageFields(
        nonce, SENDER, None, destination, SENDER, gas_limit=0, tail=b"", body=b""
    )
    message = TeleporterMessage(bytes.fromhex(message_ids["messenger"][2:]), fields)
    assert (
        id_text(message.message_id(ChainID(parse_id(message_ids["source"]))))
        == message_ids["byNonce"][str(nonce)]
    )


def test_a_message_of_teleporter_2_is_described_with_the_address_that_set_its_nonce() -> None:
    abi = "(uint256,address,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
    messenger = "0x" + 40 * "a"
    fields = (9, ZEROS, messenger, bytes(32), ZEROS, 70_000, [messenger], [(3, ZEROS)], b"hi")
    call = call_of(describe(from_l1(AddressedCall(SENDER, encode([abi], [fields])))))
    assert call["type"] == "TeleporterMessageV2"
    assert call["originTeleporterAddress"] == messenger
    assert call["allowedRelayerAddresses"] == [messenger]
    assert call["receipts"] == [{"receivedMessageNonce": "3", "relayerRewardAddress": ZEROS}]
    assert call["message"] == "0x6869"


def test_an_unknown_payload_is_described_as_hex() -> None:
    result = describe(from_l1(AddressedCall(SENDER, b"\x01\x02")))
    assert result["payload"]["call"] == {"type": "unknown", "bytes": "0x0102"}
    assert [item["part"] for item in result["unread"]] == ["payload.call"]


def test_a_truncated_message_is_described_as_far_as_it_can_be_read() -> None:
    result = describe(fuji.SIGNED_WEIGHT[:-1])
    assert result["payload"]["call"]["weight"] == "41"
    assert result["unread"][0]["part"] == "signature"
    assert "needs 96 bytes" in result["unread"][0]["reason"]
    payload = L1ValidatorWeight(VALIDATION, 1, 5).encode()[:-1]
    result = describe(from_p_chain(1, payload).raw)
    assert result["unread"] == [
        {"part": "payload.call", "offset": 46, "reason": "weight needs 8 bytes, 7 are left"},
    ]


def test_a_padded_signer_set_is_reported() -> None:
    signed = SignedMessage.parse(fuji.SIGNED_WEIGHT)
    result = describe(SignedMessage(signed.unsigned, b"\x00\x06", signed.signature).encode())
    assert result["unread"][0]["part"] == "signature"
    assert "zero byte" in result["unread"][0]["reason"]


def test_input_longer_than_any_message_is_not_searched() -> None:
    result = describe(bytes(MAX_MESSAGE_BYTES + 1))
    assert result["type"] == "no Warp message"
    assert len(result["bytes"]) < MAX_MESSAGE_BYTES


def test_an_expiry_beyond_the_last_date_has_no_time() -> None:
    start = fuji.UNSIGNED_REGISTER.index(bytes.fromhex("000000006931432e"))
    raw = fuji.UNSIGNED_REGISTER[:start] + b"\xff" * 8 + fuji.UNSIGNED_REGISTER[start + 8 :]
    call = call_of(describe(raw))
    assert (call["expiry"], call["expiryTime"]) == (str(2**64 - 1), None)


SEEDS = [
    fuji.SIGNED_WEIGHT,
    fuji.SIGNED_REGISTER,
    l1_txs.SIGNED_REGISTER,
    bytes.fromhex(ICM["fujiLogData"]),
]


@settings(max_examples=150)
@given(st.sampled_from(SEEDS), st.integers(0, 2_000), st.binary(max_size=40), st.integers(0, 40))
def test_describe_accepts_any_changed_bytes(
    seed: bytes, place: int, change: bytes, cut: int
) -> None:
    place %= len(seed)
    result = describe(seed[:place] + change + seed[place + cut :])
    json.dumps(result)
    assert result["type"] in ("unsigned message", "signed message", "no Warp message")


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_describe_accepts_any_payload(payload: bytes) -> None:
    json.dumps(describe(payload))
    json.dumps(describe(UnsignedMessage.build(1, L1_CHAIN, payload).raw))
    json.dumps(describe(from_l1(AddressedCall(SENDER, payload))))


@settings(max_examples=100)
@given(st.integers(0, 31), st.integers(0, 2**256 - 1))
def test_describe_accepts_any_word_in_a_teleporter_message(place: int, word: int) -> None:
    message = UnsignedMessage.parse(bytes.fromhex(ICM["fujiLogData"])[64 : 64 + 972])
    call = AddressedCall.parse(message.payload)
    place %= len(call.payload) // 32
    changed = (
        call.payload[: 32 * place] + word.to_bytes(32, "big") + call.payload[32 * (place + 1) :]
    )
    teleporter = parse_teleporter(call.source_address, changed)
    assert (
        teleporter is None
        or teleporter != parse_teleporter(call.source_address, call.payload)
        or changed == call.payload
    )


def test_a_description_loads_no_abi_library() -> None:
    program = (
        "import sys, warpseal.messages.describe as d;"
        "d.describe(bytes.fromhex(sys.argv[1])); print('eth_abi' in sys.modules)"
    )
    words = [sys.executable, "-c", program, ICM["fujiLogData"]]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
