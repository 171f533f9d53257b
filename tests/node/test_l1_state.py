"""Transactions, validations and subnets from nodes, including lagging and malicious ones."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from tests.node.recorded_node import (
    L1,
    PERMISSIONED,
    Params,
    RecordedNode,
    RefusedCall,
    build_settings,
    open_upstream,
    recorded_result,
    refusing_uri,
    serve_nodes,
)
from warpseal.node.p_chain import L1ValidatorState, TxStatus, ValidationAt
from warpseal.node.platform import PlatformClient
from warpseal.node.upstream import connect_upstream
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.json_values import decode_checked_hex
from warpseal.upstream.node import open_session
from warpseal.warp.ids import ValidationID, id_text, parse_id

REGISTER = parse_id("2ekbx2VQwAfqRrKwqMruJipCM654fAdiXM31g8GqEAr34DxtQq")
MISSING = bytes(32)
REMOVED = ValidationID(parse_id("2DvzCogYMgLm2YxVv92TVd5558ZsFUJevyWxgrM1e7yUu4kt7Y"))
REGISTERED = ValidationID(parse_id("2JRupqWf57oyuM9ARJ218CTRSKvfzcQaKYh6x4fHMjonVzY2Fd"))
X_TX = parse_id("bpfw1BoTnhv5LgtXHhugdFQtJvcLmYnDsuNyaAyYeQjj9tYf5")


def fail_not_found(params: Params) -> Any:
    raise RefusedCall("couldn't get tx: not found")


def lagging(height: int, **replies: Any) -> RecordedNode:
    return RecordedNode({"platform.getHeight": {"height": str(height)}, **replies})


def no_validator(params: Params) -> Any:
    raise RefusedCall(f'fetching L1 validator "{params["validationID"]}" failed: not found')


async def test_a_recorded_transaction_comes_with_its_status_and_the_nodes_height() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        transaction = await upstream.platform.transaction(REGISTER)
        assert transaction is not None
        assert sha256(transaction.raw).digest() == REGISTER
        assert (transaction.status, transaction.height) == (TxStatus.COMMITTED, 19)
    async with open_upstream(RecordedNode({"platform.getTx": fail_not_found})) as upstream:
        assert await upstream.platform.transaction(MISSING) is None


async def test_a_transaction_is_read_from_a_node_that_knows_its_final_status() -> None:
    behind = lagging(5, **{"platform.getTx": fail_not_found})
    undecided = lagging(6, **{"platform.getTxStatus": {"status": "Processing"}})
    async with open_upstream(behind, undecided, RecordedNode()) as upstream:
        transaction = await upstream.platform.transaction(REGISTER)
    assert transaction is not None
    assert (transaction.status, transaction.height) == (TxStatus.COMMITTED, 19)
    async with open_upstream(behind, undecided) as upstream:
        transaction = await upstream.platform.transaction(REGISTER)
    assert transaction is not None
    assert (transaction.status, transaction.height) == (TxStatus.PROCESSING, 6)


async def test_status_and_height_come_from_the_node_that_returned_the_bytes() -> None:
    first = RecordedNode({"platform.getTxStatus": {"status": "Nonsense"}})
    second = RecordedNode()
    async with open_upstream(first, second) as upstream:
        assert await upstream.platform.transaction(REGISTER) is not None
    assert first.calls["platform.getHeight"] == 0
    assert [
        second.calls[m] for m in ("platform.getTx", "platform.getTxStatus", "platform.getHeight")
    ] == [1, 1, 1]


async def test_a_node_that_returns_another_transaction_is_skipped() -> None:
    other = recorded_result(
        "platform.getTx", txID="2uWKV78N6HQFT4YB4nqptYDe6Mzhu7VyfWooYh2xJ7TjPcmvG9", encoding="hex"
    )
    async with open_upstream(RecordedNode({"platform.getTx": other})) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.platform.transaction(REGISTER)


async def test_a_transaction_is_unavailable_if_no_node_answers() -> None:
    async with open_session() as session:
        platform = connect_upstream(build_settings(refusing_uri()), session).platform
        with pytest.raises(NodeUnavailable):
            await platform.transaction(REGISTER)
        with pytest.raises(NodeUnavailable):
            await platform.l1_validator(REGISTERED)
        assert await platform.l1_validator_each(REGISTERED) == ()
        with pytest.raises(NodeUnavailable):
            await platform.subnets()


async def test_recorded_validations_are_read() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.platform.l1_validator(REGISTERED) == ValidationAt(
            19, L1ValidatorState(L1, weight=49_463, min_nonce=0, balance=99_999_999_949)
        )
        assert await upstream.platform.l1_validator(REMOVED) == ValidationAt(19, None)


async def test_a_missing_validation_is_missing_at_a_height_that_the_node_returned_before() -> None:
    node = RecordedNode()
    async with open_upstream(node) as upstream:
        await upstream.platform.l1_validator(REMOVED)
    called = [method for _, method, _ in node.seen if method != "info.getNetworkID"]
    assert called == ["platform.getL1Validator", "platform.getHeight", "platform.getL1Validator"]


async def test_nodes_below_the_height_prove_nothing() -> None:
    behind = lagging(10, **{"platform.getL1Validator": no_validator})
    async with open_upstream(behind, RecordedNode()) as upstream:
        validation = await upstream.platform.l1_validator(REGISTERED, 12)
        assert validation is not None
        assert validation.state is not None
        validations = await upstream.platform.l1_validator_each(REGISTERED)
        assert {validation.height for validation in validations} == {10, 19}
    async with open_upstream(behind) as upstream:
        assert await upstream.platform.l1_validator(REGISTERED, 12) is None


async def test_recorded_subnets_are_listed() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        listed = await upstream.platform.subnets()
    assert {L1, PERMISSIONED, bytes(32)} < set(listed)
    assert len(listed) == 4


async def test_x_chain_transactions_are_found_if_a_node_serves_the_chain() -> None:
    bare = RecordedNode(paths=("/ext/P", "/ext/info"))
    async with open_upstream(bare) as upstream:
        assert await upstream.x_chain.transaction(X_TX) is None
    async with open_upstream(bare, RecordedNode({"avm.getTx": x_or_none})) as upstream:
        raw = await upstream.x_chain.transaction(X_TX)
        assert raw is not None
        assert id_text(sha256(raw).digest()) == id_text(X_TX)
        assert await upstream.x_chain.transaction(MISSING) is None


def x_or_none(params: Params) -> Any:
    if params["txID"] == id_text(X_TX):
        return recorded_result("avm.getTx", **params)
    raise RefusedCall("not found")


@pytest.mark.parametrize("text", ["", "0x", "0x00", "0x0000000000", "zz", "0x 0011223344"])
def test_hex_without_its_checksum_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hex|white"):
        decode_checked_hex(text)


async def test_hostile_responses_are_refused() -> None:
    for method, reply in (
        (
            "platform.getL1Validator",
            {"subnetID": "x", "weight": "1", "minNonce": "1", "balance": "1", "height": "1"},
        ),
        ("platform.getL1Validator", {"weight": "1"}),
        ("platform.getTx", {"tx": "0x00"}),
        ("platform.getTx", {"tx": {"unsignedTx": {}}}),
        ("platform.getSubnets", {"subnets": [{"id": "nonsense"}]}),
    ):
        async with serve_nodes(RecordedNode({method: reply})) as uris, open_session() as session:
            platform = connect_upstream(build_settings(*uris), session).platform
            with pytest.raises(NodeUnavailable):
                await call_method(platform, method)


async def call_method(platform: PlatformClient, method: str) -> object:
    if method == "platform.getTx":
        return await platform.transaction(REGISTER)
    if method == "platform.getL1Validator":
        return await platform.l1_validator(REGISTERED)
    return await platform.subnets()
