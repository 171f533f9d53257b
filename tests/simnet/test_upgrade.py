"""Validators and nodes of a network move to the next release while it runs: versions, fork times,
methods, transactions of a later release.
"""

from __future__ import annotations

from hashlib import sha256

import pytest

from tests.simnet.client import call
from tests.simnet.sessions import NOW, Clock, Line, hello, peer_list, small_network
from warpseal.chains.codec import UnknownType
from warpseal.chains.p_blocks import parse_p_block
from warpseal.pb import p2p_pb2 as p2p
from warpseal_simnet.versions import NEXT_VERSION, Release
from warpseal_simnet.violations import ViolationKind

FORK_S = NOW + 30
NEXT = Release((1, 16, 0), (1, 15, 0), "igloo", (1, 16, 0))
DEPRECATED = "platform.getSubnets"


def client(major: int, minor: int, patch: int = 0) -> p2p.Client:
    return p2p.Client(name="avalanchego", major=major, minor=minor, patch=patch)


def test_a_release_refuses_older_peers_from_its_fork_time_on() -> None:
    clock = Clock()
    network = small_network(clock, messages=0)
    network.state.fork_times["igloo"] = FORK_S
    network.validators[0].release = NEXT
    line = Line(network).finish()
    clock.now = FORK_S - 1
    line.transport.fire()
    assert not line.transport.closed
    clock.now = FORK_S
    # The version of a connected peer is checked again before each ping.
    line.transport.fire()
    assert line.transport.closed
    assert line.violations == {ViolationKind.VERSION: 1}
    older, newer = Line(network), Line(network)
    older.send(hello(network.network_id, my_time=FORK_S, client=client(1, 15, 9)))
    assert older.transport.closed
    newer.send(hello(network.network_id, my_time=FORK_S, client=client(1, 16)), peer_list())
    assert newer.session.is_finished
    # A release without the upgrade accepts older peers as before.
    other = Line(network, 1)
    other.send(hello(network.network_id, my_time=FORK_S), peer_list())
    assert other.session.is_finished
    own, others = (
        message.handshake
        for line in (newer, other)
        for message in line.transport.messages()
        if message.HasField("handshake")
    )
    assert (own.client, own.upgrade_time) == (client(1, 16), FORK_S)
    assert (others.client, others.upgrade_time) == (client(1, 15, 3), 1_607_144_400)


async def test_an_upgraded_node_has_another_version_another_schedule_and_fewer_methods() -> None:
    async with small_network(messages=0, nodes=2) as network:
        network.state.fork_times["igloo"] = FORK_S
        first, second = (node.uri for node in network.nodes)
        assert isinstance(await call(first, "/ext/bc/P", DEPRECATED), dict)
        await network.upgrade_node(0, NEXT)
        await network.upgrade_validator(2, NEXT)
        assert network.nodes[0].uri == first
        refusal = await call(first, "/ext/bc/P", DEPRECATED)
        assert refusal == 'rpc: can\'t find method "platform.GetSubnets"'
        assert isinstance(await call(second, "/ext/bc/P", DEPRECATED), dict)
        versions, times = [], []
        for uri in (first, second):
            versions.append((await call(uri, "/ext/info", "info.getNodeVersion"))["version"])
            times.append((await call(uri, "/ext/info", "info.upgrades"))["iglooTime"])
        assert versions == ["avalanchego/1.16.0", "avalanchego/1.15.3"]
        assert times == ["2026-11-21T02:08:50Z", "9999-12-01T00:00:00Z"]
        peers = (await call(second, "/ext/info", "info.peers"))["peers"]
        reported = {peer["nodeID"]: (peer["version"], peer["upgradeTime"]) for peer in peers}
        expected = dict.fromkeys(reported, ("avalanchego/1.15.3", 1_607_144_400))
        expected[network.validators[2].name] = ("avalanchego/1.16.0", FORK_S)
        assert reported == expected
        assert NEXT.version > NEXT_VERSION


def test_a_transaction_of_a_later_release_has_a_type_that_no_decoder_knows() -> None:
    network = small_network(messages=0)
    future, payment = network.p_chain.future(), network.p_chain.base()
    assert future.height is not None
    with pytest.raises(UnknownType, match="a transaction has the unknown type id 43"):
        parse_p_block(network.p_chain.block(future.height))
    block = parse_p_block(network.p_chain.block(future.height + 1))
    assert block.parent_id == sha256(network.p_chain.block(future.height)).digest()
    assert [tx.id for tx in block.txs] == [payment.tx_id]
