"""Checks of the daemon's host: its store, its disk, and the indexer's process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck, go_duration
from warpseal.ops.health.settings import HealthSettings

_GLOBAL: Final = frozenset({APPLICATION})


def database_check(error: Callable[[], str | None]) -> HealthCheck:
    """Return the check of the store, without a message. error: why the store is down, None if it is up."""
    return HealthCheck("database", lambda: CheckOutcome(error=error()), _GLOBAL)


def diskspace_check(folder: Path, settings: HealthSettings) -> HealthCheck:
    """Return the check of the disk of a folder, or of its nearest parent that exists.

    The message warns of little space; the check fails with hardly any. The daemon never stops for it.
    """
    warn, fail = settings.warn_disk_percent, settings.fail_disk_percent

    async def run() -> CheckOutcome:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        usage = await asyncio.to_thread(shutil.disk_usage, existing)
        percent = usage.free * 100 // usage.total
        message: dict[str, Any] = {"availableDiskBytes": usage.free, "availableDiskPercentage": percent}
        reason = f"remaining available disk space percentage ({percent}%) is below"
        if percent < fail:
            return CheckOutcome(message, f"{reason} minimum required available space percentage ({fail}%)")
        if percent < warn:
            message["warning"] = f"{reason} warning threshold available space percentage ({warn}%)"
        return CheckOutcome(message)

    return HealthCheck("diskspace", run, _GLOBAL)


def indexer_check(
    silence_s: Callable[[], float | None], settings: HealthSettings, stops: Callable[[], Sequence[str]] = tuple
) -> HealthCheck:
    """Return the check of the indexer's process; it fails if the process is silent for two rounds.

    stops: the chains that it stopped indexing, with height and reason; each is a failure as well.
    """
    allowed_s = 2 * settings.check_frequency_s

    def run() -> CheckOutcome:
        silent_s = silence_s()
        if silent_s is None:
            return CheckOutcome(error="nothing was heard of the indexer yet")
        message = {"timeSinceLastReport": go_duration(silent_s)}
        errors = list(stops())
        if silent_s > allowed_s:
            errors.insert(0, f"silent for {go_duration(silent_s)} > {go_duration(allowed_s)}")
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck("indexer", run, _GLOBAL)
