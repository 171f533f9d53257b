"""What a destination would say to a message with a valid signature, by the replies of its nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from aiohttp import web
from eth_abi.abi import encode
from msgspec.structs import replace

from tests import paths
from tests.cli.test_message import TRANSACTIONS
from tests.delivery.preflights import eth_calls
from tests.delivery.recorded_chains import RECORDED_AT, ChainNode
from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NETWORK_ID,
    PERMISSIONED_CHAIN,
    RecordedNode,
    RefusedCall,
    open_upstream,
    recorded_result,
)
from warpseal.chains.p_txs import parse_p_tx
from warpseal.delivery import statement
from warpseal.delivery.statement import (
    GET_VALIDATOR,
    MESSAGE_RECEIVED,
    PreflightStatement,
    StatementChecker,
)
from warpseal.store.values import BootstrapOrigin, L1Transaction, Origin, RegistrationOrigin
from warpseal.validators.chains import ChainLookup
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, ValidationID, id_text, parse_id
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    RegisterL1Validator,
    SubnetToL1Conversion,
    bootstrap_validation_id,
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, Hash, UnsignedMessage

VALIDATOR: Final = "platform.getL1Validator"
MANAGER: Final = bytes.fromhex("4ac1d98d9cef99ec6546ded4bd550b0b287aad6d")


def recorded_message(kind: str) -> UnsignedMessage:
    """Return the message of a recorded transaction, which the L1's manager sent to the P-Chain."""
    unsigned_tx: Any = parse_p_tx(bytes.fromhex(TRANSACTIONS[kind]["tx"][2:-8])).unsigned
    message: UnsignedMessage = unsigned_tx.signed_message().unsigned
    return message


REGISTRATION: Final = recorded_message("RegisterL1ValidatorTx")
REMOVAL: Final = recorded_message("SetL1ValidatorWeightTx")
REGISTERED: Final = RegisterL1Validator.parse(AddressedCall.parse(REGISTRATION.payload).payload)
BEFORE_EXPIRY: Final = REGISTERED.expiry - 3_600
NOON: Final = 1_795_176_000
L1_RECORD: Final = recorded_result("platform.getSubnet", subnetID=id_text(L1))


def from_manager(
    payload: RegisterL1Validator | L1ValidatorWeight,
    chain_id: ChainID = L1_CHAIN,
    sender: bytes = MANAGER,
) -> UnsignedMessage:
    return UnsignedMessage.build(
        NETWORK_ID, chain_id, AddressedCall(sender, payload.encode()).encode()
    )


def validator(validation_id: str, weight: int, min_nonce: int) -> dict[str, Any]:
    """Return a reply to getL1Validator."""
    numbers = {"weight": str(weight), "minNonce": str(min_nonce), "balance": "1", "height": "19"}
    return {"subnetID": id_text(L1), "validationID": validation_id, **numbers}


def missing(_: Any) -> Any:
    raise RefusedCall("fetching L1 validator failed: not found")


@dataclass
class Records:
    """A store with what a follower found."""

    transactions: tuple[L1Transaction, ...] = ()
    registration: Origin | None = None

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        return self.transactions

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        return self.registration


@asynccontextmanager
async def checker_over(
    *nodes: RecordedNode, now: float = RECORDED_AT, records: Records | None = None
) -> AsyncIterator[StatementChecker]:
    async with open_upstream(*nodes, call_timeout_s=20.0) as upstream:
        chains = ChainLookup(upstream.platform)
        yield StatementChecker(
            upstream.platform, chains, upstream.chain_rpc.eth_call, records, now=lambda: now
        )


async def check(
    message: UnsignedMessage,
    destination_id: ChainID = P_CHAIN,
    replies: Mapping[str, Any] | None = None,
    *,
    now: float = RECORDED_AT,
    records: Records | None = None,
) -> PreflightStatement:
    async with checker_over(ChainNode(dict(replies or {})), now=now, records=records) as checker:
        return await checker.check(message, destination_id)


