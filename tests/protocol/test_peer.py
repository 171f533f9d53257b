"""The core of one peer connection."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import zstandard

from tests.protocol.peers import (
    CHAIN,
    NO_PEERS,
    UNIX_S,
    ZSTD,
    connected_core,
    frame_of,
    handshake_frame,
    new_core,
    node,
    own_handshake,
    request,
    response_frame,
    started_core,
)
from warpseal.pb import p2p_pb2
from warpseal.protocol.framing import FrameDecoder, encode_frame
from warpseal.protocol.handshake import CloseReason, PeerHandshake
from warpseal.protocol.messages import EMPTY_PEER_LIST_FRAME, PING_FRAME, PONG_FRAME, open_envelope
from warpseal.protocol.peer import (
    ConnectionClosed,
    Event,
    PeersGossiped,
    ProtocolSettings,
)
from warpseal.protocol.requests import PeerResponse, RequestLimits
from warpseal.warp.protobuf import encode_field

SHARE = b"\x0a\x60" + bytes(96)
SHORT_CLAIM = p2p_pb2.ClaimedIpPort(ip_addr=b"\x01\x02\x03\x04", ip_port=1)
LONG_LIST_FRAME = frame_of(
    p2p_pb2.Message(peer_list=p2p_pb2.PeerList(claimed_ip_ports=[SHORT_CLAIM] * 1000))
)


def reason_of(events: Sequence[Event]) -> CloseReason | None:
    """Return why the last event says to close."""
    return events[-1].reason if events and isinstance(events[-1], ConnectionClosed) else None


def responses_of(events: Sequence[Event]) -> list[tuple[int, bytes | None, int | None]]:
    return [
        (e.request.request_id, e.body, e.error_code) for e in events if isinstance(e, PeerResponse)
    ]


def error_frame(request_id: int, code: int, text: str = "") -> bytes:
    refusal = p2p_pb2.AppError(
        chain_id=CHAIN, request_id=request_id, error_code=code, error_message=text
    )
    return frame_of(p2p_pb2.Message(app_error=refusal), compressed=True)


def test_a_connection_begins_with_handshake_and_peer_list() -> None:
    assert (
        new_core(now=5.0).output()
        == own_handshake().encode(UNIX_S, NO_PEERS) + EMPTY_PEER_LIST_FRAME
    )


def test_their_handshake_and_peer_list_make_a_connection() -> None:
    core = started_core()
    assert core.receive(handshake_frame(), 0.5) == []
    assert not core.is_connected
    events = core.receive(EMPTY_PEER_LIST_FRAME, 0.6)
    assert core.is_connected
    assert len(events) == 1
    assert isinstance(events[0], PeerHandshake)
    assert events[0].version == (1, 15, 0)
    assert events[0].claim.port == 9651
    assert core.output() == b""


def test_a_peer_list_before_the_handshake_counts_for_nothing() -> None:
    core = started_core()
    assert core.receive(EMPTY_PEER_LIST_FRAME + handshake_frame(), 0.1) == []
    assert not core.is_connected


def test_the_clock_offset_is_measured_when_the_handshake_comes() -> None:
    core = started_core()
    core.receive(handshake_frame(), 7.0)
    assert core.handshake is not None
    assert core.handshake.clock_offset_s == -7


def test_the_clock_offset_of_a_refused_handshake_is_known() -> None:
    core = started_core()
    assert reason_of(core.receive(handshake_frame(), 100.0)) is CloseReason.CLOCK_SKEW
    assert core.handshake is None
    assert core.clock_offset_s == -100


def test_the_clock_of_the_event_loop_may_begin_anywhere() -> None:
    core = new_core(now=5000.0)
    core.receive(handshake_frame(), 5007.0)
    assert core.handshake is not None
    assert core.handshake.clock_offset_s == -7


def test_a_second_handshake_ends_the_connection() -> None:
    core = connected_core()
    assert reason_of(core.receive(handshake_frame(), 0.1)) is CloseReason.SECOND_HANDSHAKE
    assert not core.is_connected


def test_a_handshake_that_fails_a_check_ends_the_connection() -> None:
    core = new_core(certificate=node(1).certificate)
    assert reason_of(core.receive(handshake_frame(), 0.1)) is CloseReason.WRONG_ADDRESS_SIGNATURE
    core = started_core()
    assert reason_of(core.receive(handshake_frame(), 61.5)) is CloseReason.CLOCK_SKEW


def test_a_closed_connection_ignores_input() -> None:
    core = connected_core()
    core.receive(handshake_frame() + PING_FRAME, 0.1)
    assert core.closed is not None
    assert core.receive(PING_FRAME + EMPTY_PEER_LIST_FRAME, 0.2) == []
    assert core.tick(100.0) == []
    assert core.pong() == core.output() == b""
    assert core.send_request(request(1), 0.2) is None
    assert core.release_at(0.2) is None


def test_responses_are_returned_with_their_requests() -> None:
    core = connected_core()
    requests = [request(n) for n in (1, 3, 5)]
    for request_ in requests:
        assert core.send_request(request_, 0.1) == request_.frame
    events = core.receive(
        error_frame(5, 11, "not yet") + response_frame(1, SHARE) + response_frame(3, b""), 0.2
    )
    assert responses_of(events) == [(5, None, 11), (1, SHARE, None), (3, b"", None)]
    assert isinstance(events[0], PeerResponse)
    assert events[0].node_id == node().certificate.node_id
    assert events[0].error_message == "not yet"
    assert events[1].request is requests[0]  # type: ignore[union-attr]


def test_a_plain_response_counts_like_a_compressed_one() -> None:
    core = connected_core()
    core.send_request(request(1), 0.1)
    assert responses_of(core.receive(response_frame(1, SHARE, compressed=False), 0.2)) == [
        (1, SHARE, None)
    ]


def test_only_the_first_of_several_responses_counts() -> None:
    core = connected_core()
    core.send_request(request(1), 0.1)
    events = core.receive(
        response_frame(1, SHARE) + error_frame(1, 2) + response_frame(1, b"other"), 0.2
    )
    assert responses_of(events) == [(1, SHARE, None)]
    assert core.unexpected == 2


def test_responses_without_a_request_are_ignored() -> None:
    core = connected_core()
    gone = request(1)
    core.send_request(gone, 0.1)
    gone.close()
    events = core.receive(
        response_frame(1, SHARE)
        + response_frame(9, SHARE)
        + response_frame(1, SHARE, chain=bytes(32)),
        0.2,
    )
    assert events == []
    assert core.is_connected
    assert core.unexpected == 2


def test_a_response_releases_a_queued_request() -> None:
    core = connected_core(ProtocolSettings(limits=RequestLimits(outstanding=1)))
    first, second = request(1), request(3)
    assert core.send_request(first, 0.1) == first.frame
    assert core.send_request(second, 0.1) == b""
    core.receive(response_frame(1, SHARE), 0.2)
    assert core.output() == second.frame
    assert core.output() == b""


def test_a_slot_timeout_releases_a_queued_request() -> None:
    core = connected_core(ProtocolSettings(limits=RequestLimits(outstanding=1)))
    second = request(3)
    core.send_request(request(1), 0.1)
    core.send_request(second, 0.1)
    assert core.release_at(0.2) == pytest.approx(3.1)
    core.tick(3.05)
    assert core.output() == b""
    core.tick(3.15)
    assert core.output() == second.frame


def test_no_request_is_sent_before_the_handshake_is_complete() -> None:
    assert started_core().send_request(request(1), 0.1) is None


def test_one_pong_answers_a_ping() -> None:
    core = connected_core()
    assert core.pong() == b""
    core.receive(frame_of(p2p_pb2.Message(ping=p2p_pb2.Ping(uptime=99))), 0.1)
    assert core.pong_owed
    assert core.pong() == PONG_FRAME
    assert core.pong() == b""


def test_one_pong_answers_all_pings_of_a_stall() -> None:
    core = connected_core()
    core.receive(PING_FRAME, 0.1)
    core.receive(response_frame(1, SHARE) + PING_FRAME + PING_FRAME, 0.2)
    assert core.pong() == PONG_FRAME
    assert core.pong() == b""


def test_pings_are_answered_before_the_handshake() -> None:
    core = started_core()
    core.receive(PING_FRAME, 0.1)
    assert core.pong() == PONG_FRAME


def test_we_ping_every_twenty_seconds() -> None:
    core = connected_core()
    pings = []
    for now in range(1, 100):
        core.receive(PING_FRAME, now)
        core.tick(now)
        if core.output() == PING_FRAME:
            pings.append(now)
    assert pings == [20, 40, 60, 80]


def test_missing_pongs_are_tolerated_while_bytes_arrive() -> None:
    core = connected_core()
    for now in range(200):
        core.receive(b"\x00" if now % 4 else PING_FRAME[:1], now)
        assert core.tick(now) == []


def test_thirty_silent_seconds_end_the_connection() -> None:
    core = connected_core()
    for now in range(1, 30):
        assert core.tick(now) == []
    assert reason_of(core.tick(30)) is CloseReason.SILENT


def test_a_stall_of_this_process_is_not_silence_of_the_peer() -> None:
    core = connected_core()
    core.tick(1.0)
    assert core.tick(60.0) == []
    core.receive(PING_FRAME, 60.1)
    assert core.tick(60.2) == []
    for now in range(61, 90):
        assert core.tick(now) == []
    assert reason_of(core.tick(91.0)) is CloseReason.SILENT


def test_a_handshake_has_thirty_seconds() -> None:
    core = started_core()
    for now in range(1, 30):
        core.receive(PING_FRAME, now)
        assert core.tick(now) == []
    assert reason_of(core.tick(30)) is CloseReason.HANDSHAKE_TIMEOUT


def test_peer_lists_become_unverified_addresses() -> None:
    core = connected_core()
    claims = [node(1).claim("1.2.3.4"), node(2).claim("5.6.7.8", port=0), node(3).claim("9.9.9.9")]
    frame = frame_of(
        p2p_pb2.Message(peer_list=p2p_pb2.PeerList(claimed_ip_ports=claims)), compressed=True
    )
    (event,) = core.receive(frame, 0.1)
    assert isinstance(event, PeersGossiped)
    assert [claim.node_id for claim in event.addresses] == [
        node(n).certificate.node_id for n in (1, 3)
    ]
    assert [str(claim.ip) for claim in event.addresses] == ["1.2.3.4", "9.9.9.9"]
    assert all(claim.verify(UNIX_S) for claim in event.addresses)


def test_a_peer_without_a_single_byte_is_closed_after_thirty_seconds() -> None:
    core = started_core()
    assert core.tick(1.0) == []
    assert core.closed is None
    for now in range(2, 31):
        core.tick(float(now))
    assert core.closed is not None


def test_the_first_peer_list_completes_the_handshake_and_yields_addresses() -> None:
    core = started_core()
    peer_list = p2p_pb2.PeerList(claimed_ip_ports=[node(1).claim()])
    events = core.receive(handshake_frame() + frame_of(p2p_pb2.Message(peer_list=peer_list)), 0.1)
    assert [type(event) for event in events] == [PeerHandshake, PeersGossiped]


def test_a_peer_list_counts_up_to_a_thousand_entries() -> None:
    core = connected_core()
    body = encode_field(1, node(1).claim().SerializeToString()) * 1500
    (event,) = core.receive(
        encode_frame(encode_field(2, ZSTD.compress(encode_field(14, body)))), 0.1
    )
    assert isinstance(event, PeersGossiped)
    assert len(event.addresses) == 1000


def test_a_request_of_the_peer_is_refused_with_code_minus_two() -> None:
    core = connected_core()
    question = p2p_pb2.AppRequest(chain_id=CHAIN, request_id=8, deadline=10**9, app_bytes=b"\x00")
    assert core.receive(frame_of(p2p_pb2.Message(app_request=question), compressed=True), 0.1) == []
    (frame,) = FrameDecoder().feed(core.output())
    number, body = open_envelope(frame, ZSTD)
    refusal = p2p_pb2.AppError.FromString(body)
    assert (number, refusal.chain_id, refusal.request_id, refusal.error_code) == (34, CHAIN, 8, -2)


@pytest.mark.parametrize(
    "message",
    [
        p2p_pb2.Message(get_peer_list=p2p_pb2.GetPeerList(all_subnets=True)),
        p2p_pb2.Message(app_gossip=p2p_pb2.AppGossip(chain_id=CHAIN, app_bytes=b"\x00")),
        p2p_pb2.Message(pong=p2p_pb2.Pong()),
    ],
)
def test_messages_that_need_no_reply_are_ignored(message: p2p_pb2.Message) -> None:
    core = connected_core()
    assert core.receive(frame_of(message), 0.1) == []
    assert core.output() == core.pong() == b""
    assert core.is_connected


@pytest.mark.parametrize("number", [15, 23, 28, 36, 40, 1000])
def test_unknown_message_types_are_ignored(number: int) -> None:
    core = connected_core()
    assert core.receive(encode_frame(encode_field(number, b"whatever")), 0.1) == []
    assert (core.unexpected, core.undecodable) == (1, 0)
    assert core.is_connected


def test_undecodable_frames_are_counted_and_skipped() -> None:
    core = connected_core()
    core.send_request(request(1), 0.1)
    junk = encode_frame(b"") + encode_frame(b"\xff" * 30) + encode_frame(b"\x12\x03abc")
    assert responses_of(core.receive(junk + response_frame(1, SHARE), 0.2)) == [(1, SHARE, None)]
    assert core.undecodable == 3


def test_a_frame_above_two_mebibytes_ends_the_connection_at_its_length() -> None:
    core = connected_core()
    core.send_request(request(1), 0.1)
    events = core.receive(response_frame(1, SHARE) + (2 * 1024 * 1024 + 1).to_bytes(4, "big"), 0.2)
    assert responses_of(events) == [(1, SHARE, None)]
    assert reason_of(events) is CloseReason.FRAME_TOO_LONG


def test_a_long_legal_frame_is_skipped() -> None:
    core = connected_core()
    core.send_request(request(1), 0.1)
    long = encode_frame(encode_field(32, bytes(1024 * 1024)))
    for at in range(0, len(long), 65536):
        assert core.receive(long[at : at + 65536], 0.2) == []
    assert responses_of(core.receive(response_frame(1, SHARE), 0.3)) == [(1, SHARE, None)]


@pytest.mark.parametrize("declared", [True, False])
def test_zip_bombs_are_undecodable(declared: bool) -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=declared).compress(bytes(64 * 1024 * 1024))
    core = connected_core()
    core.send_request(request(1), 0.1)
    frames = encode_frame(encode_field(2, bomb)) + response_frame(1, SHARE)
    assert responses_of(core.receive(frames, 0.2)) == [(1, SHARE, None)]
    assert core.undecodable == 1


@pytest.mark.parametrize(
    ("frame", "least"),
    [
        pytest.param(encode_frame(b"junk!"), 20, id="garbage"),
        pytest.param(
            encode_frame(encode_field(2, ZSTD.compress(bytes(2 * 1024 * 1024)))), 1, id="bombs"
        ),
        pytest.param(
            encode_frame(encode_field(2, ZSTD.compress(encode_field(32, bytes(2_000_000))))),
            1,
            id="bulk",
        ),
        pytest.param(PING_FRAME, 3000, id="pings"),
        pytest.param(response_frame(7, SHARE), 3000, id="unasked answers"),
        pytest.param(
            frame_of(p2p_pb2.Message(app_request=p2p_pb2.AppRequest(request_id=1))),
            300,
            id="questions",
        ),
    ],
)
def test_a_flood_ends_the_connection(frame: bytes, least: int) -> None:
    core = connected_core()
    for count in range(5000):
        if reason_of(core.receive(frame, 1.0 + count * 1e-4)) is CloseReason.FLOOD:
            assert count >= least
            return
    pytest.fail("no flood was seen")


def test_addresses_cost_as_much_as_their_number() -> None:
    core = connected_core()
    for _ in range(3):
        core.receive(LONG_LIST_FRAME, 1.0)
    assert core.is_connected
    assert reason_of(core.receive(LONG_LIST_FRAME, 1.0)) is CloseReason.FLOOD


def test_long_messages_cost_as_much_as_their_bytes() -> None:
    core = connected_core()
    frame = response_frame(7, bytes(1_000_000))
    for _ in range(4):
        core.receive(frame, 1.0)
    assert core.is_connected
    assert reason_of(core.receive(frame, 1.0)) is CloseReason.FLOOD


def test_a_flood_of_unread_bytes_ends_the_connection() -> None:
    core = connected_core()
    length = (2 * 1024 * 1024).to_bytes(4, "big")
    chunk = bytes(65536)
    fed = 0
    while core.closed is None:
        core.receive(length, 1.0)
        for _ in range(32):
            core.receive(chunk, 1.0)
        fed += 32 * len(chunk)
    assert core.closed.reason is CloseReason.FLOOD
    assert 2 * 1024 * 1024 <= fed <= 8 * 1024 * 1024


def test_the_same_input_over_minutes_is_no_flood() -> None:
    core = connected_core()
    for second in range(600):
        core.receive(PING_FRAME * 200 + encode_frame(b"junk"), second)
    assert core.is_connected
