"""Messages of transactions: of the recorded network, as delivered there, and of avalanchego's
vectors.

| recorded transaction | message | on the L1's chain |
|---|---|---|
| ConvertSubnetToL1Tx | SubnetToL1Conversion | delivered in block 18: witnessed |
| SetL1ValidatorWeightTx to 0 | L1ValidatorRegistration(false) | delivered in block 42: witnessed |
| RegisterL1ValidatorTx | L1ValidatorRegistration(true) | delivered in block 54: witnessed |

A change to a weight above 0 was not recorded: its message is derived, not witnessed; its bytes are
those of the vectors of avalanchego's transactions.
"""

from __future__ import annotations

import json

import pytest

from tests import paths
from tests.chains.p_vectors import TRANSACTIONS, Vector, recorded, unchecked
from tests.warp import l1_txs
from warpseal.chains.p_txs import PSignedTx, parse_p_tx
from warpseal.messages.attestation import Attestation, build_message, derive_attestation
from warpseal.messages.errors import NoMessage
from warpseal.warp.ids import ChainID, ValidationID, id_text, parse_id
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    SubnetToL1Conversion,
)
from warpseal.warp.message import SignedMessage, UnsignedMessage

NETWORK_ID = 88_888
EXAMPLE_NETWORK_ID = 12_345
LOCALNET = paths.LOCALNET
L1_CHAIN = "vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj"
EXAMPLE_CHAIN = "rVPmsy4tQrQhQpRE6embdYnmYtwQi8kQAg1ZdaZGzeVdjc4qT"
WITNESSED = ("ConvertSubnetToL1Tx", "RegisterL1ValidatorTx", "SetL1ValidatorWeightTx")
REGISTERED = ValidationID(parse_id("S4V9xkctnx3zmGdB8tXy6scsgmxr51w8NTar9WdAw26PWwXiQ"))


def recorded_txs() -> list[PSignedTx]:
    return [parse_p_tx(unchecked(result["tx"])) for _, result in recorded("getTx", "hex")]


def delivered() -> list[tuple[int, UnsignedMessage]]:
    """Return (block, message) of each delivery to the validator manager, from the storage keys of
    its access list.
    """
    deliveries = []
    for load in json.loads((LOCALNET / "l1-delivered.json").read_text()):
        (entry,) = load["accessList"]
        padded = b"".join(bytes.fromhex(key[2:]) for key in entry["storageKeys"]).rstrip(b"\x00")
        assert padded.endswith(b"\xff")
        deliveries.append((load["block"], SignedMessage.parse(padded[:-1]).unsigned))
    return deliveries


def example_attestation(kind: str) -> Attestation:
    raw = next(
        vector.raw
        for vector in TRANSACTIONS
        if vector.fields["kind"] == kind and vector.fields["network_id"] == EXAMPLE_NETWORK_ID
    )
    return derive_attestation(parse_p_tx(raw), EXAMPLE_NETWORK_ID)


def test_derived_messages_equal_those_delivered_on_the_l1() -> None:
    attestations = {
        tx.kind: derive_attestation(tx, NETWORK_ID) for tx in recorded_txs() if tx.kind in WITNESSED
    }
    assert {attestations[kind].message.raw for kind in WITNESSED} == {
        message.raw for _, message in delivered()
    }
    assert [block for block, _ in delivered()] == [18, 42, 54]
    by_block = {block: message.raw for block, message in delivered()}
    assert by_block[18] == attestations["ConvertSubnetToL1Tx"].message.raw
    assert by_block[42] == attestations["SetL1ValidatorWeightTx"].message.raw
    assert by_block[54] == attestations["RegisterL1ValidatorTx"].message.raw


def test_the_manager_and_the_justification_follow_from_the_transaction() -> None:
    attestations = {
        tx.kind: derive_attestation(tx, NETWORK_ID) for tx in recorded_txs() if tx.kind in WITNESSED
    }
    assert {id_text(item.manager_chain_id) for item in attestations.values()} == {L1_CHAIN}
    assert {entry.manager_address.hex() for entry in attestations.values()} == {
        "4ac1d98d9cef99ec6546ded4bd550b0b287aad6d"
    }
    conversion, registration, removal = (attestations[kind] for kind in WITNESSED)
    assert (
        id_text(conversion.justification or b"")
        == "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"
    )
    assert (registration.justification, registration.needs_origin) == (b"", False)
    assert (removal.justification, removal.needs_origin) == (None, True)
    assert conversion.initial_validators == 4
    assert registration.registration is not None
    assert registration.registration.validation_id == registration.validation_id
    assert isinstance(removal.payload, L1ValidatorRegistration)
    assert not removal.payload.registered


def test_no_message_errors_name_the_type_of_the_recorded_transaction() -> None:
    refused = set()
    for tx in recorded_txs():
        if tx.kind not in WITNESSED:
            with pytest.raises(NoMessage) as error:
                derive_attestation(tx, NETWORK_ID)
            assert error.value.detail == {"transaction_type": tx.kind, "chain": "P-Chain"}
            refused.add(tx.kind)
    assert {
        "DisableL1ValidatorTx",
        "IncreaseL1ValidatorBalanceTx",
        "CreateChainTx",
        "ExportTx",
    } <= refused


def test_the_transactions_of_the_example_l1_give_its_known_messages() -> None:
    conversion = example_attestation("ConvertSubnetToL1Tx")
    assert conversion.payload == SubnetToL1Conversion(
        parse_id("2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz")
    )
    assert (
        conversion.message.id.hex()
        == "610ea576429060e17e4e8d1d365a50ce3bbbfca43ea794172d358307a44abeb5"
    )
    assert conversion.justification == l1_txs.SUBNET
    registration = example_attestation("RegisterL1ValidatorTx")
    assert registration.payload == L1ValidatorRegistration(REGISTERED, True)
    assert (
        registration.message.id.hex()
        == "669f7a8d4d82aa5b90f1715b879de82177eef8c4310c0d7184cf68ac8a2a017e"
    )
    change = example_attestation("SetL1ValidatorWeightTx")
    assert change.payload == L1ValidatorWeight(REGISTERED, 1, 5)
    assert (
        change.message.id.hex()
        == "636e468d42f5f74e4380023bc8d59abd9069d46f6252066fd53168600e9b01d8"
    )
    assert {item.manager_chain_id for item in (conversion, registration, change)} == {
        ChainID(parse_id(EXAMPLE_CHAIN))
    }
    removal = build_message(
        EXAMPLE_NETWORK_ID, L1ValidatorRegistration(REGISTERED, False)
    ).raw.hex()
    assert removal.endswith("0027000000000002" + REGISTERED.hex() + "00")


@pytest.mark.parametrize("vector", TRANSACTIONS, ids=repr)
def test_every_type_has_a_message_or_a_no_message_error(vector: Vector) -> None:
    tx = parse_p_tx(vector.raw)
    if vector.fields["kind"] in WITNESSED:
        attestation = derive_attestation(tx, NETWORK_ID)
        assert UnsignedMessage.parse(attestation.message.raw) == attestation.message
        return
    with pytest.raises(NoMessage) as error:
        derive_attestation(tx, NETWORK_ID)
    assert error.value.kind == vector.fields["kind"]