async def test_a_registration_that_was_delivered_is_not_accepted_again() -> None:
    statement = await check(REGISTRATION, now=BEFORE_EXPIRY)
    assert (statement.kind, statement.accepted, (statement.reason or None)) == (
        "RegisterL1Validator",
        False,
        "already_delivered",
    )


async def test_a_registration_of_a_removed_validation_is_read_from_stored_transactions() -> None:
    gone = {VALIDATOR: missing}
    assert (await check(REGISTRATION, replies=gone, now=BEFORE_EXPIRY)).accepted
    stored = Records(
        (
            L1Transaction(
                b"\x01" * 32, 18, 0, bytes(32), RECORDED_AT, "RegisterL1ValidatorTx", b"", L1
            ),
        )
    )
    statement = await check(REGISTRATION, replies=gone, now=BEFORE_EXPIRY, records=stored)
    assert (statement.reason or None) == "already_delivered"


@pytest.mark.parametrize(
    ("now", "refusal"),
    [
        (REGISTERED.expiry - 1, None),
        (REGISTERED.expiry, "expired_registration"),
        (REGISTERED.expiry + 10_000_000, "expired_registration"),
        (REGISTERED.expiry - 86_400, None),
        (REGISTERED.expiry - 86_401, "early_registration"),
    ],
)
async def test_a_registration_is_accepted_in_the_day_before_it_expires(
    now: int, refusal: str | None
) -> None:
    replies = {VALIDATOR: missing, "platform.getTimestamp": {"timestamp": "2020-01-01T00:00:00Z"}}
    statement = await check(REGISTRATION, replies=replies, now=now)
    assert (statement.reason or None) == refusal
    assert statement.accepted is (refusal is None)


async def test_an_expired_registration_is_refused_if_no_node_knows_whether_it_was_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statement, "ADDITION_TIMEOUT_S", 0.1)

    async def hang(_: Any) -> Any:
        await asyncio.sleep(60)

    for reply in (hang, lambda _: web.Response(status=500), {"weight": "?"}):
        delivery_statement = await check(
            REGISTRATION, replies={VALIDATOR: reply}, now=REGISTERED.expiry
        )
        assert (delivery_statement.accepted, (delivery_statement.reason or None)) == (
            False,
            "expired_registration",
        )
        assert "delivered" not in delivery_statement.text
    delivery_statement = await check(REGISTRATION, now=REGISTERED.expiry)
    assert delivery_statement.text.endswith("; it was delivered before")


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (NOON + 1, "the registration expired at 12:00:00 UTC, and the P-Chain is at 12:00:01 UTC"),
        (
            NOON + 90_000,
            (
                "the registration expired at 2026-11-20 12:00:00 UTC, and the P-Chain is at"
                " 2026-11-21 13:00:00 UTC"
            ),
        ),
        (
            NOON - 90_000,
            (
                "the registration expires at 2026-11-20 12:00:00 UTC; the P-Chain takes it in the"
                " day before, from 12:00:00 UTC on"
            ),
        ),
    ],
)
async def test_a_refused_registration_names_times_that_people_read(now: int, text: str) -> None:
    registration = from_manager(replace(REGISTERED, expiry=NOON))
    replies = {VALIDATOR: missing, "platform.getTimestamp": {"timestamp": "2020-01-01T00:00:00Z"}}
    assert (await check(registration, replies=replies, now=now)).text == text


async def test_the_time_of_the_p_chain_counts_if_it_is_ahead_of_the_daemons_clock() -> None:
    replies = {VALIDATOR: missing, "platform.getTimestamp": {"timestamp": "2027-01-01T00:00:00Z"}}
    assert (
        await check(REGISTRATION, replies=replies, now=BEFORE_EXPIRY)
    ).reason == "expired_registration"


