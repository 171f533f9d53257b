"""The fee of active L1 validators as nodes report it, and the end times of stakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.node.recorded_node import (
    L1,
    PERMISSIONED,
    RecordedNode,
    RefusedCall,
    open_upstream,
    recorded_result,
)
from warpseal.ledger.params import L1FeeConfig
from warpseal.node.p_chain import L1FeeState, decode_current_validations
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

STATE = "platform.getValidatorFeeState"
CONFIG = "platform.getValidatorFeeConfig"
CURRENT = "platform.getCurrentValidators"
RECORDED_STATE = {"excess": 0, "price": 1, "timestamp": "2026-11-21T02:06:47Z"}
STAKE: dict[str, Any] = recorded_result(CURRENT, subnetID=id_text(PRIMARY_NETWORK))["validators"][0]


async def test_the_recorded_fee_state_and_parameters_are_read() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.platform.fee_state() == L1FeeState(0, 1, 1_795_226_807)
        assert await upstream.platform.fee_config() == L1FeeConfig(10_000, 1, 865_617, 20_000)


async def test_large_numbers_and_numbers_in_text_are_exact() -> None:
    reply = {"excess": str(2**64 - 1), "price": 2**63 + 1, "timestamp": "2026-11-21T04:06:47+02:00"}
    async with open_upstream(RecordedNode({STATE: reply})) as upstream:
        assert await upstream.platform.fee_state() == L1FeeState(
            2**64 - 1, 2**63 + 1, 1_795_226_807
        )


@pytest.mark.parametrize(
    "change",
    [
        {"excess": -1},
        {"excess": 2**64},
        {"price": None},
        {"price": 1.5},
        {"timestamp": "1950-01-01T00:00:00Z"},
        {"timestamp": "2026-11-21T02:06:47"},
        {"timestamp": "9999-12-31T23:59:59Z"},
        {"timestamp": "yesterday"},
        {"timestamp": 1_795_226_807},
    ],
)
async def test_a_malformed_fee_state_is_no_reply(change: dict[str, Any]) -> None:
    async with open_upstream(RecordedNode({STATE: {**RECORDED_STATE, **change}})) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.platform.fee_state()


@pytest.mark.parametrize(
    "change", [{"excessConversionConstant": 0}, {"target": -1}, {"minPrice": 2**64}]
)
async def test_parameters_that_no_network_has_are_no_reply(change: dict[str, Any]) -> None:
    async with open_upstream(
        RecordedNode({CONFIG: {**recorded_result(CONFIG), **change}})
    ) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.platform.fee_config()


async def test_a_node_without_the_methods_is_named_unavailable() -> None:
    def refuse(_: object) -> object:
        raise RefusedCall("rpc: can't find method", -32_601)

    async with open_upstream(RecordedNode({STATE: refuse})) as upstream:
        with pytest.raises(NodeUnavailable, match=STATE):
            await upstream.platform.fee_state()


async def test_stakes_have_an_end_and_l1_validators_have_none() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        (stake,) = await upstream.platform.current_validations(PERMISSIONED)
        assert (stake.end_unix_s, stake.balance) == (1_826_757_159, None)
        assert {
            validation.end_unix_s for validation in await upstream.platform.current_validations(L1)
        } == {None}


@pytest.mark.parametrize(
    ("change", "end_unix_s", "delegated"),
    [
        ({"endTime": "99"}, 99, 0),
        ({"endTime": "99", "nextPeriod": "0", "delegatorWeight": "7"}, 99, 7),
        ({"endTime": "99", "nextPeriod": "1209600"}, None, 0),
    ],
)
def test_a_stake_that_renews_itself_has_no_end(
    change: dict[str, Any], end_unix_s: int | None, delegated: int
) -> None:
    entry = {**STAKE, "delegatorWeight": "0", **change}
    (stake,) = decode_current_validations(json.dumps({"validators": [entry]}).encode())
    assert (stake.end_unix_s, stake.delegated) == (end_unix_s, delegated)
