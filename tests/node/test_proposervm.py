"""The epoch and the proposed height of a chain, from any configured node that runs it."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from tests.node.recorded_node import (
    C_CHAIN,
    L1_CHAIN,
    NO_CHAIN,
    RecordedNode,
    RefusedCall,
    build_settings,
    connect,
    open_upstream,
    refusing_uri,
    serve_nodes,
)
from warpseal.chains.proposervm import Epoch
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.errors import NodeAttempt, NodesDisagree, NodeUnavailable, PublicFailure
from warpseal.upstream.node import open_session
from warpseal.warp.ids import P_CHAIN, id_text

METHOD = "proposervm.getCurrentEpoch"
L1_EPOCH = Epoch(18, 30, 1795226806)
OWN_REPLIES = {
    METHOD: {"number": "30", "startTime": "1795226806", "pChainHeight": "18"},
    "proposervm.getProposedHeight": {"height": "19"},
}


async def test_recorded_epochs_are_read_per_chain() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.proposervm.current_epoch(C_CHAIN) == Epoch(13, 7, 1795226690)
        assert await upstream.proposervm.current_epoch(L1_CHAIN) == L1_EPOCH
        assert await upstream.proposervm.proposed_height(L1_CHAIN) == 19


async def test_an_epoch_that_starts_at_no_date_is_a_bad_answer() -> None:
    late = {"number": "30", "startTime": str(2**63), "pChainHeight": "18"}
    async with open_upstream(RecordedNode({METHOD: late})) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.proposervm.current_epoch(L1_CHAIN)
    assert error.value.attempts == (NodeAttempt(0, PublicFailure.BAD_ANSWER),)


async def test_a_chain_that_no_node_runs_has_no_epoch_and_fails_no_node() -> None:
    node = RecordedNode()
    async with open_upstream(node, RecordedNode()) as upstream:
        assert await upstream.proposervm.current_epoch(NO_CHAIN) is None
        assert await upstream.proposervm.proposed_height(NO_CHAIN) is None
        await upstream.platform.height()
    assert node.calls["platform.getHeight"] == 1


@pytest.mark.parametrize(
    ("status", "runs"), [(403, False), (404, False), (429, True), (500, True), (503, True)]
)
async def test_a_node_that_fails_may_run_a_chain_that_the_others_do_not_run(
    status: int, runs: bool
) -> None:
    node = RecordedNode({METHOD: lambda _: web.Response(status=status)})
    async with open_upstream(RecordedNode(paths=("/ext/P", "/ext/info")), node) as upstream:
        if not runs:
            assert await upstream.proposervm.current_epoch(L1_CHAIN) is None
            return
        with pytest.raises(NodeUnavailable) as error:
            await upstream.proposervm.current_epoch(L1_CHAIN)
    assert [attempt.position for attempt in error.value.attempts] == [1]


@pytest.mark.parametrize(("code", "runs"), [(-32_601, False), (-32_000, True)])
async def test_a_node_that_refuses_may_run_a_chain_unless_it_lacks_the_method(
    code: int, runs: bool
) -> None:
    def refuse(_: object) -> None:
        raise RefusedCall("database closed", code)

    async with open_upstream(
        RecordedNode(paths=("/ext/P", "/ext/info")), RecordedNode({METHOD: refuse})
    ) as upstream:
        if not runs:
            assert await upstream.proposervm.current_epoch(L1_CHAIN) is None
            return
        with pytest.raises(NodeUnavailable) as error:
            await upstream.proposervm.current_epoch(L1_CHAIN)
    assert error.value.attempts == (NodeAttempt(1, PublicFailure.BAD_ANSWER),)


async def test_the_second_node_is_called_if_the_first_does_not_run_the_chain() -> None:
    bare, full = RecordedNode(paths=("/ext/P", "/ext/info")), RecordedNode()
    async with open_upstream(bare, full) as upstream:
        assert await upstream.proposervm.current_epoch(L1_CHAIN) == L1_EPOCH


async def test_info_nodes_are_called_after_p_chain_nodes() -> None:
    bare, full = RecordedNode(paths=("/ext/P", "/ext/info")), RecordedNode()
    async with serve_nodes(bare, full) as uris, open_session() as session:
        settings = build_settings(uris[0], info_api=build_settings(uris[1]).info_api)
        assert await connect(session, settings).proposervm.current_epoch(L1_CHAIN) == L1_EPOCH


@pytest.mark.parametrize("zero", ["0", 0])
async def test_an_epoch_of_zeros_is_no_epoch(zero: Any) -> None:
    reply = {"number": zero, "startTime": zero, "pChainHeight": zero}
    async with open_upstream(RecordedNode({METHOD: reply})) as upstream:
        assert await upstream.proposervm.current_epoch(C_CHAIN) == NO_EPOCH


async def test_an_epoch_at_height_zero_is_valid() -> None:
    reply = {"number": "1", "startTime": "1795226690", "pChainHeight": "0"}
    async with open_upstream(RecordedNode({METHOD: reply})) as upstream:
        assert await upstream.proposervm.current_epoch(C_CHAIN) == Epoch(0, 1, 1795226690)


async def test_an_epoch_is_unavailable_if_no_node_is_reachable() -> None:
    async with open_session() as session:
        with pytest.raises(NodeUnavailable):
            await connect(session, build_settings(refusing_uri())).proposervm.current_epoch(C_CHAIN)


async def test_a_lookup_that_goes_on_when_the_daemon_stops_ends_as_at_a_node_that_fails() -> None:
    async with open_session() as session:
        proposervm = connect(session, build_settings(refusing_uri())).proposervm
    with pytest.raises(NodeUnavailable):
        await proposervm.current_epoch(C_CHAIN)


async def test_nodes_of_evm_chains_are_called_as_well_and_first_once_they_have_answered() -> None:
    bare, own = (
        RecordedNode(paths=("/ext/P", "/ext/info")),
        RecordedNode(OWN_REPLIES, paths=("/l1/",)),
    )
    async with serve_nodes(bare, own) as uris, open_session() as session:
        chains = (EvmChain(L1_CHAIN, (NodeEndpoint(f"{uris[1]}/l1/rpc?key=1"),)),)
        proposervm = connect(session, build_settings(uris[0], evm_chains=chains)).proposervm
        assert await proposervm.current_epoch(L1_CHAIN) == Epoch(18, 30, 1795226806)
        assert await proposervm.proposed_height(L1_CHAIN) == 19
        assert await proposervm.current_epoch(C_CHAIN) is None
    assert [path for path, _, _ in own.seen] == ["/l1/proposervm"] * 2
    assert own.requests[0]["key"] == "1"


async def test_an_own_node_of_a_chain_answers_while_all_others_are_down() -> None:
    own = RecordedNode(OWN_REPLIES, paths=("/l1/",))
    async with serve_nodes(own) as uris, open_session() as session:
        chains = (EvmChain(L1_CHAIN, (NodeEndpoint(f"{uris[0]}/l1/rpc"),)),)
        upstream = connect(session, build_settings(refusing_uri(), evm_chains=chains))
        assert await upstream.proposervm.current_epoch(L1_CHAIN) == L1_EPOCH
        with pytest.raises(NodeUnavailable):
            await upstream.proposervm.current_epoch(C_CHAIN)


async def test_the_p_chain_has_epochs_at_its_alias_or_its_id() -> None:
    epoch = {"number": "3", "startTime": "1795226690", "pChainHeight": "9"}
    for path in ("/ext/bc/P/", f"/ext/bc/{id_text(P_CHAIN)}/"):
        async with open_upstream(
            RecordedNode({METHOD: epoch}, paths=(path, "/ext/info"))
        ) as upstream:
            assert await upstream.proposervm.current_epoch(P_CHAIN) == Epoch(9, 3, 1795226690)


PROPOSED = "proposervm.getProposedHeight"
FORGED = {METHOD: {**OWN_REPLIES[METHOD], "pChainHeight": "17"}, PROPOSED: {"height": "1019"}}


async def test_a_forged_epoch_and_height_are_outvoted_by_two_nodes_and_two_alone_disagree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    honest = RecordedNode(), RecordedNode()
    grace: dict[str, Any] = {"p_chain_quorum": 2, "height_claim_grace_s": 0.0}
    async with open_upstream(RecordedNode(FORGED), *honest, **grace) as upstream:
        assert await upstream.proposervm.proposed_height(L1_CHAIN) == 19
        # The others may reach its height; they go on, and do not.
        assert not caplog.records
        for node in honest:
            node.replies[PROPOSED] = {"height": "20"}
        assert await upstream.proposervm.proposed_height(L1_CHAIN) == 20
        assert await upstream.proposervm.current_epoch(L1_CHAIN) == L1_EPOCH
    first, *_ = [vars(record) for record in caplog.records]
    assert (first["levelname"], first["message"]) == (
        "WARNING",
        "upstream node contradicts the others",
    )
    assert (first["position"], first["method"]) == (0, PROPOSED)
    assert f"{id_text(L1_CHAIN)}: 1019; the others agree on 20" in first["answer"]
    caplog.clear()
    # Another height of the same epoch is a lie at once; a node that lags, or is ahead, is not
    # blamed.
    lagging = RecordedNode({METHOD: {**OWN_REPLIES[METHOD], "number": "29"}})
    async with open_upstream(RecordedNode(FORGED), lagging, *honest, **grace) as upstream:
        assert await upstream.proposervm.current_epoch(L1_CHAIN) == L1_EPOCH
    assert [vars(record)["position"] for record in caplog.records] == [0]
    async with open_upstream(RecordedNode(FORGED), RecordedNode(), p_chain_quorum=2) as upstream:
        assert await upstream.proposervm.proposed_height(L1_CHAIN) == 19
        with pytest.raises(NodesDisagree) as error:
            await upstream.proposervm.current_epoch(L1_CHAIN)
    assert [reply_class.positions for reply_class in error.value.classes] == [(0,), (1,)]


async def test_nodes_that_begin_an_epoch_at_different_times_agree_a_moment_later() -> None:
    epochs = iter([{"number": "29", "startTime": "1795226700", "pChainHeight": "17"}])
    late = RecordedNode({METHOD: lambda _: next(epochs, OWN_REPLIES[METHOD])})
    async with open_upstream(late, RecordedNode(), p_chain_quorum=2) as upstream:
        assert await upstream.proposervm.current_epoch(L1_CHAIN) == L1_EPOCH


async def test_of_a_chain_that_fewer_nodes_run_all_of_them_decide_unless_another_fails() -> None:
    bare = RecordedNode(paths=("/ext/P", "/ext/info"))
    async with open_upstream(bare, RecordedNode(), bare, p_chain_quorum=2) as upstream:
        assert await upstream.proposervm.current_epoch(L1_CHAIN) == L1_EPOCH
        assert await upstream.proposervm.current_epoch(NO_CHAIN) is None
    failing = RecordedNode({METHOD: lambda _: web.Response(status=500)})
    async with open_upstream(RecordedNode(FORGED), failing, p_chain_quorum=2) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.proposervm.current_epoch(L1_CHAIN)


async def test_a_quorum_of_one_calls_one_node() -> None:
    nodes = RecordedNode(), RecordedNode()
    async with open_upstream(*nodes) as upstream:
        await upstream.proposervm.current_epoch(L1_CHAIN)
    assert [node.calls[METHOD] for node in nodes] == [1, 0]