@pytest.mark.parametrize(
    ("chain_id", "sender"),
    [(C_CHAIN, MANAGER), (L1_CHAIN, b"\x01" * 20), (L1_CHAIN, b""), (P_CHAIN, MANAGER)],
)
async def test_a_registration_must_come_from_the_manager_of_the_l1(
    chain_id: ChainID, sender: bytes
) -> None:
    statement = await check(from_manager(REGISTERED, chain_id, sender), now=BEFORE_EXPIRY)
    assert (statement.reason or None) == (
        "other_destination" if chain_id == P_CHAIN else "wrong_manager"
    )


async def test_a_refusal_shows_the_beginning_of_a_managers_address() -> None:
    replies = {"platform.getSubnet": {**L1_RECORD, "managerAddress": "0x" + "5a" * 200_000}}
    statement = await check(REGISTRATION, replies=replies, now=BEFORE_EXPIRY)
    assert (statement.reason or None) == "wrong_manager"
    assert f"the manager of the L1 is 0x{'5a' * 32} on chain" in statement.text


async def test_a_registration_for_a_subnet_that_is_no_l1_is_refused() -> None:
    unknown = replace(REGISTERED, subnet_id=SubnetID(b"\x09" * 32))
    replies = {"platform.getSubnet": lambda _: (_ for _ in ()).throw(RefusedCall("not found"))}
    assert (await check(from_manager(unknown), replies=replies)).reason == "wrong_manager"
    bare = {"platform.getSubnet": {"isPermissioned": True, "conversionID": id_text(bytes(32))}}
    assert (await check(from_manager(unknown), replies=bare)).reason == "wrong_manager"


CHANGED: Final = "yk2A5PJDFJ3YAiPUq6e2m7KbFJWhL4wUHRuXZUHF3rG484M7A"


@pytest.mark.parametrize(
    ("nonce", "weight", "refusal"),
    [
        (4, 500, "already_delivered"),
        (4, 501, "stale_nonce"),
        (3, 500, "stale_nonce"),
        (0, 0, "stale_nonce"),
        (5, 501, None),
        (9, 0, None),
        (2**64 - 1, 0, None),
        (2**64 - 1, 7, "reserved_nonce"),
    ],
)
async def test_a_weight_change_needs_a_nonce_that_was_not_used(
    nonce: int, weight: int, refusal: str | None
) -> None:
    message = from_manager(L1ValidatorWeight(ValidationID(parse_id(CHANGED)), nonce, weight))
    statement = await check(message, replies={VALIDATOR: validator(CHANGED, 500, 5)})
    assert (statement.accepted, (statement.reason or None)) == (refusal is None, refusal)


async def test_a_removed_validation_means_delivered_for_a_removal_and_refused_otherwise() -> None:
    assert (await check(REMOVAL)).reason == "already_delivered"
    gone = L1ValidatorWeight.parse(AddressedCall.parse(REMOVAL.payload).payload)
    assert (await check(from_manager(replace(gone, weight=5)))).reason == "no_validation"


async def test_the_last_validator_of_an_l1_cannot_be_removed() -> None:
    message = from_manager(L1ValidatorWeight(ValidationID(parse_id(CHANGED)), 5, 0))
    listed = {
        "nodeID": "NodeID-83a7v34gAYeeF3TAczJJa3mNSZDGSrqVV",
        "startTime": "1",
        "weight": "500",
    }
    alone = {"validators": [{**listed, "validationID": CHANGED, "balance": "1"}]}
    replies = {VALIDATOR: validator(CHANGED, 500, 5), "platform.getCurrentValidators": alone}
    assert (await check(message, replies=replies)).reason == "last_validator"
    # A permissioned validation that outlived the conversion is no L1 validator.
    alone["validators"].append({**listed, "txID": id_text(b"\x02" * 32)})
    assert (await check(message, replies=replies)).reason == "last_validator"
    alone["validators"].append({**listed, "validationID": id_text(b"\x03" * 32), "balance": "0"})
    assert (await check(message, replies=replies)).accepted


