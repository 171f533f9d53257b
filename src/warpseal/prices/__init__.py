"""Daily prices of AVAX from a CSV file or a JSON document on the web. Start with `sources.py`."""
