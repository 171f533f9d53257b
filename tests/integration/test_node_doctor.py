"""`doctor` compares the nodes: what each finding says, and its grade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.eventually import until
from tests.integration.daemon import build_config, run_network
from warpseal.config.keys import Config
from warpseal.doctor.nodes import check_heights, compare_nodes
from warpseal.node.upstream import connect_upstream
from warpseal.ops.health.registry import Finding, Grade
from warpseal.upstream.node import open_session
from warpseal.upstream.pool import NodeResult
from warpseal.upstream.probe import EndpointResponse
from warpseal.warp.ids import id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.node_behaviours import parse_node_behaviour
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.settings import NodeSettings

PLAN = Plan(validators=4, l1s=(L1Plan(shared=True),), nodes=3, churn_every=1)
REPLY = EndpointResponse(200, "JSON-RPC result", clock_offset_s=0.4)


def build(
    network: SimulatedNetwork, folder: Path, quorum: int = 2, keys: Mapping[str, Any] | None = None
) -> Config:
    nodes = [node.uri for node in network.nodes]
    return build_config(
        network,
        folder,
        {"p-chain-api": nodes, "info-api": nodes, "p-chain-quorum": quorum, **(keys or {})},
    )


async def compare(
    config: Config, responses: Mapping[int, EndpointResponse] | None = None
) -> list[Finding]:
    """Return the findings. replies: what some nodes of p-chain-api answered, by position."""
    async with open_session() as session:
        upstream = connect_upstream(config.node, session)
        heights = await upstream.platform.probe()
        p_chain = [(responses or {}).get(position, REPLY) for position in range(len(heights))]
        info = [REPLY] * len(config.node.info_api)
        return [
            *check_heights(heights),
            *await compare_nodes(config, upstream, heights, p_chain, info),
        ]


def texts(findings: list[Finding], grade: Grade) -> str:
    return "\n".join(finding.text for finding in findings if finding.grade is grade)


async def test_nodes_that_agree_are_good(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        findings = await compare(build(network, tmp_path))
    assert {finding.grade for finding in findings} == {Grade.GOOD}
    good = texts(findings, Grade.GOOD)
    assert "3 nodes of p-chain-api agree about the validators of 2 subnets at height 20" in good
    assert "3 nodes of info-api run avalanchego/1.15.3" in good
    assert "the clocks of the nodes are at most 0 s from this machine's" in good
    assert "every node has the proposervm API of 1 chain" in good


async def test_a_node_that_lies_is_named_with_what_it_contradicts(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        network.advance(10)
        for place, words in ((1, "old-sets=5"), (0, "foreign-sets"), (2, "foreign-conversion")):
            network.nodes[place].behaviour = parse_node_behaviour(words)
            findings = await compare(build(network, tmp_path))
            assert not texts(findings, Grade.BAD)
            warnings = texts(findings, Grade.WARNING)
            assert f"p-chain-api[{place}] contradicts the other nodes about" in warnings
            l1 = id_text(network.subnets[1].subnet_id)
            expected = (
                f"the conversion of subnet {l1}"
                if place == 2
                else "the validators of the Primary Network at height 30"
            )
            assert expected in warnings
            classes = next(
                finding.detail["classes"] for finding in findings if "classes" in finding.detail
            )
            assert [agreement_class["positions"] for agreement_class in classes][1] == [place]
            network.nodes[place].behaviour = parse_node_behaviour("")
        network.nodes[0].behaviour = parse_node_behaviour("forged-height=1000")
        assert "p-chain-api[0] is 1000 blocks ahead of the others" in texts(
            await compare(build(network, tmp_path)), Grade.WARNING
        )


async def test_two_nodes_that_lie_are_named_together(tmp_path: Path) -> None:
    async with run_network(replace(PLAN, nodes=4)) as network:
        network.advance(10)
        network.nodes[0].behaviour = parse_node_behaviour("old-sets=5")
        network.nodes[2].behaviour = parse_node_behaviour("foreign-sets")
        findings = await compare(build(network, tmp_path))
    assert "p-chain-api[0], p-chain-api[2] contradict the other nodes about" in texts(
        findings, Grade.WARNING
    )
    assert {finding.advice for finding in findings if "contradict" in finding.text} == {
        "if a node that you trust agrees with the others, remove them from p-chain-api"
    }


async def test_nodes_of_which_too_few_agree_cannot_be_used_for_signing(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        network.advance(10)
        network.nodes[0].behaviour = parse_node_behaviour("old-sets=5")
        network.nodes[1].behaviour = parse_node_behaviour("foreign-sets")
        findings = await compare(build(network, tmp_path))
        bad = texts(findings, Grade.BAD)
        assert (
            "the nodes disagree about the validators of subnet"
            f" {id_text(network.subnets[1].subnet_id)}" in bad
        )
        assert {finding.advice for finding in findings if "disagree" in finding.text} == {
            "compare them with a node that you trust, and remove those that are wrong"
        }
        # With a quorum of 1 the daemon would use the first node.
        findings = await compare(build(network, tmp_path, quorum=1))
        assert not texts(findings, Grade.BAD)
        assert "the nodes disagree" in texts(findings, Grade.WARNING)


async def test_fewer_nodes_than_must_agree_are_bad_and_just_enough_a_warning(
    tmp_path: Path,
) -> None:
    async with run_network(replace(PLAN, nodes=2)) as network:
        config = build(network, tmp_path)
        assert "only 2 nodes of p-chain-api answer" in texts(await compare(config), Grade.WARNING)
        network.nodes[1].rpc.outages = {"*": Outage(OutageKind.DROP)}
        assert "p-chain-quorum is 2, and 1 of 2 nodes of p-chain-api answer" in texts(
            await compare(config), Grade.BAD
        )


async def test_a_node_that_hangs_does_not_keep_the_others_from_being_compared(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network:
        network.nodes[1].rpc.outages = {"*": Outage(OutageKind.HANG)}
        config = build(network, tmp_path)
        findings: list[Finding] = []

        async def are_compared() -> bool:
            """Return whether the other nodes answered in time, which a busy machine may prevent."""
            findings[:] = await compare(
                structs.replace(config, node=structs.replace(config.node, call_timeout_s=0.2))
            )
            agreed = "2 nodes of p-chain-api agree about the validators of 2 subnets"
            return agreed in texts(findings, Grade.GOOD)

        await until(are_compared)
    assert "only 2 nodes of p-chain-api answer" in texts(findings, Grade.WARNING)


async def test_a_node_that_lags_is_not_compared_and_no_liar(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        network.advance(10)
        network.nodes[2].lag = 8
        findings = await compare(build(network, tmp_path))
    assert texts(findings, Grade.WARNING) == "p-chain-api[2] is 8 blocks behind the others"
    assert "2 nodes of p-chain-api agree" in texts(findings, Grade.GOOD)


async def test_clocks_and_versions_that_differ_are_warnings(tmp_path: Path) -> None:
    older = Plan(validators=1, l1s=(), settings=NodeSettings(version=(1, 14, 2)))
    async with run_network(PLAN) as network, run_network(older) as other:
        wrong = replace(REPLY, clock_offset_s=-45.0)
        warnings = texts(await compare(build(network, tmp_path), {1: wrong}), Grade.WARNING)
        assert (
            warnings
            == "the clock of p-chain-api[1] is -45 s from this machine's, as its HTTP Date says"
        )
        config = build(network, tmp_path, keys={"info-api": [network.node_uri, other.node_uri]})
        warnings = texts(await compare(config), Grade.WARNING)
    versions = "info-api[0] avalanchego/1.15.3, info-api[1] avalanchego/1.14.2"
    assert f"the nodes run different versions: {versions}" in warnings


async def test_chains_that_nodes_lack_are_named(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        (chain_id,) = network.state.chains_of(network.subnets[1].subnet_id)
        network.nodes[0].stop_chain(chain_id)
        config = build(network, tmp_path)
        good = texts(await compare(config), Grade.GOOD)
        where = "is on p-chain-api[1], p-chain-api[2], not on p-chain-api[0]"
        assert f"the proposervm API of chain {id_text(chain_id)} {where}" in good
        for node in network.nodes:
            node.stop_chain(chain_id)
        warnings = texts(await compare(config), Grade.WARNING)
        assert f"no configured node has the proposervm API of chain {id_text(chain_id)}" in warnings


def test_heights_are_compared_with_the_middle_one_of_three_nodes() -> None:
    def texts_about(*heights: int | None) -> list[str]:
        results = [
            NodeResult(place, "http://n", height, None) for place, height in enumerate(heights)
        ]
        return [finding.text for finding in check_heights(results)]

    assert texts_about(100, 100, 50) == ["p-chain-api[2] is 50 blocks behind the others"]
    assert texts_about(1000, 100, 98) == ["p-chain-api[0] is 900 blocks ahead of the others"]
    assert texts_about(100, 50) == ["p-chain-api[1] is 50 blocks behind the others"]
    assert texts_about(None, 50) == texts_about(None) == texts_about() == []
