"""Whatever a peer sends, the core raises nothing, holds little, and says why when it closes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.peers import (
    CHAIN,
    ZSTD,
    connected_core,
    frame_of,
    handshake_frame,
    node,
    random_chunks,
    request,
    response_frame,
    started_core,
)
from warpseal.pb import p2p_pb2
from warpseal.protocol.framing import encode_frame
from warpseal.protocol.handshake import CloseReason
from warpseal.protocol.messages import EMPTY_PEER_LIST_FRAME, PING_FRAME
from warpseal.protocol.peer import ConnectionClosed, Event, PeerProtocol, PeersGossiped
from warpseal.protocol.requests import PeerResponse
from warpseal.warp.protobuf import encode_field

SHARE = b"\x0a\x60" + bytes(96)
FRAMES = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=40).map(encode_frame),
    st.builds(encode_field, st.integers(1, 40), st.binary(max_size=40)).map(encode_frame),
    st.builds(encode_field, st.integers(1, 40), st.binary(max_size=40)).map(
        lambda member: encode_frame(encode_field(2, ZSTD.compress(member)))
    ),
    st.builds(response_frame, st.integers(0, 5), st.binary(max_size=100)),
    st.sampled_from(
        [
            PING_FRAME,
            EMPTY_PEER_LIST_FRAME,
            b"\xff\xff\xff\xff",
            b"\x00\x20\x00\x00",
            handshake_frame(),
        ]
    ),
)


def damaged(raw: bytes, seed: int) -> bytes:
    """Return `raw` with one to four bytes changed."""
    rnd, body = random.Random(seed), bytearray(raw)
    for _ in range(rnd.randint(1, 4)):
        body[rnd.randrange(len(body))] = rnd.randrange(256)
    return bytes(body)


def feed(core: PeerProtocol, data: bytes, rnd: random.Random) -> list[Event]:
    return [event for chunk in random_chunks(data, rnd) for event in core.receive(chunk, 1.0)]


@settings(max_examples=150)
@given(st.lists(FRAMES, max_size=12), st.booleans(), st.integers(0, 2**32 - 1))
def test_any_stream_yields_the_same_events_for_any_chunking(
    frames: list[bytes], connected: bool, seed: int
) -> None:
    data = b"".join(frames)
    cores = [connected_core() if connected else started_core() for _ in range(2)]
    for core in cores:
        for number in (1, 3):
            core.send_request(request(number), 0.5)
    whole, pieces = cores[0].receive(data, 1.0), feed(cores[1], data, random.Random(seed))
    assert list(map(repr, pieces)) == list(map(repr, whole))
    assert sum(isinstance(event, PeerResponse) for event in whole) <= 2
    for event in whole:
        if isinstance(event, ConnectionClosed):
            assert event.reason in CloseReason
            assert event is whole[-1]
    assert cores[0].pong() in (b"", encode_frame(bytes.fromhex("6200")))


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_a_damaged_handshake_closes_or_is_skipped_or_passes(seed: int) -> None:
    body = damaged(node().handshake().SerializeToString(), seed)
    core = started_core()
    events = core.receive(encode_frame(encode_field(13, body)) + EMPTY_PEER_LIST_FRAME, 1.0)
    assert core.is_connected or core.undecodable or isinstance(events[-1], ConnectionClosed)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_a_damaged_peer_list_yields_at_most_its_well_formed_entries(seed: int) -> None:
    peer_list = p2p_pb2.PeerList(claimed_ip_ports=[node(n).claim() for n in (1, 2)])
    core = connected_core()
    body = damaged(peer_list.SerializeToString(), seed)
    events = core.receive(encode_frame(encode_field(14, body)), 1.0)
    assert core.is_connected
    assert sum(len(event.addresses) for event in events if isinstance(event, PeersGossiped)) <= 2


@given(st.permutations([1, 3, 5, 7, 9]), st.integers(0, 2**32 - 1))
def test_responses_in_any_order_and_number_count_once(order: list[int], seed: int) -> None:
    rnd = random.Random(seed)
    core = connected_core()
    for number in order:
        core.send_request(request(number), 0.5)
    responses = [number for number in order for _ in range(rnd.randint(1, 3))]
    rnd.shuffle(responses)
    events = feed(core, b"".join(response_frame(number, SHARE) for number in responses), rnd)
    assert [e.request.request_id for e in events if isinstance(e, PeerResponse)] == list(
        dict.fromkeys(responses)
    )


@given(st.integers(0, 2**32 - 1))
def test_a_stream_cut_anywhere_yields_no_more_than_the_whole(seed: int) -> None:
    rnd = random.Random(seed)
    stream = (
        response_frame(1, SHARE)
        + PING_FRAME
        + frame_of(
            p2p_pb2.Message(app_error=p2p_pb2.AppError(chain_id=CHAIN, request_id=3, error_code=2))
        )
    )
    core = connected_core()
    for number in (1, 3):
        core.send_request(request(number), 0.5)
    cut = stream[: rnd.randrange(len(stream))]
    assert len(feed(core, cut, rnd)) <= 1
    assert core.is_connected
