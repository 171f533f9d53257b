"""Every behaviour does on the wire what its word says, and the grammar refuses what it does not
know.
"""

from __future__ import annotations

import pytest

from tests.simnet.sessions import Clock, Line, small_network
from tests.simnet.test_session import NETWORK, ask, evm_message, request
from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.pb import sdk_pb2 as sdk
from warpseal_simnet import frames
from warpseal_simnet.behaviours import (
    Behaviour,
    InvalidBehaviour,
    ListenMode,
    Refusal,
    ReplyKind,
    parse_behaviour,
)
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan, parse_rule


def behaving(words: str) -> tuple[SimulatedNetwork, Line]:
    network = small_network()
    network.set_behaviour(0, words)
    return network, Line(network).finish()


def share(network: SimulatedNetwork, line: Line) -> bytes:
    (response,) = ask(line, request(evm_message(network)))
    return sdk.SignatureResponse.FromString(response.app_response.app_bytes).signature


def signed_by(network: SimulatedNetwork, signature: bytes) -> list[int]:
    message = evm_message(network).unsigned.raw
    keys = [bls.parse_public_key(validator.bls_key) for validator in network.validators]
    return [index for index, key in enumerate(keys) if bls.verify(key, message, signature)]


def test_a_wrong_signature_is_a_valid_point_for_another_message() -> None:
    network, line = behaving("wrong")
    signature = share(network, line)
    assert bls.is_signature(signature)
    assert signed_by(network, signature) == []


def test_a_stolen_signature_is_another_validators() -> None:
    network, line = behaving("stolen")
    assert signed_by(network, share(network, line)) == [1]


def test_invalid_points_and_wrong_lengths_are_sent() -> None:
    network, line = behaving("notapoint")
    signature = share(network, line)
    assert len(signature) == 96
    assert not bls.is_signature(signature)
    network.set_behaviour(0, "short")
    assert len(share(network, line)) == 95
    network.set_behaviour(0, "long")
    assert len(share(network, line)) == 97


def test_garbage_and_empty_bodies_are_responses_to_the_request() -> None:
    network, line = behaving("garbage")
    (response,) = ask(line, request(evm_message(network), 5))
    assert response.app_response.request_id == 5
    assert response.app_response.app_bytes.startswith(b"\xff")
    network.set_behaviour(0, "empty")
    (response,) = ask(line, request(evm_message(network), 7))
    assert response.app_response.app_bytes == b""


def test_a_silent_validator_never_responds() -> None:
    network, line = behaving("silent")
    assert ask(line, request(evm_message(network))) == []


def test_a_slow_validator_answers_after_its_delay() -> None:
    network, line = behaving("slow=250ms")
    line.transport.timers.clear()
    assert ask(line, request(evm_message(network))) == []
    ((delay_s, _),) = line.transport.timers
    assert delay_s == 0.25
    line.transport.fire()
    assert line.transport.kinds() == ["app_response"]


def test_a_random_delay_stays_within_its_bounds() -> None:
    network, line = behaving("slow=10ms-20ms")
    line.transport.timers.clear()
    for number in range(1, 40, 2):
        line.send(request(evm_message(network), number))
    delays = [delay_s for delay_s, _ in line.transport.timers]
    assert all(0.01 <= delay_s <= 0.02 for delay_s in delays)
    assert len(set(delays)) > 1


def test_after_refuses_with_not_yet_until_the_time_has_passed() -> None:
    clock = Clock()
    network = small_network(clock)
    network.set_behaviour(0, "after=3s")
    line = Line(network).finish()
    (response,) = ask(line, request(evm_message(network), 1))
    assert response.app_error.error_code == 1
    clock.now += 2.9
    (response,) = ask(line, request(evm_message(network), 3))
    assert response.app_error.error_code == 1
    clock.now += 0.2
    assert signed_by(network, share(network, line)) == [0]


def test_a_refusal_has_its_code_and_text() -> None:
    network, line = behaving("refuse=6/not converted")
    (response,) = ask(line, request(evm_message(network)))
    assert (response.app_error.error_code, response.app_error.error_message) == (6, "not converted")
    network.set_behaviour(0, Behaviour(refusal=Refusal(-1, "")))
    (response,) = ask(line, request(evm_message(network)))
    assert response.app_error.error_code == -1


