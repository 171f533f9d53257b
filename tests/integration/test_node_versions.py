"""Each version of avalanchego, and one without any deprecated method: signing, indexing, doctor,
`index verify`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.index.fixtures import open_index
from tests.indexer.indexed import SimulatedNode, indexing, only, until_caught_up, upstream_of
from tests.indexer.test_index_verify import check_sets
from tests.integration.daemon import build_config, run_network
from tests.integration.l1_daemon import L1_PLAN, run_l1_daemon, run_l1_network
from tests.integration.message_verifier import verify_signed_message
from tests.integration.test_node_doctor import compare
from tests.simnet.sessions import Clock, small_network
from warpseal.chains.ids import Address, address_text
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.index.settings import IndexSettings
from warpseal.indexer.network import fetch_network
from warpseal.indexer.verify import IndexVerifier
from warpseal.ops.health.registry import Grade
from warpseal.resources.chains import PrimaryChain
from warpseal.store.url import StoreUrl
from warpseal.validators.p_chain_rows import PChainRows, read_rows
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.plan import L1Plan
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.tx_builder import OWNER
from warpseal_simnet.versions import DEPRECATED_METHODS, VERSIONS, lacks

# The first L1 signs the messages for the manager of the last one, so that only a list of subnets
# names that one.
PLAN = replace(
    L1_PLAN, l1s=(L1Plan(validators=4), L1Plan(validators=4, spare=2, manager="l1-0")), messages=2
)
UNFOLLOWED = {"follow-p-chain": False}
# Whether a node has it or not, only the search for initial validators asks for it.
SUBNETS = "platform.getSubnets"


@pytest.mark.parametrize("name", VERSIONS)
async def test_a_daemon_signs_beside_each_version_without_deprecated_methods(
    tmp_path: Path, name: str
) -> None:
    plan = replace(PLAN, settings=NodeSettings(version=VERSIONS[name]))
    async with run_l1_network(tmp_path, plan, UNFOLLOWED) as running:
        network, daemon = running.network, running.daemon
        message = network.messages_of(running.l1)[0]
        reply = await daemon.aggregate(message)
        assert reply.status == 200, reply.body
        verify_signed_message(
            network,
            reply.signed,
            message.unsigned.raw,
            running.l1,
            67,
            network.state.heights.current,
        )
        await running.deliver(network.p_chain.register(running.l1))
        await running.deliver(network.p_chain.remove(bootstrap_validation_id(running.l1, 2)))
        c_chain = next(chain for chain in network.state.chains.values() if chain.alias == "C")
        blockchain = await daemon.get(
            f"/v1/networks/mainnet/blockchains/{id_text(c_chain.chain_id)}"
        )
        assert (blockchain.status, blockchain.body["subnetId"]) == (200, id_text(PRIMARY_NETWORK))
        assert {method for method in DEPRECATED_METHODS if network.calls[method]} <= {SUBNETS}
        assert network.calls[SUBNETS] == 1


@pytest.mark.parametrize("quorum", [1, 2])
async def test_a_node_that_lacks_every_method_stops_no_signing(tmp_path: Path, quorum: int) -> None:
    async with run_network(replace(PLAN, nodes=1 + quorum)) as network:
        network.nodes[0].rpc.outages["*"] = Outage(OutageKind.NO_METHOD)
        nodes = [node.uri for node in network.nodes]
        keys = {"p-chain-api": nodes, "info-api": nodes, "p-chain-quorum": quorum}
        async with run_l1_daemon(network, tmp_path, {**UNFOLLOWED, **keys}) as running:
            reply = await running.daemon.aggregate(network.messages_of(running.l1)[0])
            assert reply.status == 200, reply.body
            await running.deliver(network.p_chain.register(running.l1))
            await running.deliver(network.p_chain.remove(bootstrap_validation_id(running.l1, 2)))


@pytest.mark.parametrize("name", VERSIONS)
async def test_an_index_beside_each_version_is_verified(tmp_path: Path, name: str) -> None:
    settings = NodeSettings(clock=Clock(), version=VERSIONS[name])
    async with small_network(
        settings=settings, messages=0, l1s=(L1Plan(validators=2, spare=1),)
    ) as network:
        network.p_chain.register(network.subnets[1].subnet_id)
        genesis, node = parse_p_genesis(network.state.ledger.genesis), SimulatedNode(network)
        async with indexing(
            tmp_path, node, settings=only(PrimaryChain.P), genesis=genesis
        ) as indexer:
            await until_caught_up(indexer)
        address = address_text(network.network_id, Address(OWNER), "P")
        async with upstream_of(node) as upstream:
            params = (await fetch_network(upstream, network.network_id, genesis)).params
            url = StoreUrl.for_file(tmp_path / "index.db")

            async def verify() -> dict[str, str]:
                findings = await IndexVerifier(upstream, params, url, IndexSettings()).run(
                    4, (address,), seed=1
                )
                return {
                    finding.subject: finding.difference
                    for finding in findings
                    if finding.is_compared
                }

            assert not any((await verify()).values())
            assert f"balance of {address}" in await verify()
            with sqlite3.connect(tmp_path / "index.db") as database:
                database.execute(
                    "UPDATE outputs SET amount = amount + 1"
                    " WHERE key = (SELECT max(key) FROM outputs)"
                )
            assert "outputs differ" in (await verify())[f"balance of {address}"]
            async with open_index(f"sqlite:///{tmp_path}/index.db", params) as index:
                converted = await index.read(
                    lambda session: read_rows(session, PChainRows.converted_subnets)
                )
            assert converted == (network.subnets[1].subnet_id,)
            sets = await check_sets(tmp_path, network.network_id, upstream)
        assert {finding.grade for finding in sets} == {Grade.GOOD}
        config = build_config(network, tmp_path)
        findings = await compare(config)
        assert {finding.grade for finding in findings} <= {Grade.GOOD}
        removed = [method for method in network.calls if lacks(settings.version, method)]
        assert removed == []
