"""The peer network against simulated validators over real TLS.

Every test of it ends without a violation.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from pathlib import Path

import pytest
from msgspec import UNSET

from tests.eventually import stopped_clock, until
from tests.peers.fixtures import (
    Requester,
    all_connected,
    client,
    introduce,
    let_pass,
    plan,
    started_network,
)
from warpseal.peers import peer_warnings
from warpseal.peers.network import ComingRefusal, PeerNetwork
from warpseal.peers.settings import ManualPeer
from warpseal.protocol.handshake import TESTED_VERSION, Version
from warpseal.protocol.messages import encode_signature_request
from warpseal.runtime.go_time import rfc3339
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.versions import Release

# Tolerance of a time of the loop's clock that was made a wall-clock time.
ROUNDING_S = 0.001
L1 = SubnetID(b"\x07" * 32)
# It accepts no older release from the time of its upgrade on.
NEXT = Release((1, 16, 0), (1, 14, 0), "igloo", (1, 16, 0))
CLOCK = re.compile(r"this machine's clock is ([+-]\d+) s")


def unreachable_reason(
    peers: PeerNetwork, node_id: NodeID, subnet_id: SubnetID = PRIMARY_NETWORK
) -> str | None:
    unreachable = peers.unreachable(node_id, subnet_id)
    return None if unreachable is None else unreachable.reason


def logged_offset_s(caplog: pytest.LogCaptureFixture) -> int:
    """Return the clock offset of the first warning."""
    match = CLOCK.search(caplog.text)
    assert match is not None
    return int(match[1])


async def test_each_of_fifty_validators_responds_once_to_a_request(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(50)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        requester = Requester(peers, network)
        requester.ask()
        responses = await requester.count(50)
        assert {response.node_id for response in responses} == {
            validator.node_id for validator in network.validators
        }
        assert all(len(response.body or b"") == 98 for response in responses)
        assert all(response.error_code is None for response in responses)
        assert [validator.counts.app_requests for validator in network.validators] == [1] * 50


async def test_gossip_finds_all_validators_from_two_hints(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(40)) as (network, peers):
        introduce(peers, network.validators, hinted=2)
        await all_connected(peers, network.validators)
        assert peers.totals.addresses_learned >= 38
        assert peers.totals.forged_addresses == 0


async def test_a_restart_connects_to_all_validators_from_stored_addresses(tmp_path: Path) -> None:
    async with SimulatedNetwork(plan(10)) as network:
        async with (
            open_store(StoreSettings(), tmp_path) as store,
            client(network.network_id, tmp_path, store.addresses) as peers,
        ):
            introduce(peers, network.validators)
            await all_connected(peers, network.validators)
        async with (
            open_store(StoreSettings(), tmp_path) as store,
            client(
                network.network_id, tmp_path, store.addresses, gossip_interval_s=1_000.0
            ) as peers,
        ):
            introduce(peers, network.validators, hinted=0)
            await all_connected(peers, network.validators)
            assert peers.totals.dials == 10
        assert network.violations.by_kind() == {}


async def test_manual_peers_are_connected_without_a_tracked_subnet(tmp_path: Path) -> None:
    async with SimulatedNetwork(plan(2)) as network:
        validator = network.validators[0]
        assert validator.address is not None
        manual = (ManualPeer(validator.node_id, validator.address.host, validator.address.port),)
        async with client(network.network_id, tmp_path, manual_peers=manual) as peers:
            await all_connected(peers, [validator])
            assert set(peers.connected) == {validator.node_id}


async def test_application_errors_arrive_with_code_and_text(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(2, "1:refuse=6/too early")) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        requester = Requester(peers, network)
        requester.ask()
        responses = {response.node_id: response for response in await requester.count(2)}
        refusal = responses[network.validators[1].node_id]
        assert (refusal.body, refusal.error_code, refusal.error_message) == (None, 6, "too early")
        assert peers.statistics[refusal.node_id].errors == 1
        assert peers.totals.errors == 1


async def test_a_response_counts_after_its_slot_timed_out(tmp_path: Path) -> None:
    async with started_network(
        tmp_path,
        plan(1, "all:slow=1s"),
        slot_timeout_s=0.05,
        max_outstanding=1,
    ) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        requester = Requester(peers, network)
        waves = [requester.ask(), requester.ask()]
        await until(lambda: network.validators[0].counts.app_requests == 2)
        assert requester.responses == []
        await requester.count(2)
        assert len({wave.request_id for wave in waves}) == 2


async def test_a_peer_has_no_more_outstanding_requests_than_the_setting_allows(
    tmp_path: Path,
) -> None:
    silent = plan(1, "all:silent")
    async with started_network(tmp_path, silent, slot_timeout_s=0.3, max_outstanding=2) as (
        network,
        peers,
    ):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        counts = network.validators[0].counts
        requester = Requester(peers, network)
        with stopped_clock() as clock:
            for _ in range(5):
                requester.ask()
            await let_pass(clock, 0.2)
            assert counts.app_requests == 2
        await until(lambda: counts.app_requests == 5)


async def test_queued_first_asks_are_sent_before_re_asks(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(1, "all:slow=0.05s"), max_outstanding=1) as (
        network,
        peers,
    ):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        order: list[str] = []
        for name, again in (("first", False), ("again", True), ("second", False), ("third", False)):
            requester = Requester(peers, network, on_response=partial(order.append, name))
            requester.ask(is_reask=again)
        node_id = network.validators[0].node_id
        assert peers.is_congested(node_id)
        await until(lambda: len(order) == 4)
        assert not peers.is_congested(node_id)
        assert not peers.is_congested(NodeID(bytes(20)))
        assert order == ["first", "second", "third", "again"]


async def test_a_closed_request_is_neither_sent_nor_answered(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(2, "all:slow=0.1s"), max_outstanding=1) as (
        network,
        peers,
    ):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        early, late = Requester(peers, network, 0), Requester(peers, network, 1)
        early.ask()
        waiting = early.ask()
        waiting.close()
        late.ask()
        await late.count(2)
        assert len(early.responses) == 2
        assert [validator.counts.app_requests for validator in network.validators] == [2, 2]


async def test_a_response_behind_the_deadline_is_dropped(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(1, "all:slow=0.2s")) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        requester = Requester(peers, network)
        requester.ask(within_s=0.05)
        await asyncio.sleep(0.4)
        assert requester.responses == []


async def test_an_error_of_a_response_handler_harms_no_connection_or_other_request(
    tmp_path: Path,
) -> None:
    async with started_network(tmp_path, plan(3)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        peers.subscribe(lambda node_id, connected: 1 / 0)  # type: ignore[arg-type]
        message = network.messages[0]
        deadline = asyncio.get_running_loop().time() + 10
        node_ids = [validator.node_id for validator in network.validators]
        peers.ask(
            node_ids,
            message.unsigned.source_chain_id,
            encode_signature_request(message.unsigned.raw, message.justification),
            deadline=deadline,
            is_reask=False,
            on_response=lambda response: 1 / 0,  # type: ignore[arg-type]
        )
        await until(lambda: peers.totals.responses + peers.totals.errors == 3)
        requester = Requester(peers, network)
        requester.ask()
        await requester.count(3)
        assert peers.totals.disconnects == {}


async def test_listeners_are_notified_of_connects_disconnects_and_failed_dials(
    tmp_path: Path,
) -> None:
    async with started_network(tmp_path, plan(2, "1:closed"), redial_cap_s=0.2) as (network, peers):
        notified: list[tuple[NodeID, bool]] = []
        end = peers.subscribe(lambda node_id, connected: notified.append((node_id, connected)))
        introduce(peers, network.validators)
        up, closed = (validator.node_id for validator in network.validators)
        await until(lambda: {(up, True), (closed, False)} <= set(notified))
        network.stop_validator(0)
        await until(lambda: (up, False) in notified)
        end()
        count = len(notified)
        await network.start_validator(0)
        await all_connected(peers, network.validators[:1])
        assert len(notified) == count


async def test_a_restarted_validator_is_reconnected_immediately(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(2)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        network.disconnect(0)
        await until(lambda: peers.totals.disconnects == {"hung_up": 1})
        await all_connected(peers, network.validators)
        assert peers.totals.dial_failures == {}


async def test_a_moved_validator_is_found_by_its_newer_signed_address(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(6), gossip_interval_s=0.1) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        network.stop_validator(0)
        await until(lambda: not peers.is_connected(network.validators[0].node_id))
        await network.start_validator(0, moved=True)
        # Nodes gossip only addresses of nodes to which they are connected.
        assert network.validators[0].address is not None
        peers.add_hint(
            network.validators[0].node_id, "127.0.0.1", network.validators[0].address.port
        )
        await all_connected(peers, network.validators)


async def test_a_node_with_another_identity_is_not_connected(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(2)) as (network, peers):
        expected, other = network.validators
        assert other.address is not None
        peers.set_validators([expected.node_id, other.node_id])
        peers.add_hint(expected.node_id, "127.0.0.1", other.address.port)
        peers.track(PRIMARY_NETWORK, [expected.node_id])
        await until(lambda: peers.totals.dial_failures["wrong_identity"] >= 1)
        assert not peers.connected
        assert unreachable_reason(peers, expected.node_id) == "wrong_identity"
        assert other.counts.finished_handshakes == 0


async def test_a_tracked_node_found_at_another_nodes_address_is_connected(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(2)) as (network, peers):
        expected, other = network.validators
        assert other.address is not None
        peers.add_hint(expected.node_id, "127.0.0.1", other.address.port)
        peers.track(PRIMARY_NETWORK, [expected.node_id, other.node_id])
        while not peers.is_connected(other.node_id):
            peers.redial_soon([expected.node_id])  # The other node would refuse one of two dials.
            await asyncio.sleep(0.002)
        await until(lambda: peers.is_connected(expected.node_id))  # Its address came by gossip.


async def test_an_unreachable_node_has_a_reason_and_a_next_dial(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(4, "1:closed"), address_timeout_s=0.3) as (
        network,
        peers,
    ):
        up, closed, unknown, foreign = network.validators
        peers.track(PRIMARY_NETWORK, [validator.node_id for validator in (up, closed, unknown)])
        loop = asyncio.get_running_loop()
        assert up.address is not None
        assert closed.address is not None
        for validator in (up, closed):
            peers.add_hint(validator.node_id, "127.0.0.1", validator.address.port)  # type: ignore[union-attr]
        assert peers.unreachable(closed.node_id, PRIMARY_NETWORK) is None
        assert peers.unreachable(unknown.node_id, PRIMARY_NETWORK) is None
        await until(lambda: peers.is_connected(up.node_id))
        await until(lambda: peers.unreachable(closed.node_id, PRIMARY_NETWORK) is not None)
        assert peers.unreachable(up.node_id, PRIMARY_NETWORK) is None
        asked_at, lost = loop.time(), peers.unreachable(closed.node_id, PRIMARY_NETWORK)
        assert lost is not None
        assert lost.reason == "not_connected"
        assert asked_at <= lost.retry_at < asked_at + 100
        assert foreign.node_id not in peers.connected


async def test_a_missing_connection_has_address_last_error_start_and_next_try(
    tmp_path: Path,
) -> None:
    started_at = time.time()
    async with started_network(tmp_path, plan(2, "1:closed")) as (network, peers):
        up, closed = network.validators
        assert closed.address is not None
        unknown = NodeID(b"\2" * 20)
        introduce(peers, network.validators)
        peers.track(L1, [unknown])
        waiting = peers.status(unknown)
        assert waiting is not None
        assert (waiting.stage, waiting.failure, waiting.detail) == (
            "waiting",
            "not_dialed_yet",
            None,
        )
        await until(
            lambda: (
                peers.is_connected(up.node_id) and peers.totals.dial_failures["unreachable"] >= 1
            )
        )
        refused = peers.status(closed.node_id)
        assert refused is not None
        assert (refused.failure, refused.detail) == ("unreachable", "Connection refused")
        assert peers.missing_connection(up.node_id) is None
        assert peers.missing_connection(NodeID(b"\1" * 20)) is None
        lost = peers.missing_connection(closed.node_id)
        assert lost is not None
        assert (lost.node_id, lost.address) == (closed.name, f"127.0.0.1:{closed.address.port}")
        assert lost.last_error == "unreachable: Connection refused"
        assert rfc3339(started_at - ROUNDING_S) <= lost.disconnected_since
        assert lost.next_try_at is not UNSET
        assert lost.disconnected_since <= lost.next_try_at
        without_address = peers.missing_connection(unknown)
        assert without_address is not None
        assert (
            without_address.address,
            without_address.last_error,
            without_address.next_try_at,
        ) == (
            UNSET,
            UNSET,
            UNSET,
        )


async def test_a_lost_connection_reports_why_it_ended_and_when(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(1)) as (network, peers):
        (validator,) = network.validators
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        connected_at = time.time()
        network.stop_validator(0)
        await until(lambda: peers.missing_connection(validator.node_id) is not None)
        lost = peers.missing_connection(validator.node_id)
        assert lost is not None
        assert str(lost.last_error).startswith(("hung_up", "unreachable"))
        assert lost.disconnected_since >= rfc3339(connected_at - ROUNDING_S)
        assert validator.name == lost.node_id


async def test_a_node_without_address_becomes_unreachable_after_the_address_timeout(
    tmp_path: Path,
) -> None:
    async with client(1, tmp_path, address_timeout_s=0.2, ping_interval_s=0.4) as peers:
        notified: list[NodeID] = []
        peers.subscribe(lambda node_id, connected: notified.append(node_id))
        unknown_node, later = NodeID(b"\1" * 20), NodeID(b"\2" * 20)
        peers.track(PRIMARY_NETWORK, [unknown_node])
        await until(lambda: unknown_node in notified)
        assert unreachable_reason(peers, unknown_node) == "no_address"
        with stopped_clock() as clock:
            peers.track(L1, [later])
            await let_pass(clock, 0.05)
            assert peers.unreachable(later, L1) is None
        await until(lambda: later in notified)
        assert unreachable_reason(peers, later, L1) == "no_address"
        assert notified == [unknown_node, later]


async def test_private_addresses_make_a_node_unreachable_unless_allowed(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(1), allow_private_ips=False) as (network, peers):
        introduce(peers, network.validators)
        node_id = network.validators[0].node_id
        await until(lambda: unreachable_reason(peers, node_id) == "private_address")
        assert peers.totals.dials == 0


async def test_redial_soon_redials_failed_nodes(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(1)) as (network, peers):
        validator = network.validators[0]
        network.stop_validator(0)
        introduce(peers, network.validators)
        await until(lambda: peers.totals.dial_failures["unreachable"] >= 1)
        await network.start_validator(0)
        assert not peers.is_connected(validator.node_id)
        moment = peers.redial_soon([validator.node_id])
        assert moment is not None
        assert moment <= asyncio.get_running_loop().time()
        await until(lambda: peers.is_connected(validator.node_id))


async def test_connections_to_untracked_nodes_are_closed(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(4), ping_interval_s=0.8) as (network, peers):
        nodes = [validator.node_id for validator in network.validators]
        introduce(peers, network.validators)
        peers.track(L1, nodes[2:])
        await all_connected(peers, network.validators)
        peers.track(PRIMARY_NETWORK, nodes[:1])
        await until(lambda: set(peers.connected) == {nodes[0], nodes[2], nodes[3]})
        peers.untrack(L1)
        await until(lambda: set(peers.connected) == {nodes[0]})
        assert set(peers.statistics) == {nodes[0]}
        assert peers.totals.disconnects == {"not_wanted": 3}


async def test_an_untracked_connection_stays_open_for_pending_responses(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(1, "all:slow=0.6s"), ping_interval_s=0.4) as (
        network,
        peers,
    ):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        requester = Requester(peers, network)
        requester.ask()
        peers.untrack(PRIMARY_NETWORK)
        assert len(await requester.count(1)) == 1
        await until(lambda: not peers.connected)


async def test_a_node_tracked_again_while_connected_is_not_redialed(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(1)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        peers.untrack(PRIMARY_NETWORK)
        peers.track(PRIMARY_NETWORK, [network.validators[0].node_id])
        await asyncio.sleep(0.2)
        assert peers.totals.dials == 1
        assert network.validators[0].node_id in peers.connected


async def test_there_are_never_more_connections_than_allowed(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(8), max_connections=5) as (network, peers):
        introduce(peers, network.validators)
        await until(lambda: len(peers.connected) == 5)
        await asyncio.sleep(0.2)
        assert sum(validator.counts.open_connections for validator in network.validators) == 5
        gone = next(
            validator for validator in network.validators if peers.is_connected(validator.node_id)
        )
        network.stop_validator(gone.index)
        await until(lambda: len(peers.connected) == 5 and not peers.is_connected(gone.node_id))


async def test_a_wrong_clock_is_reported_although_no_handshake_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = NodeSettings(clock=lambda: time.time() + 100)
    async with started_network(
        tmp_path,
        plan(5, settings=ahead),
        allow_violations=True,
        ping_interval_s=0.4,
    ) as (network, peers):
        introduce(peers, network.validators)
        await until(lambda: CLOCK.search(caplog.text))
        assert not peers.connected
        # The time that a message takes to be read counts as well.
        assert -100 <= logged_offset_s(caplog) < -85
        assert 85 < (peers.clock_offset_s or 0.0) < 101


async def test_a_clock_offset_that_nodes_accept_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    behind = NodeSettings(clock=lambda: time.time() - 45)
    async with started_network(tmp_path, plan(5, settings=behind), ping_interval_s=0.4) as (
        network,
        peers,
    ):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        await until(lambda: CLOCK.search(caplog.text))
    assert 45 <= logged_offset_s(caplog) < 60


async def test_newer_peers_are_connected_and_cause_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The warning repeats until all of them are connected, which takes longer than the first check
    # on a busy machine.
    monkeypatch.setattr(peer_warnings, "_WARNING_INTERVAL_S", 0.0)
    newer, advertised = plan(3, settings=NodeSettings(version=(1, 16, 2))), (1, 15, 0)
    client = started_network(tmp_path, newer, ping_interval_s=0.4, advertised_version=advertised)
    async with client as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        assert set(peers.versions()) == {(1, 16, 2)}
        await until(lambda: "runs 1.16.2 or newer, and 1.15.0 is advertised" in caplog.text)
        assert peers.advertised_version == advertised


async def test_a_network_that_accepts_the_tested_version_gets_no_newer_one(tmp_path: Path) -> None:
    newer = plan(3, settings=NodeSettings(version=(2, 0, 0)))
    async with started_network(tmp_path, newer, ping_interval_s=0.4) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        await asyncio.sleep(0.2)  # Four ticks.
        assert peers.advertised_version == TESTED_VERSION


async def test_a_network_that_refuses_the_tested_version_gets_the_one_that_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upgraded = plan(3, settings=NodeSettings(version=(2, 0, 2), minimum_version=(2, 0, 0)))
    client = started_network(tmp_path, upgraded, ping_interval_s=0.4, allow_violations=True)
    async with client as (network, peers):
        peers.record_upgrade_time(1_607_144_399)
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        assert peers.advertised_version == (2, 0, 2)
        assert "advertised version changed" in caplog.text
        # The simulated nodes know a later upgrade.
        assert peers.unknown_upgrade_time() == 1_607_144_400
        peers.record_upgrade_time(1_607_144_400)
        assert peers.unknown_upgrade_time() is None


async def test_an_upgrade_of_less_than_half_of_the_weight_costs_no_connection(
    tmp_path: Path,
) -> None:
    client = started_network(tmp_path, plan(9), ping_interval_s=0.4, allow_violations=True)
    async with client as (network, peers):
        network.state.fork_times["igloo"] = time.time() - 1
        for index in range(4):
            await network.upgrade_validator(index, NEXT)
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        assert peers.advertised_version == NEXT.version


@pytest.mark.parametrize("advertised", [None, (1, 14, 9)])
async def test_a_refusal_that_an_upgrade_will_bring_is_known_before_it(
    tmp_path: Path, advertised: Version | None
) -> None:
    client = started_network(tmp_path, plan(3), ping_interval_s=0.4, advertised_version=advertised)
    async with client as (network, peers):
        fork_s = int(time.time()) + 86_400
        network.state.fork_times["igloo"] = fork_s
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        assert peers.coming_refusal() is None
        for index in (0, 1):
            await network.upgrade_validator(index, NEXT)
        await until(lambda: peers.versions().count(NEXT.version) == 2)
        assert peers.coming_refusal() == ComingRefusal(NEXT.version, fork_s)
        assert peers.is_version_fixed is (advertised is not None)


async def test_an_upgrade_that_only_the_first_peer_knows_is_none_that_the_nodes_lack(
    tmp_path: Path,
) -> None:
    async with started_network(tmp_path, plan(3)) as (network, peers):
        peers.record_upgrade_time(1_607_144_399)
        first = network.validators[:1]
        introduce(peers, first)
        peers.set_weights({validator.node_id: 1 for validator in network.validators})
        await all_connected(peers, first)
        assert peers.unknown_upgrade_time() is None


@pytest.mark.parametrize("reply", ["truncated", "oversized", "bomb", "garbage", "drop"])
async def test_a_hostile_response_does_not_affect_other_peers(tmp_path: Path, reply: str) -> None:
    async with started_network(tmp_path, plan(5, f"0:{reply}")) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        requester = Requester(peers, network)
        requester.ask()
        await until(
            lambda: (
                {a.node_id for a in requester.responses}
                >= {v.node_id for v in network.validators[1:]}
            )
        )
        assert all(a.error_code is None for a in requester.responses)


async def test_a_flood_from_a_peer_closes_its_connection(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(4)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        network.set_behaviour(0, "flood=50000")
        network.disconnect(0)
        await until(
            lambda: peers.totals.disconnects["flood"] + peers.totals.dial_failures["flood"] >= 1
        )
        requester = Requester(peers, network)
        requester.ask(network.validators[1:])
        await requester.count(3)
        assert peers.totals.disconnects["hung_up"] <= 1


async def test_simultaneous_requests_of_many_callers_share_the_loop(tmp_path: Path) -> None:
    async with started_network(tmp_path, plan(30)) as (network, peers):
        introduce(peers, network.validators)
        await all_connected(peers, network.validators)
        requesters = [Requester(peers, network, number % 3) for number in range(30)]
        for requester in requesters:
            requester.ask()
        assert sum(node.requests for node in peers.statistics.values()) <= 200
        for requester in requesters:
            assert len({a.node_id for a in await requester.count(30)}) == 30