def test_responses_are_duplicated_or_followed_by_a_different_one() -> None:
    network, line = behaving("duplicate=3")
    responses = ask(line, request(evm_message(network)))
    assert len(responses) == 3
    assert responses[0] == responses[1] == responses[2]
    network.set_behaviour(0, "twice=wrong")
    first, second = ask(line, request(evm_message(network)))
    signatures = [
        sdk.SignatureResponse.FromString(response.app_response.app_bytes).signature
        for response in (first, second)
    ]
    assert [signed_by(network, signature) for signature in signatures] == [[0], []]
    network.set_behaviour(0, "wrong+twice=honest")
    assert len(ask(line, request(evm_message(network)))) == 2


def test_drop_and_truncated_close_the_connection() -> None:
    for word, some_bytes in (("drop", False), ("truncated", True)):
        network, line = behaving(word)
        line.send(request(evm_message(network)))
        assert line.transport.closed
        assert bool(line.transport.output) == some_bytes
        assert frames.FrameReader().feed(bytes(line.transport.output)) == []


def test_an_oversized_frame_announces_more_than_the_limit() -> None:
    network, line = behaving("oversized")
    line.send(request(evm_message(network)))
    with pytest.raises(frames.OversizedFrame):
        frames.FrameReader().feed(bytes(line.transport.output))


def test_a_bomb_is_small_and_inflates_beyond_the_limit() -> None:
    network, line = behaving("bomb")
    line.send(request(evm_message(network)))
    (body,) = frames.FrameReader().feed(bytes(line.transport.output))
    assert len(body) < 100_000
    with pytest.raises(frames.UndecodableMessage):
        frames.decode(body)


def test_replies_that_are_not_honest_are_counted_by_their_word() -> None:
    network, line = behaving("wrong+twice=garbage+slow=1s")
    lies = network.context.responder.lies
    assert not lies
    line.transport.timers.clear()
    assert ask(line, request(evm_message(network))) == []
    line.transport.fire()
    assert lies == {"wrong": 1, "twice=garbage": 1, "slow": 1}


def test_lost_pongs_are_not_sent() -> None:
    network, line = behaving("lost-pongs=1")
    line.send(p2p.Message(ping=p2p.Ping()))
    assert line.transport.kinds() == []
    network.set_behaviour(0, "")
    line.send(p2p.Message(ping=p2p.Ping()))
    assert line.transport.kinds() == ["pong"]


def test_a_flood_is_many_unparsable_frames_until_it_is_stopped() -> None:
    network = small_network()
    network.set_behaviour(0, "flood=1000")
    line = Line(network)
    line.transport.output.clear()
    line.transport.fire()
    assert len(frames.FrameReader().feed(bytes(line.transport.output))) >= 50
    network.set_behaviour(0, "")
    line.transport.fire()
    line.transport.output.clear()
    line.transport.fire()
    assert len(line.transport.output) < 20


def test_behaviour_words_combine_and_unknown_ones_are_refused() -> None:
    parsed = parse_behaviour("slow=2s+refuse=6/later+duplicate+mute+balance=5")
    assert parsed == Behaviour(
        delay_s=(2.0, 2.0),
        refusal=Refusal(6, "later"),
        copies=2,
        reach=ListenMode.MUTE,
        balance_navax=5,
    )
    assert parse_behaviour("") == Behaviour()
    assert parse_behaviour("twice").second is ReplyKind.WRONG
    for bad in ("sloow=2s", "slow=fast", "refuse=x", "twice=maybe", "after=", "weight=heavy"):
        with pytest.raises(InvalidBehaviour):
            parse_behaviour(bad)


def test_fixed_behaviour_fields_cannot_be_changed() -> None:
    network = SimulatedNetwork(
        Plan(validators=2, messages=0, rules=(parse_rule("0:closed+slow=1s"),))
    )
    with pytest.raises(InvalidBehaviour):
        network.set_behaviour(0, "closed")
    network.set_behaviour([0, 1], "silent")
    assert network.validators[0].behaviour == Behaviour(silent=True, reach=ListenMode.CLOSED)
    assert network.validators[1].behaviour == Behaviour(silent=True)
    assert network.network_id == NETWORK
