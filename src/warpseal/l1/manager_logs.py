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

from warpseal.forwarding.evm.log_filter import SEND_WARP_MESSAGE, EvmLog, LogFilter, LogsRefused
from warpseal.l1.errors import ManagerLogsProgress
from warpseal.l1.interfaces import EvmLogReader
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
# A few megabytes for each manager.
_MAX_REGISTRATIONS: Final = 16_384
_MAX_PAYLOAD_BYTES: Final = 2_048
_FIRST_RANGE: Final = 2_000
_MAX_RANGE: Final = 50_000

_Manager = tuple[ChainID, bytes]


class _Scan:
    """The registrations of one manager in blocks `low` to `high`; the other blocks are not read
    yet.
    """

    def __init__(self) -> None:
        self.low: int | None = None
        self.high = -1
        self.range = _FIRST_RANGE
        self.registrations: LRUCache[ValidationID, bytes] = LRUCache(_MAX_REGISTRATIONS)

    def next_range(self, tip: int) -> tuple[int, int] | None:
        """Return the next blocks to read, both ends included; None if all of them are read.

        New blocks come first. Then older ones are read downwards, so that the blocks that were
        read stay one range.
        """
        if self.low is None:
            self.low, self.high = tip + 1, tip
        if self.high < tip:
            return self.high + 1, min(tip, self.high + self.range)
        if self.low > 0:
            return max(0, self.low - self.range), self.low - 1
        return None


class ManagerLogs:
    """Used from one event loop.

    chains: readers of the configured EVM chains.
    """

    def __init__(self, chains: Mapping[ChainID, EvmLogReader], settings: L1Settings) -> None:
        self._chains = chains
        self._settings = settings
        self._scans: LRUCache[_Manager, _Scan] = LRUCache(_MAX_MANAGERS)
        self._flights: SingleFlight[_Manager, None] = SingleFlight()

    def has_chain(self, chain_id: ChainID) -> bool:
        """Return whether a node of this chain is configured."""
        return chain_id in self._chains

    async def find(
        self, validation_id: ValidationID, chain_id: ChainID, manager_address: bytes
    ) -> RegistrationOrigin | None:
        """Return the registration, after reading more logs for a bounded time; None if the logs
        that were read lack it.
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
                    # A scan that has every old block still lacks the blocks since its last read.
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
        """Read one more range of blocks."""
        chain_id, address = manager
        chain = self._chains[chain_id]
        blocks = scan.next_range(await chain.block_number())
        if blocks is None or scan.low is None:
            return
        first, last = blocks
        topics = (SEND_WARP_MESSAGE, bytes(32 - _ADDRESS_BYTES) + address)
        try:
            logs = await chain.logs(LogFilter(first, last, WARP_PRECOMPILE, topics))
        except LogsRefused:
            if first == last:
                raise
            scan.range = (last - first + 1) // 2
            return
        for log in logs:
            registration = parse_registration_log(chain_id, log)
            if registration is None:
                continue
            payload = registration.encode()
            if len(payload) <= _MAX_PAYLOAD_BYTES:
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
