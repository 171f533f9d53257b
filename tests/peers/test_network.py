"""The peer network against simulated validators over real TLS. Every test of it ends without a violation."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest

from tests.eventually import until
from tests.peers.world import Questioner, all_connected, client, introduce, node_settings, plan, world
from warpseal.peers import peer_warnings
from warpseal.peers.reachability import ReachState
from warpseal.peers.settings import ManualPeer
from warpseal.protocol.acp118 import encode_signature_request
from warpseal.simnet.network import SimulatedNetwork
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID

L1 = SubnetID(b"\x07" * 32)


async def test_fifty_validators_answer_one_wave_each_once(tmp_path: Path) -> None:
    async with world(tmp_path, plan(50)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        questioner = Questioner(peers, network)
        questioner.ask()
        answers = await questioner.count(50)
        assert {answer.node_id for answer in answers} == {one.node_id for one in network.validators}
        assert all(len(answer.body or b"") == 98 for answer in answers)
        assert all(answer.error_code is None for answer in answers)
        assert [one.counts.app_requests for one in network.validators] == [1] * 50


async def test_from_two_hints_gossip_finds_everybody(tmp_path: Path) -> None:
    async with world(tmp_path, plan(40)) as (network, peers):
        introduce(peers, network.validators, hinted=2)
        await all_connected(peers, network.validators)
        assert peers.totals.addresses_learnt >= 38
        assert peers.totals.forged_addresses == 0


async def test_a_second_start_reaches_everybody_from_disk_alone(tmp_path: Path) -> None:
    async with SimulatedNetwork(plan(10)) as network:
        async with (
            open_store(StoreSettings(), tmp_path) as store,
            client(network.network_id, tmp_path, store.addresses) as peers,
        ):
            introduce(peers, network.validators)
            await all_connected(peers, network.validators)
        async with (
            open_store(StoreSettings(), tmp_path) as store,
            client(network.network_id, tmp_path, store.addresses, gossip_interval_s=1_000.0) as peers,
        ):
            introduce(peers, network.validators, hinted=0)
            await all_connected(peers, network.validators)
            assert peers.totals.dials == 10
        assert network.violations.by_kind() == {}


async def test_manual_peers_are_connected_though_nobody_follows_anything(tmp_path: Path) -> None:
    async with SimulatedNetwork(plan(2)) as network:
        one = network.validators[0]
        assert one.address is not None
        manual = (ManualPeer(one.node_id, one.address.host, one.address.port),)
        async with client(network.network_id, tmp_path, manual_peers=manual) as peers:
            await all_connected(peers, [one])
            assert set(peers.connected) == {one.node_id}


async def test_refusals_arrive_with_code_and_text(tmp_path: Path) -> None:
    async with world(tmp_path, plan(2, "1:refuse=6/too early")) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        questioner = Questioner(peers, network)
        questioner.ask()
        answers = {answer.node_id: answer for answer in await questioner.count(2)}
        refusal = answers[network.validators[1].node_id]
        assert (refusal.body, refusal.error_code, refusal.error_message) == (None, 6, "too early")
        assert peers.statistics[refusal.node_id].errors == 1
        assert peers.totals.refusals == 1


async def test_an_answer_counts_after_its_slot_was_given_away(tmp_path: Path) -> None:
    async with world(tmp_path, plan(1, "all:slow=0.4s"), slot_timeout_s=0.05, max_outstanding=1) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        questioner = Questioner(peers, network)
        waves = [questioner.ask(), questioner.ask()]
        await until(lambda: network.validators[0].counts.app_requests == 2, 0.35)
        await questioner.count(2)
        assert len({wave.request_id for wave in waves}) == 2


async def test_a_peer_is_asked_no_more_at_once_than_the_setting_says(tmp_path: Path) -> None:
    silent = plan(1, "all:silent")
    async with world(tmp_path, silent, slot_timeout_s=0.3, max_outstanding=2) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        counts = network.validators[0].counts
        questioner = Questioner(peers, network)
        for _ in range(5):
            questioner.ask()
        await until(lambda: counts.app_requests == 2)
        await asyncio.sleep(0.1)
        assert counts.app_requests == 2
        await until(lambda: counts.app_requests == 5)


async def test_what_waits_goes_first_asks_before_re_asks(tmp_path: Path) -> None:
    async with world(tmp_path, plan(1, "all:slow=0.05s"), max_outstanding=1) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        order: list[str] = []
        for name, again in (("first", False), ("again", True), ("second", False), ("third", False)):
            questioner = Questioner(peers, network, on_answer=partial(order.append, name))
            questioner.ask(is_reask=again)
        await until(lambda: len(order) == 4)
        assert order == ["first", "second", "third", "again"]


async def test_who_has_left_gets_no_answer_and_asks_nobody_else(tmp_path: Path) -> None:
    async with world(tmp_path, plan(2, "all:slow=0.1s"), max_outstanding=1) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        early, late = Questioner(peers, network, 0), Questioner(peers, network, 1)
        early.ask()
        waiting = early.ask()
        waiting.close()
        late.ask()
        await late.count(2)
        assert len(early.answers) == 2
        assert [one.counts.app_requests for one in network.validators] == [2, 2]


async def test_no_answer_comes_behind_the_deadline(tmp_path: Path) -> None:
    async with world(tmp_path, plan(1, "all:slow=0.2s")) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        questioner = Questioner(peers, network)
        questioner.ask(within_s=0.05)
        await asyncio.sleep(0.4)
        assert questioner.answers == []


async def test_a_fault_of_whoever_asks_harms_neither_the_connection_nor_other_answers(tmp_path: Path) -> None:
    async with world(tmp_path, plan(3)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        peers.subscribe(lambda node_id, connected: 1 / 0)  # type: ignore[arg-type]
        message = network.messages[0]
        deadline = asyncio.get_running_loop().time() + 10
        node_ids = [one.node_id for one in network.validators]
        peers.ask(
            node_ids,
            message.unsigned.source_chain_id,
            encode_signature_request(message.unsigned.raw, message.justification),
            deadline=deadline,
            is_reask=False,
            on_response=lambda answer: 1 / 0,  # type: ignore[arg-type]
        )
        await until(lambda: peers.totals.answers + peers.totals.refusals == 3)
        questioner = Questioner(peers, network)
        questioner.ask()
        await questioner.count(3)
        assert peers.totals.endings == {}


async def test_listeners_are_told_of_connects_disconnects_and_failed_dials(tmp_path: Path) -> None:
    async with world(tmp_path, plan(2, "1:closed"), redial_cap_s=0.2) as (network, peers):
        told: list[tuple[NodeID, bool]] = []
        end = peers.subscribe(lambda node_id, connected: told.append((node_id, connected)))
        introduce(peers, network.validators)
        up, closed = (one.node_id for one in network.validators)
        await until(lambda: {(up, True), (closed, False)} <= set(told))
        network.stop_validator(0)
        await until(lambda: (up, False) in told)
        end()
        count = len(told)
        await network.start_validator(0)
        await all_connected(peers, network.validators[:1])
        assert len(told) == count


async def test_a_validator_that_restarts_is_connected_again_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, plan(2)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        network.disconnect(0)
        await until(lambda: peers.totals.endings == {"hung_up": 1})
        await all_connected(peers, network.validators)
        assert peers.totals.failures == {}


async def test_a_validator_that_moved_is_found_by_its_newer_signed_address(tmp_path: Path) -> None:
    async with world(tmp_path, plan(6), gossip_interval_s=0.1) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        network.stop_validator(0)
        await until(lambda: not peers.is_connected(network.validators[0].node_id))
        await network.start_validator(0, moved=True)
        # Gossip tells of connected nodes only; somebody else has to be connected to it.
        assert network.validators[0].address is not None
        peers.add_hint(network.validators[0].node_id, "127.0.0.1", network.validators[0].address.port)
        await all_connected(peers, network.validators)


async def test_nobody_is_talked_to_under_another_nodes_name(tmp_path: Path) -> None:
    async with world(tmp_path, plan(2)) as (network, peers):
        meant, other = network.validators
        assert other.address is not None
        peers.set_known_validators([meant.node_id, other.node_id])
        peers.add_hint(meant.node_id, "127.0.0.1", other.address.port)
        peers.track(PRIMARY_NETWORK, [meant.node_id])
        await until(lambda: peers.totals.failures["wrong_identity"] >= 1)
        assert not peers.connected
        reach = peers.reachability(meant.node_id, PRIMARY_NETWORK, 0.0)
        assert (reach.state, reach.reason) == (ReachState.UNREACHABLE, "wrong_identity")
        assert other.counts.finished_handshakes == 0


async def test_who_answers_for_another_and_is_wanted_is_connected_as_itself(tmp_path: Path) -> None:
    async with world(tmp_path, plan(2)) as (network, peers):
        meant, other = network.validators
        assert other.address is not None
        peers.add_hint(meant.node_id, "127.0.0.1", other.address.port)
        peers.track(PRIMARY_NETWORK, [meant.node_id, other.node_id])
        await until(lambda: peers.is_connected(other.node_id))
        await until(lambda: peers.is_connected(meant.node_id))  # Its address came by gossip.


async def test_what_cannot_be_reached_is_lost_with_the_reason_and_the_next_dial(tmp_path: Path) -> None:
    async with world(tmp_path, plan(4, "1:closed"), address_timeout_s=0.3) as (network, peers):
        up, closed, unknown, foreign = network.validators
        peers.track(PRIMARY_NETWORK, [one.node_id for one in (up, closed, unknown)])
        loop = asyncio.get_running_loop()
        assert up.address is not None
        assert closed.address is not None
        for one in (up, closed):
            peers.add_hint(one.node_id, "127.0.0.1", one.address.port)  # type: ignore[union-attr]
        assert peers.reachability(closed.node_id, PRIMARY_NETWORK, 0.0).state is ReachState.PENDING
        assert peers.reachability(unknown.node_id, PRIMARY_NETWORK, 0.0).state is ReachState.PENDING
        await until(lambda: peers.is_connected(up.node_id))
        await until(
            lambda: peers.reachability(closed.node_id, PRIMARY_NETWORK, loop.time()).state is ReachState.UNREACHABLE
        )
        assert peers.reachability(up.node_id, PRIMARY_NETWORK, 0.0).state is ReachState.CONNECTED
        lost = peers.reachability(closed.node_id, PRIMARY_NETWORK, loop.time())
        assert (lost.state, lost.reason) == (ReachState.UNREACHABLE, "not_connected")
        assert lost.next_dial_at is not None
        assert lost.next_dial_at > loop.time()
        later = peers.reachability(closed.node_id, PRIMARY_NETWORK, loop.time() + 100)
        assert later.state is ReachState.PENDING
        assert foreign.node_id not in peers.connected


async def test_a_node_without_address_is_lost_when_patience_with_its_subnet_ends_and_listeners_are_told(
    tmp_path: Path,
) -> None:
    async with client(1, tmp_path, address_timeout_s=0.2, ping_interval_s=0.4) as peers:
        told: list[NodeID] = []
        peers.subscribe(lambda node_id, connected: told.append(node_id))
        nobody, later = NodeID(b"\1" * 20), NodeID(b"\2" * 20)
        peers.track(PRIMARY_NETWORK, [nobody])
        await until(lambda: nobody in told)
        assert peers.reachability(nobody, PRIMARY_NETWORK, 0.0).reason == "no_address"
        peers.track(L1, [later])
        await asyncio.sleep(0.05)
        assert peers.reachability(later, L1, 0.0).state is ReachState.PENDING
        await until(lambda: later in told)
        assert peers.reachability(later, L1, 0.0).reason == "no_address"
        assert told == [nobody, later]


async def test_private_addresses_that_are_not_allowed_are_a_reason_of_their_own(tmp_path: Path) -> None:
    async with world(tmp_path, plan(1), allow_private_ips=False) as (network, peers):
        introduce(peers, network.validators)
        node_id = network.validators[0].node_id
        await until(lambda: peers.reachability(node_id, PRIMARY_NETWORK, 0.0).reason == "private_address")
        assert peers.totals.dials == 0


async def test_a_hurry_makes_failed_dials_happen_soon(tmp_path: Path) -> None:
    async with world(tmp_path, plan(1)) as (network, peers):
        one = network.validators[0]
        network.stop_validator(0)
        introduce(peers, network.validators)
        await until(lambda: peers.totals.failures["unreachable"] >= 1)
        await network.start_validator(0)
        assert not peers.is_connected(one.node_id)
        moment = peers.redial_soon([one.node_id])
        assert moment is not None
        assert moment <= asyncio.get_running_loop().time()
        await until(lambda: peers.is_connected(one.node_id), 1.0)


async def test_connections_that_nobody_wants_any_more_are_closed_and_others_kept(tmp_path: Path) -> None:
    async with world(tmp_path, plan(4), ping_interval_s=0.8) as (network, peers):
        nodes = [one.node_id for one in network.validators]
        introduce(peers, network.validators)
        peers.track(L1, nodes[2:])
        await all_connected(peers, network.validators)
        peers.track(PRIMARY_NETWORK, nodes[:1])
        await until(lambda: set(peers.connected) == {nodes[0], nodes[2], nodes[3]})
        peers.untrack(L1)
        await until(lambda: set(peers.connected) == {nodes[0]})
        assert set(peers.statistics) == {nodes[0]}
        assert peers.totals.endings == {"not_wanted": 3}


async def test_a_connection_that_is_wanted_no_more_stays_for_the_answers_it_owes(tmp_path: Path) -> None:
    async with world(tmp_path, plan(1, "all:slow=0.6s"), ping_interval_s=0.4) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        questioner = Questioner(peers, network)
        questioner.ask()
        peers.untrack(PRIMARY_NETWORK)
        assert len(await questioner.count(1)) == 1
        await until(lambda: not peers.connected)


async def test_a_node_wanted_again_while_its_connection_stands_is_not_dialled_again(tmp_path: Path) -> None:
    async with world(tmp_path, plan(1)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        peers.untrack(PRIMARY_NETWORK)
        peers.track(PRIMARY_NETWORK, [network.validators[0].node_id])
        await asyncio.sleep(0.2)
        assert peers.totals.dials == 1
        assert network.validators[0].node_id in peers.connected


async def test_there_are_never_more_connections_than_allowed(tmp_path: Path) -> None:
    async with world(tmp_path, plan(8), max_connections=5) as (network, peers):
        introduce(peers, network.validators)
        await until(lambda: len(peers.connected) == 5)
        await asyncio.sleep(0.2)
        assert peers.open_connections == 5
        assert sum(one.counts.open_connections for one in network.validators) == 5
        gone = next(one for one in network.validators if peers.is_connected(one.node_id))
        network.stop_validator(gone.index)
        await until(lambda: len(peers.connected) == 5 and not peers.is_connected(gone.node_id))


async def test_our_own_wrong_clock_is_noticed_though_no_handshake_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = node_settings(clock=lambda: time.time() + 100)
    async with world(tmp_path, plan(5, settings=ahead), faults=True, ping_interval_s=0.4) as (network, peers):
        introduce(peers, network.validators)
        await until(lambda: "this machine's clock is -100 s" in caplog.text)
        assert not peers.connected
        assert peers.clock_offset_s == pytest.approx(100, abs=2)


async def test_a_clock_off_by_less_than_a_refusal_is_warned_of_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    behind = node_settings(clock=lambda: time.time() - 45)
    async with world(tmp_path, plan(5, settings=behind), ping_interval_s=0.4) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        await until(lambda: "this machine's clock is +45 s" in caplog.text)


async def test_peers_that_run_something_newer_are_warned_of_and_talked_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Told again when the last of them is connected, which on a busy machine takes longer than the first look.
    monkeypatch.setattr(peer_warnings, "_WARNINGS_APART_S", 0.0)
    async with world(tmp_path, plan(3, settings=node_settings(version=(1, 16, 2))), ping_interval_s=0.4) as (
        network,
        peers,
    ):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        assert set(peers.versions()) == {(1, 16, 2)}
        await until(lambda: "3 of 3 peers run a newer version than the advertised 1.15.0" in caplog.text)


@pytest.mark.parametrize("reply", ["truncated", "oversized", "bomb", "garbage", "drop"])
async def test_a_hostile_answer_costs_the_others_nothing(tmp_path: Path, reply: str) -> None:
    async with world(tmp_path, plan(5, f"0:{reply}")) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        questioner = Questioner(peers, network)
        questioner.ask()
        await until(lambda: {a.node_id for a in questioner.answers} >= {v.node_id for v in network.validators[1:]})
        assert all(a.error_code is None for a in questioner.answers)


async def test_a_flood_from_one_peer_ends_with_its_connection_and_never_holds_the_loop(tmp_path: Path) -> None:
    async with world(tmp_path, plan(4)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        network.set_behaviour(0, "flood=50000")
        network.disconnect(0)
        await until(lambda: peers.totals.endings["flood"] + peers.totals.failures["flood"] >= 1)
        questioner = Questioner(peers, network)
        questioner.ask(network.validators[1:])
        await questioner.count(3)
        assert peers.totals.endings["hung_up"] <= 1


async def test_waves_of_many_callers_share_the_loop(tmp_path: Path) -> None:
    async with world(tmp_path, plan(30)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        questioners = [Questioner(peers, network, number % 3) for number in range(30)]
        for questioner in questioners:
            questioner.ask()
        assert sum(one.asked for one in peers.statistics.values()) <= 200
        for questioner in questioners:
            assert len({a.node_id for a in await questioner.count(30)}) == 30
