"""L1 messages and derived ids: documented vectors of one L1, Fuji fixtures, round trips."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warp import l1_txs
from tests.warp.fuji import SIGNED_REGISTER, SIGNED_WEIGHT, UNSIGNED_REGISTER
from warpseal import bls
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import (
    ChainID,
    SubnetID,
    ValidationID,
    id_text,
    node_id_text,
    parse_id,
    parse_node_id,
)
from warpseal.warp.ids import NodeID as Node
from warpseal.warp.l1_messages import (
    ConversionData,
    ConversionValidator,
    L1ValidatorRegistration,
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    SubnetToL1Conversion,
    ValidatorUptime,
    bootstrap_validation_id,
    build_p_chain_message,
    parse_uptime_message,
)
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage

KEY_1 = bytes.fromhex(
    "900c9b119b5c82d781d4b49be78c3fc7ae65f2b435b7ed9e3a8b9a03e475edff86d8a64827fec8db23a6f236afbf127d"
)
ID = ValidationID(bytes(range(32)))
P_CHAIN_HEAD = "000000003039" + "00" * 32


class Message(Protocol):
    def encode(self) -> bytes: ...


validation_ids = st.binary(min_size=32, max_size=32).map(ValidationID)
words = st.integers(0, 2**64 - 1)
owners = st.builds(
    PChainOwner,
    st.integers(0, 2**32 - 1),
    st.lists(st.binary(min_size=20, max_size=20), max_size=3).map(tuple),
)
registers = st.builds(
    RegisterL1Validator,
    subnet_id=st.binary(min_size=32, max_size=32).map(SubnetID),
    node_id=st.binary(max_size=24),
    public_key=st.binary(min_size=48, max_size=48),
    expiry=words,
    remaining_balance_owner=owners,
    disable_owner=owners,
    weight=words,
)
KINDS: tuple[tuple[st.SearchStrategy[Message], Callable[[bytes], Message]], ...] = (
    (
        st.builds(SubnetToL1Conversion, st.binary(min_size=32, max_size=32)),
        SubnetToL1Conversion.parse,
    ),
    (registers, RegisterL1Validator.parse),
    (
        st.builds(L1ValidatorRegistration, validation_ids, st.booleans()),
        L1ValidatorRegistration.parse,
    ),
    (st.builds(L1ValidatorWeight, validation_ids, words, words), L1ValidatorWeight.parse),
    (st.builds(ValidatorUptime, validation_ids, words), ValidatorUptime.parse),
)


def test_a_weight_message_has_the_documented_bytes() -> None:
    raw = bytes.fromhex("000000000003") + ID + bytes.fromhex("00000000000000010000000000000064")
    assert L1ValidatorWeight(ID, 1, 100).encode() == raw
    assert L1ValidatorWeight.parse(raw) == L1ValidatorWeight(ID, 1, 100)


def test_an_uptime_message_has_the_documented_bytes() -> None:
    raw = bytes.fromhex("000000000000") + ID + bytes.fromhex("0000000000000050")
    assert ValidatorUptime(ID, 80).encode() == raw
    assert ValidatorUptime.parse(raw) == ValidatorUptime(ID, 80)


def test_a_registration_in_a_p_chain_message_has_the_documented_bytes() -> None:
    message = build_p_chain_message(12345, L1ValidatorRegistration(ID, True).encode())
    middle = "00000035000000000001000000000000002700000000000200010203"
    assert (
        message.raw.hex()
        == P_CHAIN_HEAD + middle + "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f01"
    )
    assert len(message.raw) == 95


def test_a_registered_flag_is_zero_or_one() -> None:
    raw = L1ValidatorRegistration(ID, True).encode()[:-1] + b"\x02"
    with pytest.raises(MalformedMessage, match="registered is 2") as error:
        L1ValidatorRegistration.parse(raw)
    assert error.value.offset == len(raw) - 1


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (0, "2AutJAAwyD6Xs9eXhGQRmatvSkzaSRG5G4uk23vMVQ8M7rmmq7"),
        (1, "Nm8aMLJYHTxriMTDjcoyYmzBnfZgcjSABRmLNW7hVEFAcEVjF"),
        (5, "iko6bbk8Qk7SiPFuzC87dqCVb7W5eiUP7r9aS7UaUPqGXRBT9"),
    ],
)
def test_initial_validators_have_the_documented_validation_ids(index: int, text: str) -> None:
    subnet_id = SubnetID(parse_id("2DN6PTi2uXNCzzNz1p2ckGcW2eqTfpt2kv2a1h7EV36hYV3XRJ"))
    assert id_text(bootstrap_validation_id(subnet_id, index)) == text


def test_validator_three_of_a_subnet_has_the_documented_validation_id() -> None:
    expected = "ae9418a121508ce13a4b35cbb8b3f4e9fe283c2cd5ef5aa2beb862c97f821f22"
    assert bootstrap_validation_id(SubnetID(b"\x01" * 32), 3).hex() == expected


def test_a_conversion_has_the_documented_id() -> None:
    validator = ConversionValidator(b"\x04" * 20, KEY_1, 100)
    data = ConversionData(SubnetID(b"\x01" * 32), ChainID(b"\x02" * 32), b"\x03" * 20, (validator,))
    assert len(data.encode()) == 174
    assert (
        data.conversion_id.hex()
        == "2516040b57772ef0a8ad02ba53d54e2ff8450b73e0d46c49c532eb003aae3502"
    )


def test_a_registration_has_the_documented_validation_id() -> None:
    message = RegisterL1Validator(
        subnet_id=SubnetID(b"\x01" * 32),
        node_id=b"\x04" * 20,
        public_key=KEY_1,
        expiry=1_800_000_000,
        remaining_balance_owner=PChainOwner(1, (b"\x05" * 20,)),
        disable_owner=PChainOwner(1, (b"\x06" * 20,)),
        weight=100,
    )
    assert len(message.encode()) == 182
    assert (
        message.validation_id.hex()
        == "919cf76155c63c4d8257bb8482ac2c7e03a808db5360ab8a9ae592f23d4da4bc"
    )


def story_conversion() -> ConversionData:
    node = parse_node_id("NodeID-K1LV379WF46iHh4RCSKou2Up5bUBRWCVV")
    manager = ChainID(parse_id("rVPmsy4tQrQhQpRE6embdYnmYtwQi8kQAg1ZdaZGzeVdjc4qT"))
    return ConversionData(
        l1_txs.SUBNET, manager, b"", (ConversionValidator(node, l1_txs.CONVERSION_KEY, 49463),)
    )


def test_the_recorded_conversion_parses() -> None:
    data = story_conversion()
    assert data.encode().hex() == (
        "0000a0673b4ee5ec44e57c8ab250dd7cd7b68d04421f64bd6559a4284a3ee358ff2b705f3d4415f990225d3df5ce437d7af2"
        "aa324b1bbce854ee34ab6f39882250d2000000000000000100000014c582872c37c81efa2c94ea347af49cdc23a830aaa378"
        "3a891cb41cadbfcf456da149f30e7af972677a162b984bef0779f254baac51ec042df1781d1295df80fb41c8012600000000"
        "0000c137"
    )
    assert id_text(data.conversion_id) == "2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz"
    first = bootstrap_validation_id(l1_txs.SUBNET, 0)
    assert id_text(first) == "9FAftNgNBrzHUMMApsSyV6RcFiL9UmCbvsCu28xdLV2mQ7CMo"
    message = build_p_chain_message(12345, SubnetToL1Conversion(data.conversion_id).encode())
    assert message.raw.hex() == (
        P_CHAIN_HEAD + "000000340000000000010000000000000026000000000000"
        "f4db5ea47d9ca87ff30a5a8eac7ed0bfaf1258018e32b75b50c0691028625bab"
    )
    assert message.id.hex() == "610ea576429060e17e4e8d1d365a50ce3bbbfca43ea794172d358307a44abeb5"


def test_the_recorded_registration_parses() -> None:
    register = RegisterL1Validator.parse(l1_txs.REGISTER_PAYLOAD)
    assert register.subnet_id == l1_txs.SUBNET
    assert node_id_text(Node(register.node_id)) == "NodeID-9fF2qf4sV13WKzdr7rgUeY3PFXVEVia9s"
    assert register.expiry == 1_728_425_768
    assert register.weight == 1
    assert register.remaining_balance_owner == register.disable_owner == PChainOwner(0, ())
    assert register.encode() == l1_txs.REGISTER_PAYLOAD
    assert id_text(register.validation_id) == "S4V9xkctnx3zmGdB8tXy6scsgmxr51w8NTar9WdAw26PWwXiQ"
    message = build_p_chain_message(
        12345, L1ValidatorRegistration(register.validation_id, True).encode()
    )
    assert message.raw.hex() == (
        P_CHAIN_HEAD + "000000350000000000010000000000000027000000000002"
        "38e6e9fe31c6d070a8c792dbacf6d0aefb8eac2aded49cc0aa9f422d1fdd9ecd01"
    )
    assert message.id.hex() == "669f7a8d4d82aa5b90f1715b879de82177eef8c4310c0d7184cf68ac8a2a017e"


def test_the_recorded_weight_change_and_removal_parse() -> None:
    validation_id = RegisterL1Validator.parse(l1_txs.REGISTER_PAYLOAD).validation_id
    weight = build_p_chain_message(12345, L1ValidatorWeight(validation_id, 1, 5).encode())
    assert weight.raw.hex() == (
        P_CHAIN_HEAD + "000000440000000000010000000000000036000000000003"
        "38e6e9fe31c6d070a8c792dbacf6d0aefb8eac2aded49cc0aa9f422d1fdd9ecd00000000000000010000000000000005"
    )
    assert weight.id.hex() == "636e468d42f5f74e4380023bc8d59abd9069d46f6252066fd53168600e9b01d8"
    removal = build_p_chain_message(12345, L1ValidatorRegistration(validation_id, False).encode())
    assert removal.raw.hex() == (
        P_CHAIN_HEAD + "000000350000000000010000000000000027000000000002"
        "38e6e9fe31c6d070a8c792dbacf6d0aefb8eac2aded49cc0aa9f422d1fdd9ecd00"
    )


def test_the_recorded_messages_were_signed_by_the_validator_of_the_conversion() -> None:
    key = bls.parse_public_key(l1_txs.CONVERSION_KEY)
    register = SignedMessage.parse(l1_txs.SIGNED_REGISTER)
    weight = SignedMessage.parse(l1_txs.SIGNED_WEIGHT)
    assert (
        register.unsigned.id.hex()
        == "56bb90ae3574dbca86d4d58d094f829262b2da51945a1fb363b6cf19d7c89054"
    )
    assert (
        weight.unsigned.id.hex()
        == "2f8dcb9234fabd6ae8762d018a030102c9ef82689f43ff33ebbfac88bada6b01"
    )
    assert AddressedCall.parse(register.unsigned.payload).payload == l1_txs.REGISTER_PAYLOAD
    change = L1ValidatorWeight.parse(AddressedCall.parse(weight.unsigned.payload).payload)
    registered = RegisterL1Validator.parse(l1_txs.REGISTER_PAYLOAD)
    assert change == L1ValidatorWeight(registered.validation_id, 1, 5)
    for message in (register, weight):
        assert message.signer_indices == (0,)
        assert bls.verify_aggregate([key], message.unsigned.raw, message.signature)
    assert not bls.verify_aggregate([key], register.unsigned.raw, weight.signature)


def test_a_weight_change_of_fuji_parses() -> None:
    call = AddressedCall.parse(SignedMessage.parse(SIGNED_WEIGHT).unsigned.payload)
    assert call.source_address.hex() == "0feedc0de0000000000000000000000000000000"
    weight = L1ValidatorWeight.parse(call.payload)
    assert (
        weight.validation_id.hex()
        == "8ccf9ef520784d2fa5d97fbf098b8b4e82ff19408ec423c2970a522ab04b3a04"
    )
    assert (weight.nonce, weight.weight) == (4, 41)


def test_a_signed_registration_of_fuji_parses() -> None:
    call = AddressedCall.parse(SignedMessage.parse(SIGNED_REGISTER).unsigned.payload)
    assert call.source_address.hex() == "33b9785e20ec582d5009965fb3346f1716e8a423"
    register = RegisterL1Validator.parse(call.payload)
    assert (
        register.subnet_id.hex()
        == "5e8b6e2e8155e93739f2fa6a7f8a32c6bb2e1dce2e471b56dcc60aac49bf3435"
    )
    assert register.node_id.hex() == "47b37278e32917ffc6d2861b50dd9751b4016dd1"
    assert register.public_key.hex()[:16] == "b0d305fd70c376b0"
    assert (register.expiry, register.weight) == (1_741_794_353, 20_000)
    assert (
        register.validation_id.hex()
        == "7e63e180982c2dd2bc250a6ed2fe8fc4c82fd9cc540fcc6bb3ad9f46fc6ab029"
    )


def test_an_unsigned_registration_of_fuji_parses() -> None:
    message = UnsignedMessage.parse(UNSIGNED_REGISTER)
    assert message.id.hex() == "9e883c90bee7398d20cf3dd1e96b53a1b8b929833888532e2a2e37f2f6067c39"
    assert id_text(message.source_chain_id) == "28zXo5erueBemgxPjLom6Vhsm6oVyftLtfQSt61fd62SghoXrz"
    payload = AddressedCall.parse(message.payload).payload
    register = RegisterL1Validator.parse(payload)
    assert len(payload) == 182
    assert id_text(register.subnet_id) == "2DN6PTi2uXNCzzNz1p2ckGcW2eqTfpt2kv2a1h7EV36hYV3XRJ"
    assert node_id_text(Node(register.node_id)) == "NodeID-CMpZrrUoevB2qPYD3w1TncAzdqQ8qdk4x"
    assert (register.expiry, register.weight) == (1_764_836_142, 10)
    assert id_text(register.validation_id) == "TEwxg8JzAUsqFibtYkaiiYH9G1h5ZfX56zYURXpyaPRCSppC4"


def test_a_conversion_of_fuji_keeps_the_order_of_its_transaction() -> None:
    validators = (
        ConversionValidator(
            bytes.fromhex("9e99c96338c2ae4131ba1d4fb1a9dd146e06d16c"),
            bytes.fromhex(
                "a2ea5071b185225223ceb743fe265b47905fff03c64d6517733b9f79bde4937bfab0a7b903e697e2b4b5b90a7aa74427"
            ),
            100,
        ),
        ConversionValidator(
            bytes.fromhex("3495ce47a5968640acd0cbf613c050fd0a5b30ce"),
            bytes.fromhex(
                "a09e63e32ce3b24205455bc470b54d6260bc826821857458b67adcab63ea842b392407b9dff0564ce520f6337ac2b5ca"
            ),
            100,
        ),
    )
    data = ConversionData(
        SubnetID(bytes.fromhex("32858f45b192eeb190e643f6915d45f832def5d2021b77b151867ec29843af18")),
        ChainID(bytes.fromhex("359f4649f7d828a1ea590ae669509ac86fa9fc0cd7cd83f048323a73a1d315ad")),
        bytes.fromhex("c0dd1cdd60bd82a4c48fa06ddbd927da5443c58a"),
        validators,
    )
    assert (
        data.conversion_id.hex()
        == "ae4984e3c1f0b73c2e160b899295e4a2d44b2229f23bdb7b8eccbbbcb0ba7d93"
    )
    message = build_p_chain_message(5, SubnetToL1Conversion(data.conversion_id).encode())
    assert message.raw.hex() == (
        "000000000005" + "00" * 32 + "000000340000000000010000000000000026000000000000"
        "ae4984e3c1f0b73c2e160b899295e4a2d44b2229f23bdb7b8eccbbbcb0ba7d93"
    )


def test_an_uptime_message_is_recognised_by_chain_sender_and_payload() -> None:
    uptime = ValidatorUptime(ID, 80)
    chain = ChainID(b"\x01" * 32)
    message = UnsignedMessage.build(5, chain, AddressedCall(b"", uptime.encode()).encode())
    assert parse_uptime_message(message) == uptime
    unsigned = UnsignedMessage.build(
        5, chain, AddressedCall(b"\x01" * 20, uptime.encode()).encode()
    )
    assert parse_uptime_message(unsigned) is None
    assert parse_uptime_message(UnsignedMessage.build(5, chain, b"foobar")) is None
    assert parse_uptime_message(build_p_chain_message(5, uptime.encode())) is None


def test_a_huge_address_count_is_refused_before_memory_is_allocated() -> None:
    raw = bytearray(l1_txs.REGISTER_PAYLOAD)
    raw[122:126] = b"\xff\xff\xff\xff"
    with pytest.raises(
        MalformedMessage, match="addresses of remaining balance owner needs 85899345900 bytes"
    ):
        RegisterL1Validator.parse(bytes(raw))


@given(registers)
def test_a_validation_id_is_the_hash_of_the_whole_payload(message: RegisterL1Validator) -> None:
    assert message.validation_id == sha256(message.encode()).digest()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_messages_round_trip_and_every_other_length_is_malformed(
    kind: tuple[st.SearchStrategy[Message], Callable[[bytes], Message]], data: st.DataObject
) -> None:
    message = data.draw(kind[0])
    raw = message.encode()
    assert kind[1](raw) == message
    for wrong in (
        raw[: data.draw(st.integers(0, len(raw) - 1))],
        raw + data.draw(st.binary(min_size=1, max_size=9)),
    ):
        with pytest.raises(MalformedMessage):
            kind[1](wrong)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_are_a_message_that_encodes_to_them_or_malformed(
    tail: bytes, type_id: int
) -> None:
    for raw in (tail, bytes(2) + type_id.to_bytes(4, "big") + tail):
        for _, parse in KINDS:
            try:
                assert parse(raw).encode() == raw
            except MalformedMessage:
                continue
