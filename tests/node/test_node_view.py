"""Blockchains and validators from nodes alone, against recorded replies of real nodes."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from msgspec import UNSET

from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NETWORK_ID,
    PERMISSIONED,
    Params,
    RecordedNode,
    RefusedCall,
    node_id,
    open_upstream,
    recorded_result,
)
from tests.node.test_l1_state import REGISTER, fail_not_found
from warpseal.node import node_view
from warpseal.node.node_view import decode_connectivity, decode_validations
from warpseal.resources.chains import PUBLIC_CHAINS, PrimaryChain
from warpseal.resources.interfaces import Connectivity
from warpseal.resources.transactions import ActiveState, Rewards
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, id_text, node_id_text, parse_id

OWNED = node_id("4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS")
NODE = node_id("4t2fv4b9AQ39bhZkKwky3otLxBzMM1sdF")
ALL: list[dict[str, Any]] = recorded_result(
    "platform.getCurrentValidators", subnetID=id_text(PRIMARY_NETWORK)
)["validators"]
PEER: dict[str, Any] = recorded_result("info.peers")["peers"][0]
TOTAL = 5 * 10**15


def validators(**changes: Any) -> Any:
    """Answers getCurrentValidators for whichever nodes are asked for."""

    def reply_to(params: Params) -> Any:
        return {
            "validators": [
                {**validation, **changes}
                for validation in ALL
                if validation["nodeID"] in params["nodeIDs"]
            ]
        }

    return reply_to


def node(peers: Any = (), **changes: Any) -> RecordedNode:
    return RecordedNode(
        {
            "platform.getCurrentValidators": validators(**changes),
            "platform.getTotalStake": {"stake": str(TOTAL), "weight": str(TOTAL)},
            "info.peers": {"numPeers": str(len(peers)), "peers": list(peers)},
        }
    )


async def test_a_recorded_validator_is_returned_as_the_node_lists_it() -> None:
    async with open_upstream(node()) as upstream:
        (validation,) = await upstream.view.validations(NODE)
    assert validation.tx_id == parse_id("2NGSoZJR3Tnt5pzucRMqL3cFXEUxcqiHxpkx2vTZYvnPmef3vx")
    assert (validation.node_id, validation.subnet_id, validation.staked) == (
        NODE,
        PRIMARY_NETWORK,
        10**15,
    )
    assert (validation.start, validation.end, validation.fee_shares) == (
        1_795_226_559,
        1_826_751_759,
        10_000,
    )
    assert validation.bls
    assert validation.bls.public_key.startswith("0xb1dd60340d84")
    assert isinstance(validation.state, ActiveState)
    assert (
        validation.state.total_stake,
        validation.state.delegator_count,
        validation.state.delegated,
    ) == (TOTAL, 0, 0)
    potential = validation.state.potential
    assert (potential.validation, potential.delegation, len(potential.addresses)) == (
        672_391_806_538_052,
        0,
        1,
    )


async def test_delegation_fees_are_rounded_in_favour_of_the_validator() -> None:
    delegators = [{"potentialReward": "100"}, {"potentialReward": "101"}]
    recorded = node(
        delegationFee="2.5000",
        accruedDelegateeReward="7",
        delegators=delegators,
        delegatorCount="2",
        delegatorWeight="50",
        signer=None,
    )
    async with open_upstream(recorded) as upstream:
        (validation,) = await upstream.view.validations(NODE)
    assert isinstance(validation.state, ActiveState)
    assert validation.state.potential == Rewards(
        672_391_806_538_052, 7 + 3 + 3, validation.state.potential.addresses
    )
    assert (validation.state.delegator_count, validation.state.delegated, validation.bls) == (
        2,
        50,
        UNSET,
    )


async def test_restaked_rewards_of_an_auto_renewed_validator_are_among_those_it_may_get() -> None:
    recorded = node(
        accruedDelegateeReward="7",
        validatorAuthority={"locktime": "0", "threshold": "1", "addresses": []},
        nextPeriod="1209600",
        autoCompoundRewardShares="1000000",
        restakedValidationRewards="7000",
        restakedDelegateeRewards="3000",
    )
    async with open_upstream(recorded) as upstream:
        (validation,) = await upstream.view.validations(NODE)
    assert isinstance(validation.state, ActiveState)
    potential = validation.state.potential
    assert (potential.validation, potential.delegation) == (672_391_806_538_052 + 7_000, 7 + 3_000)


def listing(params: Params) -> Any:
    """Answers getCurrentValidators of any recorded subnet for whichever nodes are asked for."""
    subnet = params.get("subnetID", id_text(PRIMARY_NETWORK))
    listed = recorded_result("platform.getCurrentValidators", subnetID=subnet)["validators"]
    return {
        "validators": [
            validation for validation in listed if validation["nodeID"] in params["nodeIDs"]
        ]
    }


def of_all_subnets(*l1_nodes: str, members: Any = None) -> RecordedNode:
    """A node that lists every subnet's validators.

    l1_nodes: listed as members of the L1 as well.
    """
    sets = deepcopy(recorded_result("platform.getAllValidatorsAt", height=19)["validatorSets"])
    sets[id_text(L1)]["validators"][0]["nodeIDs"] += l1_nodes
    total = {id_text(PERMISSIONED): "49463"}
    return RecordedNode(
        {
            "platform.getCurrentValidators": listing,
            "platform.getTotalStake": lambda params: {
                "weight": total.get(params.get("subnetID"), str(TOTAL))
            },
            "platform.getAllValidatorsAt": members or {"validatorSets": sets},
        }
    )


async def test_validations_of_subnets_are_returned_with_the_one_of_the_primary_network() -> None:
    recorded = of_all_subnets(node_id_text(OWNED))
    async with open_upstream(recorded) as upstream:
        primary, of_subnet = await upstream.view.validations(OWNED)
        await upstream.view.validations(NODE)
    assert (primary.subnet_id, primary.fee_shares) == (PRIMARY_NETWORK, 10_000)
    assert (of_subnet.subnet_id, of_subnet.staked, of_subnet.fee_shares) == (
        PERMISSIONED,
        49_463,
        None,
    )
    assert (of_subnet.start, of_subnet.end) == (1_795_226_562, 1_826_757_159)
    assert of_subnet.state == ActiveState(
        delegator_count=0, total_stake=49_463, potential=Rewards(0, 0)
    )
    # The L1 was also asked about, and nothing is staked there.
    subnets = [
        params.get("subnetID")
        for _, method, params in recorded.seen
        if method == "platform.getCurrentValidators"
    ]
    assert subnets == [None, *sorted(map(id_text, (L1, PERMISSIONED)), key=parse_id), None]
    assert recorded.calls["platform.getAllValidatorsAt"] == 1


async def test_a_validator_of_an_l1_alone_has_no_validation() -> None:
    of_l1 = node_id("3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK")
    recorded = of_all_subnets()
    async with open_upstream(recorded) as upstream:
        assert await upstream.view.validations(of_l1) == ()
    assert recorded.calls["platform.getAllValidatorsAt"] == 0


async def test_an_older_node_returns_only_the_primary_network() -> None:
    def unknown(_: Params) -> Any:
        raise RefusedCall('rpc: can\'t find method "platform.getAllValidatorsAt"')

    async with open_upstream(of_all_subnets(members=unknown)) as upstream:
        (validation,) = await upstream.view.validations(OWNED)
    assert validation.subnet_id == PRIMARY_NETWORK


async def test_a_node_that_does_not_validate_costs_no_second_call() -> None:
    recorded = node()
    async with open_upstream(recorded) as upstream:
        assert await upstream.view.validations(node_id("111111111111111111116DBWJs")) == ()
    assert recorded.calls["platform.getTotalStake"] == 0


async def test_connectivity_is_the_observation_of_the_node() -> None:
    async with open_upstream(node([{**PEER, "benched": ["P", "C"]}], uptime="99.0683")) as upstream:
        seen = await upstream.view.connectivity(NODE)
    assert seen == Connectivity(99.0683, 99.0683, 100.0, 0.0, 100.0, "1.14.1")


async def test_a_node_that_is_no_primary_network_validator_is_judged_by_its_connection() -> None:
    stranger = node_id("111111111111111111116DBWJs")
    async with open_upstream(node([PEER])) as upstream:
        assert await upstream.view.connectivity(stranger) == Connectivity(
            100.0, 100.0, version="1.14.1"
        )
    async with open_upstream(node()) as upstream:
        assert await upstream.view.connectivity(stranger) == Connectivity(0.0, 0.0)


async def test_validations_and_connectivity_share_one_cached_call() -> None:
    recorded = node([PEER])
    async with open_upstream(recorded) as upstream:
        await upstream.view.validations(NODE)
        await upstream.view.connectivity(NODE)
    assert recorded.calls["platform.getCurrentValidators"] == 1
    (params,) = [
        params for _, method, params in recorded.seen if method == "platform.getCurrentValidators"
    ]
    assert params == {"nodeIDs": [node_id_text(NODE)]}


def failing_after_the_first_call() -> RecordedNode:
    def peers(params: Params) -> Any:
        if recorded.calls["info.peers"] > 1:
            raise RefusedCall("shutting down")
        return {"peers": [PEER]}

    recorded = node()
    recorded.replies["info.peers"] = peers
    return recorded


async def test_the_connectivity_of_a_validator_is_cached() -> None:
    recorded = failing_after_the_first_call()
    async with open_upstream(recorded) as upstream:
        connectivity = await upstream.view.connectivity(NODE)
        assert await upstream.view.connectivity(NODE) == connectivity
        assert recorded.calls["info.peers"] == 1


async def test_the_last_connectivity_is_returned_while_no_node_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_view, "CACHE_TTL_S", 0.0)
    recorded = failing_after_the_first_call()
    async with open_upstream(recorded) as upstream:
        connectivity = await upstream.view.connectivity(NODE)
        assert await upstream.view.connectivity(NODE) == connectivity
        assert recorded.calls["info.peers"] == 2


async def test_connectivity_that_is_too_old_is_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_view, "CACHE_TTL_S", 0.0)
    monkeypatch.setattr(node_view, "STALE_CONNECTIVITY_S", 0.0)
    async with open_upstream(failing_after_the_first_call()) as upstream:
        await upstream.view.connectivity(NODE)
        with pytest.raises(NodeUnavailable):
            await upstream.view.connectivity(NODE)


async def test_a_recorded_blockchain_is_read_from_its_creation() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        chain = await upstream.view.blockchain(L1_CHAIN)
    assert chain is not None
    assert (chain.chain_id, chain.subnet_id, chain.height, chain.time) == (L1_CHAIN, L1, None, None)
    assert id_text(chain.vm_id) == "srEXiWaHuhNyGwPUi444Tu47ZEDwxTWrbQiuD7FmgSAQ6X7Dy"
    assert chain.genesis is not None
    assert chain.genesis.startswith(b"{")


async def test_a_blockchain_of_the_genesis_has_a_transaction_like_others() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        chain = await upstream.view.blockchain(C_CHAIN)
        assert chain is not None
        assert (chain.name, chain.subnet_id) == ("C-Chain", PRIMARY_NETWORK)
        assert chain.genesis is not None
        assert json.loads(chain.genesis)["config"]["chainId"] == NETWORK_ID
        p_chain = await upstream.view.blockchain(P_CHAIN)
        assert p_chain is not None
        assert p_chain.vm_id.rstrip(b"\x00") == b"platformvm"
    async with open_upstream(RecordedNode({"platform.getTx": fail_not_found})) as upstream:
        assert await upstream.view.blockchain(C_CHAIN) is None


async def test_primary_chains_are_those_of_a_public_network_else_those_of_the_genesis() -> None:
    recorded = RecordedNode()
    async with open_upstream(recorded) as upstream:
        assert await upstream.view.primary_chains(1) == PUBLIC_CHAINS[1]
        assert not recorded.calls
        chains = await upstream.view.primary_chains(NETWORK_ID)
        call_count = recorded.calls.total()
        assert await upstream.view.primary_chains(NETWORK_ID) == chains
        assert recorded.calls.total() == call_count
    assert recorded.calls["platform.getBlockchains"] == 0
    assert chains.of_id(C_CHAIN) is PrimaryChain.C
    assert chains.of_id(P_CHAIN) is PrimaryChain.P
    assert id_text(chains.x) == "g7dijKMsQFeQu2cEHwQC3rRxBQHLeCnokt9CWko3RbcrV5252"
    assert chains.of_id(L1_CHAIN) is None


async def test_no_node_can_name_another_chain_as_a_primary_chain() -> None:
    l1_chain = {"blockchainIDs": [id_text(L1_CHAIN)] * 10_000}
    liar = RecordedNode({"platform.validates": l1_chain})
    async with open_upstream(liar) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.view.primary_chains(NETWORK_ID)
    assert liar.calls["platform.getTx"] < 10
    async with open_upstream(liar, RecordedNode(), RecordedNode(), p_chain_quorum=2) as upstream:
        assert (await upstream.view.primary_chains(NETWORK_ID)).c == C_CHAIN


async def test_a_transaction_of_another_type_is_no_blockchain() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.view.blockchain(ChainID(REGISTER)) is None


async def test_an_error_response_is_a_failed_call() -> None:
    def refuse(_: Params) -> Any:
        raise RefusedCall("no")

    async with open_upstream(RecordedNode({"platform.getCurrentValidators": refuse})) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.view.validations(NODE)


@pytest.mark.parametrize(
    "change",
    [
        {"delegationFee": "101"},
        {"delegationFee": "NaN"},
        {"uptime": "x"},
        {"weight": "-1"},
        {"txID": "x"},
        {"signer": {"publicKey": "0x00", "proofOfPossession": "0x00"}},
        {"delegators": [{"potentialReward": "1e9"}]},
    ],
)
async def test_a_malformed_response_is_a_failed_call(change: dict[str, Any]) -> None:
    async with open_upstream(node(**change)) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.view.validations(NODE)


def test_an_empty_response_is_an_empty_validator_set() -> None:
    assert decode_validations(PRIMARY_NETWORK, b'{"validators":null}') == ()
    assert decode_connectivity(b'{"peers":null}') == Connectivity(0.0, 0.0)


async def test_with_a_quorum_a_second_node_checks_stakes_whatever_uptime_it_observed() -> None:
    liar, honest, other = node(weight="1"), node(uptime="99.0000"), node(uptime="98.0000")
    async with open_upstream(liar, honest, other, p_chain_quorum=2) as upstream:
        staked, *_ = await upstream.view.validations(OWNED)
    assert staked.staked == int(
        next(entry["weight"] for entry in ALL if entry["nodeID"] == node_id_text(OWNED))
    )
    async with open_upstream(honest, other, p_chain_quorum=2) as upstream:
        assert len(await upstream.view.validations(OWNED)) > 0
        assert (await upstream.view.primary_chains(NETWORK_ID)).c == C_CHAIN
    assert other.calls["platform.validates"] == 1
