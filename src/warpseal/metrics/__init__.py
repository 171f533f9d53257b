"""Every metric's name, labels and buckets. docs/metrics.md lists them all."""

from warpseal.metrics.registry import CONTENT_TYPE, Metrics
from warpseal.metrics.validators import ValidatorSample, ValidatorSource

__all__ = ["CONTENT_TYPE", "Metrics", "ValidatorSample", "ValidatorSource"]
