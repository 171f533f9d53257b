"""Refusals to sign for an L1: each P-Chain code is decoded and has the right verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.eventually import until
from tests.integration.daemon import AGGREGATE_V1_PATH, ASKED_ONCE, Reply
from tests.integration.l1_daemon import (
    L1_PLAN,
    L1Daemon,
    run_l1_network,
    until_status,
    validation_id_of,
)
from warpseal.aggregation.refusals import P_CHAIN_REFUSALS
from warpseal.warp.ids import P_CHAIN, NodeID, SubnetID, ValidationID, id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification as Proof
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    SubnetToL1Conversion,
    bootstrap_validation_id,
)
from warpseal.warp.message import AddressedCall, Hash, UnsignedMessage
from warpseal_simnet.ledger import Transaction

UNKNOWN_VALIDATION = ValidationID(b"\x09" * 32)
MAY_CHANGE = {6, 11, 12, 14, 16, 17}
# A permanent refusal ends a request at once, another one ends it at its timeout.
PERMANENT_TIMEOUT_S, TIMEOUT_S = 50.0, 1.0


def p_chain_payload(payload: bytes) -> bytes:
    return AddressedCall(b"", payload).encode()


def refused_requests(
    running: L1Daemon, registration: Transaction
) -> Mapping[int, tuple[bytes, bytes]]:
    """Return, by refusal code, a payload and a justification that the P-Chain refuses with this
    code.
    """
    l1, seat = running.l1, bootstrap_validation_id(running.l1, 0)
    gone = L1ValidatorRegistration(UNKNOWN_VALIDATION, False).encode()
    weighed = validation_id_of(registration)
    never = RegisterL1Validator(
        l1,
        NodeID(b"\x01" * 20),
        b"\x02" * 48,
        int(time.time()) + 3600,
        PChainOwner(0, ()),
        PChainOwner(0, ()),
        1,
    )
    removed = L1ValidatorRegistration(never.validation_id, False).encode()
    return {
        1: (Hash(b"\x07" * 32).encode(), b""),
        2: (AddressedCall(b"\x01" * 20, gone).encode(), b""),
        3: (p_chain_payload(b"\x00\x00\x00\x00\x00\x02"), b""),
        4: (p_chain_payload(never.encode()), b""),
        5: (p_chain_payload(SubnetToL1Conversion(b"\x01" * 32).encode()), b"\x01" * 31),
        6: (p_chain_payload(SubnetToL1Conversion(b"\x01" * 32).encode()), b"\x01" * 32),
        7: (p_chain_payload(SubnetToL1Conversion(b"\x01" * 32).encode()), l1),
        8: (p_chain_payload(gone), b""),
        9: (p_chain_payload(gone), b"\x0a\x21\x0a\x1f" + b"\x01" * 31),
        10: (p_chain_payload(gone), Proof.bootstrap(SubnetID(l1), 1).raw),
        11: (p_chain_payload(L1ValidatorRegistration(UNKNOWN_VALIDATION, True).encode()), b""),
        12: (
            p_chain_payload(L1ValidatorRegistration(seat, False).encode()),
            Proof.bootstrap(l1, 0).raw,
        ),
        13: (p_chain_payload(gone), b"\x12\x04junk"),
        14: (p_chain_payload(removed), Proof.registered(never).raw),
        15: (p_chain_payload(L1ValidatorWeight(weighed, 2**64 - 1, 0).encode()), b""),
        16: (p_chain_payload(L1ValidatorWeight(weighed, 7, 1_000).encode()), b""),
        17: (p_chain_payload(L1ValidatorWeight(weighed, 0, 999).encode()), b""),
    }


async def test_every_p_chain_refusal_code_is_reported_with_its_reason_and_advice(
    tmp_path: Path,
) -> None:
    async with run_l1_network(tmp_path) as running:
        registration = running.network.p_chain.register(running.l1)
        running.network.p_chain.set_weight(validation_id_of(registration), 1_000)
        questions = refused_requests(running, registration)
        assert set(questions) == set(P_CHAIN_REFUSALS)

        async def ask(code: int) -> Reply:
            payload, justification = questions[code]
            message = UnsignedMessage.build(running.network.network_id, P_CHAIN, payload)
            body: dict[str, Any] = {
                "message": message.raw.hex(),
                "justification": justification.hex(),
                "signingSubnetId": id_text(running.l1),
                "timeoutSeconds": TIMEOUT_S if code in MAY_CHANGE else PERMANENT_TIMEOUT_S,
            }
            return await running.daemon.post(AGGREGATE_V1_PATH, body)

        replies: dict[int, Reply] = {}

        async def is_refused(code: int) -> bool:
            # Within the short timeout, a busy machine may get no refusal.
            replies[code] = await ask(code)
            return any(
                validator.get("errorCode") == code
                for validator in replies[code].detail["validators"]
            )

        await asyncio.gather(*(until(partial(is_refused, code)) for code in questions))
        for code, reply in replies.items():
            result = P_CHAIN_REFUSALS[code]
            waits = code in MAY_CHANGE
            assert (reply.status, reply.detail["verdict"]) == (
                (503, "wait") if waits else (400, "never")
            ), (
                code,
                reply,
            )
            assert ("Retry-After" in reply.headers) == waits
            seen = {
                (validator["reason"], validator.get("errorCode"))
                for validator in reply.detail["validators"]
            }
            assert (result.reason, code) in seen, (code, seen)
            assert result.advice in reply.detail["hints"], code


async def test_a_missed_quorum_is_reported_with_its_weights_until_validators_return(
    tmp_path: Path,
) -> None:
    async with run_l1_network(tmp_path, aggregation=ASKED_ONCE) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        seats = running.nodes_of_l1()[:4]
        running.network.set_behaviour(seats[:2], "silent")
        refused = await running.expect_shortfall(
            conversion, lambda detail: detail["signedWeight"] == "2000"
        )
        assert int(refused.headers["Retry-After"]) >= 1
        assert "threshold of stake" in refused.body["message"]
        assert refused.detail["totalWeight"] == "4000"
        assert refused.detail["requiredWeight"] == "2680"
        assert refused.detail["verdict"] == "wait"
        running.network.set_behaviour(seats[1:2], "")
        before = running.count_signature_requests()
        await running.deliver(conversion)
        # Validators that signed before get no second request.
        assert running.count_signature_requests() - before <= 2


async def test_callers_are_asked_to_retry_while_validators_do_not_know_the_transaction(
    tmp_path: Path,
) -> None:
    async with run_l1_network(tmp_path, L1_PLAN) as running:
        p_chain, seats = running.network.p_chain, running.nodes_of_l1()[:4]
        initial = bootstrap_validation_id(running.l1, 3)
        transactions = {11: p_chain.register(running.l1), 16: p_chain.set_weight(initial, 1_500)}
        transactions[12] = p_chain.remove(bootstrap_validation_id(running.l1, 2))
        running.network.set_behaviour(seats, "lag=4")

        def refused_with(detail: Mapping[str, Any]) -> set[tuple[int, str]]:
            validators = [
                validator for validator in detail["validators"] if "errorCode" in validator
            ]
            return {(validator["errorCode"], validator["reason"]) for validator in validators}

        refusals = await asyncio.gather(
            *(
                running.expect_shortfall(transaction, lambda detail: bool(refused_with(detail)))
                for transaction in transactions.values()
            )
        )
        for code, refused in zip(transactions, refusals, strict=True):
            assert refused_with(refused.detail) == {(code, P_CHAIN_REFUSALS[code].reason)}
            assert refused.headers["Retry-After"]
        running.network.set_behaviour(seats, "")
        for transaction in transactions.values():
            running.verify(await until_status(running, 201, transaction), transaction)
