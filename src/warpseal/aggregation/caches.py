"""The memory of the aggregation: shares and results under one limit of bytes."""

from __future__ import annotations

from typing import Final

from warpseal.aggregation.result_cache import ResultCache
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import ShareCache, SharedByteLimit
from warpseal.metrics.samples import CacheSample


class SignatureCaches:
    """The cache of shares and the cache of results."""

    def __init__(self, settings: AggregationSettings) -> None:
        self._limit = SharedByteLimit(settings.cache_bytes)
        # Shares are attached first, so they are evicted first: a result is worth more than its
        # shares.
        self.shares: Final = ShareCache(settings.signature_cache_size, self._limit)
        self.results: Final = ResultCache(
            self._limit, settings.cache_bytes, settings.below_buffer_ttl_s
        )

    def samples(self) -> tuple[CacheSample, ...]:
        """Return lookups and size of both caches."""
        shares, results = self.shares.lookups, self.results.lookups
        results_bytes = self.results.used_bytes
        shares_bytes = self._limit.used_bytes - results_bytes
        served = self.results.served_signatures
        return (
            CacheSample("shares", shares.hits, shares.misses, shares_bytes),
            CacheSample("answers", results.hits, results.misses, results_bytes, served),
        )
