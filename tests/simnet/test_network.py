"""The network over real sockets and TLS, seen by a client that shares no code with it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from time import monotonic_ns

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from eth_typing import BLSPubkey, BLSSignature
from py_ecc.bls.ciphersuites import G2ProofOfPossession

from tests.eventually import TIMEOUT_S, finish, until
from tests.simnet.client import Identity, call, connected, dialled, report
from tests.simnet.sessions import VECTORS
from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal_simnet.certificates import node_id_of
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.recorded import recorded_network
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.violations import ViolationKind

SMALL = Plan(validators=3, messages=10)


def port_of(network: SimulatedNetwork, index: int = 0) -> int:
    address = network.validators[index].address
    assert address is not None
    return address.port


async def test_a_correct_client_gets_shares_without_violations() -> None:
    async with SimulatedNetwork(replace(SMALL, rsa=1)) as network:
        message = network.messages_of(network.subnets[1].subnet_id)[0].unsigned
        for index, validator in enumerate(network.validators):
            async with connected(port_of(network, index), network.network_id) as peer:
                assert node_id_of(peer.certificate) == validator.node_id
                share = await peer.ask(message.source_chain_id, message.raw)
                assert isinstance(share, bytes)
                last = share
                assert bls.verify(bls.parse_public_key(validator.bls_key), message.raw, share)
        key = BLSPubkey(network.validators[2].bls_key)
        assert G2ProofOfPossession.Verify(key, message.raw, BLSSignature(last))
        assert await report(network.node_uri, "violations") == {
            "total": 0,
            "byKind": {},
            "byPeer": {},
            "latest": [],
        }
        stats = await report(network.node_uri, "stats")
        assert [entry["handshakes"] for entry in stats["validators"]] == [1, 1, 1]
        assert [entry["shares"] for entry in stats["validators"]] == [1, 1, 1]


async def test_the_report_of_shares_has_the_times_of_their_requests_and_writes() -> None:
    async with SimulatedNetwork(SMALL) as network:
        network.set_behaviour(0, "slow=50ms")
        network.set_behaviour(1, "refuse=6")
        message, other = (
            item.unsigned for item in network.messages_of(network.subnets[1].subnet_id)[:2]
        )
        before_ns = monotonic_ns()
        for index in (1, 0):
            async with connected(port_of(network, index), network.network_id) as peer:
                await peer.ask(message.source_chain_id, message.raw)
        async with connected(port_of(network, 2), network.network_id) as peer:
            await peer.ask(other.source_chain_id, other.raw)
        shares = await report(network.node_uri, "shares")
        after_ns = monotonic_ns()
    assert shares.keys() == {message.id.hex(), other.id.hex()}
    ((index, asked_ns, written_ns),) = shares[message.id.hex()]
    assert index == 0
    assert before_ns < asked_ns < asked_ns + 50_000_000 <= written_ns < after_ns
    assert [index for index, _, _ in shares[other.id.hex()]] == [2]


async def test_every_kind_of_message_is_signed_over_the_wire() -> None:
    async with (
        SimulatedNetwork(SMALL) as network,
        connected(port_of(network), network.network_id) as peer,
    ):
        for message in network.messages:
            unsigned = message.unsigned
            share = await peer.ask(unsigned.source_chain_id, unsigned.raw, message.justification)
            assert isinstance(share, bytes)
            assert bls.verify(
                bls.parse_public_key(network.validators[0].bls_key), unsigned.raw, share
            )


async def test_tls_is_1_3_and_wants_a_good_certificate() -> None:
    async with SimulatedNetwork(SMALL) as network:
        async with dialled(port_of(network)) as peer:
            assert peer.cipher is not None
            assert peer.cipher[1] == "TLSv1.3"
        async with dialled(port_of(network), context=Identity().context(bare=True)) as peer:
            assert await peer.is_closed()
        async with dialled(
            port_of(network), Identity(ec.generate_private_key(ec.SECP384R1()))
        ) as peer:
            assert await peer.is_closed()
        old = Identity().context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await dialled(port_of(network), context=old).__aenter__()
        assert network.violations.by_kind() == {
            ViolationKind.TLS_FAILED: 2,
            ViolationKind.CERTIFICATE: 1,
        }


async def test_garbage_instead_of_tls_and_silence_close_the_connection() -> None:
    plan = replace(SMALL, settings=NodeSettings(upgrade_timeout_s=0.1))
    async with SimulatedNetwork(plan) as network:
        for first_bytes in (b"GET / HTTP/1.1\r\n\r\n", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(network))
            writer.write(first_bytes)
            await finish(reader.read())
            writer.close()
        assert network.violations.by_kind() == {
            ViolationKind.TLS_FAILED: 1,
            ViolationKind.TLS_TIMEOUT: 1,
        }


async def test_a_second_connection_of_the_same_node_is_closed() -> None:
    async with SimulatedNetwork(SMALL) as network:
        identity = Identity()
        async with connected(port_of(network), network.network_id, identity) as first:
            async with dialled(port_of(network), identity) as second:
                assert await second.is_closed()
            await first.send(p2p.Message(ping=p2p.Ping()))
            assert (await first.receive()).WhichOneof("message") == "pong"
            async with connected(port_of(network, 1), network.network_id, identity):
                pass
        assert network.violations.by_kind() == {ViolationKind.DUPLICATE_NODE_ID: 1}


async def test_a_node_may_reconnect() -> None:
    async with SimulatedNetwork(SMALL) as network:
        identity = Identity()
        for _ in range(3):
            async with connected(port_of(network), network.network_id, identity):
                pass
            await until(lambda: network.validators[0].counts.open_connections == 0)
        assert network.violations.total == 0


async def test_a_frame_that_never_ends_is_counted() -> None:
    async with SimulatedNetwork(SMALL) as network:
        async with connected(port_of(network), network.network_id) as peer:
            peer.writer.write(b"\x00\x00\x01\x00abc")
            await peer.writer.drain()
            peer.writer.close()
            await until(lambda: network.violations.total)
        assert network.violations.by_kind() == {ViolationKind.TRUNCATED_FRAME: 1}


async def test_silence_beyond_the_read_deadline_ends_the_connection_and_pings_keep_it() -> None:
    settings = NodeSettings(ping_interval_s=0.2, read_timeout_s=0.5)
    async with SimulatedNetwork(replace(SMALL, settings=settings)) as network:
        async with connected(port_of(network), network.network_id) as peer:
            for _ in range(5):
                await peer.receive_kind("ping")
                await peer.send(p2p.Message(pong=p2p.Pong()), packed=True)
            assert network.violations.total == 0
            assert await peer.is_closed()
        assert network.violations.by_kind()[ViolationKind.READ_TIMEOUT] == 1


async def test_a_client_that_starts_from_one_validator_finds_all() -> None:
    async with SimulatedNetwork(Plan(validators=30, messages=0, info_peers=1)) as network:
        peers = await call(network.node_uri, "/ext/info", "info.peers")
        assert peers["numPeers"] == "1"
        addresses = {peers["peers"][0]["publicIP"]}
        todo = list(addresses)
        while todo:
            async with dialled(int(todo.pop().rpartition(":")[2]), identity := Identity()) as peer:
                await peer.send(
                    identity.handshake(network.network_id), p2p.Message(peer_list=p2p.PeerList())
                )
                listed = (await peer.receive_kind("peer_list")).peer_list.claimed_ip_ports
                new = {f"127.0.0.1:{claim.ip_port}" for claim in listed} - addresses
                addresses |= new
                todo += new
        assert addresses == {
            validator.address.endpoint for validator in network.validators if validator.address
        }
        assert network.violations.total == 0


async def test_closed_mute_and_private_validators_cannot_be_reached() -> None:
    rules = tuple(parse_rule(text) for text in ("0:closed", "1:mute", "2:private"))
    async with SimulatedNetwork(replace(SMALL, rules=rules)) as network:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of(network))
        mute = dialled(port_of(network, 1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mute.__aenter__(), 0.3)
        private = network.validators[2].address
        assert private is not None
        assert private.endpoint == "10.255.255.254:9651"
        assert network.violations.total == 0


async def test_a_validator_can_stop_restart_and_move() -> None:
    async with SimulatedNetwork(SMALL) as network:
        port = port_of(network)
        async with connected(port, network.network_id) as peer:
            network.stop_validator(0)
            assert await peer.is_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        await network.start_validator(0)
        async with connected(port, network.network_id):
            pass
        before = network.validators[0].address
        network.stop_validator(0)
        await network.start_validator(0, moved=True)
        after = network.validators[0].address
        assert before is not None
        assert after is not None
        assert after.port != before.port
        assert after.signed_at > before.signed_at


async def test_a_flood_reaches_the_client_and_the_rest_still_works() -> None:
    rules = (parse_rule("0:flood=2000"),)
    async with (
        SimulatedNetwork(replace(SMALL, rules=rules)) as network,
        dialled(port_of(network), identity := Identity()) as peer,
    ):
        await peer.send(
            identity.handshake(network.network_id), p2p.Message(peer_list=p2p.PeerList())
        )
        garbage = 0
        async with asyncio.timeout(TIMEOUT_S):
            while garbage < 50:
                length = int.from_bytes(await peer._reader.readexactly(4), "big")
                await peer._reader.readexactly(length)
                garbage += 1


async def test_writes_to_a_peer_that_does_not_read_are_bounded() -> None:
    settings = NodeSettings(write_timeout_s=0.2)
    rules = (parse_rule("0:flood=50000"),)
    async with SimulatedNetwork(replace(SMALL, rules=rules, settings=settings)) as network:
        async with dialled(port_of(network)) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: network.violations.total)
        assert network.violations.by_kind() == {ViolationKind.WRITE_TIMEOUT: 1}


async def test_blocks_come_on_a_timer() -> None:
    async with SimulatedNetwork(replace(SMALL, block_interval_s=0.05)) as network:
        start = network.state.heights.current
        await until(lambda: network.state.heights.current >= start + 3)


async def test_the_recorded_network_answers_over_tls_as_recorded() -> None:
    async with recorded_network(VECTORS) as network:
        shares = 0
        for index, validator in enumerate(network.validators):
            async with connected(port_of(network, index), network.network_id) as peer:
                for message in network.messages:
                    unsigned = message.unsigned
                    if unsigned.source_chain_id not in validator.chains:
                        continue
                    response = await peer.ask(
                        unsigned.source_chain_id, unsigned.raw, message.justification
                    )
                    if isinstance(response, bytes):
                        assert bls.verify(
                            bls.parse_public_key(validator.bls_key), unsigned.raw, response
                        )
                        shares += 1
        assert shares == 42 + 2 * 7
        assert network.violations.total == 0
        peers = await call(network.node_uri, "/ext/info", "info.peers")
        assert peers["numPeers"] == "6"


async def test_an_l1s_own_nodes_run_only_its_chains() -> None:
    plan = Plan(validators=2, l1s=(L1Plan(1),), messages=5)
    async with SimulatedNetwork(plan) as network:
        c_chain = network.messages_of(network.subnets[0].subnet_id)[0].unsigned
        own = network.messages_of(network.subnets[1].subnet_id)[0].unsigned
        async with connected(port_of(network, 2), network.network_id) as peer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(peer.ask(c_chain.source_chain_id, c_chain.raw), 0.3)
            assert isinstance(await peer.ask(own.source_chain_id, own.raw), bytes)
