"""The use case: from a request to a signed message that was verified."""

from __future__ import annotations

from warpseal.aggregation.request import Aggregation, AggregationRequest

__all__ = ["Aggregation", "AggregationRequest"]
