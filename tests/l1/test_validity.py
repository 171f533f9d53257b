"""What nodes and accepted transactions say of a message: true, superseded, or nothing that proves anything."""

from __future__ import annotations

from typing import Any

import pytest

from warpseal.chains.p_txs import parse_p_tx
from warpseal.l1.attestation import Attestation, derive_attestation
from warpseal.l1.validity import Superseded, Unknown, Valid, check_validity, find_supersession
from warpseal.node.p_chain import L1ValidatorState, ValidationAt
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.store.values import L1Transaction
from warpseal.warp.ids import SubnetID, ValidationID, id_text
from warpseal.warp.l1_messages import L1ValidatorRegistration, L1ValidatorWeight
from warpseal.warp.message import AddressedCall

NETWORK_ID = 88_888


class Life:
    """The life of one validation, as real transactions: registered, 2,000, 3,000, removed."""

    def __init__(self) -> None:
        network = SimulatedNetwork(Plan(validators=1, l1s=(L1Plan(validators=1, spare=1),), messages=0))
        self.subnet_id = next(subnet.subnet_id for subnet in network.subnets if subnet.conversion_id is not None)
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


LIFE = Life()


def of(transaction: Transaction) -> Attestation:
    return derive_attestation(parse_p_tx(transaction.raw), NETWORK_ID)


def at(height: int, **state: Any) -> ValidationAt:
    if not state:
        return ValidationAt(height, None)
    known = {"weight": 1_000, "min_nonce": 0, "balance": 1, **state}
    return ValidationAt(height, L1ValidatorState(SubnetID(LIFE.subnet_id), **known))


def payload_of(superseded: Superseded) -> bytes:
    assert superseded.message is not None
    return AddressedCall.parse(superseded.message.payload).payload


def test_a_conversion_is_true_for_ever() -> None:
    assert check_validity(of(LIFE.conversion), at(5)) == Valid(None)


def test_a_registration_is_true_while_the_validation_exists_even_inactive() -> None:
    assert check_validity(of(LIFE.registration), at(5, balance=0)) == Valid(5)
    assert check_validity(of(LIFE.registration), at(5, min_nonce=7, weight=9)) == Valid(5)
    gone = check_validity(of(LIFE.registration), at(6))
    assert isinstance(gone, Superseded)
    assert (gone.now, gone.refusal, gone.height) == ({"registered": False}, 11, 6)
    assert L1ValidatorRegistration.parse(payload_of(gone)) == L1ValidatorRegistration(LIFE.validation_id, False)


def test_a_weight_is_true_while_it_is_the_latest() -> None:
    assert check_validity(of(LIFE.first), at(5, min_nonce=1, weight=2_000)) == Valid(5)
    newer = check_validity(of(LIFE.first), at(6, min_nonce=2, weight=3_000))
    assert isinstance(newer, Superseded)
    assert (newer.now, newer.refusal) == ({"nonce": "1", "weight": "3000"}, 16)
    assert L1ValidatorWeight.parse(payload_of(newer)) == L1ValidatorWeight(LIFE.validation_id, 1, 3_000)
    gone = check_validity(of(LIFE.first), at(7))
    assert isinstance(gone, Superseded)
    assert gone.is_removal


@pytest.mark.parametrize(
    "state",
    [{"min_nonce": 0, "weight": 1_000}, {"min_nonce": 1, "weight": 1_999}],
)
def test_a_node_that_should_know_of_the_change_and_does_not_proves_nothing(state: dict[str, int]) -> None:
    assert isinstance(check_validity(of(LIFE.first), at(5, **state)), Unknown)


def test_a_removal_is_true_once_the_validation_is_gone() -> None:
    assert check_validity(of(LIFE.removal), at(7)) == Valid(7)
    assert isinstance(check_validity(of(LIFE.removal), at(7, weight=1)), Unknown)


def test_accepted_transactions_prove_what_came_later() -> None:
    rows = [LIFE.row(item) for item in (LIFE.removal, LIFE.second, LIFE.first, LIFE.registration)]
    for superseded in (LIFE.registration, LIFE.first, LIFE.second):
        proof = find_supersession(of(superseded), rows)
        assert proof is not None
        assert (proof.by, proof.now) == (LIFE.removal.tx_id, {"registered": False})
    assert find_supersession(of(LIFE.removal), rows) is None
    proof = find_supersession(of(LIFE.first), rows[1:])
    assert proof is not None
    assert (proof.by, proof.now) == (LIFE.second.tx_id, {"nonce": "1", "weight": "3000"})
    assert find_supersession(of(LIFE.second), rows[1:]) is None
    assert find_supersession(of(LIFE.registration), rows[1:]) is None
    assert find_supersession(of(LIFE.first), []) is None


def test_what_a_caller_is_told_names_the_newer_transaction_and_its_message() -> None:
    proof = find_supersession(of(LIFE.first), [LIFE.row(LIFE.second)])
    assert proof is not None
    assert proof.message is not None
    assert proof.as_json() == {
        "now": {"nonce": "1", "weight": "3000"},
        "byTxHash": id_text(LIFE.second.tx_id),
        "pChainHeight": str(LIFE.second.height),
        "message": "0x" + proof.message.raw.hex(),
    }