async def test_a_weight_change_must_come_from_the_manager_of_the_l1() -> None:
    message = from_manager(L1ValidatorWeight(ValidationID(parse_id(CHANGED)), 5, 7), C_CHAIN)
    assert (
        await check(message, replies={VALIDATOR: validator(CHANGED, 500, 5)})
    ).reason == "wrong_manager"


ICM: Final = json.loads((paths.LOCALNET / "icm.json").read_text())


A_TO_B: Final = next(item for item in ICM["messages"] if item["route"] == "A->B")
TELEPORTER: Final = UnsignedMessage.parse(bytes.fromhex(A_TO_B["unsigned"]))
MESSENGER: Final = AddressedCall.parse(TELEPORTER.payload).source_address


def word(number: int) -> str:
    return "0x" + number.to_bytes(32, "big").hex()


async def test_a_teleporter_message_that_the_messenger_has_was_delivered() -> None:
    node = ChainNode({"eth_call": word(1)})
    async with checker_over(node) as checker:
        statement = await checker.check(TELEPORTER, PERMISSIONED_CHAIN)
    assert (statement.kind, (statement.reason or None)) == (
        "TeleporterMessage",
        "already_delivered",
    )
    ((path, call, block),) = eth_calls(node)
    assert id_text(PERMISSIONED_CHAIN) in path
    assert (call["to"], block) == ("0x" + MESSENGER.hex(), "latest")
    assert (
        call["data"]
        == "0x" + MESSAGE_RECEIVED.hex() + parse_id(A_TO_B["teleporterMessageId"]).hex()
    )


async def test_a_messenger_of_version_two_is_asked_by_the_address_that_assigned_the_nonce() -> None:
    messenger, adapter, chain = "0x" + "11" * 20, b"\x22" * 20, b"\x33" * 32
    abi = "(uint256,address,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
    fields: tuple[Any, ...] = (7, adapter, messenger, chain, adapter, 100, [], [], b"")
    message = UnsignedMessage.build(
        NETWORK_ID, L1_CHAIN, AddressedCall(adapter, encode([abi], [fields])).encode()
    )
    node = ChainNode({"eth_call": word(0)})
    async with checker_over(node) as checker:
        assert (await checker.check(message, ChainID(chain))).accepted
    assert [call["to"] for _, call, _ in eth_calls(node)] == [messenger]


@pytest.mark.parametrize(
    ("reply", "accepted"),
    [
        (word(0), True),
        ("0x", None),
        (word(2), None),
        (word(1) + "00" * 32, None),
        ("0x" + "00" * 31, None),
        ("nonsense", None),
        ({"height": "1"}, None),
        (lambda _: (_ for _ in ()).throw(RefusedCall("execution reverted")), None),
        (lambda _: web.Response(status=500), None),
        (lambda _: web.Response(body=b"0x" + b"0" * 10_000_000), None),
    ],
)
async def test_only_a_boolean_of_the_messenger_counts(reply: Any, accepted: bool | None) -> None:
    statement = await check(TELEPORTER, PERMISSIONED_CHAIN, {"eth_call": reply})
    assert (statement.accepted, (statement.reason or None)) == (accepted, None)
    assert "127.0.0.1" not in statement.text
    is_unclear = any(
        text in statement.text
        for text in (
            "an earlier delivery could not be checked",
            "the nodes that can check the statement did not answer",
        )
    )
    assert is_unclear is (accepted is None)


async def test_a_teleporter_message_for_another_chain_is_refused_without_a_node() -> None:
    async with checker_over() as checker:
        for destination_id in (C_CHAIN, P_CHAIN):
            assert (await checker.check(TELEPORTER, destination_id)).reason == "other_destination"


async def test_messages_for_and_of_the_p_chain_are_refused_at_other_chains() -> None:
    async with checker_over() as checker:
        for message in (REGISTRATION, REMOVAL):
            assert (await checker.check(message, L1_CHAIN)).reason == "other_destination"
        attested = L1ValidatorRegistration(REGISTERED.validation_id, True).encode()
        assert (
            await checker.check(build_p_chain_message(NETWORK_ID, attested), P_CHAIN)
        ).reason == "other_destination"


