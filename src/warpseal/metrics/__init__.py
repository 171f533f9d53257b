"""Every metric's name, labels and buckets. docs/metrics.md lists them all."""

from warpseal.metrics.registry import CONTENT_TYPE, Metrics
from warpseal.metrics.samples import (
    CacheSample,
    FollowerSample,
    IndexSample,
    NetworkSample,
    Sources,
    StoreSample,
    SubnetSample,
    ValidatorSample,
)

__all__ = [
    "CONTENT_TYPE",
    "CacheSample",
    "FollowerSample",
    "IndexSample",
    "Metrics",
    "NetworkSample",
    "Sources",
    "StoreSample",
    "SubnetSample",
    "ValidatorSample",
]
