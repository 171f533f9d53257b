"""Checks of what the daemon stands on: its store, its disk, the indexer beside it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck, go_duration
from warpseal.ops.health.settings import HealthSettings

_GLOBAL: Final = frozenset({APPLICATION})


def database_check(fault: Callable[[], str | None]) -> HealthCheck:
    """Return the check of the store; `fault` says why it is down, None where it is not. It has no message."""
    return HealthCheck("database", lambda: CheckOutcome(error=fault()), _GLOBAL)


def diskspace_check(folder: Path, settings: HealthSettings) -> HealthCheck:
    """Return the check of the disk of a folder, or of the nearest one above it that exists.

    Little space is a warning in the message, hardly any a failure; the daemon never stops for it.
    """
    warn, fail = settings.warn_disk_percent, settings.fail_disk_percent

    async def look() -> CheckOutcome:
        usage = await asyncio.to_thread(shutil.disk_usage, _existing(folder))
        percent = usage.free * 100 // usage.total
        message: dict[str, Any] = {"availableDiskBytes": usage.free, "availableDiskPercentage": percent}
        told = f"remaining available disk space percentage ({percent}%) is below"
        if percent < fail:
            return CheckOutcome(message, f"{told} minimum required available space percentage ({fail}%)")
        if percent < warn:
            message["warning"] = f"{told} warning threshold available space percentage ({warn}%)"
        return CheckOutcome(message)

    return HealthCheck("diskspace", look, _GLOBAL)


def indexer_check(
    silence_s: Callable[[], float | None], settings: HealthSettings, stops: Callable[[], Sequence[str]] = tuple
) -> HealthCheck:
    """Return the check of the indexer's process; it fails when nothing was heard of it for two rounds.

    stops: which chains it stopped at, where and why; each is a failure, too.
    """
    allowed_s = 2 * settings.check_frequency_s

    def look() -> CheckOutcome:
        silent_s = silence_s()
        if silent_s is None:
            return CheckOutcome(error="nothing was heard of the indexer yet")
        message = {"timeSinceLastReport": go_duration(silent_s)}
        faults = list(stops())
        if silent_s > allowed_s:
            faults.insert(0, f"silent for {go_duration(silent_s)} > {go_duration(allowed_s)}")
        return CheckOutcome(message, "; ".join(faults) or None)

    return HealthCheck("indexer", look, _GLOBAL)


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if one.exists())
