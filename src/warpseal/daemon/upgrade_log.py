"""Log lines about network upgrades that this version was not tested with, or that it may not reach
validators after.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from warpseal.ops.health.registry import HealthCheck

log = logging.getLogger(__name__)

_CHECK_S: Final = 5.0
_REPEAT_S: Final = 86_400.0


async def log_upgrades(check: HealthCheck) -> None:
    """Log each sentence of the check of upgrades as a warning, again after each day in which it
    holds.
    """
    loop = asyncio.get_running_loop()
    logged_at: dict[str, float] = {}
    while True:
        await asyncio.sleep(_CHECK_S)
        now, sentences = loop.time(), check.degraded() if check.degraded is not None else ()
        for sentence in sentences:
            if now - logged_at.get(sentence, float("-inf")) >= _REPEAT_S:
                logged_at[sentence] = now
                log.warning("network upgrade", extra={"reason": sentence})
