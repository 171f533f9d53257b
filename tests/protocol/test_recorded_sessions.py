"""The recorded sessions, replayed into the core in any chunks, give what was recorded."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.peers import NO_PEERS, ZSTD, random_chunks
from tests.protocol.recorded import NETWORK_ID, SESSIONS, Session
from warpseal import bls
from warpseal.pb import p2p_pb2, sdk_pb2
from warpseal.protocol.handshake import OwnHandshake, PeerHandshake
from warpseal.protocol.messages import decode_signature_response
from warpseal.protocol.peer import (
    Event,
    PeerProtocol,
    PeersGossiped,
    ProtocolSettings,
)
from warpseal.protocol.requests import PeerRequest, PeerResponse

OWN = OwnHandshake(NETWORK_ID, lambda message: b"", bls.generate_secret())


def replay(session: Session, rnd: random.Random | None = None) -> tuple[PeerProtocol, list[Event]]:
    """Feed what the node wrote: up to connected, then, after all requests were asked, the rest."""
    core = PeerProtocol(
        OWN, session.certificate, ProtocolSettings(), ZSTD, NO_PEERS, 0.0, session.handshake.my_time
    )
    core.output()
    events = feed(core, b"".join(session.received_frames[:2]), rnd)
    assert core.is_connected
    for app_request, frame in session.requests:
        request = PeerRequest(
            app_request.chain_id,
            app_request.request_id,
            frame,
            10.0,
            is_reask=False,
            on_response=lambda response: None,
            requested_at=0.1,
        )
        assert core.send_request(request, 0.1) == frame
    return core, events + feed(core, b"".join(session.received_frames[2:]), rnd)


def feed(core: PeerProtocol, data: bytes, rnd: random.Random | None) -> list[Event]:
    chunks = [data] if rnd is None else random_chunks(data, rnd)
    return [event for chunk in chunks for event in core.receive(chunk, 0.2)]


def outcome(event: Event) -> Any:
    """Return an event as something that compares."""
    if isinstance(event, PeerResponse):
        return event.request.request_id, event.body, event.error_code, event.error_message
    return event


def recorded_response(message: p2p_pb2.Message) -> tuple[int, bytes | int]:
    """Return (request id, share or error code) of a recorded response."""
    if message.HasField("app_error"):
        return message.app_error.request_id, message.app_error.error_code
    response = message.app_response
    return response.request_id, sdk_pb2.SignatureResponse.FromString(response.app_bytes).signature


def received_response(event: PeerResponse) -> tuple[int, object]:
    if event.body is None:
        return event.request.request_id, event.error_code
    return event.request.request_id, decode_signature_response(event.body)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda s: s.node_id.hex()[:8])
def test_a_session_connects_and_yields_the_recorded_shares_and_codes(session: Session) -> None:
    core, events = replay(session)
    assert isinstance(events[0], PeerHandshake)
    assert isinstance(events[1], PeersGossiped)
    assert len(events[1].addresses) == len(session.inner[1].peer_list.claimed_ip_ports)
    responses = [
        received_response(event) for event in events[2:] if isinstance(event, PeerResponse)
    ]
    assert responses == [recorded_response(message) for message in session.inner[2:]]
    assert (core.undecodable, core.unexpected) == (0, 0)
    assert not core.pong_owed


def test_the_sessions_hold_shares_and_refusals() -> None:
    responses = [
        recorded_response(message)[1] for session in SESSIONS for message in session.inner[2:]
    ]
    assert sum(isinstance(response, bytes) and len(response) == 96 for response in responses) == 22
    assert sorted({response for response in responses if isinstance(response, int)}) == [
        -1,
        1,
        2,
        5,
        11,
        12,
    ]


@settings(max_examples=40)
@given(st.sampled_from(SESSIONS), st.integers(0, 2**32 - 1))
def test_a_session_means_the_same_in_any_chunks(session: Session, seed: int) -> None:
    _, whole = replay(session)
    _, pieces = replay(session, random.Random(seed))
    assert [outcome(event) for event in pieces] == [outcome(event) for event in whole]