def record(status: int, received_nonce: int = 0, *, is_old: bool = False) -> str:
    """Return what a manager answers to getValidator: by ACP-99, or by the version before it."""
    node_id = bytes(20)
    if is_old:
        return (
            "0x"
            + encode(
                ["(uint8,bytes,uint64,uint64,uint64,uint64,uint64)"],
                [(status, node_id, 1, 2, 3, 4, 5)],
            ).hex()
        )
    fields = (status, node_id, 10, 9, received_nonce, 30, 40, 50)
    return (
        "0x" + encode(["(uint8,bytes,uint64,uint64,uint64,uint64,uint64,uint64)"], [fields]).hex()
    )


def attested(
    payload: L1ValidatorRegistration | L1ValidatorWeight | SubnetToL1Conversion,
) -> UnsignedMessage:
    return build_p_chain_message(NETWORK_ID, payload.encode())


REGISTERED_NOW: Final = attested(L1ValidatorRegistration(REGISTERED.validation_id, True))
ENDED: Final = attested(L1ValidatorRegistration(REGISTERED.validation_id, False))
WEIGHT_OF_NONCE_5: Final = attested(L1ValidatorWeight(REGISTERED.validation_id, 5, 100))


@pytest.mark.parametrize(
    ("message", "reply", "accepted"),
    [
        (REGISTERED_NOW, record(1), True),
        (REGISTERED_NOW, record(1, is_old=True), True),
        (REGISTERED_NOW, record(2), False),
        (REGISTERED_NOW, record(3), False),
        (REGISTERED_NOW, record(0), None),
        (REGISTERED_NOW, record(5), None),
        (ENDED, record(3), True),
        (ENDED, record(4), False),
        (ENDED, record(5), False),
        (ENDED, record(2), None),
        (WEIGHT_OF_NONCE_5, record(2, 4), True),
        (WEIGHT_OF_NONCE_5, record(2, 5), False),
        (WEIGHT_OF_NONCE_5, record(2, 6), False),
        (WEIGHT_OF_NONCE_5, record(2, is_old=True), None),
        (WEIGHT_OF_NONCE_5, record(0, 6), None),
        (REGISTERED_NOW, "0x", None),
        (REGISTERED_NOW, "0x" + "00" * 100_000, None),
        (REGISTERED_NOW, lambda _: (_ for _ in ()).throw(RefusedCall("execution reverted")), None),
    ],
)
async def test_the_managers_record_tells_whether_it_has_a_message_of_the_p_chain(
    message: UnsignedMessage, reply: Any, accepted: bool | None
) -> None:
    node = ChainNode({"eth_call": reply})
    async with checker_over(node) as checker:
        statement = await checker.check(message, L1_CHAIN)
    assert statement.accepted is accepted
    assert (statement.reason or None) == ("already_delivered" if accepted is False else None)
    ((_, call, _),) = eth_calls(node)
    assert (call["to"], call["data"]) == (
        "0x" + MANAGER.hex(),
        "0x" + GET_VALIDATOR.hex() + REGISTERED.validation_id.hex(),
    )


CONVERSION: Final = attested(SubnetToL1Conversion(parse_id(L1_RECORD["conversionID"])))


@pytest.mark.parametrize(
    ("reply", "accepted"),
    [
        (record(0), True),
        (record(0, is_old=True), True),
        (record(2), False),
        (record(2, is_old=True), False),
        (record(4), False),
        (record(6), None),
        ("0x", None),
        (word(1), None),
        (lambda _: (_ for _ in ()).throw(RefusedCall("execution reverted")), None),
    ],
)
async def test_a_manager_that_has_the_first_initial_validator_has_taken_the_conversion(
    reply: Any, accepted: bool | None
) -> None:
    node = ChainNode({"eth_call": reply})
    async with checker_over(node) as checker:
        statement = await checker.check(CONVERSION, L1_CHAIN)
    assert (statement.kind, statement.accepted) == ("SubnetToL1Conversion", accepted)
    assert (statement.reason or None) == ("already_delivered" if accepted is False else None)
    ((_, call, _),) = eth_calls(node)
    first = bootstrap_validation_id(L1, 0)
    assert (call["to"], call["data"]) == (
        "0x" + MANAGER.hex(),
        "0x" + (GET_VALIDATOR + first).hex(),
    )


