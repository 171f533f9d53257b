"""Current validations, as recorded P-Chains list them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.node.recorded_node import (
    L1,
    PERMISSIONED,
    RecordedNode,
    RefusedCall,
    node_id,
    open_upstream,
    recorded_result,
)
from warpseal.node.p_chain import CurrentValidation, decode_current_validations
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK, id_text, parse_id

METHOD = "platform.getCurrentValidators"
LISTED: dict[str, Any] = recorded_result(METHOD, subnetID=id_text(L1))["validators"][0]
LEGACY: dict[str, Any] = recorded_result(METHOD, subnetID=id_text(PERMISSIONED))["validators"][0]


async def test_validations_of_an_l1_have_their_own_ids_and_are_inactive_without_balance() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        current = await upstream.platform.current_validations(L1)
    assert current[0] == CurrentValidation(
        parse_id("2JRupqWf57oyuM9ARJ218CTRSKvfzcQaKYh6x4fHMjonVzY2Fd"),
        node_id("3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK"),
        49_463,
        1_795_226_756,
        balance=99_999_999_949,
    )
    assert [validation.balance for validation in current] == [
        99_999_999_949,
        101_999_999_779,
        99_999_999_779,
        0,
    ]
    assert [validation.is_active for validation in current] == [True, True, True, False]


async def test_a_permissioned_validation_has_its_transactions_id_and_is_always_active() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        (validation,) = await upstream.platform.current_validations(PERMISSIONED)
        of_primary = await upstream.platform.current_validations(PRIMARY_NETWORK)
    assert validation.validation_id == parse_id("X2hDqLb8ktrjRYVsWASrnoa8viHnrjBf3THGc5HaZNWAS7g58")
    assert validation.start_unix_s == 1_795_226_562
    assert (validation.is_l1, validation.is_active) == (False, True)
    assert len(of_primary) == 3


def test_permissioned_validations_are_listed_with_the_validations_of_an_l1() -> None:
    raw = json.dumps({"validators": [LEGACY, LISTED]}).encode()
    assert [
        (validation.is_l1, validation.is_active) for validation in decode_current_validations(raw)
    ] == [
        (False, True),
        (True, True),
    ]


def test_a_list_without_validators_may_be_null() -> None:
    assert decode_current_validations(b'{"validators":null}') == ()


@pytest.mark.parametrize(
    "change",
    [
        {"validationID": None},
        {"validationID": "x"},
        {"nodeID": "x"},
        {"weight": "-1"},
        {"startTime": str(2**64)},
    ],
)
async def test_a_malformed_entry_makes_the_response_unusable(change: dict[str, Any]) -> None:
    async with open_upstream(
        RecordedNode({METHOD: {"validators": [{**LISTED, **change}]}})
    ) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.platform.current_validations(L1)


@pytest.mark.parametrize(
    "text", ["not found", "current P-chain height (1) < requested P-Chain height (2)"]
)
async def test_an_error_response_is_a_failed_call(text: str) -> None:
    def refuse(_: object) -> object:
        raise RefusedCall(text)

    async with open_upstream(RecordedNode({METHOD: refuse})) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.platform.current_validations(L1)
