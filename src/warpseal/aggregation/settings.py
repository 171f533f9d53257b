"""Settings of signature aggregation."""

from __future__ import annotations

from typing import Final

from warpseal.aggregation.errors import InvalidTimeout
from warpseal.runtime.settings import HOUR_S, MEBIBYTE, Group, Settings, integer, seconds, setting

_MIN_TIMEOUT_S: Final = 0.001


class AggregationSettings(Settings, frozen=True):
    """Times in seconds, shares of weight in percent.

    first_wave_percent: weight that is asked at once.
    always_ask_percent: validators with at least this much weight are asked at once.
    next_wave_s: delay after which the next validators are asked although none was lost.
    reask_s: delays before a validator is asked again; the last one repeats.
    reask_jitter: fraction by which these delays vary.
    probes: number of validators that are asked again while none has signed.
    below_buffer_ttl_s: lifetime of a result below its buffer, for requests of the same quorum and
        buffer.
    empty_set_retry_s: interval at which an empty set at the proposed height is fetched again.
    """

    signature_cache_size: int = setting(
        1_048_576,
        "signature-cache-size",
        integer(1, 10**9),
        "messages in the cache of signature shares",
        group=Group.LIMITS,
        is_reference=True,
    )
    cache_bytes: int = setting(
        256 * MEBIBYTE,
        "signature-cache-bytes",
        integer(MEBIBYTE, 10**12),
        "memory for signature shares and results, bytes",
        group=Group.LIMITS,
    )
    default_timeout_s: float = setting(
        15.0,
        "request-timeout-seconds",
        seconds(0.1, HOUR_S),
        "timeout of a request that names none, seconds",
        "SECONDS",
        group=Group.LIMITS,
    )
    max_timeout_s: float = setting(
        55.0,
        "max-request-timeout-seconds",
        seconds(0.1, HOUR_S),
        "longest timeout of a request, seconds",
        "SECONDS",
        group=Group.LIMITS,
    )
    buffer_wait_s: float = 2.0
    first_wave_percent: int = 95
    always_ask_percent: int = 1
    next_wave_s: float = 1.0
    reask_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    reask_jitter: float = 0.1
    probes: int = 8
    below_buffer_ttl_s: float = 30.0
    empty_set_retry_s: float = 1.0

    def timeout_s(self, requested_s: float | None) -> float:
        """Return the timeout of a request; None: it names none. Raises InvalidTimeout."""
        timeout_s = self.default_timeout_s if requested_s is None else requested_s
        if not 0 < timeout_s <= self.max_timeout_s:
            reason = f"{timeout_s:g} is not within 0..{self.max_timeout_s:g} seconds"
            raise InvalidTimeout("timeoutSeconds", reason)
        return timeout_s

    def remaining_s(self, deadline: float, now: float) -> float:
        """Return the timeout of a request that has to end at a deadline; it may have passed.

        At most `max_timeout_s`, because `now + 55 - now` may be more than 55 for floats.
        """
        return min(max(_MIN_TIMEOUT_S, deadline - now), self.max_timeout_s)