async def test_a_conversion_is_checked_at_the_managers_chain_and_unknown_for_another_l1() -> None:
    elsewhere = {"platform.getSubnet": {**L1_RECORD, "managerChainID": id_text(C_CHAIN)}}
    assert (await check(CONVERSION, L1_CHAIN, elsewhere)).reason == "other_destination"
    other = {"platform.getSubnet": {**L1_RECORD, "conversionID": id_text(b"\x01" * 32)}}
    for destination_id, replies in ((L1_CHAIN, other), (C_CHAIN, {})):
        statement = await check(CONVERSION, destination_id, {**replies, "eth_call": record(2)})
        assert (statement.accepted, (statement.reason or None)) == (None, None)


async def test_a_message_about_a_validation_is_for_the_chain_of_the_manager() -> None:
    assert (await check(REGISTERED_NOW, C_CHAIN)).reason == "other_destination"


async def test_the_l1_of_a_removed_validation_comes_from_the_store_if_it_has_the_origin() -> None:
    replies = {VALIDATOR: missing, "eth_call": record(4)}
    assert (await check(ENDED, L1_CHAIN, replies)).accepted is None
    for origin in (BootstrapOrigin(L1, 0), RegistrationOrigin(REGISTERED.encode())):
        statement = await check(ENDED, L1_CHAIN, replies, records=Records(registration=origin))
        assert (statement.reason or None) == "already_delivered"
    assert (
        await check(
            ENDED, L1_CHAIN, replies, records=Records(registration=RegistrationOrigin(b"?"))
        )
    ).accepted is None


@pytest.mark.parametrize(
    "payload",
    [
        Hash(b"\x01" * 32).encode(),
        AddressedCall(b"\x01" * 20, b"anything").encode(),
        AddressedCall(b"", SubnetToL1Conversion(b"\x01" * 32).encode()).encode(),
        b"?",
    ],
)
async def test_no_node_knows_about_other_messages(payload: bytes) -> None:
    async with checker_over() as checker:
        for source_id in (L1_CHAIN, P_CHAIN):
            statement = await checker.check(
                UnsignedMessage.build(NETWORK_ID, source_id, payload), C_CHAIN
            )
            assert (statement.accepted, (statement.reason or None)) == (None, None)


async def test_nodes_that_fail_or_hang_leave_the_statement_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statement, "LOOKUP_TIMEOUT_S", 0.1)

    async def hang(_: Any) -> Any:
        await asyncio.sleep(60)

    replies: tuple[Any, ...] = (
        hang,
        lambda _: web.Response(status=500),
        lambda _: web.Response(body=b"\x00not json"),
        [],
        "?",
    )
    for reply in replies:
        for method in ("platform.getTimestamp", VALIDATOR, "platform.getSubnet"):
            delivery_statement = await check(
                REGISTRATION, replies={method: reply}, now=BEFORE_EXPIRY
            )
            assert (delivery_statement.accepted, (delivery_statement.reason or None)) == (
                None,
                None,
            ), (method, reply)
        assert (await check(TELEPORTER, PERMISSIONED_CHAIN, {"eth_call": reply})).accepted is None


async def test_a_chain_that_no_node_runs_leaves_the_statement_open() -> None:
    bare = RecordedNode(paths=("/ext/P", "/ext/bc/P", "/ext/info"))
    async with checker_over(bare) as checker:
        assert (await checker.check(TELEPORTER, PERMISSIONED_CHAIN)).accepted is None
