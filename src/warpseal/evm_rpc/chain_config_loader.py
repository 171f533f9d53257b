"""Loads a chain's configuration: from its genesis, the operator's upgrade file, and the network's upgrade times."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from warpseal.evm_rpc.chain_config import ChainConfig, NotSubnetEvm, chain_config
from warpseal.runtime.single_flight import SingleFlight

log = logging.getLogger(__name__)

_MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_RETRY_S: Final = 2.0

Genesis = Callable[[], Awaitable[bytes | None]]
"""Returns the genesis in the chain's CreateChainTx; None if no node returns it now."""
UpgradeTimes = Callable[[], Awaitable[Mapping[str, int] | None]]
"""Returns Unix seconds by upgrade; None if no node returns them now."""


class ChainConfigLoader:
    """The configuration of one chain, loaded on first use; the upgrade file is read again when it changes.

    Without an upgrade file there is no configuration: a chain's changes after its genesis are written only there.
    """

    def __init__(self, upgrade_file: Path | None, genesis: Genesis, upgrade_times: UpgradeTimes) -> None:
        self._upgrade_file = upgrade_file
        self._genesis = genesis
        self._upgrade_times = upgrade_times
        self._loaded: tuple[int, ChainConfig | None] | None = None
        self._retry_at = 0.0
        self._flight: SingleFlight[int, None] = SingleFlight()

    async def __call__(self) -> ChainConfig | None:
        """Return the configuration; None if it is unknown, or the chain does not run subnet-evm."""
        if self._upgrade_file is None:
            return None
        try:
            changed_ns = self._upgrade_file.stat().st_mtime_ns
        except OSError as error:
            self._warn(error.strerror or "cannot be read")
            return None
        if self._loaded is None or self._loaded[0] != changed_ns:
            await self._flight.run(changed_ns, partial(self._load, changed_ns))
        return self._loaded[1] if self._loaded is not None else None

    async def _load(self, changed_ns: int) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._retry_at:
            return
        self._retry_at = now + _RETRY_S
        genesis, times = await self._genesis(), await self._upgrade_times()
        if genesis is None or times is None or self._upgrade_file is None:
            return
        config: ChainConfig | None = None
        try:
            config = chain_config(genesis, _read(self._upgrade_file), times)
        except (NotSubnetEvm, OSError) as error:
            self._warn(str(error))
        self._loaded, self._retry_at = (changed_ns, config), 0.0

    def _warn(self, reason: str) -> None:
        log.warning("EVM chain configuration unavailable", extra={"upgrade_file": self._upgrade_file, "reason": reason})


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        read = file.read(_MAX_FILE_BYTES + 1)
    if len(read) > _MAX_FILE_BYTES:
        raise NotSubnetEvm(f"more than {_MAX_FILE_BYTES} bytes")
    return read
