"""The events that services of the daemon report; the store adds those of signatures itself.

The name of an event that repeats has its hour or day, so that all daemons of a store together add
it once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from warpseal.ledger.params import DAY_S
from warpseal.messages.attestation import Attestation
from warpseal.store.event_rows import NewEvent, event_name
from warpseal.store.events import EventLog
from warpseal.store.values import Event, EventType
from warpseal.warp.ids import P_CHAIN, id_text
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.quorum_shortfall import QuorumShortfall, Verdict

if TYPE_CHECKING:
    # Only a daemon with forecasts loads them.
    from warpseal.validators.forecast.service import SubnetForecast

# Callers may send any number of messages that cannot be signed; the events of these must not
# displace all others.
MAX_HOURLY: Final = 1_000
HALT_NOTICE_S: Final = 7 * DAY_S
_HOUR_S: Final = 3_600
# Reasons of validators that were not missed, and of weight that is no validator's.
_OTHER_REASONS: Final = ("not_asked", "no_bls_key")


class EventRecorder:
    """Adds events and waits for no commit. An event while the store is down is lost.

    unix_clock: clock in Unix seconds.
    """

    def __init__(self, log: EventLog, unix_clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._unix_clock = unix_clock
        # The names of this hour, by type, so that repetitions do not reach the store.
        self._names: defaultdict[EventType, set[bytes]] = defaultdict(set)
        self._hour = 0

    def on_shortfall(self, message: UnsignedMessage, shortfall: QuorumShortfall) -> None:
        """Report the missing validators of a quorum, and the message if waiting is futile."""
        subnet_id, events = shortfall.signing_subnet_id, list[NewEvent]()
        if shortfall.verdict is Verdict.NEVER:
            data = {
                "signedWeight": str(shortfall.signed_weight),
                "requiredWeight": str(shortfall.required_weight),
                "totalWeight": str(shortfall.total_weight),
                "pChainHeight": str(shortfall.height),
                "counts": shortfall.counts,
            }
            events += self._create(
                EventType.QUORUM_IMPOSSIBLE,
                (message.id,),
                data,
                _HOUR_S,
                source_blockchain_id=id_text(message.source_chain_id),
                subnet_id=subnet_id,
                message_id=f"0x{message.id.hex()}",
            )
        for validator in shortfall.missing:
            if validator.reason not in _OTHER_REASONS:
                # The addresses of connections are for callers on this machine alone.
                missing = replace(validator, connections=UNSET)
                identity = (
                    subnet_id.encode(),
                    *(node_id.encode() for node_id in validator.node_ids),
                )
                events += self._create(
                    EventType.VALIDATOR_MISSING, identity, missing, _HOUR_S, subnet_id=subnet_id
                )
        self._log.add(events)

    def on_l1_signed(self, tx_id: bytes, attestation: Attestation, height: int) -> None:
        """Report that the message of an L1 transaction is signed.

        height: P-Chain height of the validator set.
        """
        subnet_id, validation_id = attestation.subnet_id, attestation.validation_id
        events = self._create(
            EventType.L1_TRANSACTION_SIGNED,
            (tx_id,),
            {
                "txHash": id_text(tx_id),
                "pChainHeight": str(height),
                **({} if validation_id is None else {"validationId": id_text(validation_id)}),
            },
            source_blockchain_id=id_text(P_CHAIN),
            destination_blockchain_id=id_text(attestation.manager_chain_id),
            subnet_id=UNSET if subnet_id is None else id_text(subnet_id),
            message_id=f"0x{attestation.message.id.hex()}",
        )
        self._log.add(events)

    def on_forecast(self, forecast: SubnetForecast) -> None:
        """Report a subnet whose quorum is impossible, or becomes so within seven days."""
        outlook = forecast.outlook
        halts_at = outlook.today.quorum_impossible_at_s
        if halts_at is None or halts_at > outlook.as_of_s + HALT_NOTICE_S:
            return
        weights = {
            "quorumImpossibleAt": halts_at,
            "activeWeight": str(outlook.active_weight),
            "requiredWeight": str(outlook.required_weight),
            "totalWeight": str(outlook.total_weight),
        }
        subnet_id = id_text(forecast.subnet_id)
        events = self._create(
            EventType.L1_HALTS_SOON, (forecast.subnet_id,), weights, DAY_S, subnet_id=subnet_id
        )
        self._log.add(events)

    def _create(
        self,
        kind: EventType,
        identity: tuple[bytes, ...],
        data: Any,
        period_s: int = 0,
        **ids: str | UnsetType,
    ) -> list[NewEvent]:
        """Return a new event, or none.

        period_s: the event may repeat after it; 0: it never repeats.
        """
        now = int(self._unix_clock())
        if self._hour != now // _HOUR_S:
            self._hour = now // _HOUR_S
            self._names.clear()
        names = self._names[kind]
        name = event_name(kind, *identity, b"%d" % (now // period_s if period_s else 0))
        if name in names or len(names) >= MAX_HOURLY or not self._log.is_up:
            return []
        names.add(name)
        return [NewEvent.of(name, Event(type=kind, time=now, data=data, **ids))]
