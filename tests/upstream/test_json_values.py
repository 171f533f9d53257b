"""A number that a node names and that no database, key or date holds is a malformed reply of that
node.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from warpseal.forwarding.evm.methods import head_in
from warpseal.node import blocks, chain_apis, p_chain
from warpseal.upstream.identity import CHAIN_ID, HEAD
from warpseal.upstream.json_values import MAX_HEIGHT, date_s, unix_s
from warpseal.warp.ids import EMPTY_NODE_ID, NodeID, id_text, node_id_text

CURRENT = {
    "nodeID": node_id_text(EMPTY_NODE_ID),
    "weight": "1",
    "startTime": "1",
    "txID": id_text(bytes(32)),
}
L1_VALIDATOR = {
    "subnetID": id_text(bytes(32)),
    "weight": "1",
    "minNonce": "0",
    "balance": "0",
    "height": "1",
}
EPOCH = {"number": "1", "startTime": "1", "pChainHeight": "1"}
YEAR_10000_S = 253_402_300_800


@pytest.mark.parametrize(
    ("decode", "reply"),
    [
        (HEAD.decode, hex(1 << 40)),
        (HEAD.decode, hex(1 << 43)),
        (CHAIN_ID.decode, hex(1 << 63)),
        (blocks._C_HEIGHT.decode, hex(1 << 40)),
        (p_chain.decode_height, {"height": str(1 << 40)}),
        (p_chain.decode_l1_validator, {**L1_VALIDATOR, "height": str(1 << 40)}),
        (
            p_chain.decode_current_validations,
            {"validators": [{**CURRENT, "startTime": str(YEAR_10000_S)}]},
        ),
        (
            p_chain.decode_current_validations,
            {"validators": [{**CURRENT, "endTime": str((1 << 64) - 1)}]},
        ),
        (
            p_chain.decode_validators_at,
            {node_id_text(NodeID(bytes([n]) * 20)): {"weight": str(1 << 63)} for n in range(2)},
        ),
        (chain_apis._decode_epoch, {**EPOCH, "pChainHeight": str(1 << 40)}),
        (chain_apis._decode_epoch, {**EPOCH, "startTime": str(YEAR_10000_S)}),
        (chain_apis._decode_block_time, {"timestamp": hex(YEAR_10000_S)}),
    ],
)
def test_a_number_beyond_its_bound_is_malformed(decode: Callable[[bytes], Any], reply: Any) -> None:
    with pytest.raises(ValueError, match="out of range"):
        decode(json.dumps(reply).encode())


def test_the_highest_height_is_accepted() -> None:
    assert HEAD.decode(json.dumps(hex(MAX_HEIGHT)).encode()) == MAX_HEIGHT
    assert p_chain.decode_height(json.dumps({"height": str(MAX_HEIGHT)}).encode()) == MAX_HEIGHT
    assert head_in(json.dumps(hex(MAX_HEIGHT)).encode()) == MAX_HEIGHT
    assert head_in(json.dumps({"number": hex(MAX_HEIGHT + 1)}).encode()) is None


LAST_S = 253_402_300_799


@pytest.mark.parametrize(
    "text", ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T22:59:59-01:00"]
)
def test_a_date_of_1970_to_9999_is_accepted(text: str) -> None:
    moment = datetime.fromisoformat(text)
    assert datetime.fromtimestamp(date_s(moment), UTC) == moment


@pytest.mark.parametrize(
    "text",
    [
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+00:01",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-00:01",
        "2026-01-01T00:00:00",
    ],
)
def test_any_other_date_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range|without its zone"):
        date_s(datetime.fromisoformat(text))


@pytest.mark.parametrize("value", [LAST_S + 1, str(2**63), 2**64 - 1, -1])
def test_seconds_that_no_date_names_are_refused(value: int | str) -> None:
    assert unix_s(LAST_S) == LAST_S
    with pytest.raises(ValueError, match=r"out of range|no decimal number"):
        unix_s(value)
