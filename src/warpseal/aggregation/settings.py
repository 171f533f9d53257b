"""Every default, unit and bound of the aggregation."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AggregationSettings:
    """What an operator may set about aggregations; times in seconds, shares of weight in percent.

    signature_cache_size: messages whose shares are kept.
    cache_bytes: bound of shares and finished answers together.
    buffer_wait_s: how long the buffer is awaited once the quorum is met.
    first_wave_percent: weight that is asked at once.
    always_ask_percent: whoever has this much weight is asked at once, too.
    next_wave_s: when the next validators are asked though nobody was lost.
    reask_s: pauses before a validator is asked again; the last one repeats.
    reask_jitter: by which part these pauses vary.
    probes: how many validators are asked again while nobody has signed.
    reach_poll_s: how often a round looks again at validators that are not connected.
    suspect_s: how long a key is distrusted after a bad share.
    missed_buffer_s: how long an answer without its buffer serves the same quorum and buffer.
    empty_set_retry_s: how often an empty set at the proposed height is asked for again.
    """

    signature_cache_size: int = 1_048_576
    cache_bytes: int = 256 * MEBIBYTE
    default_timeout_s: float = 15.0
    max_timeout_s: float = 55.0
    buffer_wait_s: float = 2.0

    first_wave_percent: int = 95
    always_ask_percent: int = 1
    next_wave_s: float = 1.0
    reask_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    reask_jitter: float = 0.1
    probes: int = 8
    reachability_poll_s: float = 0.25
    suspect_s: float = 600.0
    below_buffer_ttl_s: float = 30.0
    empty_set_retry_s: float = 1.0
