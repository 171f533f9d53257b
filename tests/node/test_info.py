"""Responses of info nodes: the network id and addresses of peers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.recorded_node import (
    NETWORK_ID,
    RecordedNode,
    RefusedCall,
    build_settings,
    connect,
    node_id,
    open_upstream,
    recorded_result,
    refusing_uri,
    serve_nodes,
)
from warpseal.node.info import PeerHint
from warpseal.upstream.errors import NodeAttempt, NodesDisagree, NodeUnavailable, PublicFailure
from warpseal.upstream.node import open_session


async def test_the_first_node_that_answers_decides_the_network_once() -> None:
    node = RecordedNode()
    async with open_upstream(node) as upstream:
        assert await upstream.info.network_id() == NETWORK_ID
        assert await upstream.info.network_id() == NETWORK_ID
    assert node.calls["info.getNetworkID"] == 1


async def test_nodes_that_must_agree_decide_the_network_together() -> None:
    liar = RecordedNode({"info.getNetworkID": {"networkID": "5"}})
    async with open_upstream(liar, RecordedNode(), RecordedNode(), p_chain_quorum=2) as upstream:
        assert await upstream.info.network_id() == 88_888
    async with open_upstream(liar, RecordedNode(), p_chain_quorum=2) as upstream:
        with pytest.raises(NodesDisagree):
            await upstream.info.network_id()


async def test_without_an_info_node_the_network_is_unknown() -> None:
    async with open_session() as session:
        with pytest.raises(NodeUnavailable) as error:
            await connect(session, build_settings(refusing_uri())).info.network_id()
    assert error.value.attempts == (NodeAttempt(0, PublicFailure.REFUSED),)


async def test_peers_are_listed_with_the_address_they_claim_together_with_the_node_itself() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        hints = (await upstream.info.peers()).hints
    recorded = recorded_result("info.peers")["peers"]
    assert len(hints) == len(recorded) + 1
    assert hints[0] == PeerHint(node_id("7fdvUNLVpGgng9tyYzBifCzT7XJrqMKNS"), "127.0.0.1", 45_683)
    assert (
        PeerHint(
            node_id("4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS"), "127.0.0.1", 38_211, "avalanchego/1.14.1"
        )
        in hints
    )


async def test_unusable_peers_are_left_out_and_ipv6_is_parsed() -> None:
    peers = [
        {
            "nodeID": "NodeID-4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS",
            "publicIP": address,
            "version": "v" * 1_000,
        }
        for address in (
            "",
            "host:1",
            "1.2.3.4",
            "1.2.3.4:0",
            "1.2.3.4:65536",
            "1.2.3.4:-1",
            "[2001:db8::1]:9651",
        )
    ]
    peers += [{"nodeID": "NodeID-x", "publicIP": "1.2.3.4:9651"}, {"nodeID": "NodeID-x"}]
    node = RecordedNode(
        {"info.peers": {"numPeers": "1", "peers": peers}, "info.getNodeIP": {"ip": ""}}
    )
    async with open_upstream(node) as upstream:
        hints = (await upstream.info.peers()).hints
    assert [(hint.host, hint.port, len(hint.version)) for hint in hints] == [
        ("2001:db8::1", 9_651, 64)
    ]


async def test_all_info_nodes_are_called_and_a_single_reply_suffices() -> None:
    def refuse(_: object) -> None:
        raise RefusedCall("no")

    other = {"nodeID": "NodeID-F3JBbBDkXHTFkeAaxxUbmLsJCFFgtDMtF", "publicIP": "203.0.113.7:9651"}
    nodes = (
        RecordedNode(),
        RecordedNode({"info.peers": {"peers": [other]}}),
        RecordedNode({"info.peers": refuse}),
    )
    async with serve_nodes(*nodes) as uris, open_session() as session:
        info = connect(session, build_settings(refusing_uri(), *uris)).info
        peers = await info.peers()
        assert not peers.complete
        assert (
            PeerHint(node_id("F3JBbBDkXHTFkeAaxxUbmLsJCFFgtDMtF"), "203.0.113.7", 9_651)
            in peers.hints
        )
        assert len(peers.hints) == len(set(peers.hints))
    assert [node.calls["info.peers"] for node in nodes] == [1, 1, 1]


async def test_peers_are_unavailable_when_no_node_answers() -> None:
    node = RecordedNode({"info.peers": {"peers": "all of them"}})
    async with open_upstream(node) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.info.peers()
    assert error.value.attempts == (NodeAttempt(0, PublicFailure.BAD_ANSWER),)


async def test_each_node_can_be_probed_for_the_operator() -> None:
    async with serve_nodes(RecordedNode()) as uris, open_session() as session:
        dead = refusing_uri()
        upstream = connect(session, build_settings(uris[0], dead))
        networks, heights = await upstream.info.probe(), await upstream.platform.probe()
    assert [
        (result.position, result.display, result.value, result.failure) for result in networks
    ] == [
        (0, uris[0], NETWORK_ID, None),
        (1, dead, None, PublicFailure.REFUSED),
    ]
    assert [result.value for result in heights] == [19, None]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rpcProtocolVersion": "44"}, 44),
        ({"rpcProtocolVersion": 43}, 43),
        ({"rpcProtocolVersion": "-1"}, None),
        ({}, None),
    ],
)
async def test_the_plugin_protocol_is_that_of_the_node(
    fields: dict[str, object], expected: int | None
) -> None:
    async with open_upstream(RecordedNode({"info.getNodeVersion": fields})) as upstream:
        assert await upstream.info.rpc_protocol_version() == expected


async def test_without_an_info_node_the_plugin_protocol_is_unknown() -> None:
    async with open_session() as session:
        assert (
            await connect(session, build_settings(refusing_uri())).info.rpc_protocol_version()
            is None
        )


async def test_the_duration_of_an_epoch_comes_from_a_node_or_from_the_network() -> None:
    recorded = RecordedNode({"info.upgrades": {"graniteEpochDuration": 4_000_000_000}})
    async with open_upstream(recorded) as upstream:
        assert await upstream.info.epoch_duration_s() == 4
    async with open_upstream(
        RecordedNode({"info.upgrades": {"graniteEpochDuration": "1500000000"}})
    ) as upstream:
        assert await upstream.info.epoch_duration_s() == 2
    for network_id, duration_s in ((1, 300), (5, 300), (88_888, 30)):
        for upgrades in (lacking_method, {"etnaTime": "2024-12-16T17:00:00Z"}):
            replies = {
                "info.upgrades": upgrades,
                "info.getNetworkID": {"networkID": str(network_id)},
            }
            async with open_upstream(RecordedNode(replies)) as upstream:
                assert await upstream.info.epoch_duration_s() == duration_s


async def test_a_node_before_granite_names_no_duration_and_one_without_epochs_names_0() -> None:
    for upgrades, duration_s in (
        ({}, 30),
        ({"graniteEpochDuration": None}, 30),
        ({"graniteEpochDuration": 0}, 0),
    ):
        async with open_upstream(RecordedNode({"info.upgrades": upgrades})) as upstream:
            assert await upstream.info.epoch_duration_s() == duration_s


@pytest.mark.parametrize("duration", [-1, 2**63, "4s", []])
async def test_an_impossible_duration_of_an_epoch_is_no_reply(duration: object) -> None:
    async with open_upstream(
        RecordedNode({"info.upgrades": {"graniteEpochDuration": duration}})
    ) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.info.epoch_duration_s()


def lacking_method(params: object) -> object:
    raise RefusedCall('rpc: can\'t find method "info.Upgrades"')


async def test_what_a_node_answers_that_has_no_x_chain_is_in_the_error() -> None:
    def refuse(params: Any) -> Any:
        raise RefusedCall("there is no ID with alias: X")

    node = RecordedNode({"info.getBlockchainID": refuse})
    async with open_upstream(node) as upstream:
        with pytest.raises(
            NodeUnavailable, match=r"X-Chain.*getBlockchainID was refused with 'there is no ID with"
        ):
            await upstream.info.blockchain_id("X")
