"""The messages of histories: of contracts, of the P-Chain, and of managers to the P-Chain."""

from __future__ import annotations

import time
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from tests.delivery.histories.setup import HistorySetup
from warpseal.warp.ids import P_CHAIN, ChainID
from warpseal.warp.l1_messages import L1ValidatorWeight, PChainOwner, RegisterL1Validator
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.messages import teleporter_call
from warpseal_simnet.p_chain_verifier import refusal_of
from warpseal_simnet.state import StateAt
from warpseal_simnet.tx_executor import RejectedTransaction
from warpseal_simnet.values import SentMessage

_NO_OWNER = PChainOwner(0, ())


@dataclass(frozen=True)
class Subject:
    """A message and its destination.

    transaction: transaction of the P-Chain that the message attests.
    """

    unsigned: UnsignedMessage
    destination_id: ChainID
    justification: bytes = b""
    transaction: Transaction | None = None

    def is_for_manager(self, setup: HistorySetup) -> bool:
        """Return whether the destination is that of the transaction."""
        transaction = self.transaction
        if transaction is None or transaction.subnet_id is None:
            return False
        return setup.network.manager(transaction.subnet_id).chain_id == self.destination_id

    def can_be_signed(self, setup: HistorySetup) -> bool:
        """Return whether honest validators sign the message now."""
        if self.unsigned.source_chain_id != P_CHAIN:
            return self.unsigned.id in setup.network.state.message_ids
        state = setup.network.state
        return (
            refusal_of(StateAt(state, state.heights.current), self.unsigned, self.justification)
            is None
        )


def choose_subject(setup: HistorySetup, rng: Random, number: int) -> Subject:
    """Return a message that did not exist before."""
    kind = rng.choices(("call", "attestation", "request"), (6, 3, 3))[0]
    if kind == "attestation":
        return _attestation(setup, rng)
    if kind == "request":
        return _request(setup, rng)
    source_id, destination_id = rng.choice(setup.chains), rng.choice([*setup.chains, P_CHAIN])
    if rng.random() < 0.02:
        destination_id = next(
            chain.chain_id for chain in setup.network.state.chains.values() if chain.alias == "X"
        )
    sender = rng.randbytes(20)
    call = AddressedCall(sender, number.to_bytes(8, "big"))
    if rng.random() < 0.6:
        call = teleporter_call(number, destination_id, b"body")
    return Subject(_send(setup, source_id, call), destination_id)


def _attestation(setup: HistorySetup, rng: Random) -> Subject:
    """Change a validation, and return what the P-Chain says about it; its destination is the
    manager's chain.
    """
    subnet_id = rng.choice(setup.subnets)
    chain = setup.network.p_chain
    validations = setup.present(subnet_id)
    validating = {validation.node_id for validation in validations}
    free = [node.index for node in setup.network.validators if node.node_id not in validating]
    try:
        if len(validations) < 4 and free:
            transaction = chain.register(
                subnet_id, rng.choice(free), weight=rng.choice((1, 20, 60))
            )
        elif len(validations) > 5:
            transaction = chain.remove(rng.choice(validations).id)
        else:
            transaction = chain.set_weight(rng.choice(validations).id, rng.choice((1, 20, 60)))
    except RejectedTransaction:
        transaction = chain.conversion_of(subnet_id)
    attested = transaction.attested
    assert attested is not None
    destination_id = setup.network.manager(subnet_id).chain_id
    if rng.random() < 0.1:
        destination_id = rng.choice(setup.chains)
    return Subject(attested.unsigned, destination_id, attested.justification, transaction)


def _request(setup: HistorySetup, rng: Random) -> Subject:
    """Return what a manager asks the P-Chain for; it may be too late or too early for it."""
    subnet_id = rng.choice(setup.subnets)
    manager = setup.network.manager(subnet_id)
    node = rng.choice(setup.network.validators)
    if rng.random() < 0.5:
        until = int(time.time()) + rng.choice((-20, 8, 300, 3600, 86_000, 87_000))
        weight = rng.choice((1, 20, 60))
        payload = RegisterL1Validator(
            subnet_id, node.node_id, node.bls_key, until, _NO_OWNER, _NO_OWNER, weight
        ).encode()
    else:
        validation = rng.choice(setup.network.state.validations[subnet_id])
        nonce = max(0, validation.min_nonce + rng.choice((-1, 0, 0, 3)))
        payload = L1ValidatorWeight(validation.id, nonce, rng.choice((0, 5, 30, 70))).encode()
    address = rng.randbytes(20) if rng.random() < 0.1 else manager.address
    source_id = rng.choice(setup.chains) if rng.random() < 0.1 else manager.chain_id
    return Subject(_send(setup, source_id, AddressedCall(address, payload)), P_CHAIN)


def _send(setup: HistorySetup, source_id: ChainID, call: AddressedCall) -> UnsignedMessage:
    """Let a contract emit a message, which the validators of its chain sign from now on."""
    unsigned = UnsignedMessage.build(setup.network.network_id, source_id, call.encode())
    message = SentMessage(call.source_address, unsigned, sha256(b"sent" + unsigned.raw).digest())
    setup.network.state.send(source_id, message)
    return unsigned
