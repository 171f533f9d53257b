"""What services report becomes an event once in its hour or day, within bounds, and without
addresses.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.fixtures import MESSAGE, shortfall
from tests.store.fixtures import message, sqlite_url, store_at
from warpseal.events.recorder import HALT_NOTICE_S, MAX_HOURLY, EventRecorder
from warpseal.messages.attestation import Attestation
from warpseal.store.store import Store
from warpseal.validators.forecast.outlook import Course, QuorumOutlook
from warpseal.validators.forecast.service import SubnetForecast, SubnetKind
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, ValidationID, id_text
from warpseal.warp.l1_messages import SubnetToL1Conversion
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner, Verdict

HOUR_S = 3_600
SUBNET = SubnetID(b"\x05" * 32)
MANAGER = ChainID(b"\x06" * 32)


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An open store."""
    async with store_at(sqlite_url(tmp_path), first_prune_s=3_600.0) as opened:
        yield opened


async def events_in(store: Store) -> list[dict[str, Any]]:
    """Return all events, after the writes before this call."""
    await store.database.write(lambda connection: None)
    return [json.loads(event.body) for event in await store.events.read(0, 10_000)]


async def test_a_missed_quorum_names_its_validators_without_their_addresses(store: Store) -> None:
    recorder = EventRecorder(store.events, Clock())
    connection = DisconnectedNode(
        node_id="NodeID-a", address="10.0.0.1:9651", disconnected_since="now"
    )
    missing = MissingSigner(
        node_ids=("NodeID-a",), weight="7", reason="not_connected", connections=(connection,)
    )
    unasked = MissingSigner(node_ids=("NodeID-b",), weight="7", reason="not_asked")
    recorder.on_shortfall(
        MESSAGE, msgspec.structs.replace(shortfall(Verdict.WAIT), missing=(missing, unasked))
    )
    (event,) = await events_in(store)
    assert event == {
        "type": "validator_missing",
        "time": 1_800_000_000,
        "subnetId": "subnet",
        "data": {"nodeIds": ["NodeID-a"], "weight": "7", "reason": "not_connected"},
    }


async def test_an_impossible_quorum_is_an_event_of_its_message(store: Store) -> None:
    recorder = EventRecorder(store.events, Clock())
    recorder.on_shortfall(MESSAGE, shortfall(Verdict.NEVER))
    impossible, missing = await events_in(store)
    assert impossible == {
        "type": "quorum_impossible",
        "time": 1_800_000_000,
        "sourceBlockchainId": id_text(MESSAGE.source_chain_id),
        "subnetId": "subnet",
        "messageId": f"0x{MESSAGE.id.hex()}",
        "data": {
            "signedWeight": "60",
            "requiredWeight": "67",
            "totalWeight": "100",
            "pChainHeight": "19",
            "counts": {"refused": 1},
        },
    }
    assert (missing["type"], missing["data"]["errorCode"]) == ("validator_missing", 6)


async def test_an_event_that_repeats_is_added_once_an_hour_by_all_daemons_of_a_store(
    store: Store,
) -> None:
    clock = Clock(float(500_000 * HOUR_S))
    daemons = [EventRecorder(store.events, clock), EventRecorder(store.events, clock)]
    for now in (0, 10, HOUR_S - 1, HOUR_S, HOUR_S + 1):
        clock.now = 500_000 * HOUR_S + now
        for recorder in daemons:
            recorder.on_shortfall(MESSAGE, shortfall(Verdict.NEVER))
    events = await events_in(store)
    assert [(event["type"], event["time"] - 500_000 * HOUR_S) for event in events] == [
        (kind, now) for now in (0, HOUR_S) for kind in ("quorum_impossible", "validator_missing")
    ]


async def test_callers_with_many_messages_displace_no_other_events(store: Store) -> None:
    recorder = EventRecorder(store.events, Clock())
    for number in range(MAX_HOURLY + 10):
        recorder.on_shortfall(
            message(number), msgspec.structs.replace(shortfall(Verdict.NEVER), missing=())
        )
    recorder.on_shortfall(message(0), shortfall(Verdict.WAIT))
    kinds = [event["type"] for event in await events_in(store)]
    assert (len(kinds), kinds[-1]) == (MAX_HOURLY + 1, "validator_missing")


async def test_a_signed_l1_transaction_is_one_event(store: Store) -> None:
    clock = Clock()
    recorder = EventRecorder(store.events, clock)
    payload = SubnetToL1Conversion(bytes(32))
    attestation = Attestation(
        payload, MESSAGE, MANAGER, b"", b"", SUBNET, ValidationID(b"\x08" * 32)
    )
    for _ in range(2):
        recorder.on_l1_signed(b"\x09" * 32, attestation, 19)
        clock.now += HOUR_S
    (event,) = await events_in(store)
    assert event == {
        "type": "l1_transaction_signed",
        "time": 1_800_000_000,
        "sourceBlockchainId": id_text(P_CHAIN),
        "destinationBlockchainId": id_text(MANAGER),
        "subnetId": id_text(SUBNET),
        "messageId": f"0x{MESSAGE.id.hex()}",
        "data": {
            "txHash": id_text(b"\x09" * 32),
            "pChainHeight": "19",
            "validationId": id_text(b"\x08" * 32),
        },
    }


async def test_an_l1_that_halts_within_a_week_is_an_event_each_day(store: Store) -> None:
    clock = Clock()
    recorder = EventRecorder(store.events, clock)

    def report(halts_in_s: int | None) -> None:
        as_of = int(clock.now)
        halts_at = None if halts_in_s is None else as_of + halts_in_s
        outlook = QuorumOutlook(as_of, 100, 67, 70, 70, (), Course((), halts_at, None), None)
        recorder.on_forecast(
            SubnetForecast(SUBNET, SubnetKind.L1, None, outlook, is_answering_known=True)
        )

    report(None)
    report(HALT_NOTICE_S + 1)
    assert await events_in(store) == []
    report(HALT_NOTICE_S)
    report(HALT_NOTICE_S - 5)
    clock.now += 86_400
    report(0)
    first, second = await events_in(store)
    assert first == {
        "type": "l1_halts_soon",
        "time": 1_800_000_000,
        "subnetId": id_text(SUBNET),
        "data": {
            "quorumImpossibleAt": 1_800_000_000 + HALT_NOTICE_S,
            "activeWeight": "70",
            "requiredWeight": "67",
            "totalWeight": "100",
        },
    }
    assert second["data"]["quorumImpossibleAt"] == 1_800_086_400


async def test_without_a_store_nothing_is_added() -> None:
    async with store_at("off") as store:
        recorder = EventRecorder(store.events)
        recorder.on_shortfall(MESSAGE, shortfall(Verdict.NEVER))
        assert not any(recorder._names.values())
