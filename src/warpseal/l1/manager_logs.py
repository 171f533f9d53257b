"""Finds registrations in the logs of the managers' chains, which hold the Warp messages of the
managers.

Source of truth: avalanchego `graft/subnet-evm/precompile/contracts/warp`, ACP-77. Only messages of
the manager that the transaction names count, newest first. A registration proves itself, since its
hash is the validation's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from cachetools import LRUCache
from msgspec import Struct, field

from warpseal.forwarding.evm.log_filter import SEND_WARP_MESSAGE, EvmLog, LogFilter, LogsRefused
from warpseal.l1.errors import ManagerLogsProgress
from warpseal.l1.ports import EvmLogReader
from warpseal.l1.settings import L1Settings
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.values import RegistrationOrigin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, ValidationID
from warpseal.warp.l1_messages import RegisterL1Validator
from warpseal.warp.message import WARP_PRECOMPILE, AddressedCall, UnsignedMessage, unwrap_log_data

_ADDRESS_BYTES: Final = 20
_MAX_MANAGERS: Final = 256
# Per manager: a few megabytes.
_MAX_REGISTRATIONS: Final = 16_384
_MAX_PAYLOAD_BYTES: Final = 2_048
_FIRST_RANGE: Final = 2_000
_MAX_RANGE: Final = 50_000

_Manager = tuple[ChainID, bytes]


class _Scan(Struct):
    """The registrations of one manager in blocks `low` to `high`; the other blocks are not read
    yet.
    """

    low: int | None = None
    high: int = -1
    range: int = _FIRST_RANGE
    registrations: LRUCache[ValidationID, bytes] = field(
        default_factory=lambda: LRUCache(_MAX_REGISTRATIONS)
    )


class ManagerLogs(Struct, eq=False):
    """Used from one event loop. chains: the configured EVM chains."""

    _chains: Mapping[ChainID, EvmLogReader]
    _settings: L1Settings
    _scans: LRUCache[_Manager, _Scan] = field(default_factory=lambda: LRUCache(_MAX_MANAGERS))
    _flights: SingleFlight[_Manager, None] = field(default_factory=SingleFlight)

    def has_chain(self, chain_id: ChainID) -> bool:
        """Return whether a node of this chain is configured."""
        return chain_id in self._chains

    async def find(
        self, validation_id: ValidationID, chain_id: ChainID, manager_address: bytes
    ) -> RegistrationOrigin | None:
        """Return the registration, reading more logs for a bounded time; None: not in the logs read
        so far.
        """
        if len(manager_address) != _ADDRESS_BYTES or chain_id not in self._chains:
            return None
        manager = (chain_id, manager_address)
        scan = self._scans.setdefault(manager, _Scan())
        if validation_id not in scan.registrations:
            try:
                async with asyncio.timeout(self._settings.logs_timeout_s):
                    while validation_id not in scan.registrations and scan.low != 0:
                        await self._flights.run(manager, lambda: self._read_range(manager, scan))
                    if validation_id not in scan.registrations:
                        await self._flights.run(manager, lambda: self._read_range(manager, scan))
            except (TimeoutError, NodeUnavailable, LogsRefused):
                pass
        payload = scan.registrations.get(validation_id)
        return RegistrationOrigin(payload) if payload is not None else None

    def progress(self, chain_id: ChainID, manager_address: bytes) -> ManagerLogsProgress:
        """Return the range of blocks that were read."""
        scan = self._scans.get((chain_id, manager_address))
        if scan is None or scan.low is None:
            return ManagerLogsProgress(configured=chain_id in self._chains)
        return ManagerLogsProgress(
            configured=True, from_block=str(scan.low), to_block=str(scan.high)
        )

    async def _read_range(self, manager: _Manager, scan: _Scan) -> None:
        """Read one more range: the new blocks first, then older ones."""
        tip = await self._chains[manager[0]].block_number()
        if scan.low is None:
            scan.low, scan.high = tip + 1, tip
        if scan.high < tip:
            first, last = scan.high + 1, min(tip, scan.high + scan.range)
        elif scan.low > 0:
            first, last = max(0, scan.low - scan.range), scan.low - 1
        else:
            return
        topics = (SEND_WARP_MESSAGE, bytes(32 - _ADDRESS_BYTES) + manager[1])
        try:
            logs = await self._chains[manager[0]].logs(
                LogFilter(first, last, WARP_PRECOMPILE, topics)
            )
        except LogsRefused:
            if first == last:
                raise
            scan.range = max(1, (last - first + 1) // 2)
            return
        for log in logs:
            registration = parse_registration_log(manager[0], log)
            if (
                registration is not None
                and len(payload := registration.encode()) <= _MAX_PAYLOAD_BYTES
            ):
                scan.registrations[registration.validation_id] = payload
        scan.low, scan.high = min(scan.low, first), max(scan.high, last)
        scan.range = min(_MAX_RANGE, scan.range * 2)


def parse_registration_log(chain_id: ChainID, log: EvmLog) -> RegisterL1Validator | None:
    """Return the registration in a SendWarpMessage log of this chain, or None."""
    raw = unwrap_log_data(log.data)
    try:
        message = UnsignedMessage.parse(raw if raw is not None else log.data)
        if message.source_chain_id != chain_id:
            return None
        return RegisterL1Validator.parse(AddressedCall.parse(message.payload).payload)
    except MalformedMessage:
        return None
