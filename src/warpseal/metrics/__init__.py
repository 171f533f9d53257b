"""Every metric's name, labels and buckets. docs/metrics.md lists them all."""

from warpseal.metrics.registry import CONTENT_TYPE, Metrics
from warpseal.metrics.samples import CacheSample, NetworkSample, Sources, SubnetSample, ValidatorSample

__all__ = [
    "CONTENT_TYPE",
    "CacheSample",
    "Metrics",
    "NetworkSample",
    "Sources",
    "SubnetSample",
    "ValidatorSample",
]
