"""Validity of a message by the state of nodes and by later transactions: valid, superseded or
unknown.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from warpseal.chains.p_txs import parse_p_tx
from warpseal.l1.request import PresentStatement
from warpseal.l1.validity import Superseded, Unknown, Valid, check_validity, find_supersession
from warpseal.messages.attestation import Attestation, derive_attestation
from warpseal.node.p_chain import L1ValidatorState, ValidationAt
from warpseal.store.values import L1Transaction
from warpseal.warp.ids import SubnetID, ValidationID, id_text
from warpseal.warp.l1_messages import L1ValidatorRegistration, L1ValidatorWeight
from warpseal.warp.message import AddressedCall
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan

NETWORK_ID = 88_888


class ValidationHistory:
    """The transactions of a validation: registration, weight 2,000, weight 3,000, removal."""

    def __init__(self) -> None:
        network = SimulatedNetwork(
            Plan(validators=1, l1s=(L1Plan(validators=1, spare=1),), messages=0)
        )
        self.subnet_id = next(
            subnet.subnet_id for subnet in network.subnets if subnet.conversion_id is not None
        )
        p_chain = network.p_chain
        self.conversion = p_chain.conversion_of(self.subnet_id)
        self.registration = p_chain.register(self.subnet_id)
        assert self.registration.validation_id is not None
        self.validation_id: ValidationID = self.registration.validation_id
        self.first = p_chain.set_weight(self.validation_id, 2_000)
        self.second = p_chain.set_weight(self.validation_id, 3_000)
        self.removal = p_chain.remove(self.validation_id)

    def row(self, transaction: Transaction) -> L1Transaction:
        return L1Transaction(
            transaction.tx_id,
            transaction.height or 0,
            0,
            bytes(32),
            0,
            transaction.kind,
            transaction.raw,
            validation_id=self.validation_id,
        )


HISTORY = ValidationHistory()


def attestation_of(transaction: Transaction) -> Attestation:
    return derive_attestation(parse_p_tx(transaction.raw), NETWORK_ID)


def validation_at(height: int, **state: Any) -> ValidationAt:
    if not state:
        return ValidationAt(height, None)
    fields = {"weight": 1_000, "min_nonce": 0, "balance": 1, **state}
    return ValidationAt(height, L1ValidatorState(SubnetID(HISTORY.subnet_id), **fields))


def payload_of(superseded: Superseded) -> bytes:
    assert superseded.message is not None
    return AddressedCall.parse(superseded.message.payload).payload


def test_a_conversion_is_always_valid() -> None:
    assert check_validity(attestation_of(HISTORY.conversion), validation_at(5)) == Valid(None)


def test_a_registration_is_valid_while_the_validation_exists_even_if_inactive() -> None:
    assert check_validity(
        attestation_of(HISTORY.registration), validation_at(5, balance=0)
    ) == Valid(5)
    assert check_validity(
        attestation_of(HISTORY.registration), validation_at(5, min_nonce=7, weight=9)
    ) == Valid(5)
    gone = check_validity(attestation_of(HISTORY.registration), validation_at(6))
    assert isinstance(gone, Superseded)
    assert (gone.now, gone.refusal, gone.height) == (PresentStatement(registered=False), 11, 6)
    assert L1ValidatorRegistration.parse(payload_of(gone)) == L1ValidatorRegistration(
        HISTORY.validation_id, False
    )


def test_a_weight_is_valid_while_it_is_the_latest() -> None:
    assert check_validity(
        attestation_of(HISTORY.first), validation_at(5, min_nonce=1, weight=2_000)
    ) == Valid(5)
    newer = check_validity(
        attestation_of(HISTORY.first), validation_at(6, min_nonce=2, weight=3_000)
    )
    assert isinstance(newer, Superseded)
    assert (newer.now, newer.refusal) == (PresentStatement(nonce="1", weight="3000"), 16)
    assert L1ValidatorWeight.parse(payload_of(newer)) == L1ValidatorWeight(
        HISTORY.validation_id, 1, 3_000
    )
    gone = check_validity(attestation_of(HISTORY.first), validation_at(7))
    assert isinstance(gone, Superseded)
    assert gone.is_removal


@pytest.mark.parametrize(
    "state",
    [{"min_nonce": 0, "weight": 1_000}, {"min_nonce": 1, "weight": 1_999}],
)
def test_the_validity_is_unknown_if_the_node_lacks_the_change(state: dict[str, int]) -> None:
    assert isinstance(
        check_validity(attestation_of(HISTORY.first), validation_at(5, **state)), Unknown
    )


def test_a_removal_is_valid_after_the_validation_was_removed() -> None:
    assert check_validity(attestation_of(HISTORY.removal), validation_at(7)) == Valid(7)
    assert isinstance(
        check_validity(attestation_of(HISTORY.removal), validation_at(7, weight=1)), Unknown
    )


def test_a_later_accepted_transaction_supersedes_a_message() -> None:
    rows = [
        HISTORY.row(item)
        for item in (HISTORY.removal, HISTORY.second, HISTORY.first, HISTORY.registration)
    ]
    for superseded in (HISTORY.registration, HISTORY.first, HISTORY.second):
        proof = find_supersession(attestation_of(superseded), rows)
        assert proof is not None
        assert (proof.by, proof.now) == (HISTORY.removal.tx_id, PresentStatement(registered=False))
    assert find_supersession(attestation_of(HISTORY.removal), rows) is None
    proof = find_supersession(attestation_of(HISTORY.first), rows[1:])
    assert proof is not None
    assert (proof.by, proof.now) == (
        HISTORY.second.tx_id,
        PresentStatement(nonce="1", weight="3000"),
    )
    assert find_supersession(attestation_of(HISTORY.second), rows[1:]) is None
    assert find_supersession(attestation_of(HISTORY.registration), rows[1:]) is None
    assert find_supersession(attestation_of(HISTORY.first), []) is None


def test_superseded_as_json_names_the_newer_transaction_and_its_message() -> None:
    proof = find_supersession(attestation_of(HISTORY.first), [HISTORY.row(HISTORY.second)])
    assert proof is not None
    assert proof.message is not None
    assert to_builtins(proof.statement()) == {
        "now": {"nonce": "1", "weight": "3000"},
        "byTxHash": id_text(HISTORY.second.tx_id),
        "pChainHeight": str(HISTORY.second.height),
        "message": "0x" + proof.message.raw.hex(),
    }
