"""The validators that the daemon lists itself equal the lists of recorded nodes with the same
observations.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests import paths
from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NO_CHAIN,
    PERMISSIONED,
    PERMISSIONED_CHAIN,
    RefusedCall,
    node_id,
    recorded_result,
)
from tests.validators.fixtures import ValidatorServices, started_services
from warpseal.errors import CallRefused
from warpseal.node.chain_apis import ChainValidatorsClient
from warpseal.node.p_chain import CurrentValidation
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.chain_validator_list import (
    ChainValidatorList,
    CurrentValidations,
    LocalView,
    format_percentage,
)
from warpseal.validators.uptime.node_uptime import Uptime
from warpseal.warp.ids import EMPTY_NODE_ID, ChainID, NodeID, id_text, parse_id

METHOD = "platform.getCurrentValidators"
LINES = (paths.LOCALNET / "chain-validators.jsonl").read_text().splitlines()
RECORDED = {
    validator["path"].split("/")[3]: validator["result"]["validators"]
    for validator in map(json.loads, reversed(LINES))
}
INACTIVE = node_id("F3JBbBDkXHTFkeAaxxUbmLsJCFFgtDMtF")


@dataclass
class FakePeerUptimes:
    """Sees what a test lets it see.

    uptimes: uptime by validation id.
    """

    connected: set[NodeID] = field(default_factory=set)
    uptimes: dict[bytes, Uptime] = field(default_factory=dict)

    def is_connected(self, node_id: NodeID) -> bool:
        return node_id in self.connected

    def uptime(self, validation: CurrentValidation) -> Uptime:
        return self.uptimes.get(validation.validation_id, Uptime())


def as_recorded(validators: list[dict[str, Any]]) -> FakePeerUptimes:
    """Return the uptimes that the recorded node had observed when it listed these validators."""
    peer_uptimes = FakePeerUptimes()
    for validator in validators:
        if validator["isConnected"]:
            peer_uptimes.connected.add(node_id(validator["nodeID"][7:]))
        up_ms = validator["uptimeSeconds"] * 1_000
        peer_uptimes.uptimes[parse_id(validator["validationID"])] = Uptime(
            round(up_ms * 100 / validator["uptimePercentage"]), up_ms
        )
    return peer_uptimes


def local_view(services: ValidatorServices, peer_uptimes: FakePeerUptimes) -> LocalView:
    current = CurrentValidations(services.upstream.platform, now=services.clock)
    return LocalView(services.chains, current, peer_uptimes.is_connected, peer_uptimes.uptime)


def chain(
    services: ValidatorServices, chain_id: ChainID, peer_uptimes: FakePeerUptimes
) -> ChainValidatorList:
    """Return a chain behind which no node is."""
    return ChainValidatorList(
        chain_id, ChainValidatorsClient(()), local_view(services, peer_uptimes), services.clock
    )


def plain(listed: object) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(listed))
    return sorted(entries, key=lambda validator: str(validator["validationID"]))


@pytest.mark.parametrize("chain_id", [L1_CHAIN, PERMISSIONED_CHAIN])
async def test_the_recorded_lists_are_returned_to_the_last_value(chain_id: ChainID) -> None:
    recorded_list = RECORDED[id_text(chain_id)]
    async with started_services() as services:
        listed = chain(services, chain_id, as_recorded(recorded_list))
        assert await listed.are_served()
        assert plain(await listed.current([])) == sorted(
            recorded_list, key=lambda validator: str(validator["validationID"])
        )


async def test_a_validator_that_was_never_observed_has_no_uptime() -> None:
    async with started_services() as services:
        for validator in plain(await chain(services, L1_CHAIN, FakePeerUptimes()).current([])):
            uptime = (validator["uptimeSeconds"], validator["uptimePercentage"])
            assert (validator["isConnected"], uptime) == (False, (0, 100))


async def test_an_inactive_validator_is_not_listed_as_connected_while_its_node_is() -> None:
    async with started_services() as services:
        listed = await chain(services, L1_CHAIN, FakePeerUptimes(connected={INACTIVE})).current(
            [INACTIVE]
        )
        assert [
            (validator["isActive"], validator["isConnected"]) for validator in plain(listed)
        ] == [(False, False)]


async def test_a_node_with_two_validations_is_listed_with_both() -> None:
    both = [
        recorded_result(METHOD, subnetID=id_text(PERMISSIONED))["validators"][0],
        recorded_result(METHOD, subnetID=id_text(L1))["validators"][0],
    ]
    both[0] = {**both[0], "nodeID": both[1]["nodeID"]}
    async with started_services() as services:
        services.node.replies[METHOD] = {"validators": both}
        listed = plain(
            await chain(services, L1_CHAIN, FakePeerUptimes()).current(
                [node_id(both[1]["nodeID"][7:])]
            )
        )
        assert sorted(validator["isL1Validator"] for validator in listed) == [False, True]


async def test_the_response_omits_unknown_nodes_and_lists_all_nodes_without_ids() -> None:
    async with started_services() as services:
        listed = chain(services, L1_CHAIN, FakePeerUptimes())
        assert await listed.current([EMPTY_NODE_ID]) == ()
        assert len(await listed.current([EMPTY_NODE_ID, INACTIVE, INACTIVE]) or ()) == 1
        assert len(await listed.current([]) or ()) == 4


@pytest.mark.parametrize("chain_id", [C_CHAIN, NO_CHAIN])
async def test_neither_the_primary_network_nor_an_unknown_chain_is_listed(
    chain_id: ChainID,
) -> None:
    async with started_services() as services:
        listed = chain(services, chain_id, FakePeerUptimes())
        assert not await listed.are_served()
        assert await listed.current([]) is None
        assert services.node.calls[METHOD] == 0


async def test_an_unresolved_chain_may_be_served_and_the_error_says_why() -> None:
    async with started_services() as services:
        services.node.replies["platform.validatedBy"] = lambda _: web.Response(status=503)
        listed = chain(services, L1_CHAIN, FakePeerUptimes())
        assert await listed.are_served()
        with pytest.raises(NodeUnavailable):
            await listed.locally_listed_subnet()
        with pytest.raises(
            CallRefused, match="failed to get current validator set: no usable answer"
        ):
            await listed.current([])


async def test_an_unrelated_refusal_counts_as_an_unavailable_node() -> None:
    def refuse(_: object) -> object:
        raise RefusedCall("current P-chain height (1) < requested P-Chain height (2)")

    async with started_services() as services:
        services.node.replies["platform.validatedBy"] = refuse
        with pytest.raises(NodeUnavailable):
            await chain(services, L1_CHAIN, FakePeerUptimes()).locally_listed_subnet()


async def test_a_failure_of_the_p_chain_is_an_error() -> None:
    async with started_services() as services:
        services.node.replies[METHOD] = lambda _: web.Response(status=503)
        with pytest.raises(
            CallRefused, match=f"failed to get current validator set: no usable answer for {METHOD}"
        ):
            await chain(services, L1_CHAIN, FakePeerUptimes()).current([])


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_percentages_are_shown_as_32_bit_floats_are(up: int, more: int) -> None:
    percentage = format_percentage(100.0 * up / (up + more))
    exact = struct.unpack("f", struct.pack("f", 100.0 * up / (up + more)))[0]
    assert struct.unpack("f", struct.pack("f", percentage))[0] == exact
    assert len(repr(percentage).replace(".", "").lstrip("0").partition("e")[0]) <= 9


@pytest.mark.parametrize(
    ("seconds", "of", "text"),
    [(221, 296, "74.66216"), (294, 296, "99.324326"), (1, 1, "100"), (0, 5, "0")],
)
def test_recorded_percentages_have_every_digit(seconds: int, of: int, text: str) -> None:
    assert json.dumps(format_percentage(100.0 * seconds / of)) == text
