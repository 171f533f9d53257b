"""Every metric's name, labels and buckets. docs/metrics.md lists them all.

Start with `registry.Metrics`, which counts reported events and writes the page. `samples` declares
the series that are read from other packages at each scrape, `reference` the reference aggregator's.
"""
