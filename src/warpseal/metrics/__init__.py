"""Counts events, reads the samples that parts of the daemon declare, and writes the metrics page.

Start with `registry.Metrics`. `samples` says how a part declares its metrics, and `reference` has
the series of the reference aggregator. docs/metrics.md lists all metrics.
"""
