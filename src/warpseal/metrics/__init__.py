"""Every metric's name, labels and buckets. docs/metrics.md lists them all."""

from warpseal.metrics.registry import CONTENT_TYPE, Metrics
from warpseal.metrics.samples import (
    CacheSample,
    FollowerSample,
    IndexSample,
    MetricSources,
    NetworkSample,
    StoreSample,
    SubnetSample,
    ValidatorSample,
)

__all__ = [
    "CONTENT_TYPE",
    "CacheSample",
    "FollowerSample",
    "IndexSample",
    "MetricSources",
    "Metrics",
    "NetworkSample",
    "StoreSample",
    "SubnetSample",
    "ValidatorSample",
]
